"""Count rows that are exact copies of others, among the training rows or between training and held-out rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ganherd.data.arrays import ROWS, Array
from ganherd.util.errors import counted


@dataclass(frozen=True)
class Duplicates:
    """How many rows of a data set are exact copies of others."""

    rows: int  # number of training rows and held-out rows
    copies: int  # number of rows that are equal to an earlier one
    across: int  # number of held-out rows that are equal to a training row
    held_out: int  # number of held-out rows

    def notes(self, kind: str) -> list[str]:
        """Return notes for the user, an empty list if there are no copies; `kind` is what the rows are called.

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
    """Count the copies among training rows x [n, …] and held-out rows x_test [m, …].

    Cheap checksums find the rows that may be copies, and only these are hashed.

    >>> import numpy as np
    >>> find(np.array([[1, 2], [1, 2], [3, 4]]), np.array([[3, 4], [5, 6]]))
    Duplicates(rows=5, copies=2, across=1, held_out=2)
    """
    sums, sums_test = _sums(x), _sums(x_test)
    _, same, count = np.unique(np.concatenate([sums, sums_test]), return_inverse=True, return_counts=True)
    repeated = count[same.reshape(-1)] > 1  # rows whose checksum occurs again
    train = list(_hashes(x, np.flatnonzero(repeated[: len(x)])))
    held = list(_hashes(x_test, np.flatnonzero(repeated[len(x) :])))
    known = set(train)
    copies = len(train) + len(held) - len(known | set(held))
    return Duplicates(len(x) + len(x_test), copies, sum(one in known for one in held), len(x_test))


def _sums(x: Array) -> Array:
    """Return a checksum of each row, uint64 [n]: equal for equal rows, and hardly ever equal for different ones.

    It is the sum of the row's 64-bit words, each multiplied by a fixed random odd number.
    """
    width = x.dtype.itemsize * int(np.prod(x.shape[1:]))
    weights = np.random.default_rng(0).integers(0, 1 << 63, -(-width // 8), dtype=np.uint64) * 2 + 1
    sums: list[Array] = [np.empty(0, np.uint64)]
    for i in range(0, len(x), ROWS):  # prepared images are read block by block
        rows = np.ascontiguousarray(x[i : i + ROWS])
        raw = rows.reshape(len(rows), -1).view(np.uint8)
        words = raw[:, : width // 8 * 8].view(np.uint64)
        rest = np.zeros((len(rows), len(weights) - words.shape[1]), np.uint64)
        rest.view(np.uint8)[:, : width % 8] = raw[:, width // 8 * 8 :]
        sums.append(words @ weights[: words.shape[1]] + rest @ weights[words.shape[1] :])
    return np.concatenate(sums)


def _hashes(x: Array, rows: Array) -> Iterator[int]:
    for i in range(0, len(rows), ROWS):
        yield from (hash(row.tobytes()) for row in x[rows[i : i + ROWS]])
