"""Adam for all members in one pass over their rows, with each member's own rates; the twin is `adam.adam_reference_`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _adam(weights, grads, m, v, rate, root, b1, b2, P, ROW, EPS, BLOCK: tl.constexpr):
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < P
    place = n * ROW + at
    g = tl.load(grads + n * P + at, mask=known, other=0.0)
    first, second = tl.load(b1 + n), tl.load(b2 + n)
    mean = tl.load(m + place, mask=known, other=0.0)
    mean = mean + (1.0 - first) * (g - mean)
    square = tl.load(v + place, mask=known, other=0.0) * second + (1.0 - second) * g * g
    tl.store(m + place, mean, mask=known)
    tl.store(v + place, square, mask=known)
    value = tl.load(weights + place, mask=known, other=0.0)
    value -= tl.load(rate + n) * mean / (tl.sqrt(square) / tl.load(root + n) + EPS)
    tl.store(weights + place, value, mask=known)


def adam_triton_(
    params: Tensor, grads: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, eps: float
) -> None:
    """One step in place on float32 rows [N, P]; `t` counts this step already.

    The rows of weights and moments may lie apart, all at the same distance: those of a breed that is not the widest do.
    """
    n, size = params.shape
    row = params.stride(0)
    assert n == 1 or m.stride(0) == v.stride(0) == row
    power = t.double()
    rate = (lr / (1 - beta1**power)).float()
    root = torch.sqrt(1 - beta2**power).float()
    _adam[(triton.cdiv(size, 1024), n)](
        params, grads.contiguous(), m, v, rate, root, beta1.float(), beta2.float(), size, row, eps, BLOCK=1024
    )
