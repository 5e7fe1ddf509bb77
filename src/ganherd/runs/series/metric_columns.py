"""Read the numbers of metrics.jsonl as columns: a line of values for each member, or a band over all members."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from ganherd.runs.models import JsonLine
from ganherd.runs.series.record_file import FileLine, RecordFile, plain_number, plain_numbers
from ganherd.runs.series.record_means import MEANS, is_short
from ganherd.util.files import JsonObject

BAND = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles of a band
_NO_FIGURES = ("step", "seconds", "looked", "profile")
_MOST_CACHED = 8 << 20  # bytes of numbers that are remembered


class MetricColumns:
    """The numbers of a run. The lines behind columns are remembered, so that other figures of them cost nothing."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._cached: dict[int, tuple[JsonObject, bytes]] = {}  # by the offset of a line: its numbers and its digest
        self._bytes = 0
        self._lock = Lock()

    def figures(self) -> list[str]:
        """Return the names of all figures that the first and the last records have."""
        size = self._file.size()
        some = [*self._file.spread(0, size, 3)]
        some += [line for line, _ in zip(self._file.lines_before(size), range(12), strict=False)]
        return list(
            dict.fromkeys(name for line in some for name in (self._numbers(line) or {}) if name not in _NO_FIGURES)
        )

    def columns(
        self,
        figures: Sequence[str],
        members: Sequence[int] | None,
        offset: int = 0,
        points: int = 400,
        steps: tuple[int, int] | None = None,
    ) -> JsonObject:
        """Return figures over steps.

        Args:
            members: The members whose values are returned; None: the band over all members.
            offset: Only records from this byte of the file on.
            points: The number of records, about; more are thinned.
            steps: Only records between these two steps.
        """
        end = self._file.size()
        first, last = (0, end) if offset > end else (offset, end)
        if steps is not None:
            before, after = self._file.find(steps[0]), self._file.find(steps[1])
            first, last = max(first, before.start if before else 0), after.end if after else first
        lines = [(line, self._numbers(line)) for line in self._file.spread(first, last, points)]
        whole = [(line, numbers) for line, numbers in lines if numbers is not None]
        if whole and self._ends_short(whole[-1][0], end):
            whole[-1] = whole[-1][0], {name: value for name, value in whole[-1][1].items() if name not in MEANS}
        return {
            "offset": max([first, *(line.end for line, _ in lines)]),
            "restarted": offset > end,  # the file was cut since: what was read before is no longer true
            "damaged": len(lines) - len(whole),
            "step": [numbers["step"] for _, numbers in whole],
            "seconds": [numbers["seconds"] for _, numbers in whole],
            "figures": {name: _column([numbers.get(name) for _, numbers in whole], members) for name in figures},
        }

    def _ends_short(self, line: FileLine, end: int) -> bool:
        """Return whether a line ends the file and covers too few steps for its means to be part of a curve."""
        steps = [earlier.step() or 0 for earlier, _ in zip(self._file.lines_before(line.start), range(2), strict=False)]
        return line.end == end and bool(steps) and is_short([*steps, 0][1], steps[0], line.step() or 0)

    def at(self, step: int, figures: Sequence[str], members: Sequence[int] | None) -> JsonObject:
        """Return the figures of each member in the last record up to a step, with the step of each record.

        A figure that is not in every record comes from the last of the records before that has it.
        """
        line, values, steps = self._file.find(step), {}, {}
        missing = set(figures)
        if line is not None:
            for tried, earlier in enumerate(self._file.lines_before(line.end)):
                numbers = self._numbers(earlier, remember=False) or {}
                for name in missing & numbers.keys():
                    column = numbers[name]
                    own = column.tolist() if isinstance(column, np.ndarray) else column
                    values[name] = _chosen(own, members)
                    steps[name] = numbers["step"]
                missing -= numbers.keys()
                if not missing or tried >= 40:
                    break
        return {"step": None if line is None else line.step(), "figures": values, "steps": steps}

    def _numbers(self, line: FileLine, remember: bool = True) -> JsonObject | None:
        """Return the numbers of a record by figure, those of members as float64 [N]; None if the line is damaged."""
        content = hashlib.blake2b(line.raw, digest_size=16).digest()  # a resumed run writes its last lines again
        with self._lock:
            cached = self._cached.pop(line.start, None)
            if cached is not None and cached[1] == content:
                self._cached[line.start] = cached  # the newest of all
                return cached[0]
            if cached is not None:
                self._bytes -= _bytes_of(cached[0])
        record = line.parse()
        if record is None:
            return None
        numbers = _numbers_of(record)
        if not remember:
            return numbers
        with self._lock:
            if (other := self._cached.pop(line.start, None)) is not None:  # of another thread
                self._bytes -= _bytes_of(other[0])
            self._cached[line.start] = numbers, content
            self._bytes += _bytes_of(numbers)
            while self._bytes > _MOST_CACHED and len(self._cached) > 1:
                oldest, _ = self._cached.pop(next(iter(self._cached)))
                self._bytes -= _bytes_of(oldest)
        return numbers


def _bytes_of(numbers: JsonObject) -> int:
    """Return about the memory of a record's numbers."""
    return 500 + sum(value.nbytes + 150 for value in numbers.values() if isinstance(value, np.ndarray))


def _numbers_of(record: JsonLine) -> JsonObject:
    numbers: JsonObject = {"step": record.step, "seconds": plain_number(record.get("seconds"))}
    for name, value in record.items():
        if name in _NO_FIGURES:
            continue
        values = plain_numbers(value)
        if values:
            numbers[name] = np.array([np.nan if one is None else one for one in values], np.float64)
        elif (number := plain_number(value)) is not None:
            numbers[name] = number
    return numbers


def _column(values: Iterable[Any], members: Sequence[int] | None) -> JsonObject:
    """Return the values of a figure over records: `all` for a figure of the run, `band`, or `members` with their lines."""
    rows = list(values)
    if not any(isinstance(row, np.ndarray) for row in rows):
        return {"all": [None if row is None else row for row in rows]}
    arrays = [row if isinstance(row, np.ndarray) else np.empty(0) for row in rows]
    if members is None:
        quantiles = [_quantiles(row) for row in arrays]
        return {"band": [[_rounded(row[level]) for row in quantiles] for level in range(len(BAND))]}
    lines = [[_rounded(row[m]) if m < len(row) else None for row in arrays] for m in members]
    return {"members": list(members), "lines": lines}


def _quantiles(row: np.ndarray) -> np.ndarray:
    known = row[np.isfinite(row)]
    return np.quantile(known, BAND) if len(known) else np.full(len(BAND), np.nan)


def _chosen(values: Any, members: Sequence[int] | None) -> Any:
    if not isinstance(values, list):
        return values
    chosen = values if members is None else [values[m] if m < len(values) else None for m in members]
    return [None if value is None else _rounded(value) for value in chosen]


def _rounded(value: float) -> float | None:
    return plain_number(float(value))
