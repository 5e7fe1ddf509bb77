"""Ranks of unlike speed: each trains for a moment, and where they differ much the faster ones get more members."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ganherd.comm.rank_speed import weights
from ganherd.comm.ranks import Ranks, cores_per_rank
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engines import measure_rate
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.engine_plan import choose_plan, plan_of_rank

_MOMENT = 0.5  # seconds


def balanced(ranks: Ranks, assembly: PreparedHerd | None) -> list[float] | None:
    """How fast each rank of the job is with the members that it has; None: alike, or there is nothing to hand out.

    Called by all ranks. Nothing is measured where all are of one kind, or where some are spares: then each of the others
    has as little as can be. The members are not touched.
    """
    if ranks.job is not ranks.comm or assembly is None or ranks.job.world_size == 1:
        return None
    kinds = ranks.all_gather_json(kind(assembly))
    if len(set(kinds)) == 1:
        return None
    return weights(ranks.all_gather_json(measured(assembly)), kinds)


def measured(assembly: PreparedHerd) -> float:
    """Member-steps per second of this rank; all ranks measure at the same time, as they will train."""
    set_precision(assembly.recipe)
    plan = plan_of_rank(assembly, choose_plan(assembly, assembly.recipe.engine, lambda text: None))
    return measure_rate(assembly.herd, plan, _MOMENT)


def kind(assembly: PreparedHerd) -> str:
    """What ranks of the same speed have in common."""
    job, device = assembly.ranks.job, assembly.herd.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{job.hosts[job.rank]}, {name}, {cores_per_rank(job)} cores"


def known(before: Any, hosts: tuple[str, ...]) -> tuple[bool, list[float] | None]:
    """(whether a run was placed on these hosts before, with which weights), of what its run.json says about ranks.

    >>> known({"hosts": ["a", "b"], "members": [[0, 1], [2]], "weights": [2.0, 1.0]}, ("a", "b"))
    (True, [2.0, 1.0])
    >>> known({"hosts": ["a", "b"], "members": [[0, 1], [2]]}, ("a", "b")), known(None, ("a", "c"))
    ((True, None), (False, None))
    """
    if not isinstance(before, Mapping) or before.get("hosts") != list(hosts):
        return False, None
    found = before.get("weights")
    if found is None:
        return True, None
    numbers = isinstance(found, list) and all(type(w) in (int, float) and math.isfinite(w) and w >= 0 for w in found)
    return (True, list(found)) if numbers and len(found) == len(hosts) and sum(found) > 0 else (False, None)
