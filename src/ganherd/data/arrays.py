"""Check the arrays of a data source, and convert them to ganherd's layout, range and labels.

Data is images, points (rows of two numbers) or rows of a table. A split is the training rows (x, y) or the held-out
rows (x_test, y_test), which are never trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ganherd.util.errors import UserError, counted

Array = npt.NDArray[Any]

DARK = 16  # if no pixel of 0 … 255 is brighter than this, the user gets a note: the range is probably another one
SLACK = 1e-3  # tolerance when the range of floats is checked, for rounding such as that of half precision
ROWS = 4096  # rows converted at once, so that a large float array is not copied whole


@dataclass(frozen=True)
class RawData:
    """The arrays of a source before they are checked; what the source does not have is None."""

    x: Array  # training rows [n, …]
    y: Array | None = None  # their labels [n], as numbers or names
    x_test: Array | None = None  # held-out rows
    y_test: Array | None = None
    labels: tuple[str, ...] | None = None  # names of the classes
    notes: tuple[str, ...] = field(default=())  # notes for the user
    skipped: int = 0  # number of files that are not images
    columns: tuple[str, ...] | None = None  # names of the columns of a table


@dataclass(frozen=True)
class TidyData:
    """Checked arrays: x uint8 [n, C, H, W] or float32 [n, d], y int64 [n] (-1: no label)."""

    x: Array
    y: Array
    x_test: Array | None
    y_test: Array | None
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    skipped: int = 0
    source_range: tuple[float, float] | None = None  # range of the source's values, if floats were converted to bytes
    columns: tuple[str, ...] = ()  # names of the columns; (): images, or points without names


def tidy(raw: RawData, name: str) -> TidyData:
    """Check the arrays of a source and convert them to ganherd's layout, range and labels.

    Args:
        raw: The arrays.
        name: What messages call the source.

    Raises:
        UserError: The arrays are not images, points or rows of numbers, or do not fit each other.
    """
    if raw.x_test is not None and len(raw.x_test) == 0:
        raw = replace(raw, x_test=None, y_test=None)
    x, x_test, notes = _values(raw.x, raw.x_test, name, raw.columns)
    if raw.x_test is None and raw.y_test is not None and len(raw.y_test):
        raise UserError(f"{name} has y_test without x_test; give both or neither.")
    if raw.x_test is not None and (raw.y is None) != (raw.y_test is None):
        missing = "y_test" if raw.y_test is None else "y of the training set"
        raise UserError(f"{name} has labels for one of its two sets only ({missing} is missing); give both or neither.")
    y, y_test, labels, more = _labels(raw, name)
    converted = x.ndim == 4 and raw.x.dtype.kind == "f"
    both = [raw.x] if raw.x_test is None else [raw.x, raw.x_test]
    ends = (float(min(part.min() for part in both)), float(max(part.max() for part in both))) if converted else None
    columns = _column_names(raw.columns, x, name)
    return TidyData(x, y, x_test, y_test, labels, (*raw.notes, *notes, *more), raw.skipped, ends, columns)


def _values(
    x: Array, x_test: Array | None, name: str, columns: tuple[str, ...] | None
) -> tuple[Array, Array | None, list[str]]:
    """Return training rows and held-out rows as bytes (images) or float32 (points, rows), and notes for the user.

    Args:
        x: Training rows.
        x_test: Held-out rows; None: the source has none.
        name: What messages call the source.
        columns: Names of columns, for messages.
    """
    given = [x] if x_test is None else [x, x_test]
    for part in given:
        if part.dtype.kind not in "buif":
            raise UserError(
                f"{name} holds values of type {part.dtype}; save numbers: uint8, or float in [0, 1] or [-1, 1]."
            )
    if x.ndim == 0 or len(x) == 0:
        raise UserError(f"{name} holds no images: its first array has shape {x.shape}.")
    if x_test is not None and x_test.shape[1:] != x.shape[1:]:
        raise UserError(f"{name} has training rows of shape {x.shape[1:]} and test rows of shape {x_test.shape[1:]}.")
    is_table = x.ndim == 2 and x.shape[1] > 0
    both = given
    if is_table:
        with np.errstate(over="ignore"):  # values that become infinite are refused below
            both = [np.ascontiguousarray(part, dtype=np.float32) for part in given]
    for source, part in zip(given, both, strict=True):
        if part.dtype.kind == "f" and not all(np.isfinite(part[i : i + ROWS]).all() for i in range(0, len(part), ROWS)):
            bad = next(i for i in range(len(part)) if not np.isfinite(part[i]).all())
            place = f"row {bad}"
            if is_table:
                column = int(np.flatnonzero(~np.isfinite(part[bad]))[0])
                place += f", column {columns[column] if columns else column}"
                if np.isfinite(value := source[bad, column]):
                    raise UserError(
                        f"{name} has a value that is too large for float32, {value:.4g} in {place}; rescale that column, or "
                        "remove or repair the row."
                    )
            raise UserError(f"{name} has NaN or infinite values, the first in {place}; remove or repair those rows.")
    if is_table:
        _refuse_rounding(given[0], both[0], name, columns)
        return both[0], both[1] if x_test is not None else None, _pixel_note(x)
    order, notes = _layout(x, name)
    scale, more = scale_to_bytes(both, name)
    images = [to_uint8(order(part), *scale) for part in both]
    return images[0], images[1] if x_test is not None else None, [*notes, *more]


def _refuse_rounding(x: Array, rounded: Array, name: str, columns: tuple[str, ...] | None) -> None:
    """Raise a `UserError` if a column loses its variation in float32, such as a time in seconds since 1970.

    Args:
        x: The rows as given.
        rounded: The same in float32.
        columns: Names of columns, for the message.
    """
    if np.can_cast(x.dtype, np.float32, "safe"):
        return
    for column in range(x.shape[1]):  # one by one, because a table may be large
        exact = x[:, column].astype(np.float64)
        spread, error = exact.std(), np.sqrt(np.square(exact - rounded[:, column]).mean())
        if error > 0.1 * spread and spread > 1e-12 * np.abs(exact).max():
            raise UserError(
                f"{name}: column {columns[column] if columns else column} varies by {spread:.3g} around {exact.mean():.6g}, "
                "which float32 rounds away: subtract an offset from it, or leave it out."
            )


def _pixel_note(x: Array) -> list[str]:
    """Return a list with a note if a table of bytes may consist of flattened square images; otherwise an empty list."""
    side = math.isqrt(x.shape[1])
    if x.dtype != np.uint8 or side < 8 or side * side != x.shape[1]:
        return []
    return [f"rows of {x.shape[1]} bytes are read as a table: for images, reshape them to n × {side} × {side}"]


def _column_names(names: tuple[str, ...] | None, x: Array, name: str) -> tuple[str, ...]:
    """Return the names of the columns of rows x [n, d]: those of the source, otherwise x1, x2, ….

    Return () for images, and for points whose source gives no names.
    """
    if x.ndim != 2:
        return ()
    if names is None:
        return tuple(f"x{j + 1}" for j in range(x.shape[1])) if x.shape[1] != 2 else ()
    if len(names) != x.shape[1] or len(set(names)) < len(names):
        raise UserError(f"{name} has {x.shape[1]} columns; `columns` must name each of them once.")
    return names


def _layout(x: Array, name: str) -> tuple[Any, list[str]]:
    """Return a function that converts images to [n, C, H, W], and a list with a note if the layout is ambiguous."""
    if 0 in x.shape:
        raise UserError(f"{name} holds images without pixels: its array has shape {x.shape}.")
    if x.ndim == 3:
        return lambda part: part[:, None], []
    if x.ndim == 4:
        first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
        if first:
            guess = f"shape {x.shape} is read as n × C × H × W (n × H × W × C would fit too)"
            return lambda part: part, [guess] if last else []
        if last:
            return lambda part: part.transpose(0, 3, 1, 2), []
        raise UserError(f"{name} has images of shape {x.shape[1:]}; ganherd reads 1 or 3 channels, first or last.")
    raise UserError(
        f"{name} has an array of shape {x.shape}; "
        f"save images as n × C × H × W, n × H × W × C or n × H × W, or rows of d numbers as n × d."
    )


def scale_to_bytes(parts: list[Array], name: str) -> tuple[tuple[float, float], list[str]]:
    """Return what is added to image values, then what they are multiplied by, to bring them to 0 … 255; and notes.

    The range is guessed from the type and the extremes of all values.

    Args:
        parts: The images of each split, which are converted alike.
        name: What messages call the source.

    Raises:
        UserError: The values are in no range that is known.
    """
    kind = parts[0].dtype
    if any(part.dtype.kind != kind.kind for part in parts):
        raise UserError(
            f"{name} has training values of type {kind} and test values of type {parts[1].dtype}; save one type."
        )
    low, high = float(min(part.min() for part in parts)), float(max(part.max() for part in parts))
    if kind.kind == "b":
        return (0.0, 255.0), ["values are true or false: black or white"]
    brightest = f"the brightest value is {high:g} of 255: if it means white, save x / {high:g} as float instead"
    dark = [brightest] if 0 < high <= DARK else []
    if kind == np.uint8 and all(part.dtype == np.uint8 for part in parts):
        return (0.0, 1.0), dark
    if kind.kind in "ui":
        if low < 0 or high > 255:
            raise UserError(f"{name} has whole numbers in [{low:g}, {high:g}]; bring them to 0 … 255.")
        return (0.0, 1.0), [f"values are whole numbers in [{low:g}, {high:g}], read as 0 … 255", *dark]
    if (ends := float_range(low, high)) is None:
        raise UserError(
            f"{name} has float values in [{low:.4g}, {high:.4g}]; bring them to [0, 1], [-1, 1] or [0, 255]."
        )
    black, white = ends
    notes = [f"float values in [{low:.4g}, {high:.4g}], read as {black} … {white}", *(dark if white == 255 else [])]
    return (float(-black), 255 / (white - black)), notes


def float_range(low: float, high: float) -> tuple[int, int] | None:
    """Return the values of black and white that float pixels between these two values are read with; None if none fits.

    >>> float_range(0.0, 0.9), float_range(-0.8, 0.9), float_range(0.0, 16.0), float_range(-3.0, 3.0)
    ((0, 1), (-1, 1), (0, 255), None)
    """
    ranges = ((0, 1), (-1, 1), (0, 255))
    return next((ends for ends in ranges if low >= ends[0] - SLACK and high <= ends[1] + SLACK), None)


def to_uint8(x: Array, add: float, times: float) -> Array:
    """Return (x + add) * times, rounded and clipped to bytes, uint8 with the shape of x [n, …]."""
    if x.dtype == np.uint8 and (add, times) == (0.0, 1.0):
        return np.ascontiguousarray(x)
    out = np.empty(x.shape, np.uint8)
    for i in range(0, len(x), ROWS):
        part = x[i : i + ROWS].astype(np.float32)
        out[i : i + ROWS] = np.clip(np.rint((part + add) * times), 0, 255)
    return out


def _labels(raw: RawData, name: str) -> tuple[Array, Array | None, tuple[str, ...], list[str]]:
    """Return the labels of both splits as indices of classes, the names of the classes, and notes for the user.

    Labels are int64 [n], -1 for rows without a label.
    """
    none = None if raw.x_test is None else np.full(len(raw.x_test), -1, np.int64)
    if raw.y is None:
        return np.full(len(raw.x), -1, np.int64), none, (), []
    y = _column(raw.y, len(raw.x), "y", name)
    y_test = None if raw.x_test is None or raw.y_test is None else _column(raw.y_test, len(raw.x_test), "y_test", name)
    # The name of a folder may not be valid UTF-8, which JSON and pages require.
    names: tuple[str, ...] = tuple(name.encode("utf-8", "replace").decode() for name in raw.labels or ())
    if len(set(names)) < len(names):
        raise UserError(f"{name} has a class name twice in `labels`.")
    if y.dtype.kind == "U":
        names = names or tuple(str(v) for v in np.unique(y))
        known = {label: k for k, label in enumerate(names)}
        return _by_name(y, known, name), None if y_test is None else _by_name(y_test, known, name), names, []
    if y_test is not None and y_test.dtype.kind == "U":
        raise UserError(f"{name} has numbers in y and names in y_test; save one kind.")
    values = np.unique(y[y >= 0])
    if not len(values) and (y_test is None or (y_test < 0).all()):
        return y, y_test, (), []
    notes = []
    if without := int((y < 0).sum()):
        notes.append(f"{counted(without, 'training rows')} {'has' if without == 1 else 'have'} no label (-1)")
    if names:
        top = int(max(y.max(), -1 if y_test is None else y_test.max()))
        if top >= len(names):
            raise UserError(f"{name} has label {top}, but `labels` names {len(names)} classes (0 … {len(names) - 1}).")
        return y, y_test, names, notes
    if y_test is not None and len(strange := np.setdiff1d(y_test[y_test >= 0], values)):
        raise UserError(f"{name} has test rows with label {strange[0]}, which no training row has.")
    if not np.array_equal(values, np.arange(len(values))):
        many = f"labels are the numbers {values[0]} … {values[-1]}; {len(values)} of them occur"
        notes.append(many if len(values) > 1 else f"the only label is the number {values[0]}")
    names = tuple(str(v) for v in values)
    return _index(y, values), None if y_test is None else _index(y_test, values), names, notes


def _column(y: Array, n: int, key: str, name: str) -> Array:
    """Return one label for each of n rows, as int64 (-1: no label) or as texts; raise a UserError for anything else.

    `key` is what messages call the array y, and `name` the source.
    """
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise UserError(
            f"{name} has {key} of shape {y.shape}; save one label for each row (argmax of a one-hot array)."
        )
    if len(y) != n:
        raise UserError(f"{name} has {n:,} rows but {len(y):,} labels in {key}; they must match.")
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "replace")
    if y.dtype.kind == "U":
        return y
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.rint(y)).all()):
        raise UserError(f"{name} has labels in {key} that are no whole numbers.")
    if y.dtype.kind not in "buif":
        raise UserError(f"{name} has labels of type {y.dtype} in {key}; save whole numbers or names.")
    if len(y) and not (y.min() >= -1 and y.max() < 2**31):
        raise UserError(
            f"{name} has label {y.min() if y.min() < -1 else y.max()} in {key}; use 0 and up, or -1 for none."
        )
    return y.astype(np.int64)


def _by_name(y: Array, known: dict[str, int], name: str) -> Array:
    """Return for class names y [n] the index of each, int64 [n], by the mapping `known`; `name` is the source's."""
    values, inverse = np.unique(y, return_inverse=True)
    if strange := [str(v) for v in values if str(v) not in known]:
        raise UserError(f"{name} has rows labelled {strange[0]!r}, which is none of its classes.")
    return np.array([known[str(v)] for v in values], np.int64)[inverse]


def _index(y: Array, values: Array) -> Array:
    """Return the position of each label y [n] among the sorted label numbers `values`; -1 stays -1."""
    return np.where(y < 0, -1, np.searchsorted(values, y)).astype(np.int64)
