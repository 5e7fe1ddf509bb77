"""Add the partial sums that the programs of a kernel have stored, in a fixed order so that results are reproducible."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add(values, out, PARTIALS, C, BP: tl.constexpr, BC: tl.constexpr):
    """Sum values [rows, PARTIALS, C] over PARTIALS, and store the result in out [rows, C]."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros((BP, BC), tl.float32)
    for first in range(0, PARTIALS, BP):
        partial = first + tl.arange(0, BP)
        known = (partial < PARTIALS)[:, None] & (c < C)[None, :]
        total += tl.load(values + (row * PARTIALS + partial)[:, None] * C + c[None, :], mask=known, other=0.0)
    tl.store(out + row * C + c, tl.sum(total, 0), mask=c < C)


def add_partials(values: Tensor) -> Tensor:
    """Return the sum of contiguous float32 values [K, N, partials, C] over `partials`, [K, N, C].

    PyTorch's sum launches too few programs for this shape to keep a GPU busy.
    """
    k, n, partials, c = values.shape
    out = torch.empty(k, n, c, dtype=torch.float32, device=values.device)
    _add[(k * n, triton.cdiv(c, 16))](values, out, partials, c, BP=128, BC=16)
    return out
