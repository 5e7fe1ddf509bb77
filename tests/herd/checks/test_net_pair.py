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
from ganherd.util.errors import UserError

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


class ReadsBytes(nn.Module):
    """Looks up a weight for each of the 256 values that a pixel in [-1, 1] may have, and ends in a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.judge = nn.Embedding(256, 1), _judge(nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.judge(self.values(((x + 1) * 127.5).long()))


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
        (ReadsBytes, False),  # it fails for values outside of [-1, 1]
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
        ("non-saturating", "the loss non-saturating is"),
        ("wasserstein-gp", "the loss wasserstein-gp is"),
        ("least-squares", ""),
        ("[hinge,least-squares,minimax]", "the losses hinge and minimax are"),  # one for each member
        ("[least-squares,least-squares,least-squares]", ""),
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
        noise_recipe(tmp_path), ["nets.discriminator=mine:D", f"loss.name={loss}", f"code=[{tmp_path}]"]
    )
    notes = [note for note in assemble(recipe, trust_code=True).notes if "sigmoid" in note]
    expected = (
        f"all outputs of the discriminator mine:D lie between 0 and 1, as after a sigmoid, but {noted} made for logits"
    )
    assert notes == ([f"{expected}: leave the sigmoid out"] if noted else [])


def test_a_run_notes_a_sigmoid_where_a_users_loss_may_expect_logits(tmp_path: Path) -> None:
    (tmp_path / "own_judge.py").write_text(
        "from torch import nn\n"
        "from torch.nn.functional import softplus\n"
        "class D(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 1), nn.Sigmoid())\n"
        "class Own:\n"
        "    def d(self, real, fake):\n"
        "        return softplus(-real).mean(-1) + softplus(fake).mean(-1)\n"
        "    def g(self, fake):\n"
        "        return softplus(-fake).mean(-1)\n"
    )
    settings = ["nets.discriminator=own_judge:D", "loss.name=own_judge:Own", f"code=[{tmp_path}]"]
    notes = assemble(recipe_file.load(noise_recipe(tmp_path), settings), trust_code=True).notes
    assert [note for note in notes if "sigmoid" in note] == [
        "all outputs of the discriminator own_judge:D lie between 0 and 1, as after a sigmoid: leave it out if the loss "
        "own_judge:Own takes logits"
    ]


def test_a_generator_that_makes_one_image_of_a_batch_is_refused() -> None:
    class OneImage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 64)

        def forward(self, z: Tensor) -> Tensor:
            return self.layer(z).mean(0).reshape(1, 1, 8, 8)

    pair = NetPair("G", "D", OneImage, _judge, 3)
    with pytest.raises(UserError, match="the generator G makes 1 images of a batch of 4: one for each z"):
        pair.refuse_misfits(4, SHAPE, 16, may_draw=True)
