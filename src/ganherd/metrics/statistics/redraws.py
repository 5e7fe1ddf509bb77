"""Estimate how much recall and coverage would vary over redrawn samples, from random subsets of the samples.

Both are means over the data, and a sample that is missing changes them for all data around it. So points of the data do not
count independently, and an interval for independent points is too narrow. Subsampling (Politis and Romano) has no such
assumption: the variance over random subsets of b of n samples, times b / (n - b), is that of redrawn sets. The subsets
cost little, as only few neighbours of each point can matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SUBSETS = 100
PART = 0.75  # share of the samples in a subset; a smaller one would shift the scores, a larger one overestimate the variance
LISTED = 20  # neighbours of a sample: the k-th in a subset is nearly always one of them
SAFE = 30  # data that this many samples reach counts as reached in every subset
ROWS = 1024  # rows of distances at once
ROUNDING = 1e-12  # of squared distances from float64 products, by the squares of the norms, with a wide margin


@dataclass(frozen=True)
class NearestSamples:
    """The nearest other samples of each sample."""

    k: int
    far: Tensor  # [n, listed] ascending distances, widened by their rounding error
    who: Tensor  # [n, listed]

    @property
    def radius(self) -> Tensor:
        """Return the distance of each sample to its k-th nearest [n]."""
        return self.far[:, self.k - 1]

    @property
    def reach(self) -> Tensor:
        """Return the distance of each sample to the last listed neighbour [n], the largest radius in any subset."""
        return self.far[:, -1]

    def radii(self, drawn: Tensor) -> Tensor:
        """Return the distance [n] of each sample to its k-th nearest sample within a subset.

        Args:
            drawn: True for the samples in the subset, bool [n].
        """
        enough = drawn[self.who].cumsum(1) >= self.k
        place = torch.where(enough.any(1), enough.double().argmax(1), self.far.shape[1] - 1)
        return self.far.gather(1, place[:, None])[:, 0]


def nearest(x: Tensor, k: int) -> NearestSamples:
    """Return the nearest neighbours of every sample in x [n, d], without the sample itself.

    Distances are widened by their rounding error, so that a point that is exactly as far counts as within.
    """
    parts = []
    for start in range(0, len(x), ROWS):
        far = torch.cdist(x[start : start + ROWS], x)
        far[torch.arange(len(far)), torch.arange(start, start + len(far))] = math.inf  # no sample is its own neighbour
        parts.append(far.topk(min(LISTED, len(x) - 1), largest=False))
    far = torch.cat([p.values for p in parts])
    far = (far.square() + rounding(x[:, None], far)).sqrt()
    return NearestSamples(k, far, torch.cat([p.indices for p in parts]))


def rounding(x: Tensor, far: Tensor) -> Tensor:
    """Return an upper limit of the rounding error of the squares of distances `far` from points x; the last axis of x is d."""
    result: Tensor = ROUNDING * (x.norm(dim=-1) + far).square()
    return result


class Counts:
    """Count the rows of the data that samples reach, with all samples and with random subsets of them."""

    def __init__(self, near: NearestSamples) -> None:
        self.near = near
        self.hit: list[Tensor] = []  # bool [chunk] of each chunk of data
        # (row of the data, sample, distance) of pairs that may change between subsets
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.own = False  # whether the balls are those of the samples, which change with the subset
        self.rows, self.sure = 0, 0

    def add(self, far: Tensor, radius: Tensor, reach: Tensor | None = None) -> Tensor:
        """Add a chunk of data, and return which samples reach which rows of it, bool [chunk, n].

        Args:
            far: The distances of the rows from the samples [chunk, n].
            radius: The distance within which a row is reached, including the edge: that of each row [chunk, 1], or of each
                sample [n].
            reach: The largest radius of each sample in any subset [n], if the radius is that of the samples.
        """
        within = far <= radius
        count = within.sum(1)
        self.hit.append(count > 0)
        self.own = reach is not None
        unsure = torch.nonzero(count < SAFE)[:, 0]
        row, sample = torch.nonzero((within if reach is None else far <= reach)[unsure], as_tuple=True)
        self.pairs.append((row + self.rows, sample, far[unsure[row], sample]))
        self.rows += len(unsure)
        self.sure += len(far) - len(unsure)
        return within

    def error(self, seed: int) -> float:
        """Return the standard error of the share of the data that is reached; the seed draws the subsets."""
        n = len(self.near.far)
        row, sample, far = (torch.cat(part) for part in zip(*self.pairs, strict=True))
        part, rng = min(n - 1, max(1, round(PART * n))), np.random.default_rng([seed, n])
        shares = []
        for _ in range(SUBSETS):
            drawn = torch.zeros(n, dtype=torch.bool, device=far.device)
            drawn[torch.from_numpy(rng.permutation(n)[:part]).to(far.device)] = True
            reached = drawn[sample]
            if self.own:
                reached = reached & (far <= self.near.radii(drawn)[sample])
            covered = torch.zeros(self.rows, dtype=torch.bool, device=far.device)
            covered[row[reached]] = True
            shares.append((int(covered.sum()) + self.sure) / (self.rows + self.sure))
        return float(np.std(shares, ddof=1)) * math.sqrt(part / (n - part))
