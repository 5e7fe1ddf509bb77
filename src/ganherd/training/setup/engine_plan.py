"""Plan the engine of each rank.

The first rank chooses it (`herd.engine.autotune`); each rank adapts it to its members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ganherd.comm.ranks import cores_per_rank, run_on_all_ranks
from ganherd.herd.engine import autotune
from ganherd.herd.engine.engines import CompileReport, Plan, no_report, place_state
from ganherd.herd.lowering import ops_onednn
from ganherd.recipe.sections.train_config import EngineConfig
from ganherd.training.setup.assemble import PreparedHerd


def choose_plan(
    prepared: PreparedHerd, settings: EngineConfig, log: Callable[[str], None], report: CompileReport = no_report
) -> Plan:
    """Return the plan that is fastest for the members of the first rank: engine, chunk (members at once) and threads.

    All ranks call this and get the same plan.

    Args:
        report: Called with the progress if kernels are compiled.
    """
    ranks = prepared.ranks
    if ranks.member_comm.world_size == 1:
        return autotune.choose(prepared.herd, settings, log, report)
    torch.set_num_threads(min(torch.get_num_threads(), cores_per_rank(ranks.member_comm)))
    plan = run_on_all_ranks(
        ranks.member_comm, lambda: autotune.choose(prepared.herd, settings, log, report) if ranks.is_first else None
    )
    plan = Plan(**ranks.broadcast(vars(plan) if plan else {}))
    if plan.operations == "cpu-onednn" and not all(ranks.all_gather_json(ops_onednn.is_available())):
        plan = replace(plan, operations="cpu")
    return plan


def plan_of_rank(prepared: PreparedHerd, plan: Plan) -> Plan:
    """Return the plan of the first rank, adapted to the device, the cores and the number of members of this rank."""
    ranks, herd = prepared.ranks, prepared.herd
    if ranks.member_comm.world_size == 1:
        return plan
    whole = plan.chunk >= len(ranks.placement.ranks[0])  # all members of the first rank at once
    threads = min(plan.threads, cores_per_rank(ranks.member_comm))
    chunk = max(plan.chunk, herd.num_members) if whole else plan.chunk
    return replace(plan, chunk=chunk, threads=threads, device=str(herd.device))


def apply_plan(prepared: PreparedHerd, plan: Plan) -> Plan:
    """Adapt the first rank's plan to this rank, put it into effect and return it.

    This sets the number of threads, and moves the herd's state to the device or, if it does not fit there, to the host.
    """
    plan = plan_of_rank(prepared, plan)
    torch.set_num_threads(plan.threads)
    place_state(prepared.herd, plan)
    return plan
