"""A rank of a job up to its first step: its members, its share of the cores, and the plan that the first rank makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ganherd.comm.base import Communicator
from ganherd.comm.heartbeat import Heartbeat
from ganherd.errors import UserError
from ganherd.herd import autotune
from ganherd.herd.engine import Plan, place
from ganherd.recipe import Engine, Recipe
from ganherd.run import finish
from ganherd.run.assemble import Assembly, put_together
from ganherd.run.cut import Cut, cut
from ganherd.run.folder import RunFolder
from ganherd.run.ranks import Ranks, cores, together
from ganherd.run.stop import StopRequest


def ready(
    recipe: Recipe,
    job: Communicator,
    trust_code: bool,
    begins: bool,
    accept: Callable[[Cut], None] = lambda made: None,
    part: range | None = None,
) -> tuple[Ranks, Assembly | None]:
    """The rank and its herd; none for a spare. `accept`: refuses data that the run was not started with. `part`: the only
    members of the recipe's that are trained here.

    All ranks cut all of the data, which is cheap, and then know where every member lives.
    """

    def accepted() -> Cut:
        made = cut(recipe, begins)
        accept(made)
        return made if part is None else made.only(part)

    def assembled() -> Assembly | None:
        if not ranks.own:
            return None
        made_of = put_together(made, ranks, trust_code, begins)
        finish.member_weights(made_of.recipe, made_of)  # better said now than after the training
        return made_of

    made = together(job, accepted)
    size = len(made.seats)
    ranks = Ranks.alone(size) if job.size == 1 else Ranks.over(job, made.recipe, size // made.recipe.herd.seeds)
    return ranks, together(job, assembled)


def planned(assembly: Assembly, settings: Engine, say: Callable[[str], None]) -> Plan:
    """The plan that the first rank finds to be the fastest for its members; all go by it."""
    ranks = assembly.ranks
    if ranks.everyone.size == 1:
        return autotune.choose(assembly.herd, settings, say)
    torch.set_num_threads(min(torch.get_num_threads(), cores(ranks.everyone)))
    plan = together(ranks.everyone, lambda: autotune.choose(assembly.herd, settings, say) if ranks.is_first else None)
    return Plan(**ranks.decided(vars(plan) if plan else {}))


def settle_in(assembly: Assembly, plan: Plan) -> Plan:
    """Threads and state as the plan has them; what the rank makes of the plan, on its own device and with its own members."""
    ranks, herd = assembly.ranks, assembly.herd
    if ranks.everyone.size > 1:
        whole = plan.chunk >= len(ranks.placement.ranks[0])  # all members of the first rank at once
        threads = min(plan.threads, cores(ranks.everyone))
        chunk = max(plan.chunk, herd.size) if whole else plan.chunk
        plan = replace(plan, chunk=chunk, threads=threads, device=str(herd.device))
    torch.set_num_threads(plan.threads)
    place(herd, plan)
    return plan


def shared(ranks: Ranks, folder: RunFolder) -> RunFolder:
    """The first rank's folder, as every rank sees it; spares hear of it too."""
    if ranks.is_alone:
        return folder
    told = ranks.job.broadcast(str(folder.path.absolute()).encode() if ranks.is_first else None)

    def seen() -> RunFolder:
        there = folder if ranks.is_first else RunFolder(told.decode())
        if not there.info_path.is_file():
            raise UserError(f"the run folder {there.path} is not there: it must lie where all ranks see it.")
        return there

    return together(ranks.everyone, seen)


def beating(ranks: Ranks, path: Path) -> Heartbeat:
    """This rank's signs of life, in the folder of the run."""
    heart = Heartbeat(path / "ranks", ranks.job.rank, ranks.job.size, ranks.own, ranks.comm or ranks.job)
    if ranks.own:
        heart.note("processing")
    return heart


def stand_by(ranks: Ranks) -> Path:
    """A spare waits until the others have come to an end, and says so; the path of the run."""
    path = Path(ranks.job.broadcast(None).decode())
    with StopRequest(), beating(ranks, path):
        ranks.wait()
    return path
