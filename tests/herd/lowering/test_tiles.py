"""The tile shape with the fastest launches is chosen and cached, whether a launch is short or long."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels need Triton")

from ganherd.herd.lowering.kernels import tiles
from ganherd.herd.lowering.kernels.tiles import TileShape, TileShapeCache

QUICK, SLOW, TOO_LARGE = TileShape(16, 16, 16, 4, 2), TileShape(32, 32, 32, 4, 2), TileShape(64, 64, 64, 8, 4)


class Clock:
    """A device with given launch times for each shape, in milliseconds; the first launch takes a second more."""

    def __init__(self, each: dict[TileShape, float]) -> None:
        self.each, self.now, self.launches = each, 0.0, dict[TileShape, int]()

    def run(self, shape: TileShape) -> None:
        if shape not in self.each:
            raise RuntimeError("out of resource: shared memory")
        self.now += self.each[shape] + (0.0 if shape in self.launches else 1000.0)
        self.launches[shape] = self.launches.get(shape, 0) + 1

    def event(self, **_: Any) -> Any:
        clock = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = clock.now

            def synchronize(self) -> None: ...

            def elapsed_time(self, later: Event) -> float:
                return later.at - self.at

        return Event()


class OnGpu:
    """What is asked of a tensor there."""

    is_cuda, device, dtype = True, "cuda", "bf16"

    def __init__(self, members: int) -> None:
        self.members = members

    def __len__(self) -> int:
        return self.members


def on_gpu(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    cuda = tiles.torch.cuda
    monkeypatch.setattr(cuda, "Event", clock.event)
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda, "current_stream", lambda: "a stream")
    monkeypatch.setattr(cuda, "stream", lambda stream: nullcontext())


@pytest.mark.parametrize(("milliseconds", "launches"), [(0.01, 15), (1.0, 15), (40.0, 3)])
def test_the_fastest_tile_shape_that_fits_is_cached(
    milliseconds: float, launches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock({SLOW: 1.2 * milliseconds, QUICK: milliseconds})
    on_gpu(monkeypatch, clock)
    path = tmp_path / "kernels.json"
    assert TileShapeCache(path).best("product", [SLOW, TOO_LARGE, QUICK], clock.run) == QUICK
    assert TileShapeCache(path).best("product", [SLOW], clock.run) == QUICK
    assert clock.launches == {SLOW: launches, QUICK: launches}  # few, where each takes long


def test_large_herds_share_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred members have been measured: a thousand need no measurement, ten do."""
    clock = Clock({SLOW: 1.2, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    monkeypatch.setattr(tiles.torch.cuda, "get_device_name", lambda device: "a GPU")
    known = TileShapeCache(tmp_path / "kernels.json")
    monkeypatch.setattr(tiles, "_shapes", lambda: known)

    def launches(members: int) -> int:
        before = sum(clock.launches.values())
        assert tiles.choose_shape(OnGpu(members), "product", (3,), 1e12, [SLOW, QUICK], clock.run) == QUICK
        return sum(clock.launches.values()) - before

    assert [launches(members) > 0 for members in (100, 1000, 10, 16, 64)] == [True, False, True, False, False]


def test_candidates_are_compiled_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first alone, then each of the others waits until all of them are being compiled."""
    clock, others = Clock({SLOW: 3.0, QUICK: 1.0, TOO_LARGE: 2.0}), Barrier(2)
    on_gpu(monkeypatch, clock)

    def run(shape: TileShape) -> None:
        if shape != SLOW and shape not in clock.launches:
            others.wait(timeout=20)
        clock.run(shape)

    assert TileShapeCache(tmp_path / "kernels.json").best("product", [SLOW, TOO_LARGE, QUICK], run) == QUICK
    assert not others.broken


def test_nothing_is_cached_if_no_candidate_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({})
    on_gpu(monkeypatch, clock)
    known = TileShapeCache(tmp_path / "kernels.json")
    assert known.best("product", [SLOW, SLOW, QUICK], clock.run) == SLOW
    clock.each = {SLOW: 2.0, QUICK: 1.0}
    assert known.best("product", [SLOW, SLOW, QUICK], clock.run) == QUICK


def test_processes_share_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that began together: neither measures again what the other has found, nor loses it."""
    clock = Clock({SLOW: 2.0, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    path = tmp_path / "kernels.json"
    one, other = TileShapeCache(path), TileShapeCache(path)
    assert one.best("first", [SLOW, QUICK], clock.run) == other.best("second", [SLOW, QUICK], clock.run) == QUICK
    found = dict(clock.launches)
    assert one.best("second", [SLOW], clock.run) == other.best("first", [SLOW], clock.run) == QUICK
    assert (
        TileShapeCache(path).best("first", [SLOW], clock.run)
        == TileShapeCache(path).best("second", [SLOW], clock.run)
        == QUICK
    )
    assert clock.launches == found


def test_own_measurements_take_precedence_over_those_of_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock({SLOW: 2.0, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    path = tmp_path / "kernels.json"
    known = TileShapeCache(path)
    assert known.best("product", [SLOW, QUICK], clock.run) == QUICK
    path.write_text(json.dumps({"product": astuple(SLOW)}))
    assert known.best("other", [SLOW, QUICK], clock.run) == QUICK  # reads the file
    assert known.best("product", [SLOW, QUICK], clock.run) == QUICK


@pytest.mark.parametrize("text", ["", "[]", "{", '{"product": 3}', '{"product": [1]}'])
def test_an_unreadable_cache_file_only_costs_a_measurement(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock({SLOW: 2.0, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    path = tmp_path / "kernels.json"
    path.write_text(text)
    assert TileShapeCache(path).best("product", [SLOW, QUICK], clock.run) == QUICK
    assert TileShapeCache(path).best("product", [SLOW], clock.run) == QUICK
