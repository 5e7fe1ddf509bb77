"""Compute data sets whose modes are known: a ring of 8 Gaussians, a grid of 25 Gaussians, and stacked MNIST."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ganherd.data.arrays import Array, RawData, TidyData
from ganherd.data.keyed_random import normal, raw, shuffle
from ganherd.util.errors import UserError

STACKED = "stacked-mnist"
TRAIN, HELD_OUT = 128_000, 10_000  # stacks to train on, as many as in VEEGAN's paper, and held-out stacks


@dataclass(frozen=True)
class Toy:
    """A distribution of points in the plane: a mixture of Gaussians with equal weights and widths."""

    means: Array  # [modes, 2], the centres of the Gaussians
    std: float  # the standard deviation of each
    points: int  # number of points if the recipe does not set it


def ring8() -> Toy:
    """Return eight Gaussians, evenly spaced on a circle of radius 1."""
    angle = 2 * np.pi * np.arange(8) / 8
    return Toy(np.stack([np.cos(angle), np.sin(angle)], axis=1), std=0.01, points=2000)


def grid25() -> Toy:
    """Return 25 Gaussians on a 5 × 5 grid, two apart."""
    side = np.array([-4.0, -2.0, 0.0, 2.0, 4.0])
    return Toy(np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2), std=0.05, points=2500)


TOYS = {"ring8": ring8, "grid25": grid25}


def draw(name: str, points: int | None, holdout: float) -> RawData:
    """Draw points of a toy data set, the same in every run; the label of a point is the number of its Gaussian.

    All labels are equally frequent.

    Args:
        name: A name in `TOYS`.
        points: The number of training points; None: the default of the toy.
        holdout: The number of held-out points as a fraction of `points`.

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


def stack(digits: TidyData) -> RawData:
    """Return stacked MNIST without labels: images whose three channels are random digits of MNIST.

    Training images are made of training digits, and held-out images of held-out digits. VEEGAN's paper mixes the two.

    Args:
        digits: MNIST.
    """
    note = "stacks to train on are made of the training digits alone, and the held-out ones of held-out digits"
    x, _ = stack_digits(digits.x, digits.y, TRAIN)
    if digits.x_test is None or digits.y_test is None:
        return RawData(x, notes=(*digits.notes, note))
    x_test, _ = stack_digits(digits.x_test, digits.y_test, HELD_OUT, seed=1)
    return RawData(x, x_test=x_test, notes=(*digits.notes, note))


def stack_digits(x: Array, y: Array, count: int = TRAIN, seed: int = 0) -> tuple[Array, Array]:
    """Return images of three random digits each, in red, green and blue, and the mode of each image.

    Args:
        x: Grey images of digits, uint8 [n, 1, H, W].
        y: The digits, [n].
        count: Number of images.
        seed: Seed of the random choice.

    Returns:
        Images, uint8 [count, 3, H, W], and modes, int64 [count]: the mode of a red 4, a green 0 and a blue 7 is 407.
    """
    if x.ndim != 4 or x.shape[1] != 1:
        raise UserError(f"digits to stack must be grey images [n, 1, H, W], not {list(x.shape)}.")
    if len(y) != len(x) or not len(x) or y.min() < 0 or y.max() > 9:
        raise UserError("digits to stack need a label from 0 to 9 for each.")
    rows = (raw(3 * count, "stacked digits", seed) % np.uint64(len(x))).astype(np.int64).reshape(count, 3)
    return np.ascontiguousarray(x[rows, 0]), (y[rows] @ np.array([100, 10, 1])).astype(np.int64)
