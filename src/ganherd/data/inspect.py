"""Describe a data set for people and programs: classes, counts, sizes and range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ganherd.data import duplicates
from ganherd.data.dataset import Dataset, load
from ganherd.recipe import schema
from ganherd.util.errors import counted
from ganherd.util.files import JsonObject


def inspect(settings: schema.DataConfig) -> JsonObject:
    """Load the data that a recipe names and describe it.

    >>> inspect(schema.DataConfig(source="ring8", points=80))["classes"][0]
    {'name': '0', 'train': 10, 'held_out': 2}
    """
    return describe(load(settings))


def describe(dataset: Dataset) -> JsonObject:
    """Return the description of a data set as plain values for JSON."""
    train, held = (np.bincount(y[y >= 0], minlength=len(dataset.labels)) for y in (dataset.y, dataset.y_test))
    low, high, mean, std = _spread(dataset.x)
    copies = duplicates.find(dataset.x, dataset.x_test)
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "shape": list(dataset.shape),
        "total": len(dataset.x) + len(dataset.x_test),
        "train": len(dataset.x),
        "held_out": len(dataset.x_test),
        "split": dataset.split,
        "holdout": dataset.holdout,
        "classes": [
            {"name": name, "train": int(train[k]), "held_out": int(held[k])} for k, name in enumerate(dataset.labels)
        ],
        "range": [_number(low), _number(high)],
        "source_range": list(dataset.source_range) if dataset.source_range else None,
        "mean": round(mean, 4),
        "std": round(std, 4),
        "offset": dataset.offset,
        "scale": dataset.scale,
        "digest": dataset.digest,
        "skipped": dataset.skipped,
        "copies": copies.copies,
        "held_out_and_trained_on": copies.across,
        "notes": list(dict.fromkeys([*dataset.notes, *(copies.notes(dataset.kind) if dataset.is_image else [])])),
    }


def text(facts: Mapping[str, Any]) -> str:
    """Return the description as text."""
    shape = "×".join(str(size) for size in facts["shape"])
    lines = [
        f"{facts['name']}: {counted(facts['total'], facts['kind'])} of {shape}",
        f"{facts['split']}: {facts['train']:,} to train on, {facts['held_out']:,} held out",
        f"{_range(facts)}, mean {facts['mean']}, standard deviation {facts['std']}",
    ]
    if classes := facts["classes"]:
        width = max(len(row["name"]) for row in classes)
        its = "their" if len(classes) > 1 else "its"
        lines.append(f"{counted(len(classes), 'classes')}, with all {its} {facts['kind']} (to train on / held out):")
        for row in classes:
            total = row["train"] + row["held_out"]
            lines.append(f"  {row['name']:<{width}}  {total:>7,} ({row['train']:,} / {row['held_out']:,})")
    else:
        lines.append("no labels")
    lines += [f"note: {note}" for note in facts["notes"]]
    if facts["skipped"]:
        lines.append("note: to train without what was skipped, add --set data.bad_images=skip")
    return "\n".join([*lines, *([f"contact sheet: {facts['contact_sheet']}"] if "contact_sheet" in facts else [])])


def _range(facts: Mapping[str, Any]) -> str:
    low, high = facts["range"]
    if not facts.get("source_range"):
        return f"range {low} to {high}"
    was = facts["source_range"]
    return f"range {was[0]:.4g} to {was[1]:.4g}, kept as bytes {low} to {high}"


def _number(value: Any) -> int | float:
    return int(value) if np.issubdtype(type(value), np.integer) else round(float(value), 6)


def _spread(x: Any) -> tuple[Any, Any, float, float]:
    """Return minimum, maximum, mean and standard deviation; bytes are counted block by block, in one pass."""
    if x.dtype != np.uint8:
        return x.min(), x.max(), float(x.mean(dtype=np.float64)), float(x.std(dtype=np.float64))
    rows = max(1, len(x) * 2**22 // max(1, x.size))  # so that a block has about 4 MiB
    counts = np.zeros(256, np.int64)
    for i in range(0, len(x), rows):
        counts += np.bincount(x[i : i + rows].reshape(-1), minlength=256)
    share, seen = counts / x.size, np.flatnonzero(counts)
    mean = float((share * np.arange(256)).sum())
    return seen[0], seen[-1], mean, float(np.sqrt((share * (np.arange(256) - mean) ** 2).sum()))
