"""Read files of JSON lines with bounded memory: all lines one by one, a few of many, or the last ones."""

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

MOST_LINE = 64 << 20  # bytes of a line; that of a hundred thousand members is shorter
_BLOCK = 1 << 16  # bytes read at once from the end of a file
_ANY = 1 << 62  # bytes of a file that is never in memory as a whole

Line = TypeVar("Line", bound=JsonLine)


def read_all(path: Path, kind: type[Line]) -> Iterator[Line]:
    """Yield every line; a last line that is still being written is left out."""
    for line in _raw(path):
        yield _parsed(path, line, kind)


def read_some(path: Path, kind: type[Line], most: int) -> list[Line]:
    """Return at most 2 × `most` lines, spread evenly, the first and the last among them; all if the file has fewer."""
    chosen: list[bytes] = []
    every, last, last_number = 1, b"", -1
    for number, line in enumerate(_raw(path)):
        last, last_number = line, number
        if number % every == 0:
            chosen.append(line)
            if len(chosen) == 2 * most:
                chosen, every = chosen[::2], 2 * every
    if last_number >= 0 and last_number % every:
        chosen.append(last)
    return [_parsed(path, line, kind) for line in chosen]


def read_last(path: Path, kind: type[Line], count: int) -> list[Line]:
    """Return the last `count` lines, of which only as much of the file is read as they take."""
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
    whole = text.split(b"\n")[:-1]  # what follows the last line end is still being written
    return [_parsed(path, line, kind) for line in (whole if end == 0 else whole[1:])[-count:]]


def _raw(path: Path) -> Iterator[bytes]:
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
    """Open a file for the block, and report a file that cannot be opened or read in one sentence."""
    try:
        with files.open_binary(path, _ANY) as handle:
            yield handle
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _parsed(path: Path, line: bytes, kind: type[Line]) -> Line:
    shown = line[:60].decode("utf-8", "replace").rstrip("\n")
    try:
        content = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} holds a line that is not JSON: {shown!r}.") from error
    try:
        return kind.parse(content)
    except ValueError as error:
        raise UserError(f"{path} holds a line that ganherd did not write: {shown!r}.") from error


def _too_long(path: Path) -> UserError:
    return UserError(f"{path} holds a line of more than {MOST_LINE >> 20} MiB, which ganherd did not write.")
