"""Confidence intervals of scores: how far off they may be because of the limited number of samples.

All are of level 95 %, over the samples; the data is held fixed. Resamples belong to the score's seed, so the same seed
gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ganherd.runs.score_entry import ScoreInterval

COUNTED = 1000  # resamples of counts; they are cheap


def interval(low: float, high: float, how: str) -> ScoreInterval:
    """Return an interval as a score holds it."""
    return {"low": float(low), "high": float(high), "level": 0.95, "how": how}


def around(value: float, error: float, how: str, freedom: int | None = None) -> ScoreInterval:
    """Return the interval of a value with this standard error; `freedom`: of the error's estimate, if it is from few values.

    >>> round(around(0.0, 1.0, "")["high"], 2), round(around(0.0, 1.0, "", freedom=9)["high"], 2)
    (1.96, 2.26)
    """
    reach = error * (1.96 if freedom is None else student_t(freedom))
    return interval(value - reach, value + reach, how)


def wilson(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of a share of n: never beyond 0 or 1, and of some width also if all or none were right.

    >>> [round(end, 3) for end in wilson(1.0, 100)]
    [0.963, 1.0]
    """
    z2 = z**2
    middle, half = (share + z2 / (2 * n)), z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))


def share(value: float, n: int) -> ScoreInterval:
    """Return the interval of a share of n samples."""
    return interval(*wilson(value, n), "Wilson's, over the samples")


def share_with_error(value: float, error: float, fewest: float, most: float, how: str) -> ScoreInterval:
    """Return the interval of a share with this standard error: Wilson's of as many independent points as have that error.

    It is as that of at most `most` points, and as that of `fewest` if there is no error to go by.
    """
    points = min(most, value * (1 - value) / error**2) if error > 0 and 0 < value < 1 else fewest
    return interval(*wilson(value, points), how)


def mean(values: np.ndarray) -> ScoreInterval | None:
    """Return the interval of the mean of independent values that are not negative; None if all are equal.

    >>> round(mean(np.array([0.0, 1.0, 2.0, 3.0]))["high"], 2), mean(np.zeros(9))
    (2.77, None)
    """
    if (values == values[0]).all():
        return None
    value, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return interval(max(0.0, value - 1.96 * error), value + 1.96 * error, "standard error of the mean")


def jackknife(value: float, without: Sequence[float]) -> ScoreInterval | None:
    """Return the interval of a value from the values without each of some equal groups; None if these are not finite, or
    are all equal.

    >>> round(jackknife(2.0, [1.9, 2.0, 2.1])["low"], 2)
    1.5
    """
    groups = len(without)
    error = math.sqrt((groups - 1) ** 2 / groups) * float(np.std(without, ddof=1))
    if not math.isfinite(value) or not error > 0:
        return None
    reach = student_t(groups - 1) * error
    return interval(value - reach, value + reach, f"jackknife of {groups} groups")


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t for this many degrees of freedom.

    >>> round(student_t(11), 3)
    2.201
    """
    from scipy.stats import t  # here, because importing it takes a second

    return float(t.ppf(0.975, freedom))


def least(values: Sequence[float], errors: Sequence[float]) -> ScoreInterval:
    """Return the interval of the least of some positive values, from the relative standard error of each.

    It is the least by luck too, which its own error does not know: so all are held in their intervals at once
    (Bonferroni), and then the least truth lies between the least of the lower and the least of the upper ends. By luck
    its error is small as well: none is taken to be surer than all are together. Ends are factors, as for any scale.

    >>> found = least([0.8, 0.9], [0.1, 0.01])
    >>> round(found["low"], 2), round(found["high"], 2)
    (0.64, 1.0)
    """
    z = NormalDist().inv_cdf(1 - 0.025 / len(values))
    reach = z * np.maximum(errors, np.sqrt(np.mean(np.square(errors))))
    how = "infinitesimal bootstrap" + (f", all {len(values)} at once" if len(values) > 1 else "")
    return interval((values * np.exp(-reach)).min(), (values * np.exp(reach)).min(), how)


def variation(value: float, seen: np.ndarray, n: int, seed: int) -> ScoreInterval:
    """Return the interval of a total variation distance from the shares seen, [classes], in n samples.

    Resampled distances would lie too high, as they add chance to chance. But no distance is further off than the shares
    are from the true ones (triangle inequality), and how far that is resamples do show.

    >>> found = variation(0.5, np.array([1.0, 0.0]), 100, 0)
    >>> round(found["low"], 2), round(found["high"], 2)
    (0.48, 0.52)
    """
    # One more sample is spread over the classes, because a class without samples may be rare, not impossible.
    again = _counts(n * seen + 1 / len(seen), n, seed) / n  # [resamples, classes]
    reach = float(np.quantile(np.abs(again - seen).sum(1) / 2, 0.95))
    return interval(max(0.0, value - reach), min(1.0, value + reach), f"bootstrap of the shares, {COUNTED:,} resamples")


def captured(counts: np.ndarray, n: int, seed: int) -> ScoreInterval:
    """Return the interval of the number of modes that have a sample, from the samples of each, [modes], among n.

    >>> captured(np.array([50, 1, 0]), 51, 0)["low"], captured(np.array([50, 50, 0]), 100, 0)["low"]
    (1.0, 2.0)
    """
    # The last count is that of samples without a mode
    again = (_counts(np.append(counts, n - counts.sum()), n, seed)[:, :-1] > 0).sum(1)
    # A mode without samples is in no resample either, so the upper end is the number that was seen.
    how = f"bootstrap, {COUNTED:,} resamples; modes without a sample stay without"
    return interval(np.quantile(again, 0.025, method="lower"), int((counts > 0).sum()), how)


def _counts(weights: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return counts [resamples, kinds] of n samples drawn with these weights: as if they were resampled one by one."""
    return np.random.default_rng([seed, n, 0x1E]).multinomial(n, weights / weights.sum(), size=COUNTED)
