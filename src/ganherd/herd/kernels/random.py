"""Counter-based dropout in one pass: the mask is hashed from each member's key, never stored, and hashed again on the way back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _uniform(key, counter):
    """`streams._hashed` for one number: 24 bits in [0, 1) of key and counter."""
    x = key + counter * (-7046029254386353131)
    x = x + (-7046029254386353131)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * (-4658895280553007687)
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * (-7723592293110705685)
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    return ((x >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _dropout(x, keys, y, SIZE, C, PLACES, P, SCALE, BLOCK: tl.constexpr):
    """x [N, B, PLACES, C]; the counter is the index in [B, C, PLACES], as the module itself would number it."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < SIZE
    c = at % C
    place = (at // C) % PLACES
    b = at // (C * PLACES)
    key = tl.load(keys + n)
    u = _uniform(key, ((b * C + c) * PLACES + place).to(tl.int64))
    value = tl.load(x + n * SIZE + at, mask=known, other=0.0).to(tl.float32)
    tl.store(y + n * SIZE + at, tl.where(u >= P, value * SCALE, 0.0).to(y.dtype.element_ty), mask=known)


def _run(x: Tensor, keys: Tensor, p: float) -> Tensor:
    n, _, places, c = x.shape
    size = x[0].numel()
    y = torch.empty_like(x)
    _dropout[(triton.cdiv(size, 1024), n)](x, keys, y, size, c, places, p, 1.0 / (1.0 - p), BLOCK=1024)
    return y


class MemberDropout(torch.autograd.Function):
    """x [N, B, places, C] contiguous, keys [N] int64."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.p = p
        return _run(x, keys, p)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (keys,) = ctx.saved_tensors
        return _run(dy.contiguous(), keys, ctx.p), None, None
