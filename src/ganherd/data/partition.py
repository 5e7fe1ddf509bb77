"""Choose the training rows of each member: those of its class, all rows, or a random fraction of them (a diet)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ganherd.data.dataset import Dataset
from ganherd.data.keyed_random import shuffle
from ganherd.recipe import schema
from ganherd.util.errors import UserError, few

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of `Dataset.x` that each of N members trains on."""

    # [N, n_max], numbers of rows; a member with fewer than n_max rows repeats them from the start. If all members see
    # all rows, this is a read-only view.
    index: Ints
    count: Ints  # [N], the number of rows of each member, without repetitions
    label: Ints  # [N], the class that each member sees; -1: members do not see one class each
    notes: tuple[str, ...] = ()  # notes for the user


def partition(
    dataset: Dataset,
    settings: schema.DataConfig,
    members: int | None,
    batch: int,
    seed: int,
    together: int = 1,
    per_class: int = 1,
) -> Partition:
    """Return the rows that the members of one replica (copy of the herd) train on.

    Args:
        dataset: The data.
        settings: The section `data` of the recipe.
        members: Number of members; None: `per_class` for each class, or 1 if members share the data.
        batch: Size of a batch; a note names members that have fewer rows.
        seed: Seed of the random fractions (`data.partition: diet`).
        together: Number of consecutive members that see the same random fraction.
        per_class: Number of consecutive members that see the same class.
    """
    notes: list[str] = []
    if settings.partition == "by-class":
        label = np.repeat(np.arange(len(dataset.labels), dtype=np.int64), per_class)
        of_class = _by_class(dataset, members, per_class, notes)
        rows, who = [of_class[k] for k in label], [f"class {dataset.labels[k]!r}" for k in label]
    else:
        n = members or 1
        label, who = np.full(n, -1, np.int64), [f"member {k}" for k in range(n)]
        everything = np.arange(len(dataset.x), dtype=np.int64)
        rows = [everything] * n
        if settings.partition == "diet":
            keep = max(1, round(settings.diet * len(everything)))
            rows = [np.sort(shuffle(len(everything), "diet", seed, k // together)[:keep]) for k in range(n)]
    count = np.array([len(row) for row in rows], np.int64)
    if small := [k for k in range(len(rows)) if count[k] < batch]:
        some = few(list(dict.fromkeys(f"{who[k]} has {count[k]}" for k in small)), 5)
        notes.append(
            f"{len(small)} of {len(rows)} members have fewer rows than a batch of {batch:,} and see some more than once: {some}"
        )
    index: Ints
    if settings.partition == "all":
        index = np.broadcast_to(rows[0], (len(rows), len(rows[0])))
    else:
        index = np.stack([np.resize(row, count.max()) for row in rows])
    return Partition(index, count, label, tuple(notes))


def _by_class(dataset: Dataset, members: int | None, per_class: int, notes: list[str]) -> list[Ints]:
    """Return the numbers of the rows of each class, and add a note to `notes` if there are rows without a label.

    Raises:
        UserError: There are no labels, a class has no rows, or `members` is not `per_class` for each class.
    """
    classes = len(dataset.labels)
    if not classes:
        raise UserError(
            f"data.partition is by-class, but {dataset.name} has no labels; "
            f"set data.partition to all or diet, or give labels."
        )
    if members is not None and members != classes * per_class:
        each = f" with {per_class} members each" if per_class > 1 else ""
        raise UserError(
            f"herd.members is {members}, but {dataset.name} has {classes} classes{each} and data.partition is by-class; "
            f"leave herd.members out and set herd.per_class, or set data.partition to all or diet."
        )
    rows = [np.flatnonzero(dataset.y == k).astype(np.int64) for k in range(classes)]
    if empty := [dataset.labels[k] for k in range(classes) if not len(rows[k])]:
        raise UserError(
            f"{dataset.name} has no training rows for class {empty[0]!r}; add some, or leave the class out."
        )
    if without := int((dataset.y < 0).sum()):
        notes.append(f"{without:,} rows without a label are seen by no member")
    return rows
