"""Promises for GAP: swaps equal swaps of separate GANs' discriminators, resume exactly, and leave out non-finite members."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import processes
import pytest
import recipes
import run_files
import tiny_runs
import torch
from further_tests import EACH_VALUE

import ganherd
from ganherd.herd.engine.engines import Plan, make_engine
from ganherd.herd.rng import Streams
from ganherd.strategies.gap.gap import pairs
from ganherd.training import loop
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import make_strategy, plan_meetings
from promises.separate import SeparateGan
from promises.test_fused_equals_separate import herd_of

FUSED, LOOP = Plan("fused", 64, 1, "cpu", "cpu"), Plan("loop", 1, 1, "cpu")


def herd(folder: Path, members: int = 4, net: str = "toy", seeds: int = 1, seed: int = 0, **gap: Any) -> PreparedHerd:
    """So many members that share the data and differ in their learning rates; they swap after 3, 6, … steps.

    Both nets have batch norm, so that there are buffers which travel or stay.
    """
    rates = [1e-3 * (k + 1) for k in range(members)]
    gap = {"every": "3steps", **gap}
    return herd_of(
        folder,
        net,
        data={"partition": "all"},
        herd={"members": members, "seeds": seeds},
        optim={"lr_g": rates, "lr_d": rates[::-1]},
        train={"ema": 0.9},
        strategy={"name": "gap", "gap": gap},
        run={"seed": seed},
    )


def train(assembly: PreparedHerd, steps: int, plan: Plan = FUSED) -> list[dict[str, Any]]:
    """The loop without its records; the events of the swaps."""
    strategy = make_strategy(assembly, plan_meetings(assembly.recipe, assembly.steps_per_epoch, steps))
    engine, sums = make_engine(assembly.herd, plan), assembly.herd.zero_sums()
    step, events = 0, []
    while step < steps:
        events += [{"step": step, **facts} for _, facts in strategy.open(step)]
        step = engine.advance(step, min(steps, strategy.next_after(step) or steps), sums)
    return events


class Smoothed(SeparateGan):
    """One whose learning rates follow the authors' schedule after a swap."""

    met: int | None = None

    def _rate(self, adam: torch.optim.Adam, step: int, factor: Callable[[float], float]) -> Iterator[None]:
        rates, s = [group["lr"] for group in adam.param_groups], 0 if self.met is None else step - self.met + 1
        for group in adam.param_groups:
            group["lr"] *= factor(s) if 1 <= s <= self.rules.smoothing else 1.0
        yield
        for group, rate in zip(adam.param_groups, rates, strict=True):
            group["lr"] = rate

    def _discriminator_update(self, draws: Streams, step: int, update: int) -> None:
        for _ in self._rate(self.adam_d, step, lambda s: 1 - 0.3 / (s + 0.6)):
            super()._discriminator_update(draws, step, update)

    def _generator_update(self, draws: Streams, step: int) -> None:
        for _ in self._rate(self.adam_g, step, lambda s: 1 + 0.3 / (s + 0.3)):
            super()._generator_update(draws, step)


def exchange(one: SeparateGan, other: SeparateGan, what: str, travels: str) -> None:
    """Everything: the two objects change hands, with their optimisers. Weights: only the numbers in them do."""
    kind = what[0]
    names = ["g", "ema"] if kind == "g" else ["d"]
    if travels == "all":
        for name in [*names, f"adam_{kind}"]:
            mine, theirs = getattr(one, name), getattr(other, name)
            setattr(one, name, theirs)
            setattr(other, name, mine)
        return
    for name in names:
        for p, q in zip(getattr(one, name).parameters(), getattr(other, name).parameters(), strict=True):
            p.data, q.data = q.data, p.data


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, relative to the size of the numbers where that is above 1."""
    size = theirs.double().abs().max().clamp(min=1.0)
    return float((ours.double() - theirs.double()).abs().max() / size)


def difference(assembly: PreparedHerd, alone: list[SeparateGan]) -> float:
    state = assembly.herd.state
    return max(gap(state[name][m], value) for m, gan in enumerate(alone) for name, value in gan.state().items())


# wcgan: dropout in the discriminator draws from the stream of the slot that it is in
@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize(("net", "smoothing"), [("toy", "0"), ("toy", "2steps"), ("wcgan", "1steps")])
@pytest.mark.parametrize("travels", ["weights", "all"])
@pytest.mark.parametrize("what", ["discriminators", "generators"])
def test_a_swap_is_an_exchange_of_objects_among_separate_gans(
    tmp_path: Path, what: str, travels: str, net: str, smoothing: str
) -> None:
    assembly = herd(tmp_path, net=net, swap=what, travels=travels, smoothing=smoothing)
    alone = [Smoothed(assembly, member) for member in range(4)]
    events = train(assembly, 11)
    assert [event["step"] for event in events] == [3, 6, 9]
    for number, (start, stop) in enumerate([(0, 3), (3, 6), (6, 9), (9, 11)]):
        for a, b in pairs(0, number, 4) if number else ():
            exchange(alone[a], alone[b], what, travels)
            alone[a].met = alone[b].met = start
        for gan in alone:
            gan.train(stop - start, start)
    assert difference(assembly, alone) < 1e-9
    lr = assembly.herd.state[f"set.lr_{what[0]}"].tolist()
    assert (lr == sorted(lr, reverse=what[0] == "d")) == (travels == "weights")  # the rate is the slot's, or travels


@pytest.mark.parametrize("plan", [LOOP, Plan("fused", 2, 1, "cpu")], ids=["loop", "chunks"])
def test_every_engine_swaps_the_same(tmp_path: Path, plan: Plan) -> None:
    one, other = herd(tmp_path, 5), herd(tmp_path, 5)
    assert train(one, 10) == train(other, 10, plan)
    assert max(gap(one.herd.state[k], v) for k, v in other.herd.state.items()) < 1e-9


def test_a_swap_stays_within_the_same_storage(tmp_path: Path) -> None:
    assembly = herd(tmp_path, travels="all")
    places = {name: value.data_ptr() for name, value in assembly.herd.state.items()}
    before = {name: value.clone() for name, value in assembly.herd.state.items()}
    strategy = make_strategy(assembly, {"every": 3, "warmup": 0})
    (event,) = strategy.open(3)
    assert {name: value.data_ptr() for name, value in assembly.herd.state.items()} == places
    for a, b in event[1]["pairs"]:
        for name, value in assembly.herd.state.items():
            moved = name.startswith("d.") or name == "set.lr_d"
            assert torch.equal(value[a], before[name][b if moved else a]), name
    assert list(strategy.open(4)) == []  # nothing between meetings


def test_replicas_swap_as_the_runs_with_their_seeds(tmp_path: Path) -> None:
    stacked = herd(tmp_path, 3, net="mlp", seeds=3, seed=5)
    events = train(stacked, 13)
    for replica in range(3):
        single = herd(tmp_path, 3, net="mlp", seed=5 + replica)
        own = train(single, 13)
        rows = slice(3 * replica, 3 * replica + 3)
        for name in ("g.params", "d.params", "d.adam.v"):
            assert (stacked.herd.state[name][rows] - single.herd.state[name]).abs().max() < 1e-9
        shifted = [[[a + 3 * replica, b + 3 * replica] for a, b in event["pairs"]] for event in own]
        for event, mine in zip(events, shifted, strict=True):
            assert all(pair in event["pairs"] for pair in mine)
    assert [len(event["pairs"]) for event in events] == [3] * 4


# -- a member that is not finite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("travels", ["weights", "all"])
def test_a_non_finite_member_never_swaps(tmp_path: Path, travels: str) -> None:
    assembly = herd(tmp_path, 4, travels=travels)
    assembly.herd.state["d.adam.v"][2, 0] = torch.nan
    events = train(assembly, 31)
    assert len(events) == 10
    for event in events:
        assert event["unwell"] == [2]
        assert not any(2 in pair for pair in event["pairs"])
        assert len(event["pairs"]) == 1 and len(event["sat_out"]) == 1
    well = torch.tensor([0, 1, 3])
    assert all(torch.isfinite(v[well]).all() for v in assembly.herd.state.values() if v.is_floating_point())
    assert not torch.isfinite(assembly.herd.state["d.params"][2]).all()


# -- at their own pace --------------------------------------------------------------------------------------------------


def test_members_at_their_own_pace_are_separate_gans_that_swap_when_two_are_ready(tmp_path: Path) -> None:
    pace = [Fraction(1), Fraction(1, 2), Fraction(1), Fraction(3, 10)]
    assembly = herd(tmp_path, net="mlp", pace=[1.0, 0.5, 1.0, 0.3], travels="all", smoothing="2steps")
    alone = [Smoothed(assembly, member) for member in range(4)]
    events = train(assembly, 25)
    made, since, number, at = [0] * 4, [0] * 4, 0, []
    for t in range(25):  # the definition, tick by tick
        ready = [m for m in range(4) if made[m] - since[m] >= 3]
        if len(ready) >= 2:
            number += 1
            at.append(t)
            for a, b in pairs(0, number, 4, set(range(4)) - set(ready)):
                exchange(alone[a], alone[b], "discriminators", "all")
                alone[a].met, alone[b].met = made[a], made[b]
                since[a], since[b] = made[a], made[b]
        for m in range(4):
            if int((t + 1) * pace[m]) > made[m]:
                alone[m].train(1, made[m])
                made[m] += 1
    assert [event["step"] for event in events] == at and len(at) >= 4
    assert made == [25, 12, 25, 7]
    assert difference(assembly, alone) < 1e-9


def test_equal_paces_equal_the_synchronous_gap(tmp_path: Path) -> None:
    one, other = herd(tmp_path, 4), herd(tmp_path, 4, pace=[1.0] * 4)
    assert train(one, 14) == train(other, 14)
    assert all(torch.equal(one.herd.state[k], v) for k, v in other.herd.state.items())


@pytest.mark.further
def test_a_non_finite_member_does_not_block_others(tmp_path: Path) -> None:
    assembly = herd(tmp_path, 4, pace=[1.0, 1.0, 1.0, 0.5])
    assembly.herd.state["g.params"][0] = torch.nan
    events = train(assembly, 40)
    assert not any(0 in pair for event in events for pair in event["pairs"])
    assert {m for event in events for pair in event["pairs"] for m in pair} == {1, 2, 3}
    assert len(events) <= 40 // 3 * 2  # not at every step


# -- resume -------------------------------------------------------------------------------------------------------------


def settings(folder: Path, budget: str, **gap: Any) -> dict[str, Any]:
    """Five members, which swap between records (3) and checkpoints (7): at 4, 8, 12, …"""
    made = recipes.noise_recipe(folder, budget)
    made["data"]["partition"] = "all"
    made["herd"] = {"members": 5}
    made["strategy"] = {"name": "gap", "gap": {"every": "4steps", "smoothing": "2steps", **gap}}
    return made


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny_runs.skip_products(monkeypatch)
    yield
    torch.set_num_threads(1)


PACED = {"pace": [1.0, 0.9, 0.5, 0.45, 1.0]}


@pytest.mark.further(but=["{'swap': 'generators', 'warmup': '3steps'}"])
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("gap", [{"travels": "all"}, {"swap": "generators", "warmup": "3steps"}, PACED], ids=str)
def test_a_run_that_is_stopped_anywhere_resumes_exactly(
    tmp_path: Path, gap: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an interval, at a swap and before one; and killed, so that it resumes from an older checkpoint."""
    tiny_runs.train(tmp_path / "whole", settings(tmp_path, "24steps", **gap))
    tick = loop.Trainer.tick

    def stopping(at: int, act: Callable[[], object]) -> None:
        def acting(self: loop.Trainer, step: int) -> None:
            tick(self, step)
            if step == at:
                act()

        monkeypatch.setattr(loop.Trainer, "tick", acting)

    def die() -> None:
        raise processes.Killed

    run = tmp_path / "run"
    for at, act in [(4, None), (6, None), (11, die), (12, None), (18, die), (19, None), (23, die)]:
        stopping(at, act or (lambda: os.kill(os.getpid(), signal.SIGTERM)))
        with pytest.raises((ganherd.Interrupted, processes.Killed)):
            if run.exists():
                tiny_runs.resume(run)
            else:
                tiny_runs.train(run, settings(tmp_path, "24steps", **gap))
    monkeypatch.setattr(loop.Trainer, "tick", tick)
    tiny_runs.resume(run)
    run_files.assert_same_run(run, tmp_path / "whole")
    swaps = [line for line in run_files.json_lines(run / "events.jsonl") if line["event"] == "swap"]
    assert len(swaps) >= 4 and [line["number"] for line in swaps] == list(range(1, len(swaps) + 1))


@pytest.mark.usefixtures("brief")
def test_a_longer_budget_continues_with_the_swap_that_was_due(tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "whole", settings(tmp_path, "17steps"))
    tiny_runs.train(tmp_path / "halves", settings(tmp_path, "8steps"))  # ends where a swap is due
    tiny_runs.resume(tmp_path / "halves", "17steps")
    run_files.assert_same_run(tmp_path / "halves", tmp_path / "whole")


@pytest.mark.usefixtures("brief")
def test_records_of_members_at_their_own_pace_are_means_over_their_own_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without swaps a slow member is a fast one that has come less far: after 12 steps at half the pace, 6."""
    monkeypatch.setattr("ganherd.training.recording.progress.Progress.rate", 10.0)  # steps of the run in a second
    tiny_runs.train(tmp_path / "paced", settings(tmp_path, "12steps", every="0", pace=[1.0, 0.5, 1.0, 1.0, 0.1]))
    tiny_runs.train(tmp_path / "all", settings(tmp_path, "12steps", every="0"))
    lines = [run_files.json_lines(tmp_path / name / "metrics.jsonl") for name in ("paced", "all")]
    assert [{line["rate"] for line in each} for each in lines] == [{36.0}, {50.0}]  # of members' own steps
    paced, everyone = ([line["loss_g"] for line in each] for each in lines)
    # its records, of 3 steps of the run each, hold 1, 2, 1 and 2 steps of its own
    own = [(paced[k][1] + 2 * paced[k + 1][1]) / 3 for k in (0, 2)]
    assert own == pytest.approx([everyone[0][1], everyone[1][1]], rel=1e-5)
    assert [line[0] for line in paced] == pytest.approx([line[0] for line in everyone], rel=1e-5)
    assert paced[0][4] == "nan" and isinstance(paced[3][4], float)  # the slowest makes its first step at the tenth
