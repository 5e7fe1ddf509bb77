"""Read the numbers of metrics.jsonl as columns over steps: a curve for each member, or quantiles over all members.

A figure is a number that records have under one name, such as `loss_g`.
"""

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

BAND = (0.0, 0.25, 0.5, 0.75, 1.0)  # the quantiles over members that make up a band
_NO_FIGURES = ("step", "seconds", "looked", "profile")  # keys of records that are no figures
_MOST_CACHED = 8 << 20  # bytes of numbers that are cached, at most


class MetricColumns:
    """Read the figures of a run. Parsed records are cached, so that more figures of the same records cost little."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._cached: dict[int, tuple[JsonObject, bytes]] = {}  # by the offset of a line: its numbers and its digest
        self._bytes = 0
        self._lock = Lock()

    def figures(self) -> list[str]:
        """Return the names of all figures that a few records have: some spread over the file, and the last ones."""
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
        """Return figures over steps, for a curve.

        Args:
            figures: The names of the figures.
            members: The members whose values are returned; None: quantiles over all members (`BAND`).
            offset: Only records from this byte of the file on.
            points: About how many records to return; if there are more, they are thinned evenly.
            steps: Only records between these two steps.

        Returns:
            `step`, `seconds` and `figures` (see `_column`), with a value for each record; `offset`, from which newer
            records can be read later; `restarted`, whether the file has become shorter than `offset`, so that earlier
            answers are invalid; and `damaged`, the number of lines that were skipped.
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
            "restarted": offset > end,  # a resumed run has truncated the file since
            "damaged": len(lines) - len(whole),
            "step": [numbers["step"] for _, numbers in whole],
            "seconds": [numbers["seconds"] for _, numbers in whole],
            "figures": {name: _column([numbers.get(name) for _, numbers in whole], members) for name in figures},
        }

    def _ends_short(self, line: FileLine, end: int) -> bool:
        """Return whether a line is the last of the file and covers too few steps for its means to belong in a curve."""
        steps = [earlier.step() or 0 for earlier, _ in zip(self._file.lines_before(line.start), range(2), strict=False)]
        return line.end == end and bool(steps) and is_short([*steps, 0][1], steps[0], line.step() or 0)

    def at(self, step: int, figures: Sequence[str], members: Sequence[int] | None) -> JsonObject:
        """Return figures in the last record up to a step, for some members (None: all).

        A figure that this record lacks comes from the newest earlier record that has it.

        Returns:
            `step` of the record, `figures` with their values by name, and `steps` with the step that each figure comes
            from.
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
        content = hashlib.blake2b(line.raw, digest_size=16).digest()  # a resumed run may rewrite a line at this offset
        with self._lock:
            cached = self._cached.pop(line.start, None)
            if cached is not None and cached[1] == content:
                self._cached[line.start] = cached  # moved to the end, as the most recently used
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
            if (other := self._cached.pop(line.start, None)) is not None:  # added by another thread meanwhile
                self._bytes -= _bytes_of(other[0])
            self._cached[line.start] = numbers, content
            self._bytes += _bytes_of(numbers)
            while self._bytes > _MOST_CACHED and len(self._cached) > 1:
                oldest, _ = self._cached.pop(next(iter(self._cached)))
                self._bytes -= _bytes_of(oldest)
        return numbers


def _bytes_of(numbers: JsonObject) -> int:
    """Return about how many bytes of memory a record's numbers take."""
    return 500 + sum(value.nbytes + 150 for value in numbers.values() if isinstance(value, np.ndarray))


def _numbers_of(record: JsonLine) -> JsonObject:
    """Return the numbers of a record by figure, those of members as float64 [N]; other values are left out."""
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
    """Return the values of a figure over records, as one of three objects.

    `{"all": [records]}` for a figure with one value for the whole run, `{"band": [quantiles][records]}` if `members` is
    None, otherwise `{"members": members, "lines": [members][records]}`.
    """
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
    """Return the quantiles `BAND` of the finite values; NaN if there are none."""
    known = row[np.isfinite(row)]
    return np.quantile(known, BAND) if len(known) else np.full(len(BAND), np.nan)


def _chosen(values: Any, members: Sequence[int] | None) -> Any:
    """Return the values of these members, None if unknown; a value that is no list is returned as it is."""
    if not isinstance(values, list):
        return values
    chosen = values if members is None else [values[m] if m < len(values) else None for m in members]
    return [None if value is None else _rounded(value) for value in chosen]


def _rounded(value: float) -> float | None:
    """Return a number with six significant digits; None if it is not finite."""
    return plain_number(float(value))
