"""Tile shapes come from tables of measurements or from a rule, and nothing is measured unless it is asked for."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels need Triton")

from ganherd.herd.lowering.kernels import tiles
from ganherd.herd.lowering.kernels.tiles import TileShape, TileTable

QUICK, SLOW, TOO_LARGE = TileShape(16, 16, 16, 4, 2), TileShape(32, 32, 32, 4, 2), TileShape(64, 64, 64, 8, 4)


class Clock:
    """A device with given launch times for each shape, in milliseconds; the first launch takes a second more.

    Every launch waits for the host for a millisecond, unless it is part of a captured graph.
    """

    def __init__(self, each: dict[TileShape, float]) -> None:
        self.each, self.now, self.launches = each, 0.0, dict[TileShape, int]()
        self.captured: list[TileShape] | None = None

    def run(self, shape: TileShape) -> None:
        if shape not in self.each:
            raise RuntimeError("out of resource: shared memory")
        if self.captured is not None:
            self.captured.append(shape)
            return
        self.now += max(1.0, self.each[shape]) + (0.0 if shape in self.launches else 1000.0)
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

    def graph(self) -> Any:
        clock = self

        class Graph:
            def capture_begin(self) -> None:
                clock.captured = []

            def capture_end(self) -> None:
                self.shapes, clock.captured = clock.captured or [], None

            def replay(self) -> None:
                for shape in self.shapes:
                    clock.now += clock.each[shape]
                    clock.launches[shape] += 1

        return Graph()


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
    monkeypatch.setattr(cuda, "CUDAGraph", clock.graph)
    monkeypatch.setattr(cuda, "Stream", lambda: None)
    monkeypatch.setattr(cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(cuda, "synchronize", lambda: None)


@pytest.mark.parametrize(("milliseconds", "launches"), [(0.01, 33), (1.0, 33), (40.0, 9)])
def test_the_fastest_tile_shape_that_fits_is_found(
    milliseconds: float, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock({SLOW: 1.2 * milliseconds, QUICK: milliseconds})
    on_gpu(monkeypatch, clock)
    assert tiles.fastest([SLOW, TOO_LARGE, QUICK, SLOW], clock.run) == QUICK
    assert clock.launches == {SLOW: launches, QUICK: launches}  # few, where each takes long


def test_no_shape_is_the_fastest_if_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({})
    on_gpu(monkeypatch, clock)
    assert tiles.fastest([SLOW, QUICK], clock.run) is None


@pytest.fixture
def own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the user's table, which is empty, and no other table."""
    path = tmp_path / "kernels.json"
    table = TileTable(path)
    monkeypatch.setattr(tiles, "table", lambda: table)
    monkeypatch.setattr(tiles.torch.cuda, "get_device_name", lambda device: "a GPU")
    return path


def choose(members: int, clock: Clock, work: float = 1e12) -> TileShape:
    return tiles.choose_shape(OnGpu(members), "product", (3,), work, [SLOW, QUICK], clock.run)


def test_nothing_is_measured_before_a_run(own_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({SLOW: 1.2, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    assert choose(10, clock) == SLOW  # the first candidate is the rule
    assert not clock.launches and not own_table.exists()


def test_measurements_serve_later_launches_and_herds_of_about_the_same_size(
    own_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred members have been measured: a thousand need no measurement, ten do."""
    clock = Clock({SLOW: 1.2, QUICK: 1.0})
    on_gpu(monkeypatch, clock)

    def launches(members: int) -> int:
        before = sum(clock.launches.values())
        assert choose(members, clock) == QUICK
        return sum(clock.launches.values()) - before

    with tiles.measuring():
        assert [launches(members) > 0 for members in (100, 1000, 10, 16, 64)] == [True, False, True, False, False]
        assert choose(3, clock, work=1e6) == SLOW  # light work is not worth it
    assert choose(20, clock) == SLOW and choose(12, clock) == QUICK
    assert len(json.loads(own_table.read_text())) == 2


def test_candidates_of_unmeasured_kernels_can_be_listed(own_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({SLOW: 1.2, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    with tiles.listing() as unmeasured:
        assert choose(10, clock) == SLOW
        assert choose(12, clock) == SLOW
    assert list(clock.launches) == [QUICK] and len(unmeasured) == 1  # the rule's shape is launched by the caller
    with tiles.measuring():
        choose(10, clock)
    with tiles.listing() as unmeasured:
        assert choose(10, clock) == QUICK
    assert not unmeasured


def test_a_resumed_run_uses_its_recorded_shapes_whatever_was_measured_since(
    own_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock({SLOW: 1.2, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    tiles.start_run({})
    assert choose(10, clock) == SLOW
    choose(3, clock, work=1e6)
    recorded = tiles.used()
    assert list(recorded.values()) == [list(astuple(SLOW))]  # light work has one shape, which is not recorded
    with tiles.measuring():
        choose(10, clock)
    tiles.start_run({})
    assert choose(10, clock) == QUICK and tiles.used() != recorded
    tiles.start_run(recorded)
    assert choose(10, clock) == SLOW and tiles.used() == recorded


def test_a_recorded_shape_that_the_kernel_does_not_offer_is_ignored(
    own_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's run may name any shape."""
    clock = Clock({SLOW: 1.2, QUICK: 1.0})
    on_gpu(monkeypatch, clock)
    tiles.start_run({})
    choose(10, clock)
    tiles.start_run({key: [4096, 4096, 4096, 32, 9] for key in tiles.used()})
    assert choose(10, clock) == SLOW


def test_the_users_table_comes_before_a_shared_one_and_that_before_the_packaged_one(tmp_path: Path) -> None:
    own, shared, packaged = (tmp_path / name for name in ("own.json", "shared.json", "packaged.json"))
    own.write_text(json.dumps({"a": astuple(QUICK)}))
    shared.write_text(json.dumps({"a": astuple(SLOW), "b": astuple(SLOW)}))
    packaged.write_text(json.dumps({"b": astuple(QUICK), "c": astuple(TOO_LARGE)}))
    table = TileTable(own, [shared, packaged])
    assert [table.get(key) for key in "abcd"] == [QUICK, SLOW, TOO_LARGE, None]


def test_a_table_keeps_what_other_processes_add_and_does_not_change_while_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    one, other = TileTable(path), TileTable(path)
    assert one.get("first") is None and other.get("second") is None
    other.add("first", SLOW)
    assert one.get("first") is None  # a run keeps the shapes it began with
    one.add("second", QUICK)
    assert [TileTable(path).get(key) for key in ("first", "second")] == [SLOW, QUICK]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"product": 3}', '{"product": [1]}'])
def test_an_unreadable_table_is_an_empty_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    table = TileTable(path)
    assert table.get("product") is None
    table.add("product", QUICK)
    assert TileTable(path).get("product") == QUICK


def test_the_packaged_table_can_be_read() -> None:
    shapes = json.loads(tiles.PACKAGED.read_text())
    table = TileTable(Path("nowhere"), [tiles.PACKAGED])
    assert all(isinstance(table.get(key), TileShape) for key in shapes)
