"""Draw sprite sheets: one picture with small samples of all members, in which each member has a square cell."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, WebPImagePlugin  # noqa: F401  # without its plug-in, saving a WebP would import all others

LARGEST = 32  # larger samples are shrunk until their longer side has this many pixels
_COUNTS = (16, 4, 1)  # possible numbers of samples of a member: square numbers, so that its cell is a square
_SMALL = 192 << 10  # bytes of uncompressed pixels up to which members have more than one sample
_LOSSLESS = 96 << 10  # bytes of uncompressed pixels up to which the sheet is saved without loss
_QUALITY = 82  # of the WebP otherwise


@dataclass(frozen=True)
class SheetLayout:
    """The layout of a sprite sheet: the number of samples of each member, their size, and the members in a row."""

    samples: int  # number of samples of each member
    height: int  # of a sample, in pixels
    width: int  # of a sample, in pixels
    columns: int  # number of members in a row

    @property
    def side(self) -> int:
        """Return the number of samples in a row of a member's cell."""
        return math.isqrt(self.samples)


def plan_sheet(members: int, shape: tuple[int, int, int], most: int) -> SheetLayout:
    """Choose a layout whose uncompressed pixels have at most `most` bytes; few members get several samples each.

    Args:
        members: The number of members.
        shape: Channels, height and width of an image before it is shrunk.
        most: The largest number of bytes.

    >>> plan_sheet(10, (1, 28, 28), 1 << 20), plan_sheet(1000, (3, 64, 64), 1 << 20)
    (SheetLayout(samples=16, height=28, width=28, columns=4), SheetLayout(samples=1, height=18, width=18, columns=32))
    """
    channels, full_height, full_width = min(shape[0], 3), *shape[1:]
    longest = min(LARGEST, max(full_height, full_width))
    while True:
        scale = longest / max(full_height, full_width)
        height, width = max(1, round(full_height * scale)), max(1, round(full_width * scale))
        sample = channels * height * width
        if members * sample <= most or longest == 1:
            break
        longest -= 1
    samples = next((count for count in _COUNTS if members * count * sample <= min(_SMALL, most)), 1)
    return SheetLayout(samples, height, width, math.ceil(math.sqrt(members)))


def draw_sprites(x: np.ndarray, layout: SheetLayout) -> np.ndarray:
    """Arrange the samples of all members, uint8 [N, samples, C, h, w], in a sheet; return its pixels.

    Returns:
        uint8 [H, W], or [H, W, 3] if the samples have three channels or more.
    """
    members, _, channels, height, width = x.shape
    used = 3 if channels >= 3 else 1
    rows, side = -(-members // layout.columns), layout.side
    cells = np.zeros((rows * layout.columns, side, side, used, height, width), np.uint8)
    cells[:members] = x[:, :, :used].reshape(members, side, side, used, height, width)
    grid = cells.reshape(rows, layout.columns, side, side, used, height, width)
    sheet = grid.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * side * height, layout.columns * side * width, used)
    return sheet if used == 3 else sheet[:, :, 0]


def webp(pixels: np.ndarray) -> bytes:
    """Return pixels, uint8 [H, W] or [H, W, 3], as a WebP file: without loss if they are few, otherwise lossy."""
    out = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
    if pixels.nbytes <= _LOSSLESS:
        image.save(out, "WEBP", lossless=True, quality=40, method=1)
    else:
        image.save(out, "WEBP", quality=_QUALITY, method=2)
    return out.getvalue()
