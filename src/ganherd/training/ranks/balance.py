"""Give faster ranks more members: each rank trains for a moment, and members are divided by the measured speeds."""

from __future__ import annotations

import torch

from ganherd.comm.placement import weights
from ganherd.comm.ranks import Ranks, cores_per_rank
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engine_trials import measure_rate
from ganherd.runs.models import RanksRecord
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.engine_plan import choose_plan, plan_of_rank

_MOMENT = 0.5  # seconds


def balanced(ranks: Ranks, prepared: PreparedHerd | None) -> list[float] | None:
    """Measure the speed of each rank of the job, and return the speeds as weights by which members are divided.

    Called by all ranks. The members are not changed.

    Returns:
        None if members are to be divided equally: there is only one rank, all ranks have the same kind of device, their
        speeds are about equal, or some ranks are spares (without members), so that the others have as few as possible
        anyway.
    """
    if ranks.job is not ranks.comm or prepared is None or ranks.job.world_size == 1:
        return None
    kinds = ranks.all_gather_json(kind(prepared))
    if len(set(kinds)) == 1:
        return None
    return weights(ranks.all_gather_json(measured(prepared)), kinds)


def measured(prepared: PreparedHerd) -> float:
    """Return the member-steps per second of this rank.

    All ranks measure at the same time, because they also train at the same time.
    """
    set_precision(prepared.recipe)
    plan = plan_of_rank(prepared, choose_plan(prepared, prepared.recipe.engine, lambda text: None))
    return measure_rate(prepared.herd, plan, _MOMENT)


def kind(prepared: PreparedHerd) -> str:
    """Return the host, device and number of cores of this rank: ranks for which these are equal have the same speed."""
    job, device = prepared.ranks.job, prepared.herd.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{job.hosts[job.rank]}, {name}, {cores_per_rank(job)} cores"


def known(before: RanksRecord | None, hosts: tuple[str, ...]) -> tuple[bool, list[float] | None]:
    """Return (whether run.json records how members were divided among these hosts, the recorded speeds of the ranks).

    The speeds are None if nothing is recorded, or if all ranks are equally fast.

    Args:
        before: What run.json records about the ranks.
        hosts: The host of each rank now.

    >>> ranks = {"communicator": "mpi", "hosts": ["a", "b"], "members": [[0, 1], [2]]}
    >>> known(RanksRecord.parse(ranks | {"weights": [2.0, 1.0]}), ("a", "b"))
    (True, [2.0, 1.0])
    >>> known(RanksRecord.parse(ranks), ("a", "b")), known(None, ("a", "c"))
    ((True, None), (False, None))
    """
    if before is None or before.hosts != list(hosts):
        return False, None
    is_known = before.weights is None or len(before.weights) == len(hosts)
    return is_known, before.weights if is_known else None
