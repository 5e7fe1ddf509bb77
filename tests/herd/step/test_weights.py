"""Passing gradients to Adam in pieces gives the same weights as whole rows, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ganherd.herd.lowering.lower import lower
from ganherd.herd.state import Blueprint
from ganherd.herd.step.optimizer import adam_
from ganherd.herd.step.weights import Weights, join_pieces, piece_slices

N = 3
SIZES = {
    "all large": [1 << 14, 1 << 15, 1 << 14],
    "biases between": [1 << 14, 256, 1 << 15, 48, 1 << 14, 1],
    "no multiples of a vector": [1 << 14, 7, (1 << 14) + 5, 3, 1 << 15, 11],
    "all small": [3, 5, 7],
}


def adam_state(width: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    rows = [torch.randn(N, width, dtype=dtype), torch.randn(N, width, dtype=dtype), torch.rand(N, width, dtype=dtype)]
    rates = torch.tensor([[1e-3, 2e-4, 0.1], [0.5, 0.9, 0.0], [0.999, 0.9, 0.99]], dtype=torch.float64)
    return [*rows, torch.tensor([0, 5, 700]), *rates]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_adam_on_pieces_is_adam_on_rows_bit_for_bit(sizes, dtype):
    whole, cut = (adam_state(sum(sizes), dtype) for _ in range(2))
    for _ in range(3):
        parts = [torch.randn(N, size, dtype=dtype) for size in sizes]
        own = [join_pieces(parts[piece]) for piece in piece_slices(sizes)]
        for (params, m, v, t, *rates), grads in ((whole, [torch.cat(parts, 1)]), (cut, own)):
            adam_(params, grads, m, v, t, *rates, 1e-8)
    assert all(torch.equal(one, other) for one, other in zip(whole, cut, strict=True))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_every_parameter_is_in_one_piece_and_large_ones_are_copied_only_where_rows_cannot_be_cut(sizes):
    found = piece_slices(sizes)
    assert [number for piece in found for number in range(len(sizes))[piece]] == list(range(len(sizes)))
    if all(size % 16 == 0 for size in sizes[:-1]):
        assert all(piece.stop - piece.start == 1 for piece in found if max(sizes[piece]) >= 1 << 14)


class Odd(nn.Module):
    """A large layer, a scalar parameter, an unused one, and one whose gradient is the same number everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.large, self.last = nn.Linear(128, 128), nn.Linear(128, 5)
        self.unused, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(47))

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(torch.tanh(self.large(x))) * self.scale
        return out.sum(1) + self.shift.sum()


def test_gradients_in_pieces_are_those_of_the_rows():
    torch.manual_seed(0)
    net = Blueprint(Odd())
    rows, x = torch.randn(N, net.num_params), torch.randn(N, 4, 128)
    module = lower(net.module)
    assert module is not None

    def loss(views: dict[str, Tensor], seen: Tensor) -> Tensor:
        return module(views, {}, lambda: torch.zeros(N, dtype=torch.int64), seen)[0].square().mean(1)

    weights = Weights(net, rows)
    found = weights.gradients(loss(weights.views(), x) + loss(weights.views(), -x))  # as real and made
    assert all(piece.is_contiguous() for piece in found) and len(found) > 1
    leaf = rows.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((loss(net.views(leaf), x) + loss(net.views(leaf), -x)).sum(), leaf)
    assert torch.equal(join_pieces(found), wanted)
    assert not rows.requires_grad
