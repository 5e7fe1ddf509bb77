"""Divide every member's (GAN's) weight by its largest singular value; `divide` in `nets/common/spectral.py` defines it.

A weight is a matrix W [O, K] with its input axes flattened. The power iteration computes v = u W / |u W| and u' = W v /
|W v|; then sigma = u' · W v estimates the largest singular value. These kernels need three launches, and two for the
gradient; plain PyTorch needs about fifteen and ten.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST = 1e-12  # lower bound of norms that are divided by, as in `F.normalize`
_BLOCK, _CHUNK = 1024, 4096  # numbers of W that a program of `_divide` or `_gradient`, and one of `_dot`, reads
# Tiles of W in the two products. They are small, so that a single member has enough programs to fill a GPU.
_COLUMNS, _ROWS = 64, 64  # tile of the product u W
_IMAGES, _DEEP = 4, 1024  # rows and columns of the tile of the product W v


@triton.jit
def _left_product(w, u, v, squares, O, K, WN, PARTIALS, TILES: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr):
    """Compute v = u W, [N, K], without normalising it, and partial sums of its squared norm, `squares` [N, PARTIALS].

    WN is the stride of W [N, O, K] from one member to the next.
    """
    n = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    total = tl.zeros((BK,), tl.float32)
    for tile in range(TILES):
        o = tile * BO + tl.arange(0, BO)
        known = (o < O)[:, None] & (k < K)[None, :]
        weights = tl.load(w + n * WN + o.to(tl.int64)[:, None] * K + k[None, :], mask=known, other=0.0)
        total += tl.sum(weights * tl.load(u + n * O + o, mask=o < O, other=0.0)[:, None], 0)
    tl.store(v + n * K + k, total, mask=k < K)
    tl.store(squares + n * PARTIALS + tl.program_id(0), tl.sum(total * total, 0))


@triton.jit
def _right_product(
    w, v, squares, image, length, O, K, WN, PARTIALS, LEAST,
    TILES: tl.constexpr, BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute image = W v / |v|, [N, O], and length = |v|, [N].

    v and the partial sums of its squared norm, `squares`, come from `_left_product`; |v| is at least LEAST.
    """
    n = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    partial = tl.arange(0, BP)
    norm = tl.sqrt(tl.sum(tl.load(squares + n * PARTIALS + partial, mask=partial < PARTIALS, other=0.0), 0))
    norm = tl.maximum(norm, LEAST)
    products = tl.zeros((BO, BK), tl.float32)
    for tile in range(TILES):
        k = tile * BK + tl.arange(0, BK)
        known = (o < O)[:, None] & (k < K)[None, :]
        weights = tl.load(w + n * WN + o.to(tl.int64)[:, None] * K + k[None, :], mask=known, other=0.0)
        products += weights * (tl.load(v + n * K + k, mask=k < K, other=0.0) / norm)[None, :]
    tl.store(image + n * O + o, tl.sum(products, 1), mask=o < O)
    tl.store(length + n, norm, mask=tl.program_id(0) == 0)


@triton.jit
def _divide(
    w, u, image, out, new_u, sigma, O, SIZE, WN, LEAST, MOVE: tl.constexpr, BO: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute out = W / sigma, and store sigma = new_u · image, [N], the estimate of the largest singular value.

    `image` [N, O] is W v for a normalised v. If MOVE, new_u [N, O] is the normalised image, i.e. u after one power
    iteration; otherwise it is u.
    """
    n = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, BO)
    product = tl.load(image + n * O + o, mask=o < O, other=0.0)
    if MOVE:
        direction = product / tl.maximum(tl.sqrt(tl.sum(product * product, 0)), LEAST)
    else:
        direction = tl.load(u + n * O + o, mask=o < O, other=0.0)
    value = tl.sum(direction * product, 0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weights = tl.load(w + n * WN + at, mask=at < SIZE, other=0.0)
    tl.store(out + n * SIZE + at, weights / value, mask=at < SIZE)
    first = tl.program_id(0) == 0
    tl.store(new_u + n * O + o, direction, mask=(o < O) & first)
    tl.store(sigma + n, value, mask=first)


@triton.jit
def _dot(g, w, dots, SIZE, WN, PARTIALS, BLOCK: tl.constexpr):
    """Compute partial sums of the product Σ g W over all numbers of a weight, `dots` [N, PARTIALS]; g is a gradient."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(g + n * SIZE + at, mask=at < SIZE, other=0.0)
    weights = tl.load(w + n * WN + at, mask=at < SIZE, other=0.0)
    tl.store(dots + n * PARTIALS + tl.program_id(0), tl.sum(grad * weights, 0))


@triton.jit
def _gradient(g, u, v, length, sigma, dots, out, O, K, SIZE, PARTIALS, BP: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the gradient of W from the gradient g of W / sigma: out = g / sigma - (Σ g W) / sigma² · u v.

    u v is the outer product of the singular vectors, which is the derivative of sigma by W. v is stored without
    normalisation, so it is divided by its norm `length`. `dots` has the partial sums of Σ g W.
    """
    n = tl.program_id(1).to(tl.int64)
    partial = tl.arange(0, BP)
    dot = tl.sum(tl.load(dots + n * PARTIALS + partial, mask=partial < PARTIALS, other=0.0), 0)
    value = tl.load(sigma + n)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < SIZE
    outer = tl.load(u + n * O + at // K, mask=known, other=0.0) * tl.load(v + n * K + at % K, mask=known, other=0.0)
    grad = tl.load(g + n * SIZE + at, mask=known, other=0.0)
    tl.store(out + n * SIZE + at, grad / value - dot / (value * value) / tl.load(length + n) * outer, mask=known)


class MemberDivide(torch.autograd.Function):
    """Divide float32 weights [N, O, …] by their largest singular values, estimated with u [N, O]. Differentiable once.

    Return the divided weights and the new u [N, O], which is u itself unless `move` asks for a power iteration. The
    gradient treats u and v as constants.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, u: Tensor, move: bool) -> tuple[Tensor, Tensor]:
        if not weight[0].is_contiguous():
            weight = weight.contiguous()
        u = u.contiguous()
        n, o = u.shape
        numbers = weight[0].numel()
        k, member_stride, partials = numbers // o, weight.stride(0), triton.cdiv(numbers // o, _COLUMNS)
        v, squares = weight.new_empty(n, k), weight.new_empty(n, partials)
        image, new_u = weight.new_empty(2, n, o)
        length, sigma = weight.new_empty(2, n)
        out = weight.new_empty(weight.shape)
        _left_product[(partials, n)](
            weight, u, v, squares, o, k, member_stride, partials,
            TILES=triton.cdiv(o, _ROWS), BK=_COLUMNS, BO=_ROWS,
        )  # fmt: skip
        deep = min(_DEEP, triton.next_power_of_2(k))
        _right_product[(triton.cdiv(o, _IMAGES), n)](
            weight, v, squares, image, length, o, k, member_stride, partials, _LEAST,
            TILES=triton.cdiv(k, deep), BP=triton.next_power_of_2(partials), BO=_IMAGES, BK=deep,
        )  # fmt: skip
        _divide[(triton.cdiv(numbers, _BLOCK), n)](
            weight, u, image, out, new_u, sigma, o, numbers, member_stride, _LEAST,
            MOVE=move, BO=triton.next_power_of_2(o), BLOCK=_BLOCK,
        )  # fmt: skip
        ctx.save_for_backward(weight, new_u, v, length, sigma)
        ctx.mark_non_differentiable(new_u)
        ctx.set_materialize_grads(False)  # the gradient of u is not used
        return out, new_u

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        weight, u, v, length, sigma = ctx.saved_tensors
        grad = grad.contiguous()
        (n, o), k = u.shape, v.shape[1]
        numbers, partials = o * k, triton.cdiv(o * k, _CHUNK)
        dots, out = torch.empty(n, partials, dtype=torch.float32, device=grad.device), torch.empty_like(grad)
        _dot[(partials, n)](grad, weight, dots, numbers, weight.stride(0), partials, BLOCK=_CHUNK)
        padded = triton.next_power_of_2(partials)
        _gradient[(triton.cdiv(numbers, _BLOCK), n)](
            grad, u, v, length, sigma, dots, out, o, k, numbers, partials, BP=padded, BLOCK=_BLOCK
        )
        return out, None, None
