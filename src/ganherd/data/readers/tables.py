"""Read tables and points in text: .csv, .tsv and .txt, with or without a header and a column of labels."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np

from ganherd.data.arrays import RawData
from ganherd.data.readers.files_by_format import LESS, reading
from ganherd.data.samples.image_sample import are_captions
from ganherd.util.errors import UserError
from ganherd.util.memory import require_memory
from ganherd.util.text import did_you_mean, reads_as_number

LABEL_NAMES = ("label", "class", "target", "y")  # names of a column of labels, if data.label is not set
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?", "-")  # cells that stand for a missing value
_IN_MEMORY = 12  # rough number of bytes in memory for each byte of text


def read_table(path: Path, label: str | None = None) -> RawData:
    """Read a table: rows of numbers separated by commas, semicolons, tabs or blanks; lines that begin with # are ignored.

    Labels are in the column that `label` names, otherwise in one called label, class, target or y. Without a header they are in
    the third of three columns (`x y label`), or in a last column of words. A column that only seems to hold labels is one of
    numbers if it has fractions, or if its numbers hardly repeat.

    Args:
        path: A .csv, .tsv or .txt file.
        label: The name of the column of labels; None: see above.

    Raises:
        UserError: A value is missing or is not a number, or there is no such column.
    """
    with reading(path, "text"):
        require_memory(_IN_MEMORY * path.stat().st_size, f"the contents of {path}", LESS.capitalize())
        lines = path.read_text("utf-8-sig").splitlines()
    rows, numbers = _cells(lines, path.suffix.lower() == ".txt")
    if not rows:
        raise UserError(f"{path} holds no rows: write one row of numbers in each line.")
    header = rows[0] if _is_header(rows, label) else None
    if header is not None:
        rows, numbers = rows[1:], numbers[1:]
    if not rows:
        raise UserError(f"{path} holds a header and no rows: write rows of numbers below it.")
    width = len(header or rows[0])
    uneven = next((i for i, row in enumerate(rows) if len(row) != width), None)
    if uneven is not None:
        count = len(rows[uneven])
        raise UserError(
            f"{path}, line {numbers[uneven]}: it has {count} value{'s' * (count != 1)}, "
            f"but the {'header' if header else 'first row'} has {width}."
        )
    names, notes = _names(header, width, path), []
    labelled = _label_column(names, header is not None, rows, label, path)
    if labelled is not None and label is None and (why := _why_numbers([row[labelled] for row in rows])):
        column = names[labelled]
        way = f"; to take it for labels, set data.label to {column}" if header is not None else ""
        notes.append(
            f"{column if header is None else f'column {column!r}'} {why}, so it is taken for numbers and no label{way}"
        )
        labelled = None
    values = [j for j in range(width) if j != labelled]
    if header is not None and values and not header[values[0]] and _counts_up([row[values[0]] for row in rows]):
        notes.append("the first column counts the rows: it is left out")
        values = values[1:]
    if not values:
        raise UserError(f"{path} has no column of numbers: add one, or name another column of labels in data.label.")
    places = [repr(name) if header is not None else str(j + 1) for j, name in enumerate(names)]
    x = np.array([[_number(row[j], path, i, numbers[i], places[j]) for j in values] for i, row in enumerate(rows)])
    y = None if labelled is None else np.array([row[labelled] for row in rows])
    columns = tuple(names[j] for j in values) if header is not None else None
    return RawData(x, _labels(y, path, numbers), notes=tuple(notes), columns=columns)


def _cells(lines: list[str], is_text: bool) -> tuple[list[list[str]], list[int]]:
    """Return the cells of all rows that are not empty, and the number of each row's line in the file, counted from 1.

    Args:
        lines: The lines of the file.
        is_text: Whether it is a .txt file: cells may be separated by blanks and commas, and a comment may end a line.
    """
    lines = ["" if line.startswith("#") else line for line in lines]
    first = next((line for line in lines if line.strip()), "")
    delimiter = next((mark for mark in (";", "\t", ",") if mark in first), "")
    if is_text or not delimiter:
        cells = [line.split("#")[0].replace(",", " ").split() for line in lines]
        return [row for row in cells if row], [i for i, row in enumerate(cells, 1) if row]
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, skipinitialspace=True)
    rows, numbers = [], []
    for row in reader:
        if any(cell.strip() for cell in row):
            rows.append([cell.strip() for cell in row])
            numbers.append(reader.line_num)
    return rows, numbers


def _is_header(rows: list[list[str]], label: str | None) -> bool:
    """Return whether the first row is a header.

    It is one if it contains `label` or a usual name of labels, if it has a word above a number, or if it has words
    only.
    """
    first = rows[0]
    if label in first or any(cell.lower() in LABEL_NAMES for cell in first):
        return True
    if len(rows) > 1 and any(
        not reads_as_number(a) and reads_as_number(b) for a, b in zip(first, rows[1], strict=False)
    ):
        return True
    return not any(reads_as_number(cell) for cell in first)


def _names(header: list[str] | None, width: int, path: Path) -> list[str]:
    """Return the names of all columns; those that the header does not name are called by their number."""
    names = [cell or f"column {j + 1}" for j, cell in enumerate(header or [""] * width)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path} has two columns named {twice!r}; rename one of them.")
    return names


def _label_column(
    names: list[str], has_header: bool, rows: list[list[str]], label: str | None, path: Path
) -> int | None:
    """Return the number of the column of labels, counted from 0; None if there is none.

    Args:
        names: The names of the columns.
        has_header: Whether the table has a header.
        rows: The rows below the header.
        label: The name that the recipe gives; None: guess.
        path: The file, for messages.
    """
    if label is not None and not has_header:
        raise UserError(f"data.label names the column {label!r}, and {path} has no header; add a line with the names.")
    if label is not None:
        if label not in names:
            hint = did_you_mean(label, names, "{}") or f"it has {', '.join(names[:12])}."
            raise UserError(f"data.label names the column {label!r}, which {path} does not have; {hint}")
        return names.index(label)
    if has_header:
        lower = [name.lower() for name in names]
        return next((lower.index(name) for name in LABEL_NAMES if name in lower), None)
    last = len(names) - 1
    is_word = not reads_as_number(rows[0][last]) and rows[0][last].lower() not in _MISSING
    return last if len(names) == 3 or (last and is_word) else None


def _why_numbers(cells: list[str]) -> str:
    """Return why a column that could be the labels holds measured numbers; "" if it holds labels.

    >>> _why_numbers(["0.5", "1"]), _why_numbers(["0", "1.0"]), _why_numbers([str(i) for i in range(30)])
    ('holds fractions', '', 'holds 30 different numbers in 30 rows')
    """
    try:
        values = np.array(cells).astype(np.float64)
    except ValueError:
        return ""
    known = values[np.isfinite(values)]
    if (known != np.rint(known)).any():
        return "holds fractions"
    if are_captions(known.tolist()):
        return f"holds {len(set(known.tolist())):,} different numbers in {len(values):,} rows"
    return ""


def _number(cell: str, path: Path, row: int, line: int, column: str) -> float:
    """Return the number in a cell, or raise a UserError that names its row (counted from 0), line and column."""
    place = f"{path}, row {row + 1} (line {line}), column {column}"
    if cell.lower() in _MISSING:
        raise UserError(f"{place}: the value is missing; fill it in, or remove the row or the column.")
    try:
        value = float(cell)
    except ValueError:
        raise UserError(
            f"{place}: {cell[:40]!r} is not a number; write numbers, remove the column, or name it in data.label."
        ) from None
    if not math.isfinite(value):
        raise UserError(f"{place}: {cell[:40]!r} is not finite; replace it, or remove the row or the column.")
    return value


def _counts_up(cells: list[str]) -> bool:
    """Return whether cells count from 0 or 1, like the index that pandas writes."""
    return any(cells == [str(i + start) for i in range(len(cells))] for start in (0, 1))


def _labels(y: np.ndarray | None, path: Path, lines: list[int]) -> np.ndarray | None:
    """Return labels as numbers if all of them are whole numbers, otherwise as texts; None if there are no labels.

    Args:
        y: The labels as texts [n].
        path: The file, for messages.
        lines: The number of each row's line, for messages.
    """
    if y is None:
        return None
    if (empty := np.flatnonzero(y == "")).size:
        raise UserError(f"{path}, row {empty[0] + 1} (line {lines[empty[0]]}): the label is missing; fill it in.")
    is_missing = np.array([str(label).lower() in _MISSING for label in y])
    if is_missing.any() and all(reads_as_number(str(label)) for label in y[~is_missing]) and not is_missing.all():
        row = int(np.flatnonzero(is_missing)[0])
        raise UserError(
            f"{path}, row {row + 1} (line {lines[row]}): the label is missing ({y[row]} among numbers); fill it in, or remove the "
            "row."
        )
    try:
        numbers = y.astype(np.float64)
    except ValueError:
        return y
    return numbers if (np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all()) else y
