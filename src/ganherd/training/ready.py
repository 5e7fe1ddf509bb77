"""A rank of a job up to its first step: its members, its share of the cores, and the plan that the first rank makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ganherd.comm.communicator import Communicator
from ganherd.comm.liveness import silence
from ganherd.comm.liveness.heartbeat import Heartbeat
from ganherd.comm.liveness.machine import machine
from ganherd.comm.ranks import Ranks, cores_per_rank, run_on_all_ranks
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import Plan, place
from ganherd.recipe.schema import EngineConfig, Recipe
from ganherd.runs.folder import RunFolder
from ganherd.training import finish
from ganherd.training.ranks import spares
from ganherd.training.ranks.recovery import Recovery, announced
from ganherd.training.setup import build_strategy
from ganherd.training.setup.assemble import PreparedHerd, put_together
from ganherd.training.setup.member_data import MemberData, cut
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


def ready(
    recipe: Recipe,
    job: Communicator,
    trust_code: bool,
    begins: bool,
    accept: Callable[[MemberData], None] = lambda made: None,
    part: range | None = None,
    before: Any = None,
) -> tuple[Ranks, PreparedHerd | None]:
    """The rank and its herd; none for a spare. `accept`: refuses data that the run was not started with. `part`: the only
    members of the recipe's that are trained here. `before`: what run.json says about the ranks of a run that goes on.

    All ranks cut all of the data, which is cheap, and then know where every member lives. Where they turn out to be of
    unlike speed, members are handed out anew; a run that goes on on the same hosts keeps what was found there.
    """
    from ganherd.training.ranks import balance

    def accepted() -> MemberData:
        made = cut(recipe, begins)
        accept(made)
        return made if part is None else made.only(part)

    def assembled() -> PreparedHerd | None:
        if not ranks.local_members:
            return None
        made_of = put_together(made, ranks, trust_code, begins)
        finish.member_weights(made_of.recipe, made_of)  # better said now than after the training
        build_strategy.refuse_impossible(made_of)
        return made_of

    made = run_on_all_ranks(job, accepted)
    size = len(made.seats)
    if job.world_size == 1:
        ranks = Ranks.single_process(size)
        return ranks, assembled()
    members = size // made.recipe.herd.seeds
    is_known, weights = balance.known(before, job.hosts) if made.recipe.engine.balance else (True, None)
    ranks = Ranks.distribute(job, made.recipe, members, weights)
    assembly = run_on_all_ranks(job, assembled)
    if not is_known and (weights := balance.balanced(ranks, assembly)) is not None:
        del assembly  # before there are two
        ranks = Ranks.distribute(job, made.recipe, members, weights)
        assembly = run_on_all_ranks(job, assembled)
    return ranks, assembly


def planned(assembly: PreparedHerd, settings: EngineConfig, say: Callable[[str], None]) -> Plan:
    """The plan that the first rank finds to be the fastest for its members; all go by it."""
    ranks = assembly.ranks
    if ranks.member_comm.world_size == 1:
        return autotune.choose(assembly.herd, settings, say)
    torch.set_num_threads(min(torch.get_num_threads(), cores_per_rank(ranks.member_comm)))
    plan = run_on_all_ranks(
        ranks.member_comm, lambda: autotune.choose(assembly.herd, settings, say) if ranks.is_first else None
    )
    return Plan(**ranks.broadcast(vars(plan) if plan else {}))


def settled(assembly: PreparedHerd, plan: Plan) -> Plan:
    """What the rank makes of the plan, on its own device and with its own members."""
    ranks, herd = assembly.ranks, assembly.herd
    if ranks.member_comm.world_size == 1:
        return plan
    whole = plan.chunk >= len(ranks.placement.ranks[0])  # all members of the first rank at once
    threads = min(plan.threads, cores_per_rank(ranks.member_comm))
    chunk = max(plan.chunk, herd.size) if whole else plan.chunk
    return replace(plan, chunk=chunk, threads=threads, device=str(herd.device))


def settle_in(assembly: PreparedHerd, plan: Plan) -> Plan:
    """Threads and state as the rank's plan has them, which is answered."""
    plan = settled(assembly, plan)
    torch.set_num_threads(plan.threads)
    place(assembly.herd, plan)
    return plan


def shared(ranks: Ranks, folder: RunFolder, rescue: Recovery) -> RunFolder:
    """The first rank's folder, as every rank sees it; spares hear of it too."""
    if ranks.is_single_process:
        return folder
    if ranks.is_first:
        spares.forget(folder.path)
    told = rescue.found(ranks.job.broadcast(announced(folder) if ranks.is_first else None))

    def seen() -> RunFolder:
        there = folder if ranks.is_first else RunFolder(told)
        if not there.info_path.is_file():
            raise UserError(f"the run folder {there.path} is not there: it must lie where all ranks see it.")
        return there

    return run_on_all_ranks(ranks.member_comm, seen)


def beating(ranks: Ranks, path: Path, trainer: Trainer | None = None) -> Heartbeat:
    """This rank's signs of life, in the folder of the run; the first one, which has a trainer, tells who else gives none."""
    heart = Heartbeat(
        path / "ranks", ranks.job.rank, ranks.job.world_size, ranks.local_members, ranks.comm or ranks.job
    )
    heart.note("processing" if ranks.local_members else None, **machine())
    if trainer is not None and ranks.is_first:

        def tell(event: str, facts: dict[str, Any]) -> None:
            trainer.event(event, **facts)
            trainer.progress.say(silence.describe(event, facts))

        heart.listener = silence.MissingRanks(path / "ranks", ranks.job.rank, ranks.job.world_size, tell).look
    return heart


def stand_by(ranks: Ranks, rescue: Recovery) -> Path:
    """A spare waits until the others have come to an end, and says so; the path of the run."""
    path = rescue.found(ranks.job.broadcast(None))
    with StopRequest(), spares.passing_on(path), beating(ranks, path):
        ranks.wait()
    return path
