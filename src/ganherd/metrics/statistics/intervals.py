"""Confidence intervals of scores: how far off they may be because of the limited number of samples.

All intervals have level 95 %. They cover the choice of samples; the data is held fixed. Resamples are drawn with the score's
seed, so the same seed gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import cast

import numpy as np

from ganherd.runs.score_entry import ScoreInterval

COUNTED = 1000  # resamples of counts; they are cheap
_ROUNDING = 1e-9  # relative to the value, or to 1 if that is larger: a smaller standard error comes from rounding
RARE = 5  # a mode with at most this many samples might have been missed, or be missed by other samples


def interval(low: float, high: float, how: str) -> ScoreInterval:
    """Return an interval in the form in which scores record it; `how` names its method."""
    return {"low": float(low), "high": float(high), "level": 0.95, "how": how}


def cut(uncut: ScoreInterval, bounds: tuple[float, float]) -> ScoreInterval:
    """Return the interval, cut at the least and the largest possible value; `how` then names where.

    >>> cut(interval(-0.1, 0.5, "bootstrap"), (0.0, 1.0))
    {'low': 0.0, 'high': 0.5, 'level': 0.95, 'how': 'bootstrap, cut at 0', 'cut': True}
    """
    least, largest = bounds
    ends = [f"{least:g}"] * (uncut["low"] < least) + [f"{largest:g}"] * (uncut["high"] > largest)
    if not ends:
        return uncut
    inside = {end: min(max(uncut[end], least), largest) for end in ("low", "high")}
    how = f"{uncut.get('how', '')}, cut at {' and '.join(ends)}".removeprefix(", ")
    return cast(ScoreInterval, {**uncut, **inside, "how": how, "cut": True})


def around(value: float, error: float, how: str, freedom: int | None = None) -> ScoreInterval:
    """Return the interval of a value with this standard error.

    Args:
        how: The name of the method, which the interval records.
        freedom: Degrees of freedom, if the error was estimated from few values. None: use the normal distribution.

    >>> round(around(0.0, 1.0, "")["high"], 2), round(around(0.0, 1.0, "", freedom=9)["high"], 2)
    (1.96, 2.26)
    """
    reach = error * (1.96 if freedom is None else student_t(freedom))
    return interval(value - reach, value + reach, how)


def wilson(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share of n: it stays between 0 and 1, and is not empty even if the share is 0 or 1.

    >>> [round(end, 3) for end in wilson(1.0, 100)]
    [0.963, 1.0]
    """
    z2 = z**2
    middle, half = (share + z2 / (2 * n)), z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low, high = (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # rounding could exclude a share of 0 or 1


def share(value: float, n: int) -> ScoreInterval:
    """Return Wilson's interval of a share of n samples."""
    return interval(*wilson(value, n), "Wilson's, over the samples")


def share_with_error(value: float, error: float, fewest: float, most: float, how: str) -> ScoreInterval:
    """Return Wilson's interval of a share with this standard error.

    It is the interval for the number of independent points at which a share would have this error.

    Args:
        fewest: The number of points if the error is 0, or the share is 0 or 1.
        most: The largest number of points.
        how: The name of the method, which the interval records.
    """
    points = min(most, value * (1 - value) / error**2) if error > 0 and 0 < value < 1 else fewest
    return interval(*wilson(value, points), how)


def of_draws(values: Sequence[float], how: str, center: float | None = None) -> ScoreInterval:
    """Return the interval that another draw lies in, from at least two draws of a value: Student's prediction interval.

    The value is one that cannot be negative, such as a distance.

    Args:
        values: The values of the draws.
        how: The name of the method, which the interval records.
        center: The middle of the interval. None: the mean of the values.

    >>> round(of_draws([1.0, 2.0, 3.0], "")["high"], 2)
    6.97
    """
    count, middle = len(values), float(np.mean(values)) if center is None else center
    reach = student_t(count - 1) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return interval(max(0.0, middle - reach), middle + reach, how)


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
    """Return the jackknife interval of a value; None if the values are not finite, or are all equal.

    Args:
        value: The value computed from all samples.
        without: For each of several groups of equal size, the value computed from all samples but that group.

    >>> round(jackknife(2.0, [1.9, 2.0, 2.1])["low"], 2)
    1.5
    """
    groups = len(without)
    error = math.sqrt((groups - 1) ** 2 / groups) * float(np.std(without, ddof=1))
    if not math.isfinite(value) or not error > _ROUNDING * max(1.0, abs(value)):
        return None
    reach = student_t(groups - 1) * error
    return interval(value - reach, value + reach, f"jackknife of {groups} groups")


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t for this many degrees of freedom.

    >>> round(student_t(11), 3)
    2.201
    """
    from scipy.special import stdtrit  # what scipy.stats.t.ppf calls; scipy.stats takes a second to import

    return float(stdtrit(freedom, 0.975))


def least(values: Sequence[float], errors: Sequence[float]) -> ScoreInterval:
    """Return the interval of the least of several positive values, from the relative standard error of each.

    A value can be the least by chance, which its own error does not include. So all values get intervals that hold
    simultaneously (Bonferroni): the least true value lies between the least lower end and the least upper end. An error can
    be small by chance as well, so each error is raised to at least the root mean square of all errors. The ends of an
    interval are the value times a factor, which suits values of any scale.

    >>> found = least([0.8, 0.9], [0.1, 0.01])
    >>> round(found["low"], 2), round(found["high"], 2)
    (0.64, 1.0)
    """
    z = NormalDist().inv_cdf(1 - 0.025 / len(values))
    reach = z * np.maximum(errors, np.sqrt(np.mean(np.square(errors))))
    how = "infinitesimal bootstrap" + (f", all {len(values)} at once" if len(values) > 1 else "")
    return interval((values * np.exp(-reach)).min(), (values * np.exp(reach)).min(), how)


def variation(value: float, seen: np.ndarray, n: int, seed: int) -> ScoreInterval:
    """Return the interval of a total variation distance, from the shares of classes `seen` [classes] in n samples.

    The distances of resamples are too large, because resampling adds a second random error. But by the triangle inequality the
    error of a distance is at most the distance between the seen shares and the true ones, which resamples do estimate.

    >>> found = variation(0.5, np.array([1.0, 0.0]), 100, 0)
    >>> round(found["low"], 2), round(found["high"], 2)
    (0.48, 0.52)
    """
    # One more sample is spread over the classes, because a class without samples may be rare, not impossible.
    again = _counts(n * seen + 1 / len(seen), n, seed) / n  # [resamples, classes]
    reach = float(np.quantile(np.abs(again - seen).sum(1) / 2, 0.95))
    return interval(max(0.0, value - reach), min(1.0, value + reach), f"bootstrap of the shares, {COUNTED:,} resamples")


def captured(counts: np.ndarray, n: int, seed: int) -> ScoreInterval:
    """Return the interval of the number of modes that have a sample, over redrawn samples.

    The lower end comes from resamples. These never contain a mode that has no sample, which may be a rare mode, so the upper
    end comes from the modes with at most `RARE` samples, including those without: Wilson's interval of the share of them that
    has a sample. This is wide enough for all rates of these modes, because a sum of independent events varies most if all
    have the same chance.

    Args:
        counts: The number of samples of each mode, [modes].
        n: The number of all samples, including those that belong to no mode.

    >>> captured(np.array([50, 1, 0]), 51, 0)["low"], captured(np.array([50, 50, 0]), 100, 0)["low"]
    (1.0, 2.0)
    >>> round(captured(np.array([50, 50, 0]), 100, 0)["high"], 1), captured(np.array([50, 50]), 100, 0)["high"]
    (2.8, 2.0)
    """
    # The last count is that of samples without a mode
    again = (_counts(np.append(counts, n - counts.sum()), n, seed)[:, :-1] > 0).sum(1)
    seen, rare = int((counts > 0).sum()), int((counts <= RARE).sum())
    rare_seen = rare - int((counts == 0).sum())
    high = seen - rare_seen + rare * wilson(rare_seen / rare, rare)[1] if rare else seen
    how = f"bootstrap, {COUNTED:,} resamples; the upper end by Wilson's of modes with at most {RARE} samples"
    return interval(np.quantile(again, 0.025, method="lower"), high, how)


def _counts(weights: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Resample n samples with these weights many times, and return how often each kind was drawn, [resamples, kinds]."""
    return np.random.default_rng([seed, n, 0x1E]).multinomial(n, weights / weights.sum(), size=COUNTED)
