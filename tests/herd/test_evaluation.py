"""Nets in evaluation mode, and what members draw, are what plain PyTorch has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.herd.evaluation import EvaluationCall
from ganherd.herd.member_randomness import MemberRandomness


class ScalesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.layer(z.mul_(0.5))
        return out


def test_a_net_that_changes_its_input_gets_the_same_noise_in_every_call():
    net, key = ScalesItsInput(), torch.tensor(1)
    tensors = {name: value.detach().clone() for name, value in net.named_parameters()}
    expected = net.layer(torch.ones(4, 3) / 2)
    call = EvaluationCall(net)
    for _ in range(2):
        torch.testing.assert_close(call(tensors, (torch.ones(4, 3),), key), expected)


@pytest.mark.parametrize(
    ("function", "shape", "shared"),
    [
        (F.dropout1d, (50, 4), 1),  # without a batch axis
        (F.dropout1d, (50, 6, 4), 2),
        (F.dropout2d, (50, 6, 4), 2),  # read as a batch of rows, with a warning
        (F.dropout2d, (50, 6, 4, 4), 2),
        (F.dropout3d, (50, 4, 4, 4), 1),
        (F.dropout3d, (50, 6, 4, 4, 4), 2),
    ],
)
@pytest.mark.filterwarnings("ignore:dropout2d")
def test_dropouts_of_channels_drop_what_pytorchs_drop(function, shape, shared):
    for context in (MemberRandomness(torch.tensor(1)), torch.random.fork_rng()):
        with context:
            kept = function(torch.ones(shape), 0.5).flatten(shared) > 0
        assert torch.equal(kept, kept[..., :1].expand_as(kept))  # the numbers of a channel share their fate
        one_of = kept[..., 0].flatten()
        assert 0.2 < one_of.double().mean() < 0.8
