"""The engine and the number of blocks change the speed of training, never its result; memory is measured, not guessed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from recipes import tiny_data, tiny_recipe

from ganherd.herd.engine import autotune, engine_trials
from ganherd.herd.engine.blocks.block_engine import BlockEngine
from ganherd.herd.engine.engine_trials import measure_rate, memory_per_member
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble


@pytest.fixture
def make(tmp_path):
    """A herd of any size on small data."""
    path = tiny_data(tmp_path / "data.npz")

    def herd(members: int, **sections):
        sections = {"data": {"partition": "all"}, "herd": {"members": members}, **sections}
        return assemble(recipe_file.load(tiny_recipe(path, **sections))).herd

    return herd


@pytest.mark.further
def test_a_thousand_members_train_on_a_device_that_holds_sixty_four(make):
    herd = make(1000)
    limit = 64 * memory_per_member(herd) + 1
    plan = autotune.choose(
        herd,
        recipe_file.load({"engine": {"name": "fused", "threads": 1, "memory": f"{limit}B"}}).engine,
        lambda text: None,
    )
    assert plan.chunk == 64
    assert "16 blocks of 64" in plan.describe(1000)
    before = herd.state["g.params"].clone()
    BlockEngine(herd, plan).advance(0, 1, herd.zero_sums())
    assert (herd.state["g.params"] != before).any(1).all()


def test_memory_of_a_member_counts_its_state_and_grows_with_the_batch(make):
    small, large = (memory_per_member(make(2, train={"batch": batch})) for batch in (8, 64))
    herd = make(2)
    state = sum(value[0].numel() * value.element_size() for value in herd.state.values())
    assert state < small < large


def test_the_fastest_plan_is_measured_once_and_cached(make, tmp_path, monkeypatch):
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    herd = make(3)
    measured = []

    def rate(herd, plan, seconds, beat):
        measured.append(plan)
        return 100.0 if plan.name == "loop" else 50.0

    monkeypatch.setattr(autotune, "measure_rate", rate)
    settings = recipe_file.load({"engine": {"threads": 1}}).engine
    said: list[str] = []
    assert autotune.choose(herd, settings, said.append).name == "loop"  # never slower than the loop
    assert {plan.name for plan in measured} == {"loop", "fused"}
    assert any("chosen" in line for line in said)
    again = len(measured)
    assert autotune.choose(herd, settings, said.append).name == "loop"
    assert len(measured) == again
    assert len(json.loads((tmp_path / "cache" / "engines.json").read_text())) == 1
    assert autotune.choose(make(4), settings, said.append).name == "loop"
    assert len(measured) > again  # another herd is measured for itself


def test_remaining_plans_are_not_measured_if_a_step_is_very_slow(make, tmp_path, monkeypatch):
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(autotune, "_MAX_SECONDS", 0.0)
    said: list[str] = []
    settings = recipe_file.load({"engine": {"threads": 1}}).engine
    assert autotune.choose(make(3), settings, said.append).name == "fused"
    assert sum("not measured, because a step is slow here" in line for line in said) == 1
    assert not (tmp_path / "cache" / "engines.json").exists()  # what was not measured is not known


@pytest.mark.parametrize(("beat", "periods"), [(0.0, 10), (25.0, 10), (1000.0, 3)])
def test_plans_that_are_clearly_slower_are_not_measured_as_long(make, monkeypatch, beat, periods):
    herd, counted = make(3), []
    seconds_of = lambda engine, start, stop, sums: counted.append(stop - start) or 0.1 * (stop - start)  # noqa: E731
    monkeypatch.setattr(engine_trials, "_seconds_of", seconds_of)
    assert measure_rate(herd, Plan("loop", 3, 1, "cpu"), 1.0, beat) == pytest.approx(30.0)
    assert sum(counted[1:]) in (periods, periods + 1)  # without the first one, which warms up


def test_modules_get_their_own_parameters_back_after_training(make):
    herd = make(2)
    module = herd.g.module
    before = {name: (value.data_ptr(), value.requires_grad) for name, value in module.named_parameters()}
    numbers = [value.detach().clone() for value in module.parameters()]
    Engine(herd, Plan("loop", 2, 1, "cpu")).advance(0, 2, herd.zero_sums())
    assert before == {name: (value.data_ptr(), value.requires_grad) for name, value in module.named_parameters()}
    assert all(map(torch.equal, numbers, module.parameters()))
    assert all(value.grad is None for value in module.parameters())


@pytest.mark.parametrize("engine", ["loop", "fused"])
def test_how_often_training_stops_does_not_change_a_bit(make, engine):
    herds = make(3), make(3)
    for herd, stops in zip(herds, ([0, 12], [0, 1, 2, 5, 12]), strict=True):
        trainer = Engine(herd, Plan(engine, 3, 1, "cpu"))
        for start, stop in pairwise(stops):
            trainer.advance(start, stop, herd.zero_sums())
    assert all(torch.equal(value, herds[1].state[name]) for name, value in herds[0].state.items())


def test_training_needs_neither_pytorchs_compiler_nor_sympy(tmp_path):
    """They take longer to import than everything else of a first step."""
    program = f"""
import sys
import torch
from ganherd.herd.engine.blocks.block_engine import BlockEngine
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble
herd = assemble(recipe_file.load({tiny_recipe(tiny_data(tmp_path / "data.npz"))!r})).herd
for name in ("loop", "fused"):
    Engine(herd, Plan(name, herd.num_members, 1, "cpu")).advance(0, 2, herd.zero_sums())
print([name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done
