"""Weights as the convolution kernels read them, and their gradients back as the module has them, in one pass each.

A module keeps `[N, CO, CI, k, k]` (`[N, CI, CO, k, k]` where it is transposed); the kernels read taps `[N, k*k, CI, CO]`.
Folded: nearest upsampling by 2 and then 3×3 taps are 4×4 taps of a transposed convolution of stride 2; along an axis, tap k of
these is the sum of the taps 2 - k and 3 - k of those that exist. Pooled: 3×3 taps and then the average of 2×2 are 4×4 taps of a
convolution of stride 2; tap k of these is half the sum of the taps k - 1 and k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ganherd.herd.lowering.kernels.weight_cache import cached


@dataclass(frozen=True)
class WeightLayout:
    """How a module's weight becomes taps."""

    k: int  # of the module
    fold: bool = False  # an upsampling by 2 goes before: 3×3 become 4×4
    pool: bool = False  # the average of 2×2 goes after: likewise
    flip: bool = False  # taps in reverse order
    in_first: bool = False  # the module keeps the channels in first
    # A linear layer before an unflattening, or after a flattening, numbers (channel, place); kernels number (place, channel).
    places_in: int = 1
    places_out: int = 1

    @property
    def taps(self) -> int:
        """Along an axis, as the kernels see them."""
        return 4 if self.fold or self.pool else self.k


@triton.jit
def channel_major(index, COUNT, PLACES: tl.constexpr):
    """(place, channel) -> (channel, place)."""
    if PLACES == 1:
        return index
    channels = COUNT // PLACES
    return (index % channels) * PLACES + index // channels


@triton.jit
def _turn(
    w, out, CI, CO, WN, SI, SO, TT, TI,
    K: tl.constexpr, FOLD: tl.constexpr, POOL: tl.constexpr, FLIP: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    BJ: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """w, with strides SI and SO of its channels -> out [N, taps, CI, CO] with strides TT and TI; j runs over (channel in, tap)."""
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
                there = (y >= 0) & (y < 3) & (x >= 0) & (x < 3)
                total += tl.load(w + place + (y * 3 + x)[:, None], mask=known & there[:, None], other=0.0).to(
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
def _turn_back(
    parts, sums, out, bias, CI, CO, XI, XO, SI, SO, HAS_SUMS: tl.constexpr,
    SPLIT: tl.constexpr, K: tl.constexpr, FOLD: tl.constexpr, POOL: tl.constexpr, FLIP: tl.constexpr, PI: tl.constexpr,
    PO: tl.constexpr, BJ: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """parts [N, SPLIT, taps, …] with strides XI and XO of the channels -> the gradient of w: parts added, unfolded, turned.

    HAS_SUMS: sums [N, SPLIT, CO] are added, too: the gradient of the bias [N, CO].
    """
    KT: tl.constexpr = 4 if FOLD or POOL else K
    n = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * BJ + tl.arange(0, BJ)
    co = tl.program_id(1) * BO + tl.arange(0, BO)
    ci = j // (K * K)
    s = j % (K * K)
    known = (ci < CI)[:, None] & (co < CO)[None, :]
    total = tl.zeros((BJ, BO), tl.float32)
    place = ci[:, None] * XI + co[None, :] * XO
    for part in tl.static_range(SPLIT):
        base = parts + (n * SPLIT + part) * (KT * KT) * CI * CO + place
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
        for part in tl.static_range(SPLIT):
            added += tl.load(sums + (n * SPLIT + part) * CO + co, mask=co < CO, other=0.0)
        tl.store(bias + n * CO + co, added, mask=(co < CO) & (tl.program_id(0) == 0))


def _strides(turn: WeightLayout, ci: int, co: int) -> tuple[int, int]:
    """Of the channels in and out, in a module's weight."""
    square = turn.k * turn.k
    return (co * square, square) if turn.in_first else (square, ci * square)


def _sizes(ci: int, co: int, per_channel: int) -> tuple[tuple[int, int], int, int]:
    bo = min(64, max(16, triton.next_power_of_2(co)))
    bj = 64
    return (triton.cdiv(ci * per_channel, bj), triton.cdiv(co, bo)), bj, bo


def to_taps(weight: Tensor, turn: WeightLayout, dtype: torch.dtype, together: bool = False) -> Tensor:
    """weight [N, CO, CI, k, k], or as the turn says -> taps [N, taps², CI, CO] in the dtype of the computation.

    `together`: in memory, the taps of a channel lie side by side. Passes of one step share them (`memory`).
    """
    return cached(weight, lambda: _turned(weight, turn, dtype, together), turn, dtype, together)


def _turned(weight: Tensor, turn: WeightLayout, dtype: torch.dtype, together: bool) -> Tensor:
    n = weight.shape[0]
    if not weight[0].is_contiguous():
        weight = weight.contiguous()
    co, ci = (weight.shape[2], weight.shape[1]) if turn.in_first else (weight.shape[1], weight.shape[2])
    square = turn.taps**2
    out = torch.empty((n, ci, square, co) if together else (n, square, ci, co), dtype=dtype, device=weight.device)
    out = out.transpose(1, 2) if together else out
    grid, bj, bo = _sizes(ci, co, square)
    _turn[(*grid, n)](
        weight, out, ci, co, weight.stride(0), *_strides(turn, ci, co), out.stride(1), out.stride(2),
        K=turn.k, FOLD=turn.fold, POOL=turn.pool, FLIP=turn.flip, PI=turn.places_in, PO=turn.places_out, BJ=bj, BO=bo,
    )  # fmt: skip
    return out


def from_taps(
    parts: Tensor, turn: WeightLayout, swapped: bool, shape: torch.Size, sums: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """parts float32 [N, split, taps², CI, CO], or with its channels swapped -> the gradient of the weight, in its shape.

    sums [N, split, CO], where given, become the gradient of the bias [N, CO] in the same launch.
    """
    n, split = parts.shape[:2]
    ci, co = (parts.shape[4], parts.shape[3]) if swapped else (parts.shape[3], parts.shape[4])
    out = torch.empty(shape, dtype=torch.float32, device=parts.device)
    bias = None if sums is None else torch.empty(n, co, dtype=torch.float32, device=parts.device)
    grid, bj, bo = _sizes(ci, co, turn.k**2)
    _turn_back[(*grid, n)](
        parts, parts if sums is None else sums, out, out if bias is None else bias, ci, co,
        *((1, ci) if swapped else (co, 1)), *_strides(turn, ci, co), HAS_SUMS=sums is not None,
        SPLIT=split, K=turn.k, FOLD=turn.fold, POOL=turn.pool, FLIP=turn.flip, PI=turn.places_in, PO=turn.places_out, BJ=bj, BO=bo,
    )  # fmt: skip
    return out, bias
