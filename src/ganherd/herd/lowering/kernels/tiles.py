"""Choose the tile shape of a kernel: from measurements on this kind of GPU if there are any, otherwise by a rule.

Nothing is measured before a run, so that it starts at once; `ganherd doctor --warm RECIPE` measures for later runs (`measuring`).
Shapes come from three tables: what this user measured, a cache that many share, and what ganherd brings along. The shape decides
in which order numbers are added. Therefore a run records the shapes that it uses (`used`), and a resumed run uses them again
(`start_run`), even if the tables have changed.
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
_LAUNCHES = 8  # in the graph that is timed
_LONG = 50.0  # milliseconds; a replay that takes longer is measured precisely enough by itself
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


class TileTable:
    """Measured tile shapes by kernel, device and sizes. The files are read once, so that shapes never change during a run."""

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        """Describe the table.

        Args:
            own: The file of this user, to which new measurements are added.
            others: Files that are only read; earlier ones take precedence.
        """
        self._own, self._others = own, others
        self._shapes: dict[str, TileShape] | None = None

    def get(self, key: str) -> TileShape | None:
        """Return the measured shape; None if there is none."""
        if self._shapes is None:
            self._shapes = {}
            for path in (*reversed(self._others), self._own):
                self._shapes |= _read(path)
        return self._shapes.get(key)

    def add(self, key: str, shape: TileShape) -> None:
        """Add a measurement, in memory and in the user's file. A race with another process costs at most a measurement."""
        self.get(key)
        assert self._shapes is not None
        self._shapes[key] = shape
        write_cache(self._own, {name: astuple(one) for name, one in (_read(self._own) | {key: shape}).items()})


def _read(path: Path) -> dict[str, TileShape]:
    """Read a table; an empty one if the file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {key: TileShape(*values) for key, values in json.loads(path.read_text()).items()}
    return {}


@lru_cache(maxsize=1)
def table() -> TileTable:
    """Return the table of this process."""
    shared = [folder / "kernels.json"] if (folder := shared_cache()) else []
    return TileTable(cache_home() / "kernels.json", [*shared, PACKAGED])


_used: dict[str, TileShape] = {}  # by the present run
_recorded: dict[str, TileShape] = {}  # by the process that the present run continues
_unmeasured: set[str] | None = None  # inside `listing`: the kernels that no table has
_is_measuring = False  # inside `measuring`


def start_run(recorded: Mapping[str, Sequence[int]]) -> None:
    """Forget the shapes of the run before. The new run uses the recorded ones wherever the kernels have them as candidates."""
    _used.clear()
    _recorded.clear()
    _recorded.update({key: TileShape(*values) for key, values in recorded.items()})


def used() -> dict[str, list[int]]:
    """Return the shapes that the present run uses for heavy work, in the form in which run.json has them."""
    return {key: list(astuple(shape)) for key, shape in sorted(_used.items())}


@contextmanager
def listing() -> Iterator[set[str]]:
    """Try all candidates of kernels that were not measured, so that `compile_ahead` collects them, and list these kernels."""
    global _unmeasured
    _unmeasured = set()
    try:
        yield _unmeasured
    finally:
        _unmeasured = None


@contextmanager
def measuring() -> Iterator[None]:
    """Measure the candidates of every kernel that is launched and not measured yet, and use the fastest from then on."""
    global _is_measuring
    _is_measuring = True
    try:
        yield
    finally:
        _is_measuring = False


def choose_shape(
    x: Tensor, name: str, sizes: tuple[object, ...], work: float, candidates: Sequence[TileShape], run: Launch
) -> TileShape:
    """Return the tile shape of a launch: the first candidate, unless a faster one was measured for heavy work.

    Args:
        x: [N, …] an input, for its device, dtype and number of members.
        sizes: What else the best shape depends on, without N.
        work: Floating-point operations.
        run: Launches the kernel with a shape.
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
    """Round the number of members up to a power of two, at most 64: herds in one bucket share a measurement.

    With more members every tile shape keeps the device busy.

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
    """Measure the time of one launch; infinite if the tile does not fit on the device."""
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
    """Return a graph of several launches. Launched one by one, short kernels wait for the host, and all shapes seem alike."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for _ in range(_LAUNCHES):
            run(shape)
        graph.capture_end()
    return graph
