"""Features of samples: one pass of a network over them, on the best device, with the time left, and none that is NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ganherd.features.moments import Moments, moments
from ganherd.features.networks import Network
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress, TimeLeft


@dataclass(frozen=True)
class ExtractedFeatures:
    """What a network says of n samples, with the label and the member of each."""

    x: Tensor  # float32 [n, d], on the device that statistics are computed on
    logits: Tensor | None  # float32 [n, classes]
    y: np.ndarray  # int64 [n], -1: no label
    member: np.ndarray  # int64 [n], -1: not known

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dimension(self) -> int:
        return int(self.x.shape[1])

    @cached_property
    def moments(self) -> Moments:
        return moments(self.x)

    def rows(self, index: np.ndarray) -> ExtractedFeatures:
        """Return some of the rows, by mask or by number."""
        where = np.flatnonzero(index) if index.dtype == bool else index
        at = torch.from_numpy(where).to(self.x.device)
        logits = None if self.logits is None else self.logits[at]
        return ExtractedFeatures(self.x[at], logits, self.y[where], self.member[where])


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def precision(device: torch.device) -> str:
    """Return how a network multiplies by default: TF32 on a GPU (the same FID to 0.001, twice as fast)."""
    return "tf32" if device.type == "cuda" else "float32"


def extract(
    network: Network,
    x: np.ndarray,
    progress: Progress | None = None,
    what: str = "samples",
    name_row: Callable[[int], str] | None = None,
    device: torch.device | None = None,
    fast: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return (features [n, d], logits [n, k] or None); `fast` allows TF32 on a GPU. `name_row` names a row that came out NaN."""
    device = device or best_device()
    module = network.module.to(device)
    tell = TimeLeft(progress, f"features of {what}", len(x))
    if progress and len(x):
        progress(f"features of {len(x):,} {what} ({network.name})")
    parts: list[tuple[Tensor, Tensor | None]] = []
    with torch.inference_mode(), _tf32(fast):
        for start in range(0, len(x), network.batch):
            batch = torch.from_numpy(np.ascontiguousarray(x[start : start + network.batch])).to(device)
            features, logits = module(batch)
            if features.ndim != 2 or len(features) != len(batch):
                raise UserError(
                    f"the network {network.name} made {tuple(features.shape)} out of {len(batch)} samples: "
                    "wanted are features [n, d]."
                )
            parts.append((features.float(), None if logits is None else logits.float()))
            tell.at(start + len(batch))
    features = torch.cat([part for part, _ in parts])
    logits = None if parts[0][1] is None else torch.cat([part for _, part in parts if part is not None])
    finite = torch.isfinite(features).all(1) & (True if logits is None else torch.isfinite(logits).all(1))
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0, 0])
        whose = name_row(row) if name_row else f"number {row} of the {what}"
        raise UserError(f"the network {network.name} says NaN of {whose}: there is no score of that.")
    return features.clone(), None if logits is None else logits.clone()  # out of inference mode


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Compute convolutions and products in TF32 or in full float32; restore the setting afterwards."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
