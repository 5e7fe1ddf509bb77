"""Convert between the units of the data and those of the nets.

Nets get (x - offset) / scale. Images and points have one offset and scale for all values, rows of a table one for each
column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ganherd.data.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

Units = float | tuple[float, ...]  # one number for all values, or one for each column


class HasUnits(Protocol):
    """Anything with an offset and a scale: nets get (x - offset) / scale. A constant column has the scale 0."""

    @property
    def offset(self) -> Units: ...

    @property
    def scale(self) -> Units: ...


def like(value: Units, x: Tensor) -> float | Tensor:
    """Return `value` for arithmetic with x: a number unchanged, numbers of columns as a tensor [d] like x."""
    return x.new_tensor(value) if isinstance(value, tuple) else value


def divisor(scale: Units) -> Units:
    """Return what x - offset is divided by: the scale, with 1 for 0, so that constant columns become 0, not NaN.

    >>> divisor((2.0, 0.0)), divisor(127.5)
    ((2.0, 1.0), 127.5)
    """
    return tuple(value or 1.0 for value in scale) if isinstance(scale, tuple) else scale


def to_model(x: Tensor, units: HasUnits) -> Tensor:
    """Return data x (floats [..., d], or images) in the units of the nets, (x - offset) / scale."""
    return (x - like(units.offset, x)) / like(divisor(units.scale), x)


def to_data(x: Tensor, units: HasUnits) -> Tensor:
    """Return what nets generated in the units of the data; constant columns get their exact value."""
    return x * like(units.scale, x) + like(units.offset, x)


def comparable(x: Array, units: HasUnits) -> Array:
    """Return x in units with meaningful distances: rows [n, d] standardised by column, others unchanged."""
    if not isinstance(units.offset, tuple):
        return x
    offset, scale = (np.array(unit, np.float32) for unit in (units.offset, divisor(units.scale)))
    return np.asarray((np.asarray(x, np.float32) - offset) / scale)


def column_units(x: Array) -> tuple[Units, Units]:
    """Return offset and scale of rows [n, d]: the mean and the standard deviation of each column.

    The standard deviation is set to 0 for columns that are constant up to rounding.

    >>> column_units(np.array([[1.0, 7.0], [3.0, 7.0]], np.float32))
    ((2.0, 7.0), (1.0, 0.0))
    """
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    std[std <= 0.5 * np.spacing(np.abs(mean).astype(np.float32))] = 0.0  # half a step of float32
    return tuple(mean.tolist()), tuple(std.tolist())


def span_units(x: Array) -> tuple[Units, Units]:
    """Return offset and scale of points [n, 2]: the centre and half of the range of all coordinates together.

    Both coordinates have the same scale, so that shapes keep their proportions.
    """
    low, high = float(x.min()), float(x.max())
    return (low + high) / 2, (high - low) / 2 or 1.0


def main_plane(x: Array) -> tuple[tuple[float, ...], ...]:
    """Return the two directions [2, d] along which standardised rows [n, d] vary most (PCA), for pictures of rows.

    The sign of a direction is arbitrary; here its number of largest absolute value is positive, so that the same data
    always gives the same picture.
    """
    columns = x.shape[1]
    covariance = np.cov(x, rowvar=False, dtype=np.float64).reshape(columns, -1) if len(x) > 1 else np.eye(columns)
    vectors = np.linalg.eigh(covariance)[1][:, ::-1].T[:2]
    signs = np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(1, keepdims=True), 1))
    plane = np.zeros((2, columns))  # one column: the second direction is zero
    plane[: len(vectors)] = vectors * signs
    return tuple(tuple(row) for row in plane.tolist())


def projected(x: Array, units: HasUnits, plane: tuple[tuple[float, ...], ...]) -> Array:
    """Project rows [n, d], in the units of the data, onto the plane of `main_plane`, and return points [n, 2]."""
    return np.asarray(comparable(x, units) @ np.array(plane, np.float32).T)
