"""A rank that trains runs one after another, of which one rank may be slow: `rank_goes_apart.py ENGINE '{…}' …`.

A run: {"recipe", "run", "slow": which rank}. A slow rank ends an iteration only when all others wait for it: they have come to the
first one that they may not begin before it has ended this one, or to the last before all are together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
import tiny_runs

from ganherd.comm.backends.detect import connect
from ganherd.comm.communicator import Communicator
from ganherd.comm.ranks import open_job
from ganherd.recipe import recipe_file
from ganherd.strategies.cellular.cellular import Cellular
from ganherd.strategies.strategy import Event
from ganherd.training import session

HoldBack = Callable[[pytest.MonkeyPatch, Communicator, Path, int], None]


def uneven(patch: pytest.MonkeyPatch, comm: Communicator, folder: Path, slow: int) -> None:
    open_, close = Cellular.open, Cellular.close

    def opening(self: Cellular, step: int) -> Iterator[Event]:
        (folder / f"{comm.rank}-{step // self.span}").touch()
        yield from open_(self, step)

    def closing(self: Cellular, step: int, continues: bool = False) -> Iterator[Event]:
        iteration, leg = step // self.span - 1, self.max_unsynced_steps // self.span
        furthest = min(iteration + self.settings.staleness + 1, iteration // leg * leg + leg - 1)
        while comm.rank == slow and not all(
            (folder / f"{rank}-{furthest}").exists() for rank in range(comm.world_size) if rank != slow
        ):
            time.sleep(0.001)
        yield from close(self, step, continues)

    patch.setattr(Cellular, "open", opening)
    patch.setattr(Cellular, "close", closing)


def main(engine: str, *jobs: str, hold_back: HoldBack = uneven) -> None:
    tiny_runs.skip_products(pytest.MonkeyPatch())
    with open_job(lambda: connect(engine)) as comm:
        for each in map(json.loads, jobs):
            with pytest.MonkeyPatch.context() as patch:
                if "slow" in each:
                    marks = Path(f"{each['run']}-marks")
                    marks.mkdir(exist_ok=True)
                    hold_back(patch, comm, marks, each["slow"])
                session.train(recipe_file.load(each["recipe"]), each["run"], quiet=True, job=comm)


if __name__ == "__main__":
    processes.run_main(main)
