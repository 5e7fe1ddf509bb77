"""Draw counter-based random numbers on a GPU: keys, noise and dropout masks.

A random number is a hash of a key and a counter, so that nothing has to be stored: the backward pass of a dropout
computes its mask again. Each member (GAN) has its own key. `herd/rng.py` defines the same numbers for a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _mixed(x):
    """Return the SplitMix64 hash of each 64-bit integer."""
    x = x + (-7046029254386353131)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * (-4658895280553007687)
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * (-7723592293110705685)
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _bits(key, counter):
    """Return 64 random bits for each counter, a hash of key and counter as in `rng._hashed`."""
    return _mixed(key + counter * (-7046029254386353131))


@triton.jit
def _refined(key, part):
    """Return a new key, the hash of a key and an integer `part` as in `rng.keys`."""
    return _mixed(key ^ part)


@triton.jit
def _uniform(bits):
    """Return the 24 lowest of random bits as a float32 number in [0, 1)."""
    return (bits & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _factor(key, counter, P, SCALE):
    """Return what dropout multiplies the numbers with these counters by: 0 with probability P, otherwise SCALE.

    `key` is that of one draw, i.e. of one call of a dropout.
    """
    return tl.where(_uniform(_bits(key, counter.to(tl.int64)) >> 40) >= P, SCALE, 0.0)


@triton.jit
def dropout_factor(key, call, counter, P, SCALE):
    """Return what dropout multiplies the numbers with these counters by: 0 with probability P, otherwise SCALE.

    The draw has its own key, derived from the key of the module and from `call`, the number of the draw in the module.
    """
    return _factor(_refined(key, call.to(tl.int64)), counter, P, SCALE)


@triton.jit
def _dropout(
    x, grad, keys, y, SIZE, C, PLACES, P, SCALE, SLOPE: tl.constexpr, BACKWARD: tl.constexpr, BLOCK: tl.constexpr
):
    """Apply a (leaky) ReLU with this SLOPE, then dropout, to x [N, B, PLACES, C].

    PLACES are the pixels of an image. The counter of a number, from which its mask is drawn, is its index in
    [B, C, PLACES], the memory order of plain PyTorch. SIZE is the number of numbers of a member.

    BACKWARD: compute y as the gradient of x, from the gradient `grad` of the output.
    """
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < SIZE
    c = at % C
    place = (at // C) % PLACES
    b = at // (C * PLACES)
    factor = _factor(tl.load(keys + n), (b * C + c) * PLACES + place, P, SCALE)
    if SLOPE != 1.0 or not BACKWARD:
        value = tl.load(x + n * SIZE + at, mask=known, other=0.0).to(tl.float32)
        factor = factor if SLOPE == 1.0 else tl.where(value > 0, factor, factor * SLOPE)
    if BACKWARD:
        value = tl.load(grad + n * SIZE + at, mask=known, other=0.0).to(tl.float32)
    tl.store(y + n * SIZE + at, (value * factor).to(y.dtype.element_ty), mask=known)


def _run_dropout(x: Tensor, grad: Tensor | None, keys: Tensor, p: float, slope: float) -> Tensor:
    """Return the output of `_dropout` for x [N, B, places, C]; if the output's gradient is given, the gradient of x."""
    n, _, places, c = x.shape
    numbers = x[0].numel()
    y = torch.empty_like(x)
    _dropout[(triton.cdiv(numbers, 1024), n)](
        x, x if grad is None else grad, keys, y, numbers, c, places, p, 1.0 / (1.0 - p),
        SLOPE=slope, BACKWARD=grad is not None, BLOCK=1024,
    )  # fmt: skip
    return y


class MemberDropout(torch.autograd.Function):
    """Apply a (leaky) ReLU, then dropout, to a contiguous x [N, B, places, C]. Differentiable any number of times.

    Args:
        keys: int64 [N], the key of each member for this draw.
        p: Probability of dropout.
        slope: Slope of the activation below 0: 1 means no activation, 0 ReLU, 0.2 LeakyReLU(0.2).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, p: float, slope: float = 1.0) -> Tensor:
        ctx.save_for_backward(keys, *([x] if slope != 1.0 else []))
        ctx.settings = (p, slope)
        return _run_dropout(x, None, keys, p, slope)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        keys, *x = ctx.saved_tensors
        dy = dy.contiguous()
        return _DropoutGradient.apply(dy, x[0] if x else dy.detach(), keys, *ctx.settings), None, None, None


class _DropoutGradient(torch.autograd.Function):
    """Compute the input gradient of `MemberDropout` from the output's gradient dy, in which it is linear.

    Only the sign of the input x matters, so x gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, dy: Tensor, x: Tensor, keys: Tensor, p: float, slope: float) -> Tensor:
        ctx.save_for_backward(x, keys)
        ctx.settings = (p, slope)
        return _run_dropout(x, dy, keys, p, slope)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
        return _DropoutGradient.apply(ddx.contiguous(), *ctx.saved_tensors, *ctx.settings), None, None, None, None


@triton.jit(do_not_specialize=["P0", "P1", "P2"])
def _mix(keys, at, out, N, P0, P1, P2, HAS_AT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Hash keys [N] with PARTS integers, one after another, as `rng.device_keys` does; `out` [N] gets the new keys.

    HAS_AT: the first integer is read from device memory (`at`). The others are P0, P1 and P2, as far as they are
        needed.
    """
    n = tl.arange(0, BLOCK)
    x = tl.load(keys + n, mask=n < N, other=0)
    for number in tl.static_range(PARTS):
        if HAS_AT and number == 0:
            part = tl.load(at).to(tl.int64)
        elif number - HAS_AT == 0:
            part = P0.to(tl.int64)
        elif number - HAS_AT == 1:
            part = P1.to(tl.int64)
        else:
            part = P2.to(tl.int64)
        x = _refined(x, part)
    tl.store(out + n, x, mask=n < N)


@triton.jit
def _fill(keys, out, COUNT, NORMAL: tl.constexpr, BLOCK: tl.constexpr):
    """Fill out [N, COUNT] with uniform numbers in [0, 1) or, if NORMAL, with normal ones, as `rng._hashed` does.

    The Box-Muller transform makes one normal number from two uniform ones, which are two parts of the same 64 bits.
    """
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = _bits(tl.load(keys + n), at.to(tl.int64))
    u = _uniform(bits >> 40)
    if NORMAL:
        u = tl.sqrt(-2.0 * tl.log(1.0 - u)) * tl.cos(6.283185307179586 * _uniform(bits))
    tl.store(out + n * COUNT + at, u.to(out.dtype.element_ty), mask=at < COUNT)


def mix(keys: Tensor, at: Tensor | None, parts: tuple[int, ...]) -> Tensor:
    """Return keys [N] hashed with integers, one after another, in one launch.

    Args:
        at: The first integer as a tensor on the device, e.g. the step inside a captured graph; None: there is none.
        parts: Up to three further integers.
    """
    out = torch.empty_like(keys)
    p0, p1, p2 = (*parts, 0, 0, 0)[:3]
    _mix[(1,)](
        keys, keys if at is None else at, out, len(keys), p0, p1, p2,
        HAS_AT=at is not None, PARTS=len(parts) + (at is not None), BLOCK=triton.next_power_of_2(len(keys)),
    )  # fmt: skip
    return out


def fill(keys: Tensor, count: int, kind: str, dtype: torch.dtype) -> Tensor:
    """Return random numbers [N, count], row i from key i alone.

    Args:
        keys: int64 [N].
        kind: `normal` or `uniform` (in [0, 1)).
    """
    out = torch.empty(len(keys), count, dtype=dtype, device=keys.device)
    _fill[(triton.cdiv(count, 1024), len(keys))](keys, out, count, NORMAL=kind == "normal", BLOCK=1024)
    return out
