"""Run Adam and weight clipping for all members (GANs), each in one pass over the weights.

Row n of the weights [N, P] has the parameters of member n. `herd/step/optimizer.py` defines both operations in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rates(t, lr, b1, b2, rate, root, N, BLOCK: tl.constexpr):
    """Compute Adam's bias corrections of each member: rate = lr / (1 - b1^t) and root = sqrt(1 - b2^t), [N].

    The step counts t, the learning rates and the betas are [N]. Intermediate results are float64.
    """
    n = tl.arange(0, BLOCK)
    known = n < N
    power = tl.load(t + n, mask=known, other=1).to(tl.float64)
    first = tl.load(b1 + n, mask=known, other=0.5).to(tl.float64)
    second = tl.load(b2 + n, mask=known, other=0.5).to(tl.float64)
    first = tl.where(first > 0.0, tl.exp(power * tl.log(tl.where(first > 0.0, first, 1.0))), 0.0)
    second = tl.where(second > 0.0, tl.exp(power * tl.log(tl.where(second > 0.0, second, 1.0))), 0.0)
    step = tl.load(lr + n, mask=known, other=0.0).to(tl.float64) / (1.0 - first)
    tl.store(rate + n, step.to(tl.float32), mask=known)
    tl.store(root + n, tl.sqrt(1.0 - second).to(tl.float32), mask=known)


@triton.jit
def _adam(weights, grads, m, v, rate, root, b1, b2, P, ROW, EPS, BLOCK: tl.constexpr):
    """Update BLOCK weights of one member and their moments m and v; ROW is the stride from one member to the next.

    `rate` and `root` come from `_rates`. Gradients have P numbers for each member, without gaps.
    """
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < P
    place = n * ROW + at
    g = tl.load(grads + n * P + at, mask=known, other=0.0)
    first, second = tl.load(b1 + n).to(tl.float32), tl.load(b2 + n).to(tl.float32)
    mean = tl.load(m + place, mask=known, other=0.0)
    mean = mean + (1.0 - first) * (g - mean)
    square = tl.load(v + place, mask=known, other=0.0) * second + (1.0 - second) * g * g
    tl.store(m + place, mean, mask=known)
    tl.store(v + place, square, mask=known)
    value = tl.load(weights + place, mask=known, other=0.0)
    value -= tl.load(rate + n) * mean / (tl.sqrt(square) / tl.load(root + n) + EPS)
    tl.store(weights + place, value, mask=known)


def adam_triton_(
    params: Tensor, grads: Sequence[Tensor], m: Tensor, v: Tensor, t: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor,
    eps: float,
) -> None:  # fmt: skip
    """Take one Adam step in place, each member (row) with its own learning rate, betas and step count.

    Args:
        params: float32 [N, P], like the moments m and v. Rows may have gaps between them if all three have the same
            stride, as with breeds (members of one architecture) that have fewer parameters than others of the herd.
        grads: The gradient [N, P], cut into pieces along P.
        t: int64 [N], the number of steps including this one.
        lr: [N], like beta1 and beta2.
    """
    n, row = len(params), params.stride(0)
    assert n == 1 or m.stride(0) == v.stride(0) == row
    rate, root = torch.empty(2, n, dtype=torch.float32, device=params.device)
    lr, beta1, beta2, t = (value.contiguous() for value in (lr, beta1, beta2, t))
    _rates[(1,)](t, lr, beta1, beta2, rate, root, n, BLOCK=triton.next_power_of_2(n))
    start = 0
    for piece in grads:
        size = piece.shape[1]
        weights, means, squares = (value[:, start : start + size] for value in (params, m, v))
        _adam[(triton.cdiv(size, 1024), n)](
            weights, piece.contiguous(), means, squares, rate, root, beta1, beta2, size, row, eps, BLOCK=1024
        )
        start += size
    torch.autograd.graph.increment_version(params)  # as PyTorch's in-place operations do


@triton.jit
def _clip(weights, columns, members, P, ROW, LIMIT, BLOCK: tl.constexpr):
    """Clamp weights [N, P] to ±LIMIT if their entries in `columns` [P] and `members` [N] are not 0.

    ROW is the stride of the weights from one member to the next.
    """
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    clips = (at < P) & (tl.load(members + n) != 0)
    clips = clips & (tl.load(columns + at, mask=clips, other=0) != 0)
    value = tl.load(weights + n * ROW + at, mask=clips, other=0.0)
    # NaN stays NaN, because comparisons with it are false.
    value = tl.where(value > LIMIT, LIMIT, tl.where(value < -LIMIT, -LIMIT, value))
    tl.store(weights + n * ROW + at, value, mask=clips)


def clip_triton_(params: Tensor, columns: Tensor, members: Tensor, limit: float) -> None:
    """Clamp float32 params [N, P] to ±limit in place.

    Args:
        columns: bool [P], True for parameters that are clamped.
        members: bool [N], True for members whose parameters are clamped.
    """
    n, num_params = params.shape
    _clip[(triton.cdiv(num_params, 1024), n)](
        params, columns.view(torch.uint8), members.view(torch.uint8), num_params, params.stride(0), limit, BLOCK=1024
    )
    torch.autograd.graph.increment_version(params)
