"""Precision, recall, density and coverage: do the neighbourhoods of the samples and of the data hold each other?

Neighbourhood of a point: the ball that reaches to its k-th nearest neighbour of its own kind (Naeem et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ganherd.data.keyed import shuffle
from ganherd.scores import intervals
from ganherd.scores.clock import Clock, Progress, timed
from ganherd.scores.features import Features
from ganherd.scores.groups import Group, entries, wanted_groups
from ganherd.scores.material import LeftOut, Material

NEIGHBOURS = 5
MOST = 10_000  # samples and data: the number that these scores are commonly given for
CHUNK = 1024  # rows of distances at once
FEW = 1000
NAMES = ("precision", "recall", "density", "coverage")


def prdc(real: Tensor, fake: Tensor, k: int = NEIGHBOURS, progress: Progress | None = None) -> dict[str, Tensor]:
    """For each score the value of every point that it is the mean of, float64: fakes [n] or reals [m].

    >>> x = torch.arange(20.0)[:, None]
    >>> {name: float(value.mean()) for name, value in prdc(x, x, k=2).items()}["recall"]
    1.0
    """
    real, fake = real.double(), fake.double()
    clock = Clock(progress, "neighbourhoods", 3)  # three passes that take about as long
    real_radius = radius_of(real, k)
    clock.at(1)
    fake_radius = radius_of(fake, k)
    clock.at(2)
    inside, nearest = torch.zeros(len(fake), device=fake.device).double(), []
    recalled = []
    for chunk, radius in zip(real.split(CHUNK), real_radius.split(CHUNK), strict=True):
        far = torch.cdist(chunk, fake)  # [chunk, n]
        inside += (far < radius[:, None]).sum(0)
        recalled.append((far < fake_radius).any(1))
        nearest.append(far.min(1).values)
    return {
        "precision": (inside > 0).double(),
        "recall": torch.cat(recalled).double(),
        "density": inside / k,
        "coverage": (torch.cat(nearest) < real_radius).double(),
    }


def radius_of(x: Tensor, k: int) -> Tensor:
    """[n] the distance to the k-th nearest other point."""
    return torch.cat([torch.cdist(part, x).kthvalue(k + 1, dim=1).values for part in x.split(CHUNK)])


def equally_many(fake: Features, real: Features, seed: int) -> tuple[Features, Features]:
    """As many of the one as of the other, at most 10,000: balls of a larger set are smaller, which would tilt recall."""
    n = min(len(fake), len(real), MOST)
    return some(fake, n, "prdc fake", seed), some(real, n, "prdc real")


def some(features: Features, n: int, purpose: str, seed: int = 0) -> Features:
    """So many of them, always the same for a purpose and a seed; all where there are no more."""
    return features if n >= len(features) else features.rows(np.sort(shuffle(len(features), purpose, seed)[:n]))


def _measured(material: Material) -> tuple[Features, dict[str, np.ndarray]]:
    """The samples that were looked at, and all four scores of them, kept for the other three."""
    kept = material.kept
    if "prdc" not in kept:
        fake, real = equally_many(material.features, material.reference.real, material.seed)
        if len(fake) <= NEIGHBOURS:
            raise LeftOut(f"it needs more than {NEIGHBOURS} samples and data: ask for more")
        kept["prdc"] = (
            fake,
            {name: each.cpu().numpy() for name, each in prdc(real.x, fake.x, progress=material.progress).items()},
        )
    found: tuple[Features, dict[str, np.ndarray]] = kept["prdc"]
    return found


def _in_groups(material: Material) -> dict[str, Any]:
    """All four of every group, kept for the other three."""
    kept = material.kept
    if "prdc groups" not in kept:
        pairs = {g.name: equally_many(g.fake, g.real, material.seed) for g in wanted_groups(material)}
        groups = [Group(name, fake, real) for name, (fake, real) in pairs.items() if len(fake) > NEIGHBOURS]
        found = [prdc(g.real.x, g.fake.x) for g in timed(groups, material.progress, "neighbourhoods of groups")]
        means = {name: [float(one[name].mean()) for one in found] for name in NAMES}
        kept["prdc groups"] = {name: entries(str(material.per), groups, means[name]) for name in NAMES}
    out: dict[str, Any] = kept["prdc groups"]
    return out


def _measure(name: str) -> Callable[[Material], dict[str, Any]]:
    def measure(material: Material) -> dict[str, Any]:
        fake, found = _measured(material)
        value = float(found[name].mean())
        out = {
            "value": value,
            **material.reference.beside(fake),
            "real_samples": len(fake),
            "neighbours": NEIGHBOURS,
            # a density is no share: it may be above 1
            "interval": intervals.mean(found[name], material.seed)
            if name == "density"
            else intervals.share(value, len(fake)),
        }
        if material.per:
            out |= _in_groups(material)[name]
        if len(fake) < FEW:
            out["warning"] = f"{len(fake):,} points are few for neighbourhoods: compare it only at the same number"
        return out

    return measure


measure_precision, measure_recall, measure_density, measure_coverage = (_measure(name) for name in NAMES)
