"""Read parts of a file of JSON lines: by byte offset, by step, or a few evenly spaced lines.

Only the parts that are needed are read, so this is fast for files of gigabytes, too. Lines that ganherd did not write
can be counted and skipped: a record may be cut off by a full disk, and a folder may come from a stranger.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from ganherd.runs.json_lines import MOST_LINE
from ganherd.runs.models import JsonLine
from ganherd.util import files

_STEP = re.compile(rb'\s*\{\s*"step": ?(\d{1,16})\s*[,}]')
_HEAD = 64  # the first bytes of a line; in lines that ganherd wrote, these contain the step
_WHOLE = 1 << 20  # a part of a file with at most this many bytes is read completely, instead of only a few lines of it


@dataclass(frozen=True)
class FileLine:
    """A complete line of a file, and its place in the file."""

    start: int  # offset of its first byte
    end: int  # offset behind its line end
    raw: bytes

    def step(self) -> int | None:
        """Return the step of the line; None if ganherd did not write it."""
        match = _STEP.match(self.raw[:_HEAD])
        if match:
            return int(match[1])
        line = self.parse()
        return None if line is None else line.step

    def head(self) -> JsonLine | None:
        """Return only the fields before the first list, which is fast for many members; None if the line is damaged."""
        scalars = self.raw[: self.raw.find(b"[") + 1].rpartition(b",")[0]
        try:
            return JsonLine.parse(json.loads(scalars + b"}"))
        except (ValueError, RecursionError):
            return self.parse()

    def parse(self) -> JsonLine | None:
        """Return the whole content of the line; None if it is no JSON object with the keys that ganherd writes."""
        try:
            return JsonLine.parse(json.loads(self.raw))
        except (ValueError, RecursionError):
            return None


class RecordFile:
    """Read parts of a file of JSON lines. The file may grow or be truncated meanwhile, and need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Return the length of the file in bytes; 0 if it does not exist."""
        try:
            return os.stat(self.path, follow_symlinks=False).st_size
        except OSError:
            return 0

    def lines_from(self, offset: int) -> Iterator[FileLine]:
        """Yield the complete lines that begin at or after a byte offset."""
        with self._opened() as handle:
            at = _line_start(handle, offset)
            while line := _read(handle, at):
                yield line
                at = line.end

    def lines_before(self, offset: int) -> Iterator[FileLine]:
        """Yield the complete lines that end at or before a byte offset, the last one first."""
        with self._opened() as handle:
            while offset > 0:
                start = _start_of_last(handle, offset)
                line = _read(handle, start)
                if line is not None and line.end <= offset:
                    yield line
                offset = start

    def spread(self, first: int, last: int, count: int) -> Iterator[FileLine]:
        """Yield at most `count` evenly spaced lines that begin between two offsets, including the first and the last.

        If the part of the file is large, lines at multiples of a power of two (in bytes) are chosen, so that most of
        them stay the same while the file grows.
        """
        if last - first <= _WHOLE:
            yield from _thinned([line for line in self.lines_from(first) if line.start < last], count)
            return
        newest = next((line.start for line in self.lines_before(last)), first)
        stride = 1
        while (newest - first) // stride + 3 > max(count, 3):
            stride *= 2
        places = [first, *range((first // stride + 1) * stride, newest, stride), newest]
        with self._opened() as handle:
            done = -1
            for place in places:
                at = _line_start(handle, place)
                if done < at < last and (line := _read(handle, at)):
                    yield line
                    done = at

    def find(self, step: int) -> FileLine | None:
        """Return the last line whose step is at most `step`; None if there is none.

        Steps must not decrease in the file.
        """
        with self._opened() as handle:
            low, high, best = 0, handle.seek(0, os.SEEK_END), None
            while low < high:
                middle = (low + high) // 2
                line = _read(handle, _line_start(handle, middle))
                while line is not None and line.start < high and line.step() is None:  # skip damaged lines
                    line = _read(handle, line.end)
                own = line.step() if line is not None and line.start < high else None
                if line is None or own is None or own > step:
                    high = middle
                else:
                    best, low = line, line.end
            return best

    def _opened(self) -> BufferedReader:
        """Return the opened file, or an empty one if it does not exist or is not a regular file."""
        try:
            return open(files.open_regular(self.path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
        except OSError:
            return open(os.devnull, "rb")


def _line_start(handle: BufferedReader, offset: int) -> int:
    """Return the offset of the first line that begins at or after an offset."""
    if offset <= 0:
        return 0
    handle.seek(offset - 1)
    return offset - 1 + len(handle.readline(MOST_LINE))


def _start_of_last(handle: BufferedReader, offset: int) -> int:
    """Return the offset at which the line begins that contains the byte before `offset`.

    0 if this line would be longer than any line may be.
    """
    block, end = 1 << 12, offset - 1  # the search starts before the last byte, which may be this line's own end
    while end > 0 and offset - end <= MOST_LINE:
        start = max(0, end - block)
        handle.seek(start)
        at = handle.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end, block = start, min(1 << 20, 2 * block)
    return 0


def _read(handle: BufferedReader, start: int) -> FileLine | None:
    """Return the line that begins at an offset; None at the end of the file, or if the line is still being written."""
    handle.seek(start)
    raw = handle.readline(MOST_LINE)
    return FileLine(start, start + len(raw), raw) if raw.endswith(b"\n") else None


def _thinned(lines: list[FileLine], count: int) -> list[FileLine]:
    """Return at most `count` of the lines, evenly spaced, including the first and the last."""
    if len(lines) <= count:
        return lines
    return [lines[round(number * (len(lines) - 1) / max(1, count - 1))] for number in range(count)]


def plain_numbers(values: Any) -> list[float | None] | None:
    """Return the values as numbers with six digits, None for each that is not finite; None if they are not a list.

    >>> plain_numbers([1, 0.1234567, "nan"]), plain_numbers({"a": 1})
    ([1.0, 0.123457, None], None)
    """
    if not isinstance(values, list):
        return None
    return [plain_number(value) for value in values]


def plain_number(value: Any) -> float | None:
    """Return a number rounded to six significant digits; None if it is not finite or not a number."""
    if type(value) not in (int, float) or abs(value) > 1e300 or value != value:
        return None
    return float(f"{value:.6g}")
