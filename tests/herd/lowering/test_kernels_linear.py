"""The batched product with the bias kernel equals the plain linear layer: value, gradient and second gradient."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from ganherd.herd.lowering import ops
from ganherd.herd.lowering.kernels.linear import MemberLinear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("n", "b", "i", "o"), [(1, 4, 4, 4), (3, 12, 8, 20), (2, 100, 64, 260)])
@pytest.mark.parametrize("apart", [0, 5], ids=["rows together", "rows apart"])
def test_linear_kernel_equals_plain_pytorch(n: int, b: int, i: int, o: int, apart: int) -> None:
    rng = torch.Generator().manual_seed(n + b)
    flat = torch.randn(n, o * i + o + apart, generator=rng, dtype=torch.float64)
    x = torch.randn(n, b, i, generator=rng, dtype=torch.float64)
    found = []
    for run, dtype in ((MemberLinear.apply, torch.float32), (ops.linear, torch.float64)):
        rows, seen = flat.to(DEVICE, dtype).requires_grad_(), x.to(DEVICE, dtype).requires_grad_()
        weight, bias, _ = rows.split([o * i, o, apart], dim=1)
        y = run(seen, weight.unflatten(1, (o, i)), bias)
        first = torch.autograd.grad(y.pow(3).sum(), (seen, rows), create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), (seen, rows))
        found.append((y, *first, *second))
    for ours, theirs in zip(*found, strict=True):
        gap = (ours.double() - theirs).norm() / theirs.norm()
        assert gap < 1e-5, float(gap)
