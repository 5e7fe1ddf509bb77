"""Load the Inception network of 2015-12-05, on whose features FID is defined, and resize its input like TensorFlow.

The user may give another TorchScript file to use instead; its input is prepared in the same way. It needs
`--trust-code`.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.features.material import MetricSkipped
from ganherd.recipe.trust import INCEPTION, PUBLISHED_AS, PUBLISHED_IN, read_script
from ganherd.util.errors import UserError
from ganherd.util.paths import data_home

FILE = "inception-2015-12-05.pt"
SIDE = 299
DIMENSION = 2048
SOURCE = f"{PUBLISHED_AS} in the source of the package {PUBLISHED_IN}"
RESIZING = "uint8 0..255, bilinear to 299 × 299 as TensorFlow 1 does it (no half-pixel centres), (x − 128) / 128"


def tensorflow_resize(x: Tensor, side: int = SIDE) -> Tensor:
    """Resize images [B, C, H, W] bilinearly to [B, C, side, side] like TensorFlow 1.

    Pixel i of the result reads position i · H / side of the input (likewise with W), clamped at the border. PyTorch
    maps the centre of pixel i, i + 0.5, to the centre of an input pixel instead. The grid is shifted to undo these half
    pixels.

    >>> tensorflow_resize(torch.tensor([[[[0.0, 4.0], [8.0, 12.0]]]]), 4)[0, 0, 0].tolist()
    [0.0, 2.0, 4.0, 4.0]
    """
    n, channels, height, width = x.shape
    theta = torch.tensor([[1.0, 0.0, 1 / width - 1 / side], [0.0, 1.0, 1 / height - 1 / side]], device=x.device)
    grid = F.affine_grid(theta.expand(n, 2, 3), [n, channels, side, side], align_corners=False)  # [B, side, side, 2]
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


class Inception(nn.Module):
    """Map uint8 images [B, 1 or 3, H, W] to the 2048 pool features [B, 2048], and to logits [B, k] if there is a head.

    Args:
        net: The TorchScript. Another network may have another number of features, and may return (features, logits).
        head: Weight [k, 2048] and bias [k] of a linear classifier of the features; None: no logits, unless `net` has
            some.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, net: nn.Module, head: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.net = net
        weight, bias = head or (None, None)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x.float()
        if x.shape[1] == 1:
            x = x.repeat(1, 3, 1, 1)  # grey repeated to RGB
        output = self.net((tensorflow_resize(x) - 128) / 128)
        features, logits = output if isinstance(output, tuple) else (output, None)
        features = features.flatten(1)  # [B, 2048]
        return features, logits if self.weight is None else F.linear(features, self.weight, self.bias)


def find() -> Path | None:
    """Return the path of the network's file in the data folder; None if it is not there."""
    place = data_home() / FILE
    return place if place.is_file() else None


def load(
    path: Path | None, head: Path | None = None, stated: str = "", trust_code: bool = False
) -> tuple[Inception, str, str]:
    """Return a network, its name for reports, and the sha256 of its file.

    Args:
        path: The TorchScript file; None: Inception in the data folder.
        head: An .npz with a classifier of the features; see `read_head`.
        stated: The sha256 that the file must have; empty: any.
        trust_code: Also load a file whose sha256 ganherd does not know.

    Raises:
        MetricSkipped: No path is given, and Inception is not in the data folder.
        UserError: The file is not trusted, cannot be loaded, or does not take images.
    """
    place = path or find()
    if place is None:
        raise MetricSkipped(
            f"the network inception is not on this machine: put it at {data_home() / FILE}, or "
            f"give its path with --network (it is {SOURCE}, sha256 {INCEPTION[:12]}…)"
        )
    raw, digest = read_script(place, stated, trust_code)
    try:
        net: Any = torch.jit.load(io.BytesIO(raw), map_location="cpu").eval()  # the bytes whose sha256 was checked
    except RuntimeError as error:
        raise UserError(f"the network {place} is no TorchScript that can be loaded: {_first(error)}.") from error
    if digest == INCEPTION:
        return Inception(net, None if head is None else read_head(head)).eval(), FILE.removesuffix(".pt"), digest
    bare = Inception(net).eval()
    try:
        with torch.inference_mode():
            features, _ = bare(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    except (RuntimeError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"the network {place} cannot look at [1, 3, {SIDE}, {SIDE}]: {_first(error)}.") from error
    named = f"{place.name} (sha256 {digest[:12]}…)"
    return Inception(net, None if head is None else read_head(head, features.shape[1])).eval(), named, digest


def _first(error: Exception) -> str:
    """Return the last line of an error's message, which holds the reason of TorchScript errors; its type if empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


def read_head(path: Path, dimension: int = DIMENSION) -> tuple[Tensor, Tensor]:
    """Return weight [k, dimension] and bias [k] of a linear classifier of the features, from an .npz.

    The file has an array `weight`, which may be transposed, and may have an array `bias`; the default is zero.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            weight = np.asarray(file["weight"], np.float32)
            bias = np.asarray(file["bias"], np.float32) if "bias" in file.files else None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"--head {path} is no .npz with an array weight (and bias): {error}.") from error
    weight = weight.T if weight.ndim == 2 and weight.shape[0] == dimension != weight.shape[1] else weight
    bias = np.zeros(len(weight), np.float32) if bias is None else bias
    if weight.ndim != 2 or weight.shape[1] != dimension or bias.shape != weight.shape[:1]:
        raise UserError(
            f"--head {path}: weight is {weight.shape} and bias {bias.shape}; wanted are [k, {dimension}] and [k]."
        )
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise UserError(f"--head {path} has numbers that are not finite.")
    return torch.from_numpy(weight.copy()), torch.from_numpy(bias)
