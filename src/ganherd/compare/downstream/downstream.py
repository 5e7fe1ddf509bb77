"""`ganherd compare RUN --downstream`: compare classifiers of few real images with and without generated ones, over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ganherd.compare.comparison_record import Downstream, DownstreamRow
from ganherd.compare.downstream.downstream_classifier import Images, accuracy, steps_for
from ganherd.compare.downstream.downstream_text import draw
from ganherd.data.dataset import Dataset, load
from ganherd.data.keyed_random import shuffle
from ganherd.features.extract import best_device
from ganherd.metrics.statistics.seeds import together
from ganherd.metrics.statistics.significance import UNDECIDED, sign
from ganherd.mixture import mixture
from ganherd.mixture.mixture import Mixture
from ganherd.runs.folder import RunFolder
from ganherd.runs.records import plain
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write
from ganherd.util.meter import TimeLeft
from ganherd.viz import pictures

GENERATED = 1000  # of each class
Log = Callable[[str], None]


@dataclass(frozen=True)
class DownstreamRequest:
    """What to train the classifiers on."""

    per_class: Sequence[int]  # real images of each class
    seeds: int = 3
    generated: int = GENERATED  # images of each class


def measure(
    runs: Sequence[Path],
    request: DownstreamRequest,
    output: Path | None = None,
    trust_code: bool = False,
    log: Log | None = None,
) -> dict[str, Downstream]:
    """Measure what classifiers gain from each run; return the results by path.

    Args:
        output: The folder that receives a folder with downstream.json and downstream.png for each run; default: the run.
    """
    results = {}
    for run in runs:
        facts = measure_run(run, request, trust_code, log)
        where = output / run.resolve().name if output else run
        facts["files"] = {"data": str(where / "downstream.json"), "picture": str(where / "downstream.png")}
        _write(facts, where)
        results[str(run)] = facts
    return results


def measure_run(run: Path, request: DownstreamRequest, trust_code: bool = False, log: Log | None = None) -> Downstream:
    """Measure what classifiers gain from one run, and write nothing.

    The result has a row for each number of real images per class: 0 (generated images alone), those of the request, and all
    images of the data. Each row has the accuracies with the real images alone, and with the generated ones added.
    """
    generators = mixture.load(run, trust_code).to(best_device())
    data = load(RunFolder(run).recipe.data)
    own = [np.flatnonzero(data.y == k) for k in range(len(data.labels))]
    _check_labels(generators, data, run)
    none = Images(data.x[:0], data.y[:0])
    counts = [n for n in request.per_class if n < max(map(len, own))]
    real = [0, *counts, max(map(len, own))]
    clock = TimeLeft(log, "classifiers", request.seeds * (2 * len(real) - 1))
    alone: dict[int, list[float]] = {n: [] for n in real}
    with_generated: dict[int, list[float]] = {n: [] for n in real}
    done = 0
    for seed in range(request.seeds):
        if log:
            log(f"seed {seed + 1} of {request.seeds}: {request.generated:,} images of each of {len(own)} classes")
        fake = _generated(generators, request.generated, seed)
        for n in real:
            few = _real(data, own, n, seed)
            steps = steps_for(len(few) + len(fake))  # the same for both
            for into, images in ((alone, none), (with_generated, fake)) if n else ((with_generated, fake),):
                into[n].append(accuracy(data, few, images, steps, seed))
                done += 1
                clock.at(done)
    seeds = list(range(request.seeds))
    rows = [_row(n, n == real[-1], alone[n], with_generated[n], seeds) for n in real]
    return {
        "run": str(run),
        "data": data.name,
        "held_out": int((data.y_test >= 0).sum()),
        "generated": request.generated,
        "seen": int(sum(map(len, own))),
        "classes": len(own),
        "fewest": int(min(map(len, own))),
        "seeds": seeds,
        "rows": rows,
        "left_out": [n for n in request.per_class if n not in counts],
    }


def _check_labels(mixture: Mixture, data: Dataset, run: Path) -> None:
    """Raise a `UserError` unless the data has classes to learn, and the mixture generates all of them."""
    if len(data.labels) < 2 or not (data.y_test >= 0).any():
        raise UserError(
            f"--downstream needs labels of at least two classes and a held-out split, and the data of {run} has not both."
        )
    if mixture.labels != data.labels or not (
        mixture.takes_label or set(range(len(mixture.labels))) <= set(mixture.label_of.tolist())
    ):
        raise UserError(
            f"--downstream asks the mixture of {run} for every label, and its members do not represent them."
        )


def _generated(mixture: Mixture, count: int, seed: int) -> Images:
    """Return generated images: `count` of each class.

    If the herd has several replicas, each seed takes the next replica, so that seeds also differ in their generators.
    """
    each = [mixture.sample(count, name, seed, seed % mixture.replicas) for name in mixture.labels]
    return Images(np.concatenate([one.x for one in each]), np.repeat(np.arange(len(each)), count))


def _real(data: Dataset, own: list[np.ndarray], count: int, seed: int) -> Images:
    """Return `count` real images of each class.

    The seed shuffles each class and the first `count` are taken, so a smaller set is always part of a larger one.

    Args:
        data: The data.
        own: The rows of each class.
        count: The number of images of each class; a class with fewer gives all.
        seed: The seed of the order.
    """
    rows = np.concatenate([rows[shuffle(len(rows), "downstream", seed, k)[:count]] for k, rows in enumerate(own)])
    return Images(data.x[rows], data.y[rows])


def _row(real: int, is_all: bool, alone: list[float], with_generated: list[float], seeds: list[int]) -> DownstreamRow:
    """Return a row of downstream.json: the accuracies without and with generated images, and their paired difference.

    Args:
        real: The number of real images of each class.
        is_all: Whether these are all real images.
        alone: The accuracies without generated images, by seed; empty if there are no real ones.
        with_generated: The accuracies with generated images, by seed.
        seeds: The seeds.
    """
    both = [b - a for a, b in zip(alone, with_generated, strict=False)]
    difference = _over(both, seeds, -1.0)
    verdicts: dict[int, Literal["helped", "hurt", "undecided"]] = {1: "helped", -1: "hurt", 0: UNDECIDED}
    verdict = verdicts[sign(difference.get("interval") if difference else None)]
    return {
        "real": "all" if is_all else real,
        "alone": _over(alone, seeds),
        "with": _over(with_generated, seeds),
        "difference": None if difference is None else {**difference, "verdict": verdict},
    }


def _over(values: list[float], seeds: list[int], least: float = 0.0) -> ScoreEntry | None:
    """Return the mean of accuracies with its interval over the seeds, at least `least` and at most 1; None without values."""
    return together([{"value": value} for value in values], seeds, (least, 1.0)) if values else None


def _write(facts: Downstream, where: Path) -> None:
    """Write downstream.json and downstream.png into a folder."""
    try:
        where.mkdir(parents=True, exist_ok=True)
        atomic_write(where / "downstream.json", json.dumps(plain(facts), indent=1, allow_nan=False) + "\n")
        pictures.save(draw(facts), where / "downstream.png")
    except OSError as error:
        raise UserError(
            f"nothing can be written to {where}: {error.strerror}; choose another place with -o."
        ) from error
