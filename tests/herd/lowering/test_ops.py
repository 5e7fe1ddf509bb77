"""Operations for all members at once, on a CPU: their second derivatives, and what these cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ganherd.herd.lowering import ops


class Written(TorchDispatchMode):
    """Counts the numbers that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers += out.numel()
        return out


@pytest.mark.parametrize("operation", [ops.conv2d, ops.conv_transpose2d])
def test_a_penalty_on_gradients_costs_each_member_the_same(operation: Any) -> None:
    """Twelve members write four times as much as three, and not sixteen times."""
    like = (nn.Conv2d if operation is ops.conv2d else nn.ConvTranspose2d)(1, 2, 3, bias=False)

    def written(members: int) -> float:
        x = torch.randn(members, 2, *((1, 5, 5) if operation is ops.conv2d else (1, 3, 3)), requires_grad=True)
        weight = torch.randn(members, *like.weight.shape, requires_grad=True)
        with Written() as seen:
            logits = operation(x, weight, None, like).square().sum()
            (slope,) = torch.autograd.grad(logits, x, create_graph=True)
            torch.autograd.grad(slope.square().sum(), weight)
        return seen.numbers / members

    assert written(12) == pytest.approx(written(3), rel=0.05)


def test_members_are_stacked_as_pytorch_stacks_them() -> None:
    each = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.equal(ops.join_members(each), torch.stack(each))
    assert torch.autograd.gradcheck(lambda *values: ops.join_members([value**3 for value in values]), each)
    assert torch.autograd.gradgradcheck(lambda *values: ops.join_members([value**3 for value in values]), each)
