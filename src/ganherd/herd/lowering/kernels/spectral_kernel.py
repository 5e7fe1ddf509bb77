"""Every member's weight over its largest singular value, in three launches and two for the gradient; the twin is
`nets.spectral.divide`, which takes about fifteen and ten."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST = 1e-12  # of a length that is divided by, as `normalize` has it
_COLUMNS, _ROWS, _DEEP, _BLOCK, _CHUNK = 64, 16, 128, 1024, 4096


@triton.jit
def _back(w, u, v, squares, O, K, WN, PARTS, TILES: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr):
    """v = u W, not yet of length 1: [N, K]; squares [N, PARTS]: parts of its squared length."""
    n = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    total = tl.zeros((BK,), tl.float32)
    for tile in range(TILES):
        o = tile * BO + tl.arange(0, BO)
        known = (o < O)[:, None] & (k < K)[None, :]
        weights = tl.load(w + n * WN + o.to(tl.int64)[:, None] * K + k[None, :], mask=known, other=0.0)
        total += tl.sum(weights * tl.load(u + n * O + o, mask=o < O, other=0.0)[:, None], 0)
    tl.store(v + n * K + k, total, mask=k < K)
    tl.store(squares + n * PARTS + tl.program_id(0), tl.sum(total * total, 0))


@triton.jit
def _forth(
    w, v, squares, image, length, O, K, WN, PARTS, LEAST,
    TILES: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """image = W v, with v of length 1: [N, O]; length [N]: what v was divided by."""
    n = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    part = tl.arange(0, BP)
    norm = tl.sqrt(tl.sum(tl.load(squares + n * PARTS + part, mask=part < PARTS, other=0.0), 0))
    norm = tl.maximum(norm, LEAST)
    total = tl.zeros((BO,), tl.float32)
    for tile in range(TILES):
        k = tile * BK + tl.arange(0, BK)
        known = (o < O)[:, None] & (k < K)[None, :]
        weights = tl.load(w + n * WN + o.to(tl.int64)[:, None] * K + k[None, :], mask=known, other=0.0)
        total += tl.sum(weights * (tl.load(v + n * K + k, mask=k < K, other=0.0) / norm)[None, :], 1)
    tl.store(image + n * O + o, total, mask=o < O)
    tl.store(length + n, norm, mask=tl.program_id(0) == 0)


@triton.jit
def _divide(
    w, u, image, out, moved, sigma, O, SIZE, WN, LEAST, MOVE: tl.constexpr, BO: tl.constexpr, BLOCK: tl.constexpr
):
    """out = W / sigma; moved [N, O]: the direction of the image, or u as it was; sigma [N] as that sees it."""
    n = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, BO)
    seen = tl.load(image + n * O + o, mask=o < O, other=0.0)
    if MOVE:
        direction = seen / tl.maximum(tl.sqrt(tl.sum(seen * seen, 0)), LEAST)
    else:
        direction = tl.load(u + n * O + o, mask=o < O, other=0.0)
    value = tl.sum(direction * seen, 0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weights = tl.load(w + n * WN + at, mask=at < SIZE, other=0.0)
    tl.store(out + n * SIZE + at, weights / value, mask=at < SIZE)
    first = tl.program_id(0) == 0
    tl.store(moved + n * O + o, direction, mask=(o < O) & first)
    tl.store(sigma + n, value, mask=first)


@triton.jit
def _dot(g, w, dots, SIZE, WN, PARTS, BLOCK: tl.constexpr):
    """dots [N, PARTS]: parts of Σ g W."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    products = tl.load(g + n * SIZE + at, mask=at < SIZE, other=0.0) * tl.load(
        w + n * WN + at, mask=at < SIZE, other=0.0
    )
    tl.store(dots + n * PARTS + tl.program_id(0), tl.sum(products, 0))


@triton.jit
def _gradient(g, u, v, length, sigma, dots, out, O, K, SIZE, PARTS, BP: tl.constexpr, BLOCK: tl.constexpr):
    """out = g / sigma - (Σ g W) / sigma² · u v."""
    n = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, BP)
    dot = tl.sum(tl.load(dots + n * PARTS + part, mask=part < PARTS, other=0.0), 0)
    value = tl.load(sigma + n)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < SIZE
    outer = tl.load(u + n * O + at // K, mask=known, other=0.0) * tl.load(v + n * K + at % K, mask=known, other=0.0)
    given = tl.load(g + n * SIZE + at, mask=known, other=0.0)
    tl.store(out + n * SIZE + at, given / value - dot / (value * value) / tl.load(length + n) * outer, mask=known)


class MemberDivide(torch.autograd.Function):
    """weight [N, O, …] float32, u [N, O] -> (weight / sigma, u as it moved on); u and v count as constants."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
        if not weight[0].is_contiguous():
            weight = weight.contiguous()
        u = u.contiguous()
        n, o = u.shape
        size = weight[0].numel()
        k, apart, parts = size // o, weight.stride(0), triton.cdiv(size // o, _COLUMNS)
        v, squares = weight.new_empty(n, k), weight.new_empty(n, parts)
        image, moved = weight.new_empty(2, n, o)
        length, sigma = weight.new_empty(2, n)
        out = weight.new_empty(weight.shape)
        _back[(parts, n)](weight, u, v, squares, o, k, apart, parts, TILES=triton.cdiv(o, _ROWS), BK=_COLUMNS, BO=_ROWS)
        _forth[(triton.cdiv(o, _ROWS), n)](
            weight, v, squares, image, length, o, k, apart, parts, _LEAST,
            TILES=triton.cdiv(k, _DEEP), BP=triton.next_power_of_2(parts), BO=_ROWS, BK=_DEEP,
        )  # fmt: skip
        _divide[(triton.cdiv(size, _BLOCK), n)](
            weight, u, image, out, moved, sigma, o, size, apart, _LEAST,
            MOVE=move, BO=triton.next_power_of_2(o), BLOCK=_BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(weight, moved, v, length, sigma)
        ctx.mark_non_differentiable(moved)
        ctx.set_materialize_grads(False)  # nobody wants zeros for u
        return out, moved

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        weight, u, v, length, sigma = ctx.saved_tensors
        grad = grad.contiguous()
        (n, o), k = u.shape, v.shape[1]
        size, parts = o * k, triton.cdiv(o * k, _CHUNK)
        dots, out = torch.empty(n, parts, dtype=torch.float32, device=grad.device), torch.empty_like(grad)
        _dot[(parts, n)](grad, weight, dots, size, weight.stride(0), parts, BLOCK=_CHUNK)
        _gradient[(triton.cdiv(size, _BLOCK), n)](
            grad, u, v, length, sigma, dots, out, o, k, size, parts, BP=triton.next_power_of_2(parts), BLOCK=_BLOCK
        )
        return out, None, None
