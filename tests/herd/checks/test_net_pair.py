"""A discriminator that returns probabilities instead of logits is noticed, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.recipes import noise_recipe
from torch import Tensor, nn

from ganherd.herd.checks.net_pair import NetPair
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble

SHAPE = (1, 8, 8)


def _judge(*last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), *last)


class WithClasses(nn.Module):
    """Returns probabilities and logits of classes, and takes labels."""

    def __init__(self) -> None:
        super().__init__()
        self.judge, self.classes = _judge(nn.Sigmoid()), nn.Linear(64, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.judge(x), self.classes(x.flatten(1))


class StartsFromZero(nn.Module):
    """Its last weights are 0 and its bias is 0.5, so that it answers 0.5 to everything at first."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = _judge()
        nn.init.zeros_(self.judge[3].weight)
        nn.init.constant_(self.judge[3].bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.judge(x)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: _judge(nn.Sigmoid()), True),
        (WithClasses, True),
        (lambda: _judge(nn.BatchNorm1d(1), nn.Sigmoid()), True),
        (_judge, False),
        (lambda: _judge(nn.ReLU()), False),
        (lambda: _judge(nn.Tanh()), False),
        (lambda: _judge(nn.BatchNorm1d(1)), False),
        (StartsFromZero, False),
    ],
)
def test_probabilities_are_noticed(make, expected) -> None:
    pair = NetPair("G", "D", lambda: nn.Identity(), make, 3)
    before = torch.random.get_rng_state()
    assert pair.returns_probabilities(SHAPE, 16) is expected
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("loss", "noted"),
    [
        ("non-saturating", "non-saturating"),
        ("wasserstein-gp", "wasserstein-gp"),
        ("least-squares", ""),
        ("[least-squares, hinge]", "hinge"),
        ("[least-squares, least-squares]", ""),
    ],
)
def test_a_run_notes_a_sigmoid_where_logits_are_expected(tmp_path: Path, loss: str, noted: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class D(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 1), nn.Sigmoid())\n"
    )
    recipe = recipe_file.load(
        noise_recipe(tmp_path),
        [
            "nets.discriminator=mine:D",
            f"loss.name={loss}",
            "herd.members=2",
            "data.partition=all",
            f"code=[{tmp_path}]",
        ],
    )
    start = "all outputs of the discriminator mine:D lie between 0 and 1"
    told = [note for note in assemble(recipe, trust_code=True).notes if note.startswith(start)]
    assert len(told) == bool(noted) and all(f"the loss {noted} is made for logits" in note for note in told)
