"""Memorisation: measure whether samples are nearer to single training images than fresh real data is.

There are two statistics. Both are calibrated by held-out real data, which no generator can have memorised:

- `nearer`: how often a sample is nearer to the training data than a held-out row is (ties count half). Fresh data gives 0.5,
  memorised data gives 1. Smooth samples are near to many training images, so a high value alone does not prove copies.
- `copies`: the share of samples that are near to one training image but not to others. The distance to the nearest image is
  divided by the mean distance to the next ones. A sample counts as a copy if this ratio is below the 5 % quantile of the
  ratios of held-out rows. So 5 % of fresh data count as copies by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from ganherd.data import duplicates
from ganherd.data.units import comparable
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry, ScoreInterval
from ganherd.util.errors import UserError, counted, few_of
from ganherd.util.meter import Progress, TimeLeft
from ganherd.viz.pictures import FRAME, INK
from ganherd.viz.sheets import draw_grid, font

if TYPE_CHECKING:
    from ganherd.features.material import ScoringContext

NEXT = 5  # neighbours after the first, with which its distance is compared
BY_CHANCE = 0.05
MOST_HELD_OUT = 2000  # rows that the line is computed from; more would change it little
FEW = 200  # with fewer held-out rows there is a warning
FEW_SAMPLES = 100  # with fewer samples there is a warning


@dataclass(frozen=True)
class NearestRows:
    """The nearest training rows of each row, the nearest first."""

    distance: np.ndarray  # float64 [n, k]
    index: np.ndarray  # int64 [n, k]

    @property
    def relative(self) -> np.ndarray:
        """Return the distance to the nearest row divided by the mean distance to the next ones [n].

        It is near 1 if many rows are equally near, and near 0 for a copy of one row.
        """
        following = self.distance[:, 1:].mean(1)
        return np.where(self.distance[:, 0] == 0, 0.0, self.distance[:, 0] / np.maximum(following, 1e-300))


def nearest(
    x: np.ndarray,
    training: np.ndarray,
    k: int = 1 + NEXT,
    budget: int = 1 << 27,
    progress: Progress | None = None,
) -> NearestRows:
    """Return the k nearest training rows of every row, by Euclidean distance between flattened rows.

    At most `budget` bytes of distances are in memory at once.

    >>> nearest(np.array([[0.0, 1.0]]), np.array([[0.0, 0.0], [0.0, 3.0]]), k=1).distance.tolist()
    [[1.0]]
    """
    own, known = (rows.reshape(len(rows), -1) for rows in (x, training))  # as given: exact distances keep their ties
    a, b = (np.ascontiguousarray(rows, np.float32) for rows in (own, known))
    if a.shape[1] != b.shape[1]:
        raise UserError(f"samples of {a.shape[1]:,} numbers cannot be compared with training rows of {b.shape[1]:,}.")
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        raise UserError("neighbours were asked of rows that hold NaN or infinity.")
    k = min(k, len(b))
    centre = b.mean(0, dtype=np.float64).astype(np.float32)  # small norms, so that a² + b² - 2ab loses few digits
    a, b = a - centre, b - centre
    b2 = np.einsum("ij,ij->i", b, b)
    take = min(2 * k, len(b))  # more than wanted, because rounding may change the order of nearly equal distances
    at_once = max(1, budget // max(4 * len(b), 16 * take * a.shape[1]))
    distances, indices = [], []
    clock = TimeLeft(progress, "nearest training rows", len(a))
    for i in range(0, len(a), at_once):
        clock.at(i)
        part = a[i : i + at_once]
        rough = b2 - 2 * (part @ b.T)  # [rows, training]; a² is missing, which does not change the order
        if take < len(b):
            near = np.argpartition(rough, take - 1, axis=1)[:, :take]
        else:
            near = np.broadcast_to(np.arange(len(b)), rough.shape)
        rows = own[i : i + at_once, None].astype(np.float64)
        exact = np.sqrt(((rows - known[near]) ** 2).sum(-1))  # distances of the nearest, without rounding to float32
        order = exact.argsort(1, kind="stable")[:, :k]
        distances.append(np.take_along_axis(exact, order, 1))
        indices.append(np.take_along_axis(near, order, 1))
    return NearestRows(np.concatenate(distances), np.concatenate(indices).astype(np.int64))


def memorisation(samples: NearestRows, held_out: NearestRows, training: int, network: str) -> ScoreEntry:
    """Return the entry of scores.json from the distances of samples and of held-out rows to the same training rows.

    Args:
        samples: The nearest training rows of the samples.
        held_out: The nearest training rows of the held-out rows.
        training: The number of training rows.
        network: The name of the space in which distances are measured, e.g. pixels.
    """
    n, m = len(samples.distance), len(held_out.distance)
    if not n or m < 2:
        raise UserError("memorisation is measured against held-out real data: keep some with data.holdout.")
    if min(samples.distance.shape[1], held_out.distance.shape[1]) < 2:
        raise UserError("memorisation needs at least two training rows.")
    nearer = below(samples.distance[:, 0], held_out.distance[:, 0])
    line = float(np.quantile(held_out.relative, BY_CHANCE))
    copies = float((samples.relative < line).mean()) if line > 0 else float((samples.relative == 0).mean())
    middle = float(np.median(held_out.distance[:, 0]))
    # The line is known from m rows only, which adds an error to the share below it.
    error = math.sqrt(copies * (1 - copies) / n + BY_CHANCE * (1 - BY_CHANCE) / m)
    low, high = max(0.0, copies - 1.96 * error), min(1.0, copies + 1.96 * error)
    entry: ScoreEntry = {
        "value": copies,
        "by_chance": BY_CHANCE,
        "error": error,
        "interval": intervals.interval(low, high, "normal, with the line's own error"),
        "real_interval": _fresh_copies(m),
        "nearer": nearer,
        "nearer_error": _auc_error(nearer, n, m),  # standard error
        "ratio": float(np.median(samples.distance[:, 0])) / middle if middle > 0 else None,
        "samples": n,
        "held_out": m,
        "training": training,
        "network": network,
    }
    if line == 0:
        entry["warning"] = "held-out rows are copies of training rows already: the data has duplicates"
    elif n < FEW_SAMPLES:
        entry["warning"] = f"{few_of(n, 'samples')} to find copies among: ask for more"
    elif m < FEW:
        entry["warning"] = f"the line that copies lie below is known from only {counted(m, 'held-out rows')}"
    return entry


def _fresh_copies(held_out: int) -> ScoreInterval:
    """Return the interval of the share of fresh data that counts as copies, if this many held-out rows determine the line.

    The share of a distribution below the k-th of m values drawn from it has the beta distribution with k and m + 1 - k.
    """
    from scipy.special import betaincinv

    place = BY_CHANCE * (held_out - 1) + 1  # of the quantile among the sorted values, from 1
    low, high = (float(betaincinv(place, held_out + 1 - place, level)) for level in (0.025, 0.975))
    return intervals.interval(low, high, "beta distribution of the line")


def below(a: np.ndarray, b: np.ndarray) -> float:
    """Return P(a < b) + P(a = b) / 2 over all pairs.

    >>> below(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.875
    """
    ordered = np.sort(b)
    left, right = np.searchsorted(ordered, a, "left"), np.searchsorted(ordered, a, "right")
    return float((len(b) - right + (right - left) / 2).mean() / len(b))


def _auc_error(auc: float, n: int, m: int) -> float:
    """Return the standard error of P(a < b), estimated from n values of a and m values of b (Hanley and McNeil).

    The formula is exact if a and b have exponential distributions: then q1 is the chance that two values of b both lie above
    one value of a, and q2 the chance that two values of a both lie below one value of b.
    """
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (m - 1) * (q1 - auc**2) + (n - 1) * (q2 - auc**2)
    return math.sqrt(max(spread, 0.0) / (n * m))


def measure(material: ScoringContext) -> ScoreEntry:
    """Measure memorisation of the samples of the mixture, in pixels (or coordinates), against the held-out split."""
    from ganherd.features.material import SPACES, MetricSkipped

    data = material.dataset
    if len(data.x_test) < 2 or len(data.x) < 2:
        raise MetricSkipped(
            "memorisation is measured against held-out real data, and this data has no such split: score a run, or give "
            "data that has one (an .npz with x_train and x_test)"
        )
    rows = np.sort(np.random.default_rng([material.seed, 0x4E]).permutation(len(data.x_test))[:MOST_HELD_OUT])
    training = comparable(data.x, data)
    held_out = nearest(comparable(data.x_test[rows], data), training, progress=material.progress)
    near = nearest(comparable(material.drawn.x, data), training, progress=material.progress)
    out = memorisation(near, held_out, len(data.x), SPACES[data.kind]) | _in_groups(material, held_out)
    if data.is_image and (copies := duplicates.find(data.x, data.x_test)).across:
        out["warning"] = "; ".join([*([out["warning"]] if "warning" in out else []), copies.notes(data.kind)[-1]])
    return out


def _in_groups(material: ScoringContext, held_out: NearestRows) -> ScoreEntry:
    """Return the share of copies in every class, member or neighbourhood, if these are requested."""
    from ganherd.metrics.groups import SampleGroup, of_rows, wanted_rows

    if material.per is None:
        return {}
    (drawn, rows), data = wanted_rows(material), material.dataset
    near = nearest(comparable(drawn.x, data), comparable(data.x, data), progress=material.progress)

    def copies(one: SampleGroup) -> float | None:
        own = NearestRows(near.distance[one.index], near.index[one.index])
        return memorisation(own, held_out, len(material.dataset.x), "")["value"]

    return of_rows(material, rows, copies)


def draw_neighbours(x: np.ndarray, training: np.ndarray, neighbours: NearestRows, rows: int = 10) -> Image.Image:
    """Draw the samples that look most like copies, each next to its nearest training images; uint8 [n, C, H, W]."""
    chosen = neighbours.relative.argsort(kind="stable")[:rows]
    columns = min(NEXT, neighbours.index.shape[1])
    left = draw_grid([x[i : i + 1] for i in chosen], [f"{neighbours.relative[i]:.2f}" for i in chosen])
    right = draw_grid([training[neighbours.index[i, :columns]] for i in chosen])
    gap, head, foot = 26, 28, 22
    large, small = font(14), font(12)
    titles = ("generated", "nearest training images, the nearest first")
    note = f"number: distance to the nearest by the mean to the next {neighbours.index.shape[1] - 1}; a copy has 0"
    at = max(left.width, math.ceil(large.getlength(titles[0])) + 10) + gap
    needed = max(
        at + right.width, at + math.ceil(large.getlength(titles[1])) + 10, math.ceil(small.getlength(note)) + 16
    )
    sheet = Image.new("RGB", (needed, left.height + head + foot), "white")
    sheet.paste(left, (at - gap - left.width, head))
    sheet.paste(right, (at, head))
    pen = ImageDraw.Draw(sheet)
    pen.text((at - gap - 5, head / 2 + 2), titles[0], INK, large, anchor="rm")
    pen.text((at + 5, head / 2 + 2), titles[1], INK, large, anchor="lm")
    pen.text((8, sheet.height - foot / 2 - 3), note, INK, small, anchor="lm")
    pen.line((at - gap / 2, 8, at - gap / 2, sheet.height - foot - 6), FRAME)
    return sheet
