"""Rows that occur more than once, within the training part or on both sides of the split, found by a hash of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ganherd.data.arrays import ROWS, Array
from ganherd.errors import counted


@dataclass(frozen=True)
class Duplicates:
    """How many rows are exact copies of another."""

    rows: int  # of both parts
    copies: int  # rows that are equal to an earlier one, in either part
    across: int  # held-out rows that are in the training part too
    held_out: int  # held-out rows

    def notes(self, kind: str) -> list[str]:
        """Say what a person should know; `kind` is what the rows are called.

        >>> Duplicates(10, 9, 2, 2).notes("images")
        ['all 10 images are equal: there is nothing to learn from them']
        """
        if self.rows > 1 and self.copies == self.rows - 1:
            return [f"all {self.rows:,} {kind} are equal: there is nothing to learn from them"]
        out = []
        if self.copies:
            out.append(f"{counted(self.copies, kind)} of {self.rows:,} are exact copies of others")
        if self.across:
            out.append(
                f"{self.across:,} of the {self.held_out:,} held-out {kind} are trained on too, as exact copies: scores by "
                "held-out data come out too good; remove the copies"
            )
        return out


def find(x: Array, x_test: Array) -> Duplicates:
    """Count the copies among training rows and held-out rows.

    >>> import numpy as np
    >>> find(np.array([[1, 2], [1, 2], [3, 4]]), np.array([[3, 4], [5, 6]]))
    Duplicates(rows=5, copies=2, across=1, held_out=2)
    """
    train, held = set(_hashes(x)), list(_hashes(x_test))
    rows = len(x) + len(held)
    across = sum(one in train for one in held)
    return Duplicates(rows, rows - len(train | set(held)), across, len(held))


def _hashes(x: Array) -> Iterator[int]:
    for i in range(0, len(x), ROWS):  # prepared images are read block by block
        yield from (hash(row.tobytes()) for row in x[i : i + ROWS])
