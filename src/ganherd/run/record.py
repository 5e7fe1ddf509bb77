"""Metrics and events as JSON lines, in step with the checkpoints: after a resume no line is there twice and none is missing."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

COSTS = ("cost_train", "cost_held_out")  # of the discriminators, where a recipe asks for run.validation


class Lines:
    """An append-only file of JSON lines that can be cut back to where a checkpoint left it."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        """`keep`: how many bytes belong to the checkpoint that is resumed; what came after it will be written again."""
        # without a buffer: what a full disk refused must not be written later, when a resume has cut the file
        self._handle = path.open("ab", buffering=0)
        self._one = threading.Lock()  # the thread that misses a rank tells it while the loop waits, or does not
        if keep is not None:
            self._handle.truncate(keep)
            self._handle.seek(0, os.SEEK_END)

    def write(self, line: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(plain(line), allow_nan=False).encode() + b"\n")
        with self._one:
            while rest:  # a disk that is nearly full takes a part
                rest = rest[self._handle.write(rest) :]

    def settle(self) -> int:
        """Puts everything on the disk and says how many bytes that is."""
        os.fsync(self._handle.fileno())
        return self._handle.tell()

    @property
    def end(self) -> int:
        """How many bytes were written."""
        return self._handle.tell()

    def close(self) -> None:
        self._handle.close()


def plain(value: Any) -> Any:
    """Values that strict JSON can hold: a number that is not finite becomes its name.

    >>> plain({"loss": [1.0, float("nan")]})
    {'loss': [1.0, 'nan']}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
