"""Read safetensors files that may come from a stranger: names, shapes and types are checked before any data is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ganherd.util import files

Tensors = dict[str, Tensor]


class TensorMismatch(ValueError):
    """Raised if a file does not have the expected content.

    The message is the end of a sentence that begins with the file.
    """


def read(path: Path, sha256: str | None, check: Callable[[Tensors], None]) -> Tensors:
    """Return the tensors of a safetensors file by their names.

    Args:
        sha256: The SHA-256 that the content must have; None: do not compare it.
        check: Called before the data is read, with tensors of the declared shapes and types on the device "meta"; it
            raises an error if they are wrong.

    Raises:
        OSError: The file cannot be read, is not a regular file, or does not fit the machine's memory.
        TensorMismatch: The file is no safetensors file, has an unknown type, or has another SHA-256.
    """
    files.open_binary(path).close()  # raises an error if it is no regular file or too large
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            slices = {name: file.get_slice(name) for name in names}
            kinds = {name: _DTYPES.get(one.get_dtype()) for name, one in slices.items()}
            shapes = {name: one.get_shape() for name, one in slices.items()}
    except (SafetensorError, ValueError, RuntimeError, OverflowError) as error:
        raise TensorMismatch(f"is not a safetensors file: {error}") from None
    if strange := next((name for name, kind in kinds.items() if kind is None), None):
        raise TensorMismatch(f"has a type that ganherd does not write: that of {strange[:80]}")
    check({name: torch.empty(shapes[name], dtype=kinds[name], device="meta") for name in kinds})
    content = files.read(path)
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise TensorMismatch("is not what was written: its sha256 differs")
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise TensorMismatch(f"is not a safetensors file: {error}") from None


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
