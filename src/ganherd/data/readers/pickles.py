"""Read the arrays of a pickle without executing any code that it names.

A pickle is a small program that may call any function that it names. This reader imports nothing: the few names that a
pickled numpy array needs are replaced by classes that only record their arguments, from which the array is rebuilt. All
other names are refused.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from ganherd.util.errors import UserError

TYPES = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "b1"}  # types of arrays that are accepted


class _Type:
    """Stand-in for `numpy.dtype`: record the code and the byte order that a pickle passes to it."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def real(self) -> np.dtype[Any]:
        """Return the dtype, or raise a ValueError if it is not one of `TYPES`."""
        code, order = _text(self.code).lstrip("<>|="), _text(self.order)
        if code not in TYPES or order not in ("<", ">", "|", "="):
            raise ValueError(f"an array of type {code!r}")
        return np.dtype(("" if order == "|" else order) + code)


class _Array:
    """Stand-in for `numpy.ndarray` and for the function that rebuilds an array: record its shape, dtype and bytes."""

    __slots__ = ("state",)

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def real(self) -> np.ndarray[Any, Any]:
        """Return the array, or raise a ValueError if what was recorded is none."""
        _, shape, kind, fortran, data = self.state
        if not isinstance(kind, _Type) or not isinstance(data, bytes | bytearray | memoryview):
            raise ValueError("an array without plain bytes")
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError("an array of impossible shape")
        dtype = kind.real()
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError("an array whose bytes do not fit its shape")
        return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


class _Buffer(_Array):
    """Stand-in for numpy's `_frombuffer`, which newer pickles use: record its arguments."""

    __slots__ = ()

    def __init__(self, data: Any = b"", kind: Any = None, shape: Any = (), order: Any = "C") -> None:
        self.state = (1, shape, kind, _text(order) == "F", data)


# A class and not a function: a pickle may set the attributes of any object without `__setstate__`.
class _Encode:
    """Stand-in for `_codecs.encode`, with which Python 3 writes bytes for Python 2: encode text as latin-1 only."""

    def __new__(cls, text: Any = "", how: Any = "") -> bytes:  # type: ignore[misc]
        if not isinstance(text, str) or _text(how) not in ("latin1", "latin-1"):
            raise ValueError("bytes in an unknown encoding")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        raise ValueError("bytes with a state")


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("numpy._core.numeric", "_frombuffer"): _Buffer,
    ("_codecs", "encode"): _Encode,
}


class _Refused(Exception):
    """Raised for a pickle that contains a name that is not in `NAMES`; the message is that name."""


class _Reader(pickle._Unpickler):
    """An unpickler that accepts only the names in `NAMES`.

    It derives from the unpickler that is written in Python, because a few bytes can make the one in C reserve any
    amount of memory.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise _Refused(f"{module}.{name}")
        return NAMES[module, name]


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary that a pickle holds, with keys as text and values as arrays or plain Python values.

    Args:
        data: The pickle.
        where: What messages call it.

    Raises:
        UserError: It is broken, holds no dictionary, or names anything but the parts of an array.

    >>> read_pickle(pickle.dumps({b"labels": [1, 2]}), "example")
    {'labels': [1, 2]}
    """
    try:
        content = _Reader(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError("no dictionary")
        return {_text(key): value.real() if isinstance(value, _Array) else value for key, value in content.items()}
    except _Refused as error:
        raise UserError(
            f"{where} is refused, and nothing of it was run: it names {error}, which no array needs; "
            f"use the binary version."
        ) from None
    except Exception as error:  # A broken pickle may raise anything.
        raise UserError(f"{where} is not a data file that can be read ({error}); use the binary version.") from None
