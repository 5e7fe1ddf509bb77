"""Use arrays of the running Python process as data: a recipe names them by a hash of their content."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np

from ganherd.data.arrays import Array, RawData
from ganherd.data.samples.python_dataset import Progress, from_dataset
from ganherd.data.samples.python_items import is_python_dataset
from ganherd.util.errors import UserError
from ganherd.util.objects.memory_objects import MemoryObject, content_bytes, find, is_in_memory
from ganherd.util.text import one_line

__all__ = ["NAME", "hold", "is_in_memory", "read"]

NAME = "data"  # what messages and names call data in memory


def hold(data: Any, progress: Progress | None = None) -> MemoryObject:
    """Register data under a name, and return an object that holds both.

    The name can be used as `data.source` as long as the returned object exists.

    Args:
        data: Images or points as x, (x, y) or (x, y, x_test, y_test), arrays or tensors; y may hold the names of classes. Or a
            map-style data set, such as a `torch.utils.data.Dataset`.
        progress: Called with the number of items of a data set that were read, and the number of all its items.

    >>> held = hold((np.zeros((4, 8, 8)), ["cat", "cat", "dog", "dog"]))
    >>> read(held.name).x.shape
    (4, 8, 8)
    """
    raw = _raw(data, progress)
    digest = hashlib.sha256()
    for field in fields(raw):
        value = getattr(raw, field.name)
        if isinstance(value, np.ndarray):
            digest.update(f"{field.name} {value.dtype.str} {value.shape}".encode())
            digest.update(content_bytes(value))
        else:
            digest.update(f"{field.name} {value!r}".encode())
    return MemoryObject(raw, NAME, digest.hexdigest())


def read(name: str) -> RawData:
    """Return the data that `hold` registered under this name."""
    raw: RawData = find(name).value
    return raw


def _raw(data: Any, progress: Progress | None) -> RawData:
    """Return the arrays of any data that `hold` accepts."""
    if isinstance(data, RawData):
        return data
    if is_python_dataset(data):
        return from_dataset(data, progress=progress)
    each = list(data) if isinstance(data, tuple) else [data]
    if len(each) not in (1, 2, 4):
        raise UserError(f"data has {len(each)} arrays: give x, (x, y) or (x, y, x_test, y_test).")
    arrays = [None if one is None else _array(one) for one in each]
    x, y, x_test, y_test = [*arrays, None, None, None][:4]
    if x is None or x.dtype == object:
        raise UserError("data must be arrays of numbers: x, or (x, y) with the label of each row.")
    return RawData(x, _texts(y), x_test, _texts(y_test))


def _array(values: Any) -> Array:
    """Return an array, a tensor or nested lists as a numpy array, or raise a UserError."""
    if np.ma.is_masked(values):
        raise UserError("data is a masked array with masked values: fill them in, or remove those rows.")
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            return np.asarray(values.float() if "bfloat16" in str(values.dtype) else values)
        return np.asarray(values)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # lists of different lengths; sparse and meta tensors
        if "inhomogeneous" in str(error):
            raise UserError(
                "data is a list whose entries have different shapes: bring all to one size first."
            ) from None
        raise UserError(
            f"data must be arrays of numbers, and a {type(values).__name__} cannot be read as one ({one_line(str(error), 200)})."
        ) from None


def _texts(y: Array | None) -> Array | None:
    """Return labels that are Python objects, such as names in a column of pandas, as texts; others unchanged."""
    if y is None or y.dtype != object:
        return y
    for row, label in enumerate(y.ravel()):
        if label != label or not isinstance(label, str | bytes | int | float | np.generic):
            what = "no label" if label is None or label != label else f"a {type(label).__name__} as its label"
            raise UserError(f"row {row} of the data has {what}: give every row a name or a number, or leave y out.")
    return y.astype(str)
