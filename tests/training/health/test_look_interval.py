"""How often members are looked at follows from the recipe alone, is recorded, and stays."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recipes
import tiny_runs
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.recipe.recipe_file import load
from ganherd.runs.folder import RunFolder
from ganherd.training.health import look_interval
from ganherd.training.setup.assemble import assemble


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return a little recipe whose looks are as often as ganherd likes."""
    settings = recipes.noise_recipe(folder, "7steps", "tiny", record_every=1, watch={"every": "auto"})
    return {name: {**values, **changes.pop(name, {})} for name, values in settings.items()} | changes


def planned(settings: dict[str, Any]) -> int:
    return look_interval.planned(assemble(load(settings))).every


def test_the_interval_follows_from_nets_rules_and_data_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, threads, members and replicas do not matter, and no clock is read."""
    monkeypatch.setattr("time.monotonic", lambda: pytest.fail("a clock was read"))
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("a clock was read"))
    every = planned(recipe(tmp_path))
    for others in (
        {"engine": {"name": "loop", "threads": 2}},
        {"herd": {"seeds": 2}},
        {"data": {"partition": "all"}, "herd": {"members": 5}},
        {"strategy": {"name": "gap"}, "data": {"partition": "all"}, "herd": {"members": 2}},
        {"run": {"seed": 5}},
    ):
        assert planned(recipe(tmp_path, **others)) == every, others
    assert planned(recipe(tmp_path, train={"batch": 4000})) < every
    assert (
        planned(recipe(tmp_path, train={"precision": "bf16"}))
        > every
        > planned(recipe(tmp_path, train={"precision": "float64"}))
    )
    assert planned(recipe(tmp_path, run={"watch": {"every": 7}})) == 7


def test_a_cheap_step_has_fewer_looks_than_a_dear_one() -> None:
    rules = assemble(load("digits-wcgan")).herd.rules
    dear = look_interval.step_work(rules, 1.0, 1.0)
    assert dear == 32 * (3 * (1 + 6 + 6) + 3 + 2)
    cheap = look_interval.step_work(replace(rules, n_critic=1, skip_d=1, gp_weight=0.0), 1.0, 1.0)
    assert cheap == 32 * (0.5 * (1 + 6 + 6) + 3 + 2)
    assert look_interval.choose(100.0, cheap, 1) > look_interval.choose(100.0, dear, 1)


class Own(nn.Module):
    """A product of each kind that is counted, and what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.back = nn.Conv2d(1, 4, 3, padding=1), nn.ConvTranspose2d(4, 2, 2, 2)
        self.norm, self.table = nn.BatchNorm2d(2), nn.Parameter(torch.ones(576, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.back(torch.relu(self.conv(x)))).flatten(1)
        return F.linear(weight=torch.ones(1, 5), input=torch.addmm(torch.zeros(5), x @ torch.eye(576), self.table))


def test_operations_of_every_product_are_counted() -> None:
    state = torch.random.get_rng_state()
    result = look_interval.count_operations(Own, (1, 6, 12), (2,))
    convolutions, products = 2 * 4 * 6 * 12 * 9 + 2 * 4 * 6 * 12 * 8, 2 * 576 * 576 + 2 * 5 * 576 + 2 * 5
    assert result == convolutions + products
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_resumed_run_keeps_its_recorded_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that an older version measured, and one that it had not measured yet."""
    tiny_runs.skip_products(monkeypatch)
    tiny_runs.train(tmp_path / "run", recipe(tmp_path))
    counted = RunFolder(tmp_path / "run").info.watch.every
    assert counted == planned(recipe(tmp_path)) > 15
    for name, recorded, looks in (
        ("measured", {"every": 4, "first": 10, "share": 0.1}, [12]),
        ("not measured", {"every": None, "first": 0}, []),
    ):
        shutil.copytree(tmp_path / "run", tmp_path / name)
        folder = RunFolder(tmp_path / name)
        folder.write_info(watch=recorded)
        tiny_runs.resume(folder.path, "15steps")
        seen = [line["looked"] for line in folder.metrics() if line["step"] < 15 and "looked" in line]
        assert seen == looks
        assert folder.info.watch.every == (recorded["every"] or counted)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *((wrong, "(watch") for wrong in ({"every": -1, "first": 0}, {"every": 4.0, "first": 0}, [4])),
        ({"every": 4}, "does not say how often the members are looked at"),
    ],
)
def test_a_forged_interval_is_refused_in_a_sentence(
    wrong: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_runs.skip_products(monkeypatch)
    tiny_runs.train(tmp_path / "run", recipe(tmp_path))
    RunFolder(tmp_path / "run").write_info(watch=wrong)
    assert tiny_runs.command("train", "--resume", tmp_path / "run", "--budget", "9steps", "-q") == 2
    output = capsys.readouterr().err
    assert sentence in output
    assert "it cannot be resumed exactly" in output
