"""Objectives: the scores by which mixture weights can be chosen.

Weights change often, samples do not. So an objective works in two parts: it measures the samples of each generator
once, and then scores mixtures of any weights from these measurements. In shapes, G is the number of generators, n of
samples of each, F of features, K of classes, M of mixtures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ganherd import nets
from ganherd.features.extract import Moments
from ganherd.features.material import MetricSkipped
from ganherd.metrics import modes, prdc, stacked_modes
from ganherd.metrics.metric_registry import metric_of
from ganherd.recipe.mixture_scores import is_own
from ganherd.strategies.mixing.kernel_score import KernelScore, RealSide
from ganherd.strategies.mixing.scorers import (
    CapturedScore,
    FrechetScore,
    MixtureScorer,
    OwnScore,
    Summary,
    VariationScore,
    information,
    linear,
    summarise,
    worst_if_broken,
)
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.extract import ExtractedFeatures
    from ganherd.features.real_features import RealFeatures

CLASSES = ("tvd", "classifier_score", "label_accuracy")  # scores that need a network that predicts classes
CONDITIONAL = ("ifid", "label_accuracy")  # scores that need generators that take a label
BALLS = ("precision", "density", "coverage")  # scores that test whether samples lie in balls around real samples
_REAL = 5000  # most real samples in scores that compare samples one by one: KID and functions of the user


@dataclass(frozen=True)
class SampledGenerator:
    """Samples of one generator, with their features and logits."""

    x: Tensor  # [n, …] in the units of the data
    features: Tensor  # float32 [n, F]
    logits: Tensor | None  # float32 [n, K]; None: the network predicts no classes
    y: Tensor | None  # int64 [n], the label that each sample was generated for; None: generators take no labels

    def rows(self, index: Tensor) -> SampledGenerator:
        """Return the samples with these indices."""
        parts = (self.x, self.features, self.logits, self.y)
        return SampledGenerator(*(None if part is None else part[index.to(part.device)] for part in parts))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Objective:
    """A score of mixtures other than FID and TVD, which are always computed."""

    # Returns the measurements that the score needs of one generator, by name; they are sent between ranks.
    measure: Callable[[SampledGenerator], dict[str, Tensor]]
    # Returns the function that scores mixtures, from the measurements of G generators, stacked [G, …].
    score: Callable[[Mapping[str, Tensor]], MixtureScorer]

    def measure_all(self, each: Iterable[SampledGenerator]) -> dict[str, Tensor]:
        """Measure G generators, and return the measurements by name, stacked [G, …]."""
        measured = [self.measure(one) for one in each]
        return {name: torch.stack([one[name] for one in measured]) for name in measured[0]}


def find(
    name: str, reference: RealFeatures, samples: int, where: Callable[[int], torch.device], trust_code: bool = False
) -> Objective | None:
    """Return the objective of that name; None for FID and TVD, which need none.

    The caller must have checked the name with `refuse`.

    Args:
        name: A score, or a user's function as `package.module:name`.
        reference: Features of the data.
        samples: The number of samples of each generator.
        where: Function that takes a number of features and returns the device on which they are compared.
        trust_code: Whether a user's function may be loaded.
    """
    if is_own(name) or name == "kid":
        some = prdc.some(reference.real, _REAL, "real rows of a kernel score").x
        return _of_features(name, some, where, trust_code)
    if name in BALLS:
        return _of_balls(name, reference.real, samples, where)
    others: dict[str, Callable[[], Objective]] = {
        "ifid": lambda: _within_classes(reference, where),
        "classifier_score": lambda: Objective(_probabilities, lambda inputs: information(**inputs)),
        "label_accuracy": lambda: _accuracy(len(reference.dataset.labels)),
        "modes": lambda: _captured(*_nearest_mode(reference.dataset), samples),
        "stacked_modes": lambda: _captured(_stack(reference.dataset), 1000, samples),
    }
    return others[name]() if name in others else None


def scorers(
    summary: Summary, real: Moments, shares: Tensor | None, by: str, objective: Objective | None
) -> dict[str, MixtureScorer]:
    """Return functions that score mixtures of some generators, by name.

    They are `fid`, `tvd` if the network predicts classes, and the score `by`.

    Args:
        summary: Statistics of the generators.
        real: The moments of the data's features.
        shares: The shares of the classes that the network predicts for the data [K]; None: it predicts none.
        by: The score by which weights are chosen.
        objective: The objective of the score `by`; None for FID and TVD.
    """
    fid = FrechetScore(summary, real)
    scores: dict[str, MixtureScorer] = {"fid": fid}
    if shares is not None and summary.classes is not None:
        scores["tvd"] = VariationScore(summary.classes.cpu(), shares)
    if objective:
        scores[by] = worst_if_broken(objective.score(summary.objective), fid.broken, metric_of(by).worst)
    return scores


def refuse(
    what: str,
    name: str,
    dataset: Dataset,
    samples: int,
    takes_label: bool,
    trust_code: bool,
    classes: int | None = None,
    network: str = "",
) -> None:
    """Raise an error if a score cannot be computed for this data and these generators.

    Args:
        what: The beginning of the message, such as the key of the recipe with its value.
        name: The score.
        dataset: The data.
        samples: The number of samples of each generator.
        takes_label: Whether the generators take a label.
        trust_code: Whether a user's function may be loaded.
        classes: The number of classes that the network predicts; None: not known yet.
        network: The name of the network.

    Raises:
        UserError: The score cannot be computed.
    """
    if is_own(name):
        load(name, trust_code)
    if name in CLASSES and classes == 0:
        raise UserError(
            f"{what} needs a network that predicts classes, and {network} does not: choose fid, or another network."
        )
    if name in CONDITIONAL and not takes_label:
        raise UserError(f"{what} needs generators that take a label, and these do not: choose fid or classifier_score.")
    if name in CONDITIONAL and (fewest := int(samples * _rarest(dataset))) < 2:
        raise UserError(
            f"{what} needs at least 2 samples of every class, and {samples:,} may hold {fewest}: ask for more."
        )
    if name in BALLS and min(samples, len(dataset.x)) <= prdc.NEIGHBOURS:
        raise UserError(f"{what} needs more than {prdc.NEIGHBOURS} samples and data: ask for more.")
    if name == "modes":
        try:
            modes.modes_of(dataset)
        except UserError as why:
            raise UserError(f"{what}: {why}") from why
    if name == "stacked_modes" and (not dataset.is_image or dataset.shape[0] != 3):
        raise UserError(f"{what} is for stacked digits, images of three channels, and {dataset.name} is other data.")
    if name == "label_accuracy" and classes not in (None, len(dataset.labels)):
        raise UserError(
            f"{what} needs a network that predicts the classes of {dataset.name}: choose the network classifier."
        )


def load(name: str, trust_code: bool) -> Callable[..., Any]:
    """Import a user's score, a function of (features, weights, real), and return it.

    Args:
        name: The function as `package.module:name`.
        trust_code: Whether it may be imported.

    Raises:
        UserError: It is not trusted, not a function, or takes other arguments.
    """
    function = nets.load_own(name, "score", trust_code)
    if not callable(function):
        raise UserError(f"the score {name} is not a function.")
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        raise UserError(
            f"the score {name} takes {inspect.signature(function)}: write a function of (features, weights, real)."
        ) from None
    except ValueError:  # Compiled functions may have no signature.
        pass
    checked: Callable[..., Any] = function
    return checked


def _rarest(dataset: Dataset) -> float:
    """Return the share of the rarest class among the labelled rows of the data; 0 if there are none."""
    counts = np.bincount(dataset.y[dataset.y >= 0])
    return float(counts[counts > 0].min() / counts.sum()) if counts.sum() else 0.0


def _of_features(name: str, real: Tensor, where: Callable[[int], torch.device], trust_code: bool) -> Objective:
    """Return the objective for KID or for a user's function, which both need all features of the samples.

    Args:
        name: `kid`, or a function as `package.module:name`.
        real: Features of the data [m, F].
        where: Function that takes a number of features and returns the device on which they are compared.
        trust_code: Whether a user's function may be loaded.
    """
    if name == "kid":
        side = RealSide(real, where(real.shape[1]))
        return Objective(_features, lambda inputs: KernelScore(inputs["features"], side))
    function = load(name, trust_code)
    return Objective(_features, lambda inputs: OwnScore(name, function, inputs["features"], real))


def _features(samples: SampledGenerator) -> dict[str, Tensor]:
    """Return what is stored of a generator for scores that compare samples one by one: the features of all its samples."""
    return {"features": samples.features}


def _of_balls(name: str, real: ExtractedFeatures, samples: int, where: Callable[[int], torch.device]) -> Objective:
    """Return the objective for precision, density or coverage.

    These scores draw a ball around each real sample, through its k-th nearest real neighbour, and test which samples
    lie in which balls. Balls depend on the data only, so one test serves all weights. There are as many real samples as
    generated ones, as in `metrics.prdc`.

    Args:
        name: `precision`, `density` or `coverage`.
        real: Features of the data.
        samples: The number of samples of each generator.
        where: Function that takes a number of features and returns the device on which they are compared.
    """
    n = min(samples, len(real), prdc.MOST)
    rows = prdc.some(real, n, "prdc real").x.to(where(real.dimension))
    centre = rows.mean(0, dtype=torch.float64)
    centres = rows.double() - centre
    inner, outer, _ = prdc.edges(centres, prdc.NEIGHBOURS)
    radii = inner if name == "density" else outer

    def measure(samples: SampledGenerator) -> dict[str, Tensor]:
        fake = samples.features[:n].to(centres) - centre
        chunks = zip(centres.split(prdc.CHUNK), radii.split(prdc.CHUNK), strict=True)
        far = ((torch.cdist(part, fake), radius[:, None]) for part, radius in chunks)
        inside = [away < radius if name == "density" else away <= radius for away, radius in far]  # [chunk, n]
        if name == "coverage":
            return {"hits": torch.cat([chunk.sum(1) for chunk in inside])}  # [m]
        balls = torch.stack([chunk.sum(0) for chunk in inside]).sum(0).double()  # [n] that contain each sample
        return {"value": (balls > 0).double().mean() if name == "precision" else balls.mean() / prdc.NEIGHBOURS}

    if name == "coverage":
        return Objective(measure, lambda inputs: CapturedScore(inputs["hits"], n, share=True))
    return Objective(measure, lambda inputs: linear(inputs["value"]))


def _probabilities(samples: SampledGenerator) -> dict[str, Tensor]:
    """Return a generator's mean class probabilities [K] and their mean entropy, for the classifier score."""
    assert samples.logits is not None
    logs = samples.logits.double().log_softmax(1)
    return {"share": logs.exp().mean(0), "entropy": -(logs.exp() * logs).nan_to_num(0.0).sum(1).mean()}


def _accuracy(classes: int) -> Objective:
    """Return the objective for label accuracy: the mean over classes of the share that is classified right."""

    def measure(samples: SampledGenerator) -> dict[str, Tensor]:
        assert samples.logits is not None and samples.y is not None
        right = (samples.logits.argmax(1) == samples.y).double()
        each = [right[samples.y == k].mean() for k in range(classes) if bool((samples.y == k).any())]
        return {"value": torch.stack(each).mean()}

    return Objective(measure, lambda inputs: linear(inputs["value"]))


def _within_classes(reference: RealFeatures, where: Callable[[int], torch.device]) -> Objective:
    """Return the objective for IFID (intra-class FID): the Fréchet distance within each class, averaged over classes.

    Args:
        reference: Features of the data, with labels.
        where: Function that takes a number of features and returns the device on which they are compared.
    """
    y, device = reference.real.y, where(reference.real.dimension)
    classes = np.unique(y[y >= 0]).tolist()
    by_class = [reference.real_of((k,)).moments for k in classes]
    real = [Moments(each.mean.to(device), each.cov.to(device)) for each in by_class]

    def measure(samples: SampledGenerator) -> dict[str, Tensor]:
        assert samples.y is not None
        by_class = [samples.features[samples.y == k].to(device) for k in classes]
        if min(map(len, by_class)) < 2:
            raise UserError("ifid needs at least 2 samples of every class of each generator: ask for more samples.")
        summary = summarise(by_class)
        return {"mean": summary.mean, "cov": summary.cov, "samples": summary.samples}

    def score(inputs: Mapping[str, Tensor]) -> MixtureScorer:
        mean, cov, samples = inputs["mean"], inputs["cov"], inputs["samples"]  # [G, K, F], [G, K, F, F], [G, K]
        each = [FrechetScore(Summary(mean[:, k], cov[:, k], samples[:, k]), own) for k, own in enumerate(real)]
        return lambda weights, table: torch.stack([score(weights, table) for score in each]).mean(0)

    return Objective(measure, score)


def _captured(place: Callable[[np.ndarray], np.ndarray], places: int, samples: int) -> Objective:
    """Return the objective that counts the modes of the data that a mixture captures.

    Args:
        place: Function that returns for samples [n, …] the number of each one's mode, int64 [n]; -1: it lies in none.
        places: The number of modes.
        samples: The number of samples of each generator.
    """

    def measure(sampled: SampledGenerator) -> dict[str, Tensor]:
        shown = place(sampled.x.cpu().numpy())
        return {"hits": torch.from_numpy(np.bincount(shown[shown >= 0], minlength=places))}

    return Objective(measure, lambda inputs: CapturedScore(inputs["hits"], samples))


def _nearest_mode(dataset: Dataset) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """Return a function that assigns points to the modes of a toy (-1: to none), and the number of modes."""
    known = modes.modes_of(dataset)

    def place(x: np.ndarray) -> np.ndarray:
        nearest, distance = modes.assign(x, known)
        return np.where(distance < modes.WITHIN, nearest, -1)

    return place, len(known.means)


def _stack(dataset: Dataset) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that reads the three digits of stacked MNIST images as one mode from 0 to 999."""
    try:
        reader = stacked_modes.reader(dataset.shape)
    except MetricSkipped as why:
        raise UserError(f"the score stacked_modes: {why}.") from why

    def place(x: np.ndarray) -> np.ndarray:
        return stacked_modes.triple(np.nan_to_num(x).astype(np.uint8), reader.predict)

    return place
