"""Stacked MNIST: three digits at random as the red, green and blue of one image make 1,000 modes that can be counted."""

from __future__ import annotations

import numpy as np

from ganherd.data.arrays import Array, RawData, TidyData
from ganherd.data.keyed import raw
from ganherd.util.errors import UserError

TRAIN = 128_000  # of VEEGAN's setting
HELD_OUT = 10_000
STACKED = {"stacked-mnist": "mnist"}  # of which digits each is made


def stack(digits: TidyData) -> RawData:
    """Stacks of training digits to train on, and of held-out digits to hold out; VEEGAN's own setting mixes the two.

    They carry no label: a thousand classes are there to be found, not to be asked for.
    """
    note = "stacks to train on are made of the training digits alone, and the held-out ones of held-out digits"
    x, _ = stack_digits(digits.x, digits.y, TRAIN)
    if digits.x_test is None or digits.y_test is None:
        return RawData(x, notes=(*digits.notes, note))
    x_test, _ = stack_digits(digits.x_test, digits.y_test, HELD_OUT, seed=1)
    return RawData(x, x_test=x_test, notes=(*digits.notes, note))


def stack_digits(x: Array, y: Array, count: int = TRAIN, seed: int = 0) -> tuple[Array, Array]:
    """Stacked MNIST from digits: three at random as the red, green and blue of one image, uint8 [count, 3, H, W].

    Its mode, int64 [count], has the three digits as its decimals: 407 is a red 4, a green 0 and a blue 7.
    VEEGAN's setting draws from the 70,000 digits of both splits together.
    """
    if x.ndim != 4 or x.shape[1] != 1:
        raise UserError(f"digits to stack must be grey images [n, 1, H, W], not {list(x.shape)}.")
    if len(y) != len(x) or not len(x) or y.min() < 0 or y.max() > 9:
        raise UserError("digits to stack need a label from 0 to 9 for each.")
    rows = (raw(3 * count, "stacked digits", seed) % np.uint64(len(x))).astype(np.int64).reshape(count, 3)
    return np.ascontiguousarray(x[rows, 0]), (y[rows] @ np.array([100, 10, 1])).astype(np.int64)
