"""Write metrics and events as JSON lines. In the files of a resumed run no line is repeated and none is missing."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ganherd.runs import profile
from ganherd.util import files

# Events about processes, not about members: two equal runs may differ in them.
PROCESS_EVENTS = frozenset({"resume", "restart", "lost", "late", "back"})

# Significant digits of a number in an event. Further digits depend on the number of ranks, because matrix products of
# several members at once are rounded differently.
DIGITS = 9
# Scores of a look (health check) at the members. A record has those of the last look, and the look's step as `looked`.
LOOK_SCORES = ("spread", "returns", "tells", "differs", "copies")
COSTS = ("cost_train", "cost_held_out")  # of the discriminators, if a recipe sets run.validation


class JsonLinesWriter:
    """Append JSON lines to a file. A resumed run first truncates the file to its length at the checkpoint."""

    def __init__(self, path: Path, length: int | None = None, sums: bool = False) -> None:
        """Open the file.

        Args:
            length: Truncate the file to this many bytes; None: append to the existing lines.
            sums: Add sums over all lines so far to the field `profile` of each line, which has seconds by kind of work.
        """
        files.unshare(path)
        # Without a buffer: lines that a full disk refused must not be written later, when a resumed run has truncated
        # the file.
        self._handle = path.open("ab", buffering=0)
        self._one = threading.Lock()  # one line at a time: the thread that reports silent ranks also writes
        if length is not None:
            self._handle.truncate(length)
            self._handle.seek(0, os.SEEK_END)
        self._sums = profile.of_run(path) if sums else None

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        if self._sums is not None:
            line = profile.with_total(line, self._sums)
            self._sums = line.get("profile", {}).get(profile.TOTAL, self._sums)
        rest = memoryview(json.dumps(plain(dict(line)), allow_nan=False).encode() + b"\n")
        with self._one:
            while rest:  # a disk that is nearly full may write only a part of the line
                rest = rest[self._handle.write(rest) :]

    def flush(self) -> int:
        """Sync everything to disk and return the size of the file in bytes."""
        os.fsync(self._handle.fileno())
        return self._handle.tell()

    @property
    def end(self) -> int:
        """The size of the file in bytes."""
        return self._handle.tell()

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


def plain(value: Any) -> Any:
    """Return a value that strict JSON can hold: a number that is not finite becomes its name.

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


def significant(value: Any) -> Any:
    """Return the value with all floats rounded to the digits that are the same on any number of ranks.

    >>> significant({"score": 0.6881349580413751, "each": [1.5, float("nan")], "step": 1234567890123})
    {'score': 0.688134958, 'each': [1.5, nan], 'step': 1234567890123}
    """
    if isinstance(value, dict):
        return {key: significant(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [significant(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
