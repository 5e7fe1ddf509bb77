"""Shapes of a kernel's tiles: a rule for most, and for the heaviest products a measurement, made once and remembered."""

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

from ganherd.util import files
from ganherd.util.host import in_threads
from ganherd.util.paths import cache_home

HEAVY = 1e9  # operations of a product from which a measurement pays
_LONG = 5.0  # milliseconds that are measured well at once
_DOES_NOT_FIT = (RuntimeError, triton.runtime.errors.OutOfResources)


@dataclass(frozen=True)
class Shape:
    """A tile of the output, rows × columns, and how it is worked on."""

    rows: int
    columns: int
    depth: int  # of the contraction, at a time
    warps: int
    stages: int


class Shapes:
    """What was measured on this device before, here or by another process; the file is read again before anything is measured."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Shape] = {}

    def best(self, key: str, candidates: Sequence[Shape], run: Callable[[Shape], object]) -> Shape:
        """The fastest of the candidates; the first one while a graph is being captured, when nothing can be measured."""
        if key not in self._known:
            self._read()
        if key not in self._known:
            if torch.cuda.is_current_stream_capturing():
                return candidates[0]
            candidates = list(dict.fromkeys(candidates))
            _compile(run, candidates)
            seconds = {shape: _seconds(run, shape) for shape in candidates}
            best = min(candidates, key=seconds.__getitem__)
            if seconds[best] == float("inf"):  # no memory is left to try them: another time
                return best
            self._known[key] = best
            self._write()
        return self._known[key]

    def _read(self) -> None:
        """What others have found; what was measured here stays, since kernels with it may be in use."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            self._known = {key: Shape(*one) for key, one in json.loads(self._path.read_text()).items()} | self._known

    def _write(self) -> None:
        self._read()  # what others found meanwhile is kept, up to a race that costs a measurement
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            known = {key: astuple(shape) for key, shape in self._known.items()}
            files.atomic_write(self._path, json.dumps(known).encode(), sync=False)
        except OSError:
            pass  # a cache that cannot be written costs only the next measurement


def chosen(
    x: Tensor,
    name: str,
    sizes: tuple[object, ...],
    work: float,
    candidates: Sequence[Shape],
    run: Callable[[Shape], object],
) -> Shape:
    """The rule's shape, the first candidate, for light work; the fastest for heavy work on a GPU. x [N, …], `sizes` without N."""
    if not x.is_cuda or work < HEAVY:
        return candidates[0]
    device, n = torch.cuda.get_device_name(x.device), crowd(len(x))
    key = " ".join(map(str, (name, device, torch.__version__, triton.__version__, x.dtype, n, *sizes)))
    return _shapes().best(key, candidates, run)


def crowd(members: int) -> int:
    """The next power of two, 64 at most: beyond that every tile keeps the device busy, and a larger herd needs no measurement.

    >>> [crowd(n) for n in (1, 10, 16, 100, 2000)]
    [1, 16, 16, 64, 64]
    """
    return min(64, 1 << (members - 1).bit_length())


@lru_cache(maxsize=1)
def _shapes() -> Shapes:
    return Shapes(cache_home() / "kernels.json")


def _compile(run: Callable[[Shape], object], candidates: Sequence[Shape]) -> None:
    """All candidates at once, each on a core of its own for a second or more, where they are not in Triton's cache."""
    stream = torch.cuda.current_stream()

    def launch(shape: Shape) -> None:
        with torch.cuda.stream(stream), suppress(*_DOES_NOT_FIT):
            run(shape)

    launch(candidates[0])  # by itself: what all share is made once
    in_threads(launch, candidates[1:], len(candidates))


def _seconds(run: Callable[[Shape], object], shape: Shape) -> float:
    """Of one launch; infinite where the tile does not fit the device."""
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
            took = began.elapsed_time(ended)
            best = min(best, took / launches)
            if took > _LONG:  # of a thousand members one launch says enough
                break
        return best
    except _DOES_NOT_FIT:
        return float("inf")
