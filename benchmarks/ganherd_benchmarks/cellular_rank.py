"""One rank of the parallel cellular benchmark: train its cells like a training, and measure iterations by routine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ganherd.comm.backends.detect import connect, detect
from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import Ranks
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engines import make_engine
from ganherd.recipe import recipe_file
from ganherd.runs.profile import ROUTINES, Profile
from ganherd.strategies.cellular.cellular import Cellular
from ganherd.training.setup.assemble import PreparedHerd, put_together
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.training.setup.engine_plan import apply_plan, choose_plan
from ganherd.training.setup.member_data import cut
from ganherd.util.files import JsonObject


@dataclass(frozen=True)
class GridRequest:
    """What all ranks of one job measure."""

    recipe: str
    settings: list[str]
    iterations: int  # of a repeat
    batches: int  # of an iteration
    repeats: int


def measure(comm: Communicator, request: GridRequest) -> JsonObject:
    """Return the seconds of an iteration for each repeat, after one iteration to warm up. Called by all ranks.

    `seconds` are those of the slowest rank, `routines` the mean over all ranks, `cpu_seconds` the sum over all.
    """
    prepared = _prepare(comm, request)
    plan = apply_plan(prepared, choose_plan(prepared, prepared.recipe.engine, lambda _: None))
    strategy = make_strategy(prepared, {"iteration": request.batches})
    assert isinstance(strategy, Cellular)
    strategy.mixtures.scorer.look_at_data()
    engine, sums, number = make_engine(prepared.herd, plan), prepared.herd.zero_sums(), 0
    repeats = []
    for repeat in range(1 + request.repeats):
        strategy.profile = Profile()
        comm.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        iterations = request.iterations if repeat else 1  # the first one is to warm up
        for _ in range(iterations):
            start, stop = number * request.batches, (number + 1) * request.batches
            list(strategy.open(start))
            left = time.perf_counter()
            engine.advance(start, stop, sums)
            strategy.on_steps_done(time.perf_counter() - left, stop)
            list(strategy.close(stop, continues=True))
            number += 1
        own = {
            "seconds": (time.perf_counter() - began) / iterations,
            "cpu_seconds": (time.process_time() - cpu) / iterations,
            **{name: seconds / iterations for name, seconds in strategy.profile.take().items()},
        }
        repeats.append(_combined([json.loads(each) for each in comm.all_gather_bytes(json.dumps(own).encode())]))
    strategy.on_interrupt()  # what was sent ahead for an iteration that does not follow
    return {"engine": plan.describe(prepared.herd.num_members), "repeats": repeats[1:]}


def _prepare(comm: Communicator, request: GridRequest) -> PreparedHerd:
    """Build the herd of this rank."""
    recipe = recipe_file.load(request.recipe, request.settings)
    set_precision(recipe)
    data = cut(recipe)
    single = comm.world_size == 1
    return put_together(data, Ranks.single_process(data.size) if single else Ranks.distribute(comm, recipe, data.size))


def _combined(ranks: Sequence[dict[str, float]]) -> JsonObject:
    """Return one repeat from the seconds of all ranks.

    >>> each = {**dict.fromkeys(ROUTINES, 1.0), "seconds": 8.0, "cpu_seconds": 7.0}
    >>> both = _combined([each, {**each, "gather": 2.0, "seconds": 9.0}])
    >>> both["seconds"], both["cpu_seconds"], both["routines"]["gather"]
    (9.0, 14.0, 1.5)
    """
    return {
        "seconds": max(own["seconds"] for own in ranks),
        "cpu_seconds": sum(own["cpu_seconds"] for own in ranks),
        "routines": {name: sum(own[name] for own in ranks) / len(ranks) for name in ROUTINES},
    }


def main(words: Sequence[str]) -> None:
    """Measure what the first word requests, as JSON; the first rank writes the result to the path in the second word."""
    comm = connect(detect(os.environ))
    result = measure(comm, GridRequest(**json.loads(words[0])))
    if comm.rank == 0:
        Path(words[1]).write_text(json.dumps(result), encoding="utf-8")
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
