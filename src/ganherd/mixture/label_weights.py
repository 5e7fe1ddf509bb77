"""Set p(y), the frequency of each label in samples of a mixture: as in the data, uniform, or by given weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture


def parse(text: str) -> str | dict[str, float]:
    """Parse the option --weights: return `data` or `uniform` unchanged, otherwise a weight for each named label.

    The last `=` of an item separates name and weight, so names may contain `=`.

    Raises:
        UserError: The text has another form, or all weights are zero.

    >>> parse("uniform"), parse("cat=2,dog=0.5")
    ('uniform', {'cat': 2.0, 'dog': 0.5})
    """
    if text in ("data", "uniform"):
        return text
    out: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = item.rpartition("=")
        try:
            weight = float(number) if equals and name.strip() else np.nan
        except ValueError:
            weight = np.nan
        if not 0 <= weight < np.inf:
            raise UserError(f"--weights {text}: write data, uniform, or a weight for each label, e.g. cat=2,dog=1.")
        out[name.strip()] = weight
    if not any(out.values()):
        raise UserError(f"--weights {text}: at least one label needs a weight above zero.")
    return out


def weighted(mixture: Mixture, how: str | dict[str, float], run: Path) -> Mixture:
    """Return a copy of the mixture in which labels have other frequencies p(y).

    Members of the same label share its frequency in the same proportions as before.

    Args:
        mixture: The mixture.
        how: `data`, `uniform`, or weights by label; labels that are missing get weight 0.
        run: The run folder; `data` needs its data.

    Raises:
        UserError: Members do not generate one label each, or none generates a label that has weight.
    """
    label_of, labels = mixture.label_of, mixture.labels
    if not mixture.takes_label and not (len(labels) and (label_of >= 0).all()):
        raise UserError(
            "--weights is for mixtures whose members generate one label each, and those of this one do not."
        )
    p = np.full(len(labels), 1.0)
    if how == "data":
        p = _counts(run, labels)
    elif isinstance(how, dict):
        p = np.zeros(len(labels))
        for name, weight in how.items():
            number = mixture.label_number(name)
            assert number is not None
            p[number] += weight
    p = p / p.sum()
    if mixture.takes_label:
        return replace(mixture, label_weights=p)
    # float64 [replicas or 1, members]; a tiny weight replaces 0, so that a label that had weight 0 can get some
    old = np.maximum(np.atleast_2d(mixture.weights), 1e-300)
    share = np.stack([np.bincount(label_of, row, minlength=len(labels)) for row in old])  # [replicas or 1, classes]
    new = old / share[:, label_of] * p[label_of]
    if not (new.sum(1) > 0).all():
        raise UserError("--weights gives weight only to labels that no member generates.")
    new /= new.sum(1, keepdims=True)
    return replace(mixture, weights=new if mixture.weights.ndim == 2 else new[0])


def _counts(run: Path, labels: tuple[str, ...]) -> np.ndarray:
    """Return the number of training samples of each label in the data of a run, float64 [classes]."""
    from ganherd.data.dataset import load
    from ganherd.runs.folder import RunFolder

    data = load(RunFolder.open(run).recipe.data)
    if data.labels != labels:
        raise UserError(f"the data of {run} has other labels than its mixture: give the weights, e.g. cat=2,dog=1.")
    return np.bincount(data.y[data.y >= 0], minlength=len(labels)).astype(np.float64)
