"""The discriminators' costs on trained and held-out data: what a plain module says of the same images, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
import torch
from recipes import tiny_data, tiny_recipe
from torch import Tensor
from torch.nn.functional import softplus

from ganherd.herd.engine.engines import Engine, Plan
from ganherd.herd.state import buffers_of
from ganherd.recipe import recipe_file
from ganherd.runs.records import COSTS
from ganherd.training.recording.validation import Validation
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.util.errors import UserError

NETS = {
    "latent": 3,
    "breeds": [
        {"generator": {"name": "small", "width": 5, "batch_norm": True}, "members": 2},
        {"generator": {"name": "mlp", "hidden": [6]}, "members": 1},
    ],
    "discriminator": {"name": "wcgan", "width": 2, "dropout": 0.0},
}


@pytest.fixture
def trained(tmp_path: Path) -> PreparedHerd:
    """Three members of two breeds after some steps, in float64; the discriminators have batch norm."""
    data = tiny_data(tmp_path / "data.npz")
    recipe = tiny_recipe(
        data, data={"partition": "all"}, loss={"name": "non-saturating"}, train={"precision": "float64"}
    )
    assembly = assemble(recipe_file.load({**recipe, "nets": NETS}))
    Engine(assembly.herd, Plan("fused", 3, 1, "cpu")).advance(0, 5, assembly.herd.zero_sums())
    return assembly


def plainly(assembly: PreparedHerd, member: int, kind: str, x: Tensor) -> Tensor:
    """One member's net as a plain module in training mode."""
    herd = assembly.herd
    breed = herd.breed_of(member)
    net, state = (breed.g if kind == "g" else herd.d), breed.view(herd.state)
    rows = {name: value[member] for name, value in net.views(state[f"{kind}.params"]).items()}
    buffers = {name: value[member].clone() for name, value in buffers_of(state, kind).items()}
    with torch.no_grad():
        return torch.func.functional_call(net.module.train(), {**rows, **buffers}, (x,))


def test_costs_are_those_of_plain_modules_on_the_same_images(trained: PreparedHerd) -> None:
    result = Validation(trained, 10)
    before = {name: value.clone() for name, value in trained.herd.state.items()}
    costs = result.look()
    assert result.images == 10 and all(len(costs[name]) == 3 for name in COSTS)
    for block in result._blocks:
        for row, member in enumerate(range(block.members.start, block.members.stop)):
            fake = plainly(trained, member, "d", plainly(trained, member, "g", block.z[row]))
            for name in COSTS:
                real = plainly(trained, member, "d", block.real[name][0][row])
                by_hand = softplus(-real).mean() + softplus(fake).mean()
                assert costs[name][member] == pytest.approx(by_hand.item(), abs=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in trained.herd.state.items())
    assert result.look() == costs


def test_trained_images_are_the_members_own_and_the_others_are_held_out(tmp_path: Path) -> None:
    data = tiny_data(tmp_path / "data.npz")
    assembly = assemble(recipe_file.load(tiny_recipe(data)))  # by class
    result, dataset = Validation(assembly, 4), assembly.dataset
    (block,) = result._blocks
    for name, x, y in (("cost_train", dataset.x, dataset.y), ("cost_held_out", dataset.x_test, dataset.y_test)):
        for member in range(3):
            shown = (block.real[name][0][member] * dataset.scale + dataset.offset).round().numpy().astype(np.uint8)
            own = x[y == member]
            assert all(any((image == one).all() for one in own) for image in shown)
            assert (block.real[name][1][member] == member).all()


def test_a_member_that_overfits_costs_more_on_held_out_data(tmp_path: Path) -> None:
    """Random images have nothing in common: what a discriminator learns of them it has learned by heart."""
    random = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", x=random.integers(0, 256, (40, 1, 8, 8), np.uint8))
    recipe = tiny_recipe(
        tmp_path / "noise.npz", data={"partition": "all", "holdout": 0.5}, optim={"lr_d": 3e-3, "lr_g": 0}
    )
    recipe["nets"]["discriminator"]["width"] = 64
    assembly = assemble(recipe_file.load({**recipe, "loss": {"name": "non-saturating"}}))
    Engine(assembly.herd, Plan("fused", 1, 1, "cpu")).advance(0, 150, assembly.herd.zero_sums())
    costs = Validation(assembly, 20).look()
    assert costs["cost_held_out"][0] > 2 * costs["cost_train"][0]


def settings(folder: Path, budget: str, **run: Any) -> dict[str, Any]:
    return recipes.noise_recipe(folder, budget, "wcgan", validation=4, **run)


@pytest.mark.further
def test_records_have_them_also_after_a_resume_and_the_training_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.skip_products(monkeypatch)
    tiny_runs.train(tmp_path / "whole", settings(tmp_path, "14steps"))
    tiny_runs.train(tmp_path / "halves", settings(tmp_path, "7steps"))
    tiny_runs.resume(tmp_path / "halves", "14steps")
    tiny_runs.train(tmp_path / "without", recipes.noise_recipe(tmp_path, "14steps", "wcgan"))
    whole, halves, without = (
        run_files.json_lines(tmp_path / name / "metrics.jsonl") for name in ("whole", "halves", "without")
    )
    assert [line["step"] for line in whole] == [3, 6, 9, 12, 14]
    costs = [[(line["step"], line[name]) for name in COSTS] for line in whole]
    assert costs == [[(line["step"], line[name]) for name in COSTS] for line in halves]
    assert not any(name in line for line in without for name in COSTS)
    one, other = (run_files.tensors(run_files.last_checkpoint(tmp_path / name)) for name in ("whole", "without"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_data_that_holds_nothing_out_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    recipe = tiny_recipe(tiny_data(tmp_path / "data.npz"), data={"holdout": 0}, run={"validation": 8})
    with pytest.raises(UserError, match="run.validation needs held-out data.*set data.holdout"):
        assemble(recipe_file.load(recipe))
