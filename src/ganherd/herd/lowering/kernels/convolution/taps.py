"""Convert weights from the layout of a module to that of the convolution kernels, and gradients back, in one pass each.

The module of N members (GANs) stores weights `[N, CO, CI, k, k]` for CI input and CO output channels, or
`[N, CI, CO, k, k]` if it is a transposed convolution. Kernels read taps `[N, k*k, CI, CO]`. A tap is one position of
the k × k kernel, with its weights for all channels. Two layers can also be combined into one convolution by adding
taps:

- Fold: a nearest upsampling by 2 followed by 3×3 taps equals a transposed convolution of stride 2 with 4×4 taps. Along an axis,
  tap k of the four is the sum of the taps 2 - k and 3 - k of the three, if these exist.
- Pool: 3×3 taps followed by a 2×2 average equal a convolution of stride 2 with 4×4 taps. Along an axis, tap k of the
  four is half the sum of the taps k - 1 and k of the three, if these exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.kernels.weight_cache import cached

_FEW_PARTIALS = 8  # more partial gradients are added by PyTorch before, because the conversion has few programs


@dataclass(frozen=True)
class WeightLayout:
    """The layout of a module's weight, and how it is converted to taps; see the module's docstring."""

    k: int  # kernel size of the module
    fold: bool = False  # an upsampling by 2 comes before: 3×3 become 4×4 taps
    pool: bool = False  # a 2×2 average comes after: 3×3 become 4×4 taps
    flip: bool = False  # taps in reverse order
    in_first: bool = False  # the weight has the input channels before the output channels
    # A linear layer after a flattening, or before an unflattening, numbers its features (channel, place); kernels number them
    # (place, channel). These are the numbers of places.
    places_in: int = 1
    places_out: int = 1

    @property
    def taps(self) -> int:
        """Return the number of taps along an axis, as the kernels see them."""
        return 4 if self.fold or self.pool else self.k


@triton.jit
def channel_major(index, COUNT, PLACES: tl.constexpr):
    """Return indices that run over (place, channel) as indices that run over (channel, place).

    COUNT is the number of both together, PLACES that of places.
    """
    if PLACES == 1:
        return index
    channels = COUNT // PLACES
    return (index % channels) * PLACES + index // channels


@triton.jit
def _to_taps_kernel(
    w, out, CI, CO, WN, SI, SO, TT, TI,
    K: tl.constexpr, FOLD: tl.constexpr, POOL: tl.constexpr, FLIP: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    BJ: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Convert a module's weight w to taps, out [N, taps, CI, CO].

    WN, SI and SO are the strides of w along members, input channels and output channels; TT and TI those of out along
    taps and input channels. FOLD, POOL, FLIP, PI and PO are the options `fold`, `pool`, `flip`, `places_in` and
    `places_out` of `WeightLayout`. A program computes BJ pairs (input channel, tap), numbered j, for BO output
    channels.
    """
    KT: tl.constexpr = 4 if FOLD or POOL else K
    n = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    co = tl.program_id(1) * BO + tl.arange(0, BO)
    ci = j // (KT * KT)
    tap = j % (KT * KT)
    known = (ci < CI)[:, None] & (co < CO)[None, :]
    w += n * WN
    place = channel_major(ci, CI, PI)[:, None] * SI + channel_major(co, CO, PO)[None, :] * SO
    if FOLD or POOL:
        total = tl.zeros((BJ, BO), tl.float32)
        for a in tl.static_range(2):
            for b in tl.static_range(2):
                y = tap // 4 - a if POOL else 2 + a - tap // 4
                x = tap % 4 - b if POOL else 2 + b - tap % 4
                exists = (y >= 0) & (y < 3) & (x >= 0) & (x < 3)
                total += tl.load(w + place + (y * 3 + x)[:, None], mask=known & exists[:, None], other=0.0).to(
                    tl.float32
                )
        if POOL:
            total *= 0.25
    else:
        source = KT * KT - 1 - tap if FLIP else tap
        total = tl.load(w + place + source[:, None], mask=known, other=0.0)
    to = n * (KT * KT) * CI * CO + (tap * TT + ci * TI)[:, None] + co[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=known)


@triton.jit
def _from_taps_kernel(
    partials, sums, out, bias, CI, CO, SI, SO, HAS_SUMS: tl.constexpr,
    SPLIT: tl.constexpr, K: tl.constexpr, FOLD: tl.constexpr, POOL: tl.constexpr, FLIP: tl.constexpr, PI: tl.constexpr,
    PO: tl.constexpr, BJ: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Add partial gradients of taps [N, SPLIT, taps, CI, CO], and store the sum in `out` in the module's layout.

    SI and SO are the strides of `out` along input and output channels; for FOLD, POOL, FLIP, PI and PO see
    `_to_taps_kernel`.

    HAS_SUMS: also add `sums` [N, SPLIT, CO], and store the result, the gradient of the bias, in `bias` [N, CO].
    """
    KT: tl.constexpr = 4 if FOLD or POOL else K
    n = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    co = tl.program_id(1) * BO + tl.arange(0, BO)
    ci = j // (K * K)
    s = j % (K * K)
    known = (ci < CI)[:, None] & (co < CO)[None, :]
    total = tl.zeros((BJ, BO), tl.float32)
    place = ci[:, None] * CO + co[None, :]
    for partial in range(SPLIT):  # not unrolled: with a hundred parts that takes seconds to compile
        base = partials + (n * SPLIT + partial) * (KT * KT) * CI * CO + place
        if FOLD or POOL:
            for a in tl.static_range(2):
                for b in tl.static_range(2):
                    tap = (s // 3 + a) * 4 + s % 3 + b if POOL else (2 + a - s // 3) * 4 + 2 + b - s % 3
                    total += tl.load(base + (tap * (CI * CO))[:, None], mask=known, other=0.0)
        else:
            tap = KT * KT - 1 - s if FLIP else s
            total += tl.load(base + (tap * (CI * CO))[:, None], mask=known, other=0.0)
    if POOL:
        total *= 0.25
    here = channel_major(ci, CI, PI)[:, None] * SI + channel_major(co, CO, PO)[None, :] * SO
    to = n * (K * K) * CI * CO + here + s[:, None]
    tl.store(out + to, total, mask=known)
    if HAS_SUMS:
        added = tl.zeros((BO,), tl.float32)
        for partial in range(SPLIT):
            added += tl.load(sums + (n * SPLIT + partial) * CO + co, mask=co < CO, other=0.0)
        tl.store(bias + n * CO + co, added, mask=(co < CO) & (tl.program_id(0) == 0))


def _strides(layout: WeightLayout, ci: int, co: int) -> tuple[int, int]:
    """Return the strides of a module's weight along input and along output channels."""
    square = layout.k * layout.k
    return (co * square, square) if layout.in_first else (square, ci * square)


def _grid(ci: int, co: int, per_channel: int, bj: int) -> tuple[tuple[int, int], int]:
    """Return the launch grid of a conversion and the block width BO.

    The grid is (blocks of pairs of input channel and tap, blocks of output channels).

    Args:
        per_channel: Taps of each input channel.
        bj: Pairs (input channel, tap) in a block.
    """
    bo: int = min(64, max(16, triton.next_power_of_2(co)))
    return (triton.cdiv(ci * per_channel, bj), triton.cdiv(co, bo)), bo


def to_taps(weight: Tensor, layout: WeightLayout, dtype: torch.dtype, together: bool = False) -> Tensor:
    """Convert a weight [N, CO, CI, k, k], or in another `layout`, to taps [N, taps², CI, CO] of this dtype.

    The forward passes of a step share the result; see `weight_cache`.

    Args:
        together: Store all taps of an input channel next to each other in memory, i.e. as [N, CI, taps², CO]. The
            result has the same shape as otherwise.
    """
    return cached(weight, lambda: _convert(weight, layout, dtype, together), layout, dtype, together)


def _convert(weight: Tensor, layout: WeightLayout, dtype: torch.dtype, together: bool) -> Tensor:
    """Compute the result of `to_taps` without a cache."""
    n = weight.shape[0]
    if not weight[0].is_contiguous():
        weight = weight.contiguous()
    co, ci = (weight.shape[2], weight.shape[1]) if layout.in_first else (weight.shape[1], weight.shape[2])
    square = layout.taps**2
    out = torch.empty((n, ci, square, co) if together else (n, square, ci, co), dtype=dtype, device=weight.device)
    out = out.transpose(1, 2) if together else out
    grid, bo = _grid(ci, co, square, 16)
    _to_taps_kernel[(*grid, n)](
        weight, out, ci, co, weight.stride(0), *_strides(layout, ci, co), out.stride(1), out.stride(2),
        K=layout.k, FOLD=layout.fold, POOL=layout.pool, FLIP=layout.flip, PI=layout.places_in, PO=layout.places_out,
        BJ=16, BO=bo,
    )  # fmt: skip
    return out


def from_taps(
    partials: Tensor, layout: WeightLayout, shape: torch.Size, sums: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Add partial gradients of taps over `split`, and convert the sum to the gradient of the module's weight.

    Args:
        partials: float32 [N, split, taps², CI, CO].
        shape: The shape of the module's weight.
        sums: [N, split, CO] partial gradients of the bias, added in the same launch; None: there is no bias.

    Returns:
        The gradient of the weight, of this shape, and that of the bias [N, CO] or None.
    """
    if partials.shape[1] > _FEW_PARTIALS:
        partials = partials.sum(1, keepdim=True)
        sums = None if sums is None else sums.sum(1, keepdim=True)
    n, split, _, ci, co = partials.shape
    out = torch.empty(shape, dtype=torch.float32, device=partials.device)
    bias = None if sums is None else torch.empty(n, co, dtype=torch.float32, device=partials.device)
    grid, bo = _grid(ci, co, layout.k**2, 32)
    _from_taps_kernel[(*grid, n)](
        partials, partials if sums is None else sums, out, out if bias is None else bias, ci, co,
        *_strides(layout, ci, co), HAS_SUMS=sums is not None, SPLIT=split, K=layout.k, FOLD=layout.fold, POOL=layout.pool,
        FLIP=layout.flip, PI=layout.places_in, PO=layout.places_out, BJ=32, BO=bo,
    )  # fmt: skip
    return out, bias
