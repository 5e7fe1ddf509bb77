"""The 2-D toys, whose modes are known: a ring of 8 Gaussians and a grid of 25."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ganherd.data.arrays import Array, RawData
from ganherd.data.keyed import normal, shuffle


@dataclass(frozen=True)
class Toy:
    """A mixture of equal Gaussians."""

    means: Array  # [modes, 2]
    std: float
    points: int  # number of points if the recipe does not set it


def ring8() -> Toy:
    angle = 2 * np.pi * np.arange(8) / 8
    return Toy(np.stack([np.cos(angle), np.sin(angle)], axis=1), std=0.01, points=2000)


def grid25() -> Toy:
    side = np.array([-4.0, -2.0, 0.0, 2.0, 4.0])
    return Toy(np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2), std=0.05, points=2500)


TOYS = {"ring8": ring8, "grid25": grid25}


def draw(name: str, points: int | None, holdout: float) -> RawData:
    """Return `points` training points and `holdout` times as many held-out ones; labels are the modes, in equal numbers.

    >>> draw("ring8", 16, 0.5).x.shape, draw("ring8", 16, 0.5).x_test.shape
    ((16, 2), (8, 2))
    """
    toy = TOYS[name]()
    n = points or toy.points
    n_test = min(n, max(1, round(holdout * n))) if holdout else 0
    (x, y), (x_test, y_test) = _points(toy, n, f"{name} train"), _points(toy, n_test, f"{name} test")
    return RawData(x, y, x_test, y_test, tuple(str(k) for k in range(len(toy.means))))


def _points(toy: Toy, n: int, purpose: str) -> tuple[Array, Array]:
    y = shuffle(n, f"{purpose} modes") % len(toy.means)  # shuffled, so that any first part has all modes
    x = toy.means[y] + toy.std * normal(2 * n, f"{purpose} noise").reshape(n, 2)
    return x.astype(np.float32), y
