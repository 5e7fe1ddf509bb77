"""The network that FID is defined on: Inception of 2015-12-05, and the way in which TensorFlow feeds it."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.errors import UserError
from ganherd.scores.material import LeftOut

FILE = "inception-2015-12-05.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"  # TorchScript is code: only this one runs
SIDE = 299
DIMENSION = 2048
RESIZING = "uint8 0..255, bilinear to 299 × 299 as TensorFlow 1 does it (no half-pixel centres), (x − 128) / 128"


def tensorflow_resize(x: Tensor, side: int = SIDE) -> Tensor:
    """Bilinear as TensorFlow 1 has it: pixel i of the result looks at i · size / side, clamped at the border.

    PyTorch samples at pixel centres; a grid that is shifted by half a pixel of each size undoes that.

    >>> tensorflow_resize(torch.tensor([[[[0.0, 4.0], [8.0, 12.0]]]]), 4)[0, 0, 0].tolist()
    [0.0, 2.0, 4.0, 4.0]
    """
    n, channels, height, width = x.shape
    theta = torch.tensor([[1.0, 0.0, 1 / width - 1 / side], [0.0, 1.0, 1 / height - 1 / side]], device=x.device)
    grid = F.affine_grid(theta.expand(n, 2, 3), [n, channels, side, side], align_corners=False)  # [B, side, side, 2]
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


class Inception(nn.Module):
    """uint8 images [B, 1 or 3, H, W] to the 2048 pool features; with a head, also to its logits."""

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
        features: Tensor = self.net((tensorflow_resize(x) - 128) / 128)  # [B, 2048]
        return features, None if self.weight is None else F.linear(features, self.weight, self.bias)


def find() -> Path | None:
    """The network's file in $GANHERD_DATA or in the user's cache."""
    given = os.environ.get("GANHERD_DATA")
    folders = [Path(given).expanduser()] if given else []
    places = [folder / FILE for folder in (*folders, Path.home() / ".cache" / "ganherd")]
    return next((place for place in places if place.is_file()), None)


def load(path: Path | None, head: Path | None = None) -> Inception:
    """The network, its file checked before anything of it is read."""
    place = path or find()
    if place is None:
        raise LeftOut(
            f"the network inception is not on this machine: put {FILE} (sha256 {SHA256[:12]}…) into $GANHERD_DATA "
            "or ~/.cache/ganherd, or give its path with --network"
        )
    try:
        raw = place.read_bytes()
    except OSError as error:
        raise UserError(f"the network {place} cannot be read: {error.strerror}.") from error
    if (digest := hashlib.sha256(raw).hexdigest()) != SHA256:
        raise UserError(
            f"{place} is not the Inception network of 2015-12-05 (its sha256 is {digest[:12]}…, not {SHA256[:12]}…): "
            "TorchScript is code, and no other file is loaded."
        )
    net: Any = torch.jit.load(io.BytesIO(raw), map_location="cpu")  # the very bytes that were checked
    return Inception(net, None if head is None else read_head(head)).eval()


def read_head(path: Path) -> tuple[Tensor, Tensor]:
    """A classifier head from an .npz: `weight` [classes, 2048] (or its transpose) and, if it has one, `bias`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            weight = np.asarray(file["weight"], np.float32)
            bias = np.asarray(file["bias"], np.float32) if "bias" in file.files else None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"--head {path} is no .npz with an array weight (and bias): {error}.") from error
    weight = weight.T if weight.ndim == 2 and weight.shape[0] == DIMENSION != weight.shape[1] else weight
    bias = np.zeros(len(weight), np.float32) if bias is None else bias
    if weight.ndim != 2 or weight.shape[1] != DIMENSION or bias.shape != weight.shape[:1]:
        raise UserError(f"--head {path}: weight is {weight.shape} and bias {bias.shape}; wanted are [k, 2048] and [k].")
    return torch.from_numpy(weight.copy()), torch.from_numpy(bias)
