"""The settings of a convolution, and small functions that choose launch options of its kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout


class ConvSpec(NamedTuple):
    """The settings of a convolution, or of a transposed convolution of stride 2."""

    size: tuple[int, int]  # height and width of the output
    layout: WeightLayout  # of the module's weight
    stride: int
    pad: int
    transposed: bool  # a transposed convolution, whose stride is 2
    tf32: bool  # float32 products may be computed in TF32


def dot_precision(x: Tensor, tf32: bool) -> str:
    """Return the `input_precision` of `tl.dot` for x: "tf32" if x is float32 and TF32 is allowed, otherwise "ieee"."""
    return "tf32" if x.dtype == torch.float32 and tf32 else "ieee"


def power_of_two(value: int, low: int, high: int) -> int:
    """Return the next power of two, limited to the range from `low` to `high`.

    >>> power_of_two(27, 16, 128)
    32
    """
    result: int = triton.next_power_of_2(value)
    return max(low, min(high, result))


def split_of(blocks: int, tiles: int, enough: int) -> int:
    """Return into how many parts, a power of two, the rows of a product are divided so that enough programs fill a GPU.

    Args:
        blocks: Programs without a division.
        tiles: Tiles of rows to divide; each part gets at least 8.
        enough: The number of programs that fill a GPU.
    """
    split = 1
    while blocks * split < enough and tiles // (2 * split) >= 8:
        split *= 2
    return split
