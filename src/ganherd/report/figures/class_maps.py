"""Draw samples of several runs as a network sees them: in a t-SNE map with the data, and as shares of the classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ganherd.data.keyed_random import shuffle
from ganherd.metrics.distributions.histogram import class_histogram, expected_by_chance, total_variation
from ganherd.report.figures.figure_runs import FigureRun, FigureSkipped, Log
from ganherd.scoring import maps as drawing
from ganherd.util.errors import UserError, few

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.viz.pictures import Picture

MAPPED = 1000  # number of rows of the data, and of samples of each run, in the map
COUNTED = 10_000  # number of samples of each run whose classes are counted


def tsne(runs: Sequence[FigureRun], seed: int, log: Log) -> Iterator[tuple[str, str, Picture]]:
    """Draw data and samples in one t-SNE map, together and in a panel for each run; yield name, caption and picture.

    Like Figures 10 and 11 of the GAP paper.
    """
    from ganherd.features.real_features import RealFeatures

    data, note = _images(runs)
    reference = RealFeatures(data, progress=log)  # of the classifier or pixels: Inception takes minutes on a CPU
    rows = np.sort(shuffle(len(data.x), "rows of a map", seed)[:MAPPED])
    real = reference.real.rows(rows)
    groups = {"data": real.x.cpu().numpy()}
    for run in runs:
        log(f"{MAPPED:,} samples of {run.name}")
        sample = run.mixture.sample(MAPPED, seed=seed)
        features = reference.of(sample, run.name)
        groups[run.name] = features.x.cpu().numpy()
    log(f"t-SNE of {sum(map(len, groups.values())):,} rows, some seconds")
    try:
        at = drawing.embed(groups, seed, most=MAPPED)
    except UserError as why:
        raise FigureSkipped(str(why).removesuffix(".")) from None
    overlaps = "; ".join(f"{name} {100 * share:.0f} %" for name, share in _overlap(groups).items())
    caption = (
        f"t-SNE of {len(real):,} rows of the data and at most as many samples of each run, features of "
        f"{reference.network.name}, seed {seed}. Share of the data whose nearest other row is a sample, half if both are alike: "
        f"{overlaps}.{note}"
    )
    yield "map", caption, drawing.draw_map(at, f"{data.name}: data and samples", together=False)


def classes(runs: Sequence[FigureRun], seed: int, log: Log) -> Iterator[tuple[str, str, Picture]]:
    """Draw how often a classifier sees each class in the samples of each run; yield name, caption and picture.

    The caption and the labels give the distance from the class frequencies of the data (Figure 14 of the GAP paper).
    """
    data, note = _images(runs)
    if len(data.labels) < 2:
        raise FigureSkipped("the data has no classes")
    from ganherd.features.classifier import classifier_for

    judge = classifier_for(data, progress=log)
    own = data.y[data.y >= 0]
    expected = np.bincount(own, minlength=len(data.labels)) / len(own)
    shares = {}
    for run in runs:
        log(f"classes of {COUNTED:,} samples of {run.name}")
        seen = class_histogram(judge.predict(run.mixture.sample(COUNTED, seed=seed).x), len(data.labels))
        shares[f"{run.name} (TVD {total_variation(seen, expected):.3f})"] = seen
    chance = expected_by_chance(expected, COUNTED)
    right = "" if judge.held_out_accuracy is None else f" (right on {100 * judge.held_out_accuracy:.1f} % held out)"
    caption = (
        f"Classes that {judge.name}{right} sees in {COUNTED:,} samples of each run, seed {seed}. TVD: total variation "
        f"distance from the shares of the data (marks); perfect draws would show about {chance:.3f}.{note}"
    )
    yield "classes", caption, drawing.draw_histograms(shares, data.labels, expected, f"{data.name}: classes seen")


def _images(runs: Sequence[FigureRun]) -> tuple[Dataset, str]:
    """Return the data set of the runs, and a sentence for the caption if some runs held out other rows of it.

    Raises:
        FigureSkipped: The runs have other data, or their data is not images.
    """
    first = runs[0]
    data = first.dataset
    differing = [run for run in runs if run.dataset.digest != data.digest]
    if strange := [run for run in differing if run.split_like(first).digest != data.digest]:
        raise FigureSkipped(f"{strange[0].name} was trained on other data than {first.name}")
    if not data.is_image:
        raise FigureSkipped("it is for images, and these are points")
    names = few([run.name for run in differing], 5)
    note = f" The data is what {first.name} was trained on. Other images of it were held out by: {names}."
    return data, note if differing else ""


def _overlap(groups: dict[str, np.ndarray]) -> dict[str, float]:
    """Compare the first group (the data) with each other group of rows, both cut to the same number of rows.

    Return by the name of the other group the share of data rows whose nearest row, among those of both groups, belongs to the
    other group. It is 1/2 if both have the same distribution.

    Args:
        groups: Features [n, d] by name.
    """
    from sklearn.neighbors import NearestNeighbors

    (_, real), *others = groups.items()
    out = {}
    for name, x in others:
        n = min(len(real), len(x))
        both = np.concatenate([real[:n], x[:n]])
        neighbours = NearestNeighbors(n_neighbors=2, n_jobs=1).fit(both).kneighbors(real[:n], return_distance=False)
        other = np.where(neighbours[:, 0] == np.arange(n), neighbours[:, 1], neighbours[:, 0])
        out[name] = float((other >= n).mean())
    return out
