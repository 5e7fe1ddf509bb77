"""Give faster ranks more members: each rank trains for a moment, and members are divided by the measured speeds."""

from __future__ import annotations

import torch

from ganherd.comm.placement import weights
from ganherd.comm.ranks import Ranks, cores_per_rank
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engines import measure_rate
from ganherd.runs.models import RanksRecord
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.engine_plan import choose_plan, plan_of_rank

_MOMENT = 0.5  # seconds


def balanced(ranks: Ranks, assembly: PreparedHerd | None) -> list[float] | None:
    """Return how fast each rank of the job is with its members; None: all alike, or there is nothing to divide.

    Called by all ranks. Nothing is measured if all ranks are of one kind, or if some are spares: then each of the others has as
    few members as possible. The members are not changed.
    """
    if ranks.job is not ranks.comm or assembly is None or ranks.job.world_size == 1:
        return None
    kinds = ranks.all_gather_json(kind(assembly))
    if len(set(kinds)) == 1:
        return None
    return weights(ranks.all_gather_json(measured(assembly)), kinds)


def measured(assembly: PreparedHerd) -> float:
    """Return the member-steps per second of this rank; all ranks measure at the same time, as they will train."""
    set_precision(assembly.recipe)
    plan = plan_of_rank(assembly, choose_plan(assembly, assembly.recipe.engine, lambda text: None))
    return measure_rate(assembly.herd, plan, _MOMENT)


def kind(assembly: PreparedHerd) -> str:
    """Return a description that ranks of the same speed have in common."""
    job, device = assembly.ranks.job, assembly.herd.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{job.hosts[job.rank]}, {name}, {cores_per_rank(job)} cores"


def known(before: RanksRecord | None, hosts: tuple[str, ...]) -> tuple[bool, list[float] | None]:
    """Return whether run.json says that the run was placed on these hosts before, and with which weights.

    >>> ranks = {"communicator": "mpi", "hosts": ["a", "b"], "members": [[0, 1], [2]]}
    >>> known(RanksRecord.parse(ranks | {"weights": [2.0, 1.0]}), ("a", "b"))
    (True, [2.0, 1.0])
    >>> known(RanksRecord.parse(ranks), ("a", "b")), known(None, ("a", "c"))
    ((True, None), (False, None))
    """
    if before is None or before.hosts != list(hosts):
        return False, None
    if before.weights is None:
        return True, None
    return (True, before.weights) if len(before.weights) == len(hosts) else (False, None)
