"""Extract features of samples with a network, and compute their mean and covariance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ganherd.features.networks import Network
from ganherd.util.errors import UserError
from ganherd.util.meter import Detail, Progress, TimeLeft


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features; of several groups of features if there are leading axes."""

    mean: Tensor  # float64 [..., d]
    cov: Tensor  # float64 [..., d, d]


def moments(x: Tensor) -> Moments:
    """Return the mean and unbiased covariance of features [n, d], in float64; chunks of rows limit the memory.

    >>> moments(torch.tensor([[0.0], [2.0]])).cov.item()
    2.0
    """
    mean = x.mean(0, dtype=torch.float64)
    cov = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=x.device)
    for part in x.split(8192):
        centred = part.double() - mean
        cov += centred.T @ centred
    return Moments(mean, cov / max(len(x) - 1, 1))


@dataclass(frozen=True)
class ExtractedFeatures:
    """The output of a network for n samples, with the label of each and the member that generated it."""

    x: Tensor  # float32 [n, d], on the device that statistics are computed on
    logits: Tensor | None  # float32 [n, classes]; None if the network predicts no classes
    y: np.ndarray  # int64 [n], -1: no label
    member: np.ndarray  # int64 [n], -1: not known

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dimension(self) -> int:
        """Return the number of features."""
        return int(self.x.shape[1])

    @cached_property
    def moments(self) -> Moments:
        """Return the mean and covariance of the features."""
        return moments(self.x)

    def rows(self, index: np.ndarray) -> ExtractedFeatures:
        """Return the features of some samples; `index` is a mask, bool [n], or holds their numbers, int64."""
        where = np.flatnonzero(index) if index.dtype == bool else index
        at = torch.from_numpy(where).to(self.x.device)
        logits = None if self.logits is None else self.logits[at]
        return ExtractedFeatures(self.x[at], logits, self.y[where], self.member[where])


def best_device() -> torch.device:
    """Return the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def precision(device: torch.device) -> str:
    """Return the default number format of matrix products on a device: "tf32" on a GPU, otherwise "float32".

    TF32 is twice as fast, and gives the same FID to 0.001.
    """
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
    """Return features, float32 [n, d], and logits, float32 [n, k]; None if the network predicts no classes.

    Args:
        network: The network.
        x: Samples [n, …] in the units of the data.
        progress: Receives lines about the progress.
        what: The samples in words, for these lines.
        name_row: Returns the words for a sample, by its row number, if its output is not finite; used in the error.
        device: The device to compute on; None: the GPU if there is one.
        fast: Allow TF32 on a GPU.

    Raises:
        UserError: The output has the wrong shape, or is not finite.
    """
    device = device or best_device()
    module = network.module.to(device)
    tell = TimeLeft(progress, f"features of {what}", len(x))
    if progress and len(x):
        progress(Detail(f"features of {len(x):,} {what} ({network.name})"))
    parts: list[tuple[Tensor, Tensor | None]] = []
    with torch.inference_mode(), tf32(fast):
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
    return features.clone(), None if logits is None else logits.clone()  # copies that are no inference tensors


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 for convolutions and matrix products inside the block; restore the setting afterwards."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
