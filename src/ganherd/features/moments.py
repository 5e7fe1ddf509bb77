"""Mean and covariance of features, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Mean and covariance, of one group or of several with a leading axis."""

    mean: Tensor  # float64 [..., d]
    cov: Tensor  # float64 [..., d, d]


def moments(x: Tensor) -> Moments:
    """Return the mean and unbiased covariance of features [n, d], summed in float64 and in chunks.

    >>> moments(torch.tensor([[0.0], [2.0]])).cov.item()
    2.0
    """
    mean = x.mean(0, dtype=torch.float64)
    cov = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=x.device)
    for part in x.split(8192):
        centred = part.double() - mean
        cov += centred.T @ centred
    return Moments(mean, cov / max(len(x) - 1, 1))
