"""A herd whose state is on the host trains in blocks, and equals one whose state is on the device, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from recipes import tiny_data, tiny_recipe

from ganherd.herd.engine.blocks import host_copies
from ganherd.herd.engine.blocks.block_engine import BlockEngine
from ganherd.herd.engine.blocks.block_transfer import BlockTransfer
from ganherd.herd.engine.blocks.host_copies import HostCopies
from ganherd.herd.engine.engines import Engine, Plan, StackedHerd
from ganherd.herd.state import State
from ganherd.herd.step.opponents import FrozenOpponents, opponent_tensors
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble

Make = Callable[..., StackedHerd]
PLAN = Plan("fused", 3, 1, "cpu")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a herd of seven members on small data."""
    path = tiny_data(tmp_path / "data.npz")

    def herd(**sections: object) -> StackedHerd:
        sections = {"data": {"partition": "all"}, "herd": {"members": 7}, **sections}
        return assemble(recipe_file.load(tiny_recipe(path, **sections))).herd

    return herd


def trained(engine: Engine, stops: list[int]) -> tuple[State, torch.Tensor]:
    """Return the state and the sums after training from stop to stop."""
    sums = engine.herd.zero_sums()
    for start, stop in zip([0, *stops], stops, strict=False):
        assert engine.advance(start, stop, sums) == stop
    return engine.herd.state, sums


def assert_equal(one: tuple[State, torch.Tensor], other: tuple[State, torch.Tensor]) -> None:
    for name, value in one[0].items():
        assert torch.equal(value, other[0][name]), name
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6])
def test_blocks_equal_a_resident_herd_and_the_last_may_be_smaller(make: Make, chunk: int) -> None:
    plan = replace(PLAN, chunk=chunk)
    assert_equal(trained(Engine(make(), plan), [5]), trained(BlockEngine(make(), plan), [5]))


def test_blocks_equal_the_whole_herd_at_once_up_to_rounding(make: Make) -> None:
    whole, sums = trained(Engine(make(), replace(PLAN, chunk=7)), [5])
    blocks, block_sums = trained(BlockEngine(make(), PLAN), [2, 5])
    for name, value in whole.items():
        assert torch.allclose(value.double(), blocks[name].double(), rtol=1e-5, atol=1e-6), name
    assert torch.allclose(sums, block_sums, rtol=1e-4)


def test_the_number_of_visits_does_not_change_a_bit(make: Make) -> None:
    assert_equal(trained(BlockEngine(make(), PLAN), [9]), trained(BlockEngine(make(), PLAN), [1, 2, 6, 9]))


def test_changes_between_visits_are_trained_on(make: Make) -> None:
    herds = make(), make()
    states = []
    for herd, kind in zip(herds, (Engine, BlockEngine), strict=True):
        engine = kind(herd, PLAN)
        engine.advance(0, 2, herd.zero_sums())
        herd.state["g.params"][5] = herd.state["g.params"][1]  # as a strategy replaces a member
        herd.state["set.life"][5] += 1
        states.append((herd.state, trained(engine, [2])[1]))
    assert_equal(*states)


def test_blocks_of_several_breeds_equal_a_resident_herd(make: Make) -> None:
    breeds = [{"generator": {"name": "mlp", "hidden": [5 + 3 * number]}, "members": 4 - number} for number in range(2)]
    sections = {"herd": {"members": None}, "nets": {"breeds": breeds, "generator": None}}
    resident, blocks = make(**sections), make(**sections)
    assert len(blocks.breeds.all) == 2
    assert_equal(trained(Engine(resident, PLAN), [4]), trained(BlockEngine(blocks, PLAN), [4]))


def test_blocks_of_members_with_different_paces_equal_a_resident_herd(make: Make) -> None:
    pace = tuple([Fraction(1)] * 4 + [Fraction(1, 2)] * 3)
    resident, blocks = (replace(make(), pace=pace) for _ in range(2))
    assert_equal(trained(Engine(resident, PLAN), [5]), trained(BlockEngine(blocks, PLAN), [5]))
    assert blocks.state["g.adam.t"].tolist() == [5] * 4 + [2] * 3


def test_members_of_a_block_meet_their_own_opponents(make: Make) -> None:
    herds = make(), make()
    for herd in herds:
        frozen = {name: value.clone() for name, value in opponent_tensors(herd.state).items()}
        table = torch.stack([torch.arange(7), (torch.arange(7) + 3) % 7], dim=1)
        herd.opponents = FrozenOpponents(frozen, table, torch.full((7,), 2))
    assert_equal(trained(Engine(herds[0], PLAN), [4]), trained(BlockEngine(herds[1], PLAN), [4]))


def test_all_blocks_stop_at_the_step_at_which_the_first_was_asked_to(make: Make) -> None:
    herd, ticks = make(), []
    calls: list[int] = []
    engine = BlockEngine(herd, PLAN)
    reached = engine.advance(0, 9, herd.zero_sums(), lambda: bool(calls.append(1)) or len(calls) == 3, ticks.append)
    assert reached == 3 and len(calls) == 3
    assert herd.state["g.adam.t"].tolist() == [3] * 7
    assert ticks == sorted(ticks) and ticks[-1] == 3


def test_a_block_arrives_and_another_leaves_while_one_trains(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    for name in ("fetch", "enter", "leave"):
        plain = getattr(BlockTransfer, name)
        monkeypatch.setattr(BlockTransfer, name, lambda *a, _n=name, _f=plain: events.append(_n) or _f(*a))
    train = Engine.advance
    monkeypatch.setattr(Engine, "advance", lambda *a: events.append("train") or train(*a))
    herd = make()
    engine = BlockEngine(herd, PLAN)
    engine.prepare()
    events.clear()
    engine.advance(0, 2, herd.zero_sums())
    block = ["enter", "fetch", "train", "leave"]
    assert events == ["fetch", *block, *block, "enter", "train", "leave"]


def test_slow_copies_in_small_pieces_change_nothing_but_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(Engine(make(), PLAN), [2])
    copy = HostCopies._copy

    def slow(self: HostCopies, target: torch.Tensor, source: torch.Tensor) -> None:
        time.sleep(0.002)
        copy(self, target, source)

    monkeypatch.setattr(HostCopies, "_copy", slow)
    monkeypatch.setattr(host_copies, "_PIECE", 1 << 12)
    engine = BlockEngine(make(), PLAN)
    assert_equal(expected, trained(engine, [2]))
    assert engine.seconds_waited > 0


def test_an_error_of_a_copy_ends_the_training(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    herd = make()
    engine = BlockEngine(herd, PLAN)
    engine.prepare()

    def fail(self: HostCopies, target: torch.Tensor, source: torch.Tensor) -> None:
        raise RuntimeError("the bus is gone")

    monkeypatch.setattr(HostCopies, "_copy", fail)
    with pytest.raises(RuntimeError, match="the bus is gone"):
        engine.advance(0, 1, herd.zero_sums())


def test_an_error_of_training_leaves_no_copy_under_way(make: Make) -> None:
    herd = make()
    engine = BlockEngine(herd, PLAN)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.advance(0, 2, herd.zero_sums(), interrupt)
    assert engine._transfer is not None and not engine._transfer._arrivals._copies


def test_a_failed_copy_is_reported_when_no_copy_is_under_way_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = HostCopies(torch.device("cpu"))
    copied: list[int] = []

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        if not source.any():
            raise RuntimeError("no room")
        time.sleep(0.01)
        copied.append(int(source[0]))

    monkeypatch.setattr(copies, "_copy", copy)
    copies.start((torch.zeros(1, dtype=torch.uint8), torch.full((1,), i, dtype=torch.uint8)) for i in range(6))
    with pytest.raises(RuntimeError, match="no room"):
        copies.wait()
    assert sorted(copied) == [1, 2, 3, 4, 5]
