"""Promise 1 for dropout: members with different probabilities equal herds in which all members have one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from recipes import tiny_recipe
from safetensors.torch import load_file
from torch import Tensor, nn

import ganherd
from ganherd import UserError
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble

RATES = [0.0, 0.2, 0.6]
DISCRIMINATORS: dict[str, dict[str, Any]] = {
    "small": {"name": "small", "width": 6},
    "mlp": {"name": "mlp", "hidden": [6, 5]},
    "wcgan": {"name": "wcgan", "width": 3, "eps": 1e-5},
}


class Halved(nn.Module):
    """A net whose layers drop with different probabilities, and which draws noise after them."""

    def __init__(self, shape: tuple[int, ...], dropout: float = 0.5) -> None:
        super().__init__()
        size = int(torch.tensor(shape).prod())
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, 6), nn.Dropout(dropout), nn.Tanh())
        self.last = nn.Sequential(nn.Dropout(dropout / 2), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers(x)
        logits: Tensor = self.last(hidden + 0.1 * torch.randn_like(hidden))
        return logits.squeeze(1)


def recipe_of(data: Path, discriminator: dict[str, Any], engine: str = "fused", **sections: Any) -> dict[str, Any]:
    nets = {"generator": {"name": "small", "width": 6}, "discriminator": discriminator, "latent": 5}
    common = {
        "train": {"precision": "float64"},
        "engine": {"name": engine, "chunk": None},
        "run": {"watch": {"every": 0}},
    }
    return tiny_recipe(data, nets=nets, **{**common, **sections})


def trained(recipe: dict[str, Any], run: Path, *overrides: str) -> dict[str, Tensor]:
    """Train, and return the state of the last checkpoint."""
    ganherd.train(recipe, [*overrides], run=run, quiet=True, finishers=())
    return state_of(run)


def state_of(run: Path) -> dict[str, Tensor]:
    return load_file(next(max((run / "checkpoints").glob("step-*")).glob("*.safetensors")))


def weights(state: dict[str, Tensor], members: slice) -> list[Tensor]:
    """Return the weights and the moments of some members, in the order of their layers, whose numbers dropout changes."""
    names = [name for name in sorted(state) if name[:2] in ("g.", "d.") and not name.endswith(".p")]
    return [state[name][members] for name in names]


@pytest.mark.further(but=["mlp-loop", "small-fused"])
@pytest.mark.parametrize("engine", ["fused", "loop"])
@pytest.mark.parametrize("name", DISCRIMINATORS)
def test_members_with_different_dropout_equal_herds_of_each(data: Path, tmp_path: Path, name: str, engine: str) -> None:
    net = DISCRIMINATORS[name]
    together = trained(recipe_of(data, {**net, "dropout": RATES}, engine), tmp_path / "together")
    other = trained(recipe_of(data, {**net, "dropout": 0.9}, engine), tmp_path / "other")
    for member, rate in enumerate(RATES):
        alone = trained(recipe_of(data, {**net, "dropout": rate}, engine), tmp_path / f"alone-{member}")
        own = slice(member, member + 1)
        torch.testing.assert_close(weights(together, own), weights(alone, own), rtol=0, atol=1e-9)
        if rate:
            pairs = zip(weights(alone, own), weights(other, own), strict=True)
            assert any((a - b).abs().max() > 1e-6 for a, b in pairs)


@pytest.mark.further
def test_trials_of_a_users_net_equal_the_same_settings_alone(data: Path, tmp_path: Path) -> None:
    recipe = recipe_of(data, {"name": f"{__name__}:Halved"})
    trials = [{"nets.discriminator.dropout": rate} for rate in (0.2, 0.6)]
    together = trained({**recipe, "herd": {"trials": trials}}, tmp_path / "together")
    for number, rate in enumerate((0.2, 0.6)):
        alone = trained(recipe, tmp_path / f"alone-{number}", f"nets.discriminator.dropout={rate}")
        theirs = weights(alone, slice(None))
        members = len(theirs[0])
        own = weights(together, slice(number * members, (number + 1) * members))
        torch.testing.assert_close(own, theirs, rtol=0, atol=1e-9)
    zero = [{"nets.discriminator.dropout": rate} for rate in (0.0, 0.6)]
    with pytest.raises(UserError, match="vary it among numbers above 0"):
        ganherd.train({**recipe, "herd": {"trials": zero}}, run=tmp_path / "zero", quiet=True)


def test_a_resumed_run_and_a_new_life_keep_the_dropout_of_each_member(data: Path, tmp_path: Path) -> None:
    recipe = recipe_of(data, {"name": "small", "width": 6, "dropout": RATES})
    whole = trained(recipe, tmp_path / "whole", "train.budget=6steps")
    trained(recipe, tmp_path / "half", "train.budget=3steps")
    ganherd.resume(tmp_path / "half", overrides=["train.budget=6steps"], quiet=True, finishers=())
    half = state_of(tmp_path / "half")
    assert all(torch.equal(value, half[name]) for name, value in whole.items())
    prepared = assemble(recipe_file.load(recipe))
    names = [name for name in prepared.herd.state if name.startswith("d.buffers.") and name.endswith(".p")]
    assert len(names) == 2
    for name in names:
        assert prepared.herd.state[name].tolist() == RATES
        assert prepared.fresh_member(2, 1)[name].tolist() == [RATES[2]]


@pytest.mark.parametrize(
    ("dropout", "sentence"),
    [
        ([0.1, 0.2], "nets.discriminator.dropout lists 2 values, but the herd has 3 members"),
        ([0.1, 1.0, 0.2], "nets.discriminator.dropout must be a number of at least 0 and below 1"),
        ("much", "or a list of such numbers, one for each member, not 'much'"),
    ],
)
def test_a_wrong_list_is_refused_in_a_sentence(data: Path, tmp_path: Path, dropout: Any, sentence: str) -> None:
    recipe = recipe_of(data, {"name": "small", "width": 6, "dropout": dropout})
    with pytest.raises(UserError, match=sentence):
        ganherd.train(recipe, run=tmp_path / "run", quiet=True)


def test_packaged_recipes_list_no_dropout_that_they_do_not_have() -> None:
    assert "dropout" not in recipe_file.load("digits-wcgan").nets.discriminator.settings
    text = yaml.safe_dump(recipe_file.load("digits-wcgan", ["nets.discriminator.dropout=0.1"]).model_dump())
    assert "dropout: 0.1" in text
