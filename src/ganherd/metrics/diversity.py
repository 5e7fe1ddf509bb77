"""Diversity: the spread of the generated pixels of a class, as a fraction of the data's own."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ganherd.data.units import comparable
from ganherd.features.material import SPACES, DrawnSamples, ScoringContext
from ganherd.metrics.groups import SampleGroup, of_members, of_rows
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import counted

FEW = 50  # with fewer samples than this there is a warning
ENOUGH = 10  # with fewer samples than this there is no interval
_ROWS = 4096  # rows at once
_MOST_FOR_ERROR = 1000  # real rows that the error of their spread is estimated from
_AT_ONCE = 1 << 21  # float64 numbers in memory at once


def spread(x: np.ndarray) -> float:
    """Return the standard deviation of every pixel over the samples, averaged over the pixels.

    >>> spread(np.array([[0, 10], [2, 10]]))
    0.7071067811865476
    """
    return float(_std(x.reshape(len(x), -1), ddof=1).mean())


def _std(flat: np.ndarray, ddof: int) -> np.ndarray:
    """Return the standard deviation of each pixel [pixels] over rows [n, pixels], computed in chunks to save memory."""
    pixels = flat.shape[1]
    # At least 4, because a chunk of one pixel would be summed in another order
    some = max(4, _AT_ONCE // max(1, len(flat)))
    parts = np.array_split(np.arange(pixels), -(-pixels // some))
    return np.concatenate([flat[:, own[0] : own[-1] + 1].astype(np.float64).std(axis=0, ddof=ddof) for own in parts])


def relative_error(x: np.ndarray) -> float:
    """Return the ratio of the standard error of `spread` to its value, by the infinitesimal bootstrap.

    The error comes from the derivative of the spread with respect to the weight of each row.
    """
    flat = x.reshape(len(x), -1)
    mean, std = flat.mean(0, dtype=np.float64), _std(flat, ddof=0)
    varies = std > 0
    if not varies.any():
        return 0.0
    slope = np.where(varies, 0.5 / np.where(varies, std, 1.0), 0.0)
    parts = (flat[i : i + _ROWS] for i in range(0, len(flat), _ROWS))
    influence = np.concatenate([(((part - mean) ** 2 - std**2) * slope).mean(1) for part in parts])  # [n]
    return float(influence.std() / math.sqrt(len(x)) / std.mean())


def _error_of_data(x: np.ndarray) -> float:
    """Return the relative standard error of the spread of real rows; of many rows, a part gives the error of a single row."""
    part = x[:: -(-len(x) // _MOST_FOR_ERROR)]
    return relative_error(part) * math.sqrt(len(part) / len(x))


def ratio(generated: np.ndarray, data: np.ndarray) -> float | None:
    """Return the ratio of the spread of samples to that of the data; None if there are too few rows, or no spread."""
    if len(generated) < 2 or len(data) < 2 or (of_data := spread(data)) == 0:
        return None
    return spread(generated) / of_data


def diversity(
    x: np.ndarray, y: np.ndarray, data_x: np.ndarray, data_y: np.ndarray, labels: tuple[str, ...]
) -> dict[str, float | None]:
    """Return the ratio for every class that was generated; for samples without labels one ratio, named `all`."""
    return {name: ratio(x[own], data_x[theirs]) for name, own, theirs in _classes(y, data_y, labels)}


def _classes(
    y: np.ndarray, data_y: np.ndarray, labels: tuple[str, ...]
) -> list[tuple[str, np.ndarray | slice, np.ndarray | slice]]:
    """Return (name, rows of the samples, rows of the data) of each class that was generated.

    Samples without labels are one class, `all`.
    """
    if (y < 0).all():
        return [("all", slice(None), slice(None))]
    return [(name, y == k, data_y == k) for k, name in enumerate(labels) if (y == k).any()]


def measure(material: ScoringContext) -> ScoreEntry:
    """Measure the diversity within each class; the value is that of the class with the least."""
    samples, dataset = (material.by_label if material.has_labels else material.drawn), material.dataset
    x, real = comparable(samples.x, dataset), comparable(dataset.x, dataset)
    per_class = diversity(x, samples.y, real, dataset.y, dataset.labels)
    known = {name: v for name, v in per_class.items() if v is not None}
    # The value is that of the worst class, because a mean would hide one member that collapsed.
    out: ScoreEntry = {
        "value": min(known.values()) if known else None,
        "mean": float(np.mean(list(known.values()))) if known else None,
        "per_class": per_class,
        "samples": len(samples.x),
        "network": SPACES[dataset.kind],
    }
    fewest = min((int((samples.y == k).sum()) for k in np.unique(samples.y)), default=0)
    if not known:
        each = [real[data] for _, _, data in _classes(samples.y, dataset.y, dataset.labels)]
        varies = any(ratio(rows, rows) is not None for rows in each)
        advice = "ask for more samples" if varies else "no class of the data has two rows that differ"
        out["warning"] = f"no class has two samples and data that vary: {advice}"
    elif fewest < FEW:
        whose = "there are" if (samples.y < 0).all() else "a class has"
        out["warning"] = f"{whose} only {counted(fewest, 'samples')}: ask for more"
    if known and fewest >= ENOUGH:
        rows = {name: own for name, own, _ in _classes(samples.y, dataset.y, dataset.labels)}
        errors = [relative_error(x[rows[name]]) for name in known]
        out["interval"] = intervals.least(list(known.values()), errors)
        theirs = {name: data for name, _, data in _classes(samples.y, dataset.y, dataset.labels)}
        out["real_interval"] = intervals.least(
            [1.0] * len(known), [_error_of_data(real[theirs[name]]) for name in known]
        )
    return out | of_members(material, partial(_in_groups, material))


def _in_groups(material: ScoringContext, drawn: DrawnSamples, rows: list[SampleGroup]) -> ScoreEntry:
    """Return the ratio of every member or neighbourhood."""
    data = material.dataset
    x, real = comparable(drawn.x, data), comparable(data.x, data)

    def of_group(one: SampleGroup) -> float | None:
        return ratio(x[one.index], real[np.isin(data.y, one.classes)] if one.classes else real)

    return of_rows(material, rows, of_group)
