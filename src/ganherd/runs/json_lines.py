"""Read files of JSON lines with limited memory: all lines one by one, a few evenly spaced ones, or the last ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from ganherd.runs.models import JsonLine
from ganherd.util import files
from ganherd.util.errors import UserError

MOST_LINE = 64 << 20  # bytes of a line, at most; even a record of a hundred thousand members is shorter
_COUNTABLE = 256 << 20  # in files up to this many bytes, lines are counted to give a line's number in a message
_BLOCK = 1 << 16  # bytes read at once from the end of a file
_ANY = 1 << 62  # bytes: no limit, because a file is never in memory as a whole

Line = TypeVar("Line", bound=JsonLine)


def read_all(path: Path, kind: type[Line]) -> Iterator[Line]:
    """Yield every line as a record of this kind. A last line that is still being written is left out.

    Nothing is yielded if the file does not exist.
    """
    for number, line in enumerate(_raw(path), 1):
        yield _parsed(path, line, number, kind)


def read_some(path: Path, kind: type[Line], most: int) -> list[Line]:
    """Return at most 2 × `most` evenly spaced lines, including the first and the last; all lines if there are fewer."""
    chosen: list[tuple[int, bytes]] = []
    every, last = 1, (-1, b"")
    for number, line in enumerate(_raw(path)):
        last = number, line
        if number % every == 0:
            chosen.append(last)
            if len(chosen) == 2 * most:
                chosen, every = chosen[::2], 2 * every
    if last[0] >= 0 and last[0] % every:
        chosen.append(last)
    return [_parsed(path, line, number + 1, kind) for number, line in chosen]


def read_last(path: Path, kind: type[Line], count: int) -> list[Line]:
    """Return the last `count` lines. Only the end of the file is read."""
    if not path.exists():
        return []
    with _opened(path) as handle:
        end = handle.seek(0, os.SEEK_END)
        text = b""
        while end > 0 and text.count(b"\n") <= count:
            if text.find(b"\n", 0, MOST_LINE) < 0 and len(text) >= MOST_LINE:
                raise _too_long(path)
            size = min(end, max(_BLOCK, len(text)))
            end -= size
            handle.seek(end)
            text = handle.read(size) + text
    whole = text.split(b"\n")[:-1]  # a line without its end is still being written
    lines = (whole if end == 0 else whole[1:])[-count:]
    return [_parsed(path, line, number, kind) for number, line in enumerate(lines, -len(lines))]


def _raw(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, which need not exist."""
    if not path.exists():
        return
    with _opened(path) as handle:
        while line := handle.readline(MOST_LINE):
            if line.endswith(b"\n"):
                yield line
            elif len(line) == MOST_LINE:
                raise _too_long(path)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file for the block. Raise a `UserError` if it cannot be opened or read."""
    try:
        with files.open_binary(path, _ANY) as handle:
            yield handle
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _parsed(path: Path, line: bytes, number: int, kind: type[Line]) -> Line:
    """Return a line as a record of this kind.

    Args:
        number: The number of the line for a message: from 1, or if negative, counted from the end of the file.

    Raises:
        UserError: ganherd did not write the line.
    """
    try:
        return kind.parse(json.loads(line.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        shown = line[:60].decode("utf-8", "replace").rstrip("\n")
        if number < 0 and path.stat().st_size <= _COUNTABLE:
            number += 1 + sum(1 for _ in _raw(path))
        where = f"line {number}" if number > 0 else f"line {-number} from the end"
        raise UserError(f"{where} of {path} was not written by ganherd: {shown!r}. Remove that line.") from None


def _too_long(path: Path) -> UserError:
    """Return the error for a file with a line that is too long."""
    return UserError(f"{path} holds a line of more than {MOST_LINE >> 20} MiB, which ganherd did not write.")
