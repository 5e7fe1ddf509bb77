"""Measure what ranks wait for apart from exchanges: records, checkpoints, the start of their processes, unequal steps."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, pstdev

import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.ranks import Ranks
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import bytes_per_member
from ganherd.runs import checkpoint
from ganherd.runs.models import TrainerState
from ganherd.runs.records import JsonLinesWriter
from ganherd.util.files import JsonObject
from ganherd.util.process_clock import process_began

_TRIES = 5
_SUMS = 4  # that a record has of each member


def measure(comm: Communicator, herd: StackedHerd, placement: Placement) -> JsonObject:
    """Return the seconds of a record and of a checkpoint of the whole herd, for the slowest rank. Called by all ranks.

    Files are written below the current folder, where runs would be written, too.
    """
    ranks, members = Ranks(comm, comm, placement, placement.ranks), placement.num_members
    sums = torch.zeros(herd.num_members, _SUMS, dtype=torch.float64)
    facts = {"sums": [[0.0] * members] * _SUMS, "recorded": 0, "last_good": None, "best": None, "bytes": {}}
    meta = TrainerState.parse({**facts, "repairs": [0] * members, "seconds": 0.0})
    with _shared_folder(comm) as folder:
        lines = JsonLinesWriter(folder / "metrics.jsonl") if ranks.is_first else None

        def record(turn: int) -> None:
            every = ranks.all_gather(sums).tolist()
            if lines is not None:
                lines.write({"step": turn, "sums": every})

        def save(turn: int) -> None:
            checkpoint.save(folder / "checkpoints", turn, herd.state, herd.nets, meta, ranks)

        result = {
            "ranks": comm.world_size,
            "record_seconds": _slowest(comm, record),
            "checkpoint_seconds": _slowest(comm, save),
            "checkpoint_bytes": members * bytes_per_member(herd.state),
        }
        if lines is not None:
            lines.close()
    return result


def start_seconds(comm: Communicator, launched: float | None) -> float:
    """Return the seconds until now from the start of the ranks, for the slowest rank. Called by all ranks.

    Args:
        launched: When they were started, on the clock of `time.monotonic`; None: when each process began.
    """
    return _most(comm, time.monotonic() - (process_began() if launched is None else launched))


def spread(comm: Communicator, rounds: Sequence[float]) -> float:
    """Return the standard deviation of a rank's seconds for the same steps, the mean over ranks. Called by all ranks."""
    return mean(_gathered(comm, pstdev(rounds)))


def _slowest(comm: Communicator, work: Callable[[int], None]) -> float:
    """Return the median seconds of some work that all ranks do together, for the slowest rank."""
    took = []
    for turn in range(_TRIES + 1):
        comm.barrier()
        began = time.perf_counter()
        work(turn)
        took.append(time.perf_counter() - began)
    return _most(comm, median(took[1:]))


def _most(comm: Communicator, seconds: float) -> float:
    return max(_gathered(comm, seconds))


def _gathered(comm: Communicator, seconds: float) -> list[float]:
    """Return the seconds of every rank."""
    return [float(each) for each in comm.all_gather_bytes(repr(seconds).encode())]


@contextmanager
def _shared_folder(comm: Communicator) -> Iterator[Path]:
    """Yield a new folder below the current one of the first rank, the same on all ranks; it is removed at the end."""
    name = tempfile.mkdtemp(prefix=".scaling-", dir=Path.cwd()) if comm.rank == 0 else ""
    folder = Path(comm.broadcast(name.encode() or None).decode())
    try:
        yield folder
        comm.barrier()
    finally:
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
