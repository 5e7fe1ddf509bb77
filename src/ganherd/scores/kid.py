"""KID: the squared maximum mean discrepancy of features under a polynomial kernel; unbiased also for few samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ganherd.data.keyed import shuffle
from ganherd.scores.clock import Clock, Progress, timed
from ganherd.scores.groups import Group, entries, wanted_groups
from ganherd.scores.material import Material

SUBSETS = 100
SIZE = 1000  # of a subset, as in the paper; smaller where there are fewer than five such
PARTS = 5
WITHIN = 250  # of a subset within a class or of a member: there are many of those


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Unbiased estimate from features [m, d] and [m, d], kernel (x · y / d + 1)³.

    >>> same = torch.eye(3)
    >>> discrepancy(same, same).item() < 0  # an unbiased estimate of 0 may be negative
    True
    """
    xx, yy, xy = (kernel(a, b) for a, b in ((x, x), (y, y), (x, y)))
    m, n = len(x), len(y)
    within_x = (xx.sum() - xx.diagonal().sum()) / (m * (m - 1))
    within_y = (yy.sum() - yy.diagonal().sum()) / (n * (n - 1))
    return within_x + within_y - 2 * xy.mean()


def kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


def kid(
    x: Tensor,
    y: Tensor,
    seed: int = 0,
    subsets: int = SUBSETS,
    size: int | None = None,
    progress: Progress | None = None,
) -> tuple[float, float, int]:
    """(mean, standard deviation, size) over random subsets of features [n, d] and [m, d]."""
    fewest = min(len(x), len(y))
    size = size or max(2, min(SIZE, fewest // PARTS))
    found, clock = [], Clock(progress, "KID of subsets", subsets)
    for subset in range(subsets):
        clock.at(subset)
        rows = (
            torch.from_numpy(shuffle(len(f), name, seed, subset)[:size]) for f, name in ((x, "kid x"), (y, "kid y"))
        )
        own, other = (f[at.to(f.device)].double() for f, at in zip((x, y), rows, strict=True))
        found.append(discrepancy(own, other))
    values = torch.stack(found)
    return float(values.mean()), float(values.std()) if subsets > 1 else math.nan, size


def within(groups: list[Group], seed: int, progress: Progress | None = None) -> list[float]:
    """KID of every group, from fewer and smaller subsets than that of the whole."""
    out = []
    for group in timed(groups, progress, "KID of groups"):
        size = max(2, min(WITHIN, min(len(group.fake), len(group.real)) // PARTS))
        out.append(kid(group.fake.x, group.real.x, seed, subsets=20, size=size)[0])
    return out


def measure(material: Material) -> dict[str, Any]:
    fake, reference = material.features, material.reference
    real = reference.real
    out = {"value": None, **reference.beside(fake)}
    if (fewest := min(len(fake), len(real))) < 2:
        return {**out, "warning": "KID needs at least two samples: ask for more"}
    value, std, size = kid(fake.x, real.x, material.seed, progress=material.progress)
    disjoint = max(1, fewest // size)  # subsets overlap: no more of them than this are independent
    error = 1.96 * std / math.sqrt(min(SUBSETS, disjoint))
    how = f"{SUBSETS} subsets of {size:,}"
    out |= {"value": value, "std": std, "subsets": SUBSETS, "subset_size": size, "independent": min(SUBSETS, disjoint)}
    out["interval"] = {"low": value - error, "high": value + error, "level": 0.95, "how": how}
    if material.per:
        groups = wanted_groups(material)
        out |= entries(material.per, groups, within(groups, material.seed, material.progress))
    if fewest < 100:
        out["warning"] = f"{fewest} samples are few: the interval is wide"
    return out
