"""Compare the columns of generated rows with those of the data: each column's distribution, and how columns depend on each other.

Values are standardised, so that columns of any unit count equally. Rows redrawn from the data have values above 0, too: the mean of
these is reported next to the result (`by_chance`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ganherd.data.units import comparable
from ganherd.features.material import MetricSkipped, ScoringContext
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry

REDRAWS = 20  # of the data, and of the samples for the interval
MOST_LISTED = 200  # columns whose values are recorded


def column_distances(x: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return the Wasserstein-1 distance of each column [d] between rows x [n, d] and rows of the data [m, d].

    It is the mean distance that values must be moved, in standard deviations of the column.

    >>> column_distances(np.array([[0.0], [1.0]]), np.array([[2.0], [3.0], [2.0], [3.0]])).tolist()
    [2.0]
    """
    n, m = len(x), len(data)
    ends = np.union1d(np.arange(1, n) / n, np.arange(1, m) / m)  # quantiles at which one of the two distributions steps
    low, high = np.concatenate([[0.0], ends]), np.concatenate([ends, [1.0]])
    middle = (low + high) / 2
    own, real = (
        np.sort(rows, 0)[np.minimum((middle * count).astype(int), count - 1)] for rows, count in ((x, n), (data, m))
    )
    return np.asarray((np.abs(own - real) * (high - low)[:, None]).sum(0))


def correlation_difference(x: np.ndarray, data: np.ndarray) -> float:
    """Return the mean absolute difference of the correlations of all pairs of columns; 0: columns depend on each other alike.

    >>> a = np.arange(8.0)
    >>> round(correlation_difference(np.stack([a, a], 1), np.stack([a, -a], 1)), 6)
    2.0
    """
    pairs = np.triu_indices(x.shape[1], 1)
    own, real = (_correlations(rows)[pairs] for rows in (x, data))
    return float(np.abs(own - real).mean())


def _correlations(rows: np.ndarray) -> np.ndarray:
    """Return the correlations of columns [d, d]; those of a constant column are 0."""
    centred = rows - rows.mean(0, dtype=np.float64)
    spread = np.sqrt(np.square(centred).mean(0))
    scaled = centred / np.where(spread > 1e-12, spread, np.inf)
    return np.asarray(scaled.T @ scaled / len(rows))


def measure_columns(material: ScoringContext) -> ScoreEntry:
    """Measure the distances of all columns: their mean, and the columns that differ most."""
    x, data = _rows(material)
    distances = column_distances(x, data)
    names, order = material.dataset.columns, np.argsort(-distances, kind="stable")
    out = _entry(material, x, data, lambda own, real: float(column_distances(own, real).mean()))
    listed = {names[j]: float(distances[j]) for j in order[:MOST_LISTED].tolist()}
    out["worst_column"], out["per_column"] = names[order[0]], listed
    return out


def measure_correlations(material: ScoringContext) -> ScoreEntry:
    """Measure how much the correlations of columns differ from those of the data."""
    if material.dataset.shape[0] < 2:
        raise MetricSkipped("correlations need at least two columns")
    x, data = _rows(material)
    return _entry(material, x, data, correlation_difference)


def _rows(material: ScoringContext) -> tuple[np.ndarray, np.ndarray]:
    """Return samples and training rows, standardised."""
    data = material.dataset
    if data.kind != "rows":
        raise MetricSkipped(f"it compares the columns of a table, and {data.name} has {data.kind}")
    return comparable(material.drawn.x, data), comparable(data.x, data)


def _entry(
    material: ScoringContext, x: np.ndarray, data: np.ndarray, statistic: Callable[[np.ndarray, np.ndarray], float]
) -> ScoreEntry:
    """Return the entry of scores.json of a statistic: its value, that of redrawn data, and both intervals.

    Args:
        material: What is scored; its seed draws the resamples.
        x: Standardised samples [n, d].
        data: Standardised training rows [m, d].
        statistic: Returns a number for samples and data.
    """
    rng = np.random.default_rng([material.seed, 0xC0])

    def redrawn(rows: np.ndarray, count: int) -> np.ndarray:
        return np.asarray(rows[rng.integers(0, len(rows), count)])

    value = statistic(x, data)
    chance = [statistic(redrawn(data, len(x)), redrawn(data, len(data))) for _ in range(REDRAWS)]
    error = float(np.std([statistic(redrawn(x, len(x)), data) for _ in range(REDRAWS)], ddof=1))
    entry: ScoreEntry = {"value": value, "by_chance": float(np.mean(chance)), "samples": len(x), "network": "columns"}
    return entry | {
        "real_samples": len(data),
        "interval": intervals.around(value, error, "bootstrap of the samples"),
        "real_interval": intervals.of_draws(chance, f"{REDRAWS} draws from the data"),
    }
