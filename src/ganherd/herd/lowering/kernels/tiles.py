"""Choose the tile shape of a kernel: by a rule for most products, by a cached measurement for the heaviest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

import torch
import triton
from torch import Tensor

from ganherd.util.files import write_cache
from ganherd.util.host import in_threads
from ganherd.util.paths import cache_home

HEAVY = 1e9  # products with at least this many floating-point operations are worth a measurement
_LONG = 5.0  # milliseconds; a launch that takes longer is measured precisely enough by itself
_DOES_NOT_FIT = (RuntimeError, triton.runtime.errors.OutOfResources)


@dataclass(frozen=True)
class TileShape:
    """A tile of the output, rows × columns, and the settings of its computation."""

    rows: int
    columns: int
    depth: int  # columns of the contraction that are loaded at a time
    warps: int
    stages: int


Launch = Callable[[TileShape], object]  # runs a kernel with tiles of this shape


class TileShapeCache:
    """The best tile shapes on this device, kept in a file that processes share. It is read again before each measurement."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, TileShape] = {}

    def best(self, key: str, candidates: Sequence[TileShape], run: Launch) -> TileShape:
        """Return the fastest candidate; the first one during the capture of a graph, when nothing can be measured."""
        if key not in self._known:
            self._read()
        if key not in self._known:
            if torch.cuda.is_current_stream_capturing():
                return candidates[0]
            candidates = list(dict.fromkeys(candidates))
            _compile(run, candidates)
            seconds = {shape: _seconds(run, shape) for shape in candidates}
            best = min(candidates, key=seconds.__getitem__)
            if seconds[best] == float("inf"):  # no candidate ran, e.g. for lack of memory: do not cache the result
                return best
            self._known[key] = best
            self._write()
        return self._known[key]

    def _read(self) -> None:
        """Read results of other processes. Own results take precedence, because kernels with these shapes may be in use."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            shapes = {key: TileShape(*values) for key, values in json.loads(self._path.read_text()).items()}
            self._known = shapes | self._known

    def _write(self) -> None:
        """Write all results. A race with another process costs at most a measurement."""
        self._read()
        write_cache(self._path, {key: astuple(shape) for key, shape in self._known.items()})


def choose_shape(
    x: Tensor, name: str, sizes: tuple[object, ...], work: float, candidates: Sequence[TileShape], run: Launch
) -> TileShape:
    """Return the first candidate for light work, and the fastest one for heavy work on a GPU.

    Args:
        x: [N, …] an input, for its device, dtype and number of members.
        sizes: What else the best shape depends on, without N.
        work: Floating-point operations.
    """
    if not x.is_cuda or work < HEAVY:
        return candidates[0]
    device, n = torch.cuda.get_device_name(x.device), member_bucket(len(x))
    key = " ".join(map(str, (name, device, torch.__version__, triton.__version__, x.dtype, n, *sizes)))
    return _shapes().best(key, candidates, run)


def member_bucket(members: int) -> int:
    """Round the number of members up to a power of two, at most 64: herds in one bucket share a measurement.

    With more members every tile shape keeps the device busy.

    >>> [member_bucket(n) for n in (1, 10, 16, 100, 2000)]
    [1, 16, 16, 64, 64]
    """
    return min(64, 1 << (members - 1).bit_length())


@lru_cache(maxsize=1)
def _shapes() -> TileShapeCache:
    """Return the cache of this process."""
    return TileShapeCache(cache_home() / "kernels.json")


def _compile(run: Launch, candidates: Sequence[TileShape]) -> None:
    """Compile all candidates in parallel threads; each takes a second or more unless it is in Triton's cache."""
    stream = torch.cuda.current_stream()

    def launch(shape: TileShape) -> None:
        with torch.cuda.stream(stream), suppress(*_DOES_NOT_FIT):
            run(shape)

    launch(candidates[0])  # first, because all candidates share some of the work
    in_threads(launch, candidates[1:], len(candidates))


def _seconds(run: Launch, shape: TileShape) -> float:
    """Measure the time of one launch; infinite if the tile does not fit on the device."""
    try:
        run(shape)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        best = float("inf")
        for launches in (1, 4, 4, 4):
            began.record()
            for _ in range(launches):
                run(shape)
            ended.record()
            ended.synchronize()
            elapsed = began.elapsed_time(ended)
            best = min(best, elapsed / launches)
            if elapsed > _LONG:  # e.g. with a thousand members
                break
        return best
    except _DOES_NOT_FIT:
        return float("inf")
