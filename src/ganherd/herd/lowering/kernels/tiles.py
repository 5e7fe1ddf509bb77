"""Choose the tile shape of a kernel: from measurements on this kind of GPU if there are any, otherwise by a rule.

A training run measures nothing, so that it starts at once; `ganherd doctor --warm RECIPE` measures for later runs
(`measuring`). Measured shapes come from three tables, in this order: the user's own file, a cache shared by several
users, and a file that is part of ganherd. The shape decides in which order numbers are added, and so how results are
rounded. Therefore a run records the shapes that it uses (`used`), and a resumed run uses the same ones (`start_run`),
even if the tables have changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

import torch
import triton
from torch import Tensor

from ganherd.util.files import write_cache
from ganherd.util.paths import cache_home, shared_cache

HEAVY = 1e9  # products with at least this many floating-point operations are worth a measurement
PACKAGED = Path(__file__).parent / "measured_tiles.json"
_LAUNCHES = 8  # launches in the captured graph that is timed
_LONG = 50.0  # milliseconds; a replay that takes longer is measured precisely enough by itself
_DOES_NOT_FIT = (RuntimeError, triton.runtime.errors.OutOfResources)


@dataclass(frozen=True)
class TileShape:
    """The part of a matrix product that one program of a kernel computes, and Triton's launch settings for it."""

    rows: int  # of the output
    columns: int  # of the output
    depth: int  # how far the summed index advances in one step of the loop
    warps: int  # `num_warps` of the launch
    stages: int  # `num_stages` of the launch


Launch = Callable[[TileShape], object]  # runs a kernel with tiles of this shape


class TileTable:
    """Measured tile shapes by kernel, device and sizes.

    The files are read only once, so that shapes never change during a run.
    """

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        """Remember the files of the table; they are read at the first use.

        Args:
            own: The file of this user, which takes precedence, and to which new measurements are added.
            others: Files that are only read; earlier ones take precedence.
        """
        self._own, self._others = own, others
        self._shapes: dict[str, TileShape] | None = None

    def get(self, key: str) -> TileShape | None:
        """Return the measured shape for a key as `choose_shape` builds it; None if there is none."""
        if self._shapes is None:
            self._shapes = {}
            for path in (*reversed(self._others), self._own):
                self._shapes |= _read(path)
        return self._shapes.get(key)

    def add(self, key: str, shape: TileShape) -> None:
        """Add a measurement, in memory and in the user's file.

        If two processes write the file at the same time, one measurement may be lost; it is then repeated later.
        """
        self.get(key)
        assert self._shapes is not None
        self._shapes[key] = shape
        write_cache(self._own, {name: astuple(one) for name, one in (_read(self._own) | {key: shape}).items()})


def _read(path: Path) -> dict[str, TileShape]:
    """Return the shapes in a JSON file by key; an empty dictionary if the file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {key: TileShape(*values) for key, values in json.loads(path.read_text()).items()}
    return {}


@lru_cache(maxsize=1)
def table() -> TileTable:
    """Return the table of measured shapes, of which each process has one."""
    shared = [folder / "kernels.json"] if (folder := shared_cache()) else []
    return TileTable(cache_home() / "kernels.json", [*shared, PACKAGED])


_used: dict[str, TileShape] = {}  # shapes that the present run uses, by the key of the launch
_recorded: dict[str, TileShape] = {}  # shapes that the resumed run recorded earlier, by the key of the launch
_unmeasured: set[str] | None = None  # keys that no table has, collected inside `listing`; None outside of it
_is_measuring = False  # True inside `measuring`


def start_run(recorded: Mapping[str, Sequence[int]]) -> None:
    """Forget the shapes of the previous run in this process, and take the recorded shapes of the run that starts.

    Args:
        recorded: Shapes by key from run.json, as `used` returned them. A launch uses its recorded shape if that is
            still one of the kernel's candidates.
    """
    _used.clear()
    _recorded.clear()
    _recorded.update({key: TileShape(*values) for key, values in recorded.items()})


def used() -> dict[str, list[int]]:
    """Return the shapes that the present run uses for heavy launches, by key, as run.json stores them.

    Each shape is [rows, columns, depth, warps, stages].
    """
    return {key: list(astuple(shape)) for key, shape in sorted(_used.items())}


@contextmanager
def listing() -> Iterator[set[str]]:
    """Launch every candidate shape of kernels that were not measured, and yield the set to which their keys are added.

    Used together with `compile_ahead.collected`, which collects the launched kernels to compile them.
    """
    global _unmeasured
    _unmeasured = set()
    try:
        yield _unmeasured
    finally:
        _unmeasured = None


@contextmanager
def measuring() -> Iterator[None]:
    """Measure all candidate shapes of each kernel that is launched in this context, unless it was measured before.

    The fastest shape is added to the table and used from then on.
    """
    global _is_measuring
    _is_measuring = True
    try:
        yield
    finally:
        _is_measuring = False


def choose_shape(
    x: Tensor, name: str, sizes: tuple[object, ...], work: float, candidates: Sequence[TileShape], run: Launch
) -> TileShape:
    """Return the tile shape of a launch: a recorded or measured one if there is any, otherwise the first candidate.

    Launches with less work than `HEAVY` always get the first candidate.

    Args:
        x: [N, …] an input, whose device, dtype and number of members N are part of the key under which shapes are
            stored.
        name: The name of the kernel, also part of the key.
        sizes: Everything else that the best shape depends on, also part of the key.
        work: Floating-point operations of the launch.
        candidates: The shapes to choose from.
        run: Launches the kernel with a given shape.
    """
    if not x.is_cuda or work < HEAVY:
        return candidates[0]
    device, n = torch.cuda.get_device_name(x.device), member_bucket(len(x))
    key = " ".join(map(str, (name, device, x.dtype, n, *sizes)))
    recorded = _recorded.get(key)
    shape = recorded if recorded in candidates else table().get(key)
    if shape is None and _unmeasured is not None:
        _unmeasured.add(key)
        for candidate in candidates[1:]:
            run(candidate)
    if shape is None and _is_measuring:
        shape = fastest(candidates, run)
        if shape is not None:
            table().add(key, shape)
    _used[key] = shape or candidates[0]
    return _used[key]


def member_bucket(members: int) -> int:
    """Return the number of members rounded up to a power of two, at most 64: measurements are shared by this number.

    The limit is 64 because with more members every tile shape keeps the device busy, so that the best shape does not
    change.

    >>> [member_bucket(n) for n in (1, 10, 16, 100, 2000)]
    [1, 16, 16, 64, 64]
    """
    return min(64, 1 << (members - 1).bit_length())


def fastest(candidates: Sequence[TileShape], run: Launch) -> TileShape | None:
    """Measure all candidates and return the fastest; None if none of them runs, e.g. for lack of memory."""
    seconds = {shape: _seconds(run, shape) for shape in dict.fromkeys(candidates)}
    best = min(seconds, key=seconds.__getitem__)
    return None if seconds[best] == float("inf") else best


def _seconds(run: Launch, shape: TileShape) -> float:
    """Return the shortest time of one launch in milliseconds; infinite if the tile does not fit on the device."""
    try:
        run(shape)
        graph = _captured(run, shape)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        best = float("inf")
        for _ in range(4):  # the first replay warms up
            began.record()
            graph.replay()
            ended.record()
            ended.synchronize()
            elapsed = began.elapsed_time(ended)
            best = min(best, elapsed / _LAUNCHES)
            if elapsed > _LONG:  # e.g. with a thousand members
                break
        return best
    except _DOES_NOT_FIT:
        return float("inf")


def _captured(run: Launch, shape: TileShape) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph with `_LAUNCHES` launches of the kernel.

    Single launches of short kernels would be limited by the host, so that all shapes would seem equally fast.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for _ in range(_LAUNCHES):
            run(shape)
        graph.capture_end()
    return graph
