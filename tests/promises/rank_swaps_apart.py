"""A rank that trains runs of asynchronous GAP, of which one rank may be slow: `rank_swaps_apart.py ENGINE '{…}' …`.

A run: {"recipe", "run", "slow": which rank}. A slow rank begins a swap only when all others wait for it: they have come to the
first one that they may not make before it has made this one, or to the last before all are together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import processes
import pytest

from ganherd.comm.communicator import Communicator
from ganherd.strategies.gap.async_gap import AsyncGap
from ganherd.strategies.strategy import Event
from promises import rank_goes_apart


def uneven(patch: pytest.MonkeyPatch, comm: Communicator, folder: Path, slow: int) -> None:
    open_ = AsyncGap.open

    def opening(self: AsyncGap, step: int) -> Iterator[Event]:
        if self.meets_at(step):
            number = step // self.every
            (folder / f"{comm.rank}-{number}").touch()
            assert self._board is not None
            furthest = min(number + self.settings.staleness, self._board.last) if number > 1 else number
            while comm.rank == slow and not all(
                (folder / f"{rank}-{furthest}").exists() for rank in range(comm.world_size) if rank != slow
            ):
                self.poll()
                time.sleep(0.001)
        yield from open_(self, step)

    patch.setattr(AsyncGap, "open", opening)


if __name__ == "__main__":
    processes.run_main(partial(rank_goes_apart.main, hold_back=uneven))
