"""Objectives for mixture weights: what each needs of a generator's samples, computed once, and the score from that."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ganherd import nets
from ganherd.features.material import MetricSkipped
from ganherd.features.moments import Moments
from ganherd.metrics import modes, prdc, stacked_modes
from ganherd.recipe.mixture_scores import is_own
from ganherd.strategies.mixing.kernel_score import KernelScore, RealSide
from ganherd.strategies.mixing.mixing import FrechetScore, MixtureScorer, Summary, summarise
from ganherd.strategies.mixing.reweighted import CapturedScore, InformationScore, LinearScore, MeanScore, OwnScore
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.extract import ExtractedFeatures
    from ganherd.features.real_features import RealFeatures

CLASSES = ("tvd", "classifier_score", "label_accuracy")  # need a network that predicts classes
CONDITIONAL = ("ifid", "label_accuracy")  # need generators that take a label
BALLS = ("precision", "density", "coverage")
_REAL = 5000  # rows of the data's features that samples are compared with one by one


@dataclass(frozen=True)
class SampledGenerator:
    """Samples of one generator, with their features and logits."""

    x: Tensor  # [n, …] in the units of the data
    features: Tensor  # float32 [n, F]
    logits: Tensor | None  # float32 [n, K]
    y: Tensor | None  # int64 [n], the label that each sample was generated for


class Objective(ABC):
    """A score of mixtures other than FID and TVD, which are always computed."""

    @abstractmethod
    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        """Return the tensors that the score needs of one generator; only these are sent between ranks."""

    @abstractmethod
    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        """Return the score for G generators, from their stacked measurements [G, …]."""


def find(
    name: str, reference: RealFeatures, samples: int, where: Callable[[int], torch.device], trust_code: bool = False
) -> Objective | None:
    """Return the objective of that name; None for FID and TVD. `refuse` must have accepted the name.

    Args:
        name: A score, or a user's function as `package.module:name`.
        reference: Features of the data.
        samples: The number of samples of each generator.
        where: Returns the device on which this many features are compared.
        trust_code: Whether a user's function may be loaded.
    """
    if is_own(name) or name == "kid":
        some = prdc.some(reference.real, _REAL, "real rows of a kernel score").x
        return Kernel(RealSide(some, where(reference.real.dimension))) if name == "kid" else Own(name, some, trust_code)
    if name in BALLS:
        return Balls(name, reference.real, samples, where)
    if name == "ifid":
        return WithinClasses(reference, where)
    others: dict[str, Callable[[], Objective]] = {
        "classifier_score": Information,
        "label_accuracy": lambda: Accuracy(len(reference.dataset.labels)),
        "modes": lambda: Places(*_nearest_mode(reference.dataset), samples),
        "stacked_modes": lambda: Places(_stack(reference.dataset), 1000, samples),
    }
    return others[name]() if name in others else None


def refuse(
    what: str,
    name: str,
    dataset: Dataset,
    samples: int,
    takes_label: bool,
    trust_code: bool,
    classes: int | None = None,
) -> None:
    """Refuse a score that cannot be computed for this data and these generators.

    Args:
        what: The beginning of the message.
        name: The score.
        dataset: The data.
        samples: The number of samples of each generator.
        takes_label: Whether the generators take a label.
        trust_code: Whether a user's function may be loaded.
        classes: The number of classes that the network predicts; None: not known yet, or irrelevant.

    Raises:
        UserError: The score cannot be computed.
    """
    if is_own(name):
        load(name, trust_code)
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
    if name == "label_accuracy" and classes not in (None, 0, len(dataset.labels)):
        raise UserError(
            f"{what} needs a network that predicts the classes of {dataset.name}: choose the network classifier."
        )


def no_classes(what: str, network: str) -> UserError:
    """Return the error for a score that needs classes and a network that predicts none."""
    return UserError(
        f"{what} needs a network that predicts classes, and {network} does not: choose fid, or another network."
    )


def load(name: str, trust_code: bool) -> Callable[..., Any]:
    """Return a user's function of (features, weights, real).

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
    """Return the share of the rarest class in the data."""
    counts = np.bincount(dataset.y[dataset.y >= 0])
    return float(counts[counts > 0].min() / counts.sum()) if counts.sum() else 0.0


class Own(Objective):
    """A user's function of the features."""

    def __init__(self, name: str, real: Tensor, trust_code: bool) -> None:
        self._name, self._function, self._real = name, load(name, trust_code), real

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        return {"features": samples.features}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        return OwnScore(self._name, self._function, inputs["features"], self._real)


class Kernel(Objective):
    """KID, from the features of every pair of generators."""

    def __init__(self, real: RealSide) -> None:
        self._real = real

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        return {"features": samples.features}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        return KernelScore(inputs["features"], self._real)


class Balls(Objective):
    """Precision, density or coverage. The balls around real samples do not change with the weights."""

    def __init__(self, name: str, real: ExtractedFeatures, samples: int, where: Callable[[int], torch.device]) -> None:
        """Compute the balls of as many real samples as there are generated ones, as `metrics.prdc` does."""
        self._name, self._n = name, min(samples, len(real), prdc.MOST)
        self._real = prdc.some(real, self._n, "prdc real").x.double().to(where(real.dimension))
        self._radius = prdc.radius_of(self._real, prdc.NEIGHBOURS)

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        fake = samples.features[: self._n].to(self._real)
        chunks = zip(self._real.split(prdc.CHUNK), self._radius.split(prdc.CHUNK), strict=True)
        inside = [torch.cdist(real, fake) < radius[:, None] for real, radius in chunks]  # [chunk, n]
        if self._name == "coverage":
            return {"hits": torch.cat([chunk.sum(1) for chunk in inside])}  # [m]
        balls = torch.stack([chunk.sum(0) for chunk in inside]).sum(0).double()  # [n] that contain each sample
        return {"value": (balls > 0).double().mean() if self._name == "precision" else balls.mean() / prdc.NEIGHBOURS}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        if self._name == "coverage":
            return CapturedScore(inputs["hits"], self._n, share=True)
        return LinearScore(inputs["value"])


class Information(Objective):
    """The classifier score, from the class probabilities of the network."""

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        assert samples.logits is not None
        logs = samples.logits.double().log_softmax(1)
        return {"share": logs.exp().mean(0), "entropy": -(logs.exp() * logs).nan_to_num(0.0).sum(1).mean()}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        return InformationScore(inputs["share"], inputs["entropy"])


class Accuracy(Objective):
    """Label accuracy, averaged over classes."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        assert samples.logits is not None and samples.y is not None
        right = (samples.logits.argmax(1) == samples.y).double()
        each = [right[samples.y == k].mean() for k in range(self._classes) if bool((samples.y == k).any())]
        return {"value": torch.stack(each).mean()}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        return LinearScore(inputs["value"])


class WithinClasses(Objective):
    """IFID: the Fréchet distance within each class, averaged over classes."""

    def __init__(self, reference: RealFeatures, where: Callable[[int], torch.device]) -> None:
        y = reference.real.y
        self._classes, self._where = np.unique(y[y >= 0]).tolist(), where(reference.real.dimension)
        by_class = [reference.real_of((k,)).moments for k in self._classes]
        self._real = [Moments(each.mean.to(self._where), each.cov.to(self._where)) for each in by_class]

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        assert samples.y is not None
        by_class = [samples.features[samples.y == k].to(self._where) for k in self._classes]
        if min(map(len, by_class)) < 2:
            raise UserError("ifid needs at least 2 samples of every class of each generator: ask for more samples.")
        summary = summarise(by_class)
        assert summary.mean is not None and summary.cov is not None and summary.samples is not None
        return {"mean": summary.mean, "cov": summary.cov, "samples": summary.samples}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        mean, cov, samples = inputs["mean"], inputs["cov"], inputs["samples"]  # [G, K, F], [G, K, F, F], [G, K]
        summaries = [Summary(mean[:, k], cov[:, k], samples[:, k]) for k in range(len(self._real))]
        return MeanScore([FrechetScore(each, real) for each, real in zip(summaries, self._real, strict=True)])


class Places(Objective):
    """The number of known modes that a mixture captures."""

    def __init__(self, place: Callable[[np.ndarray], np.ndarray], places: int, samples: int) -> None:
        """Count modes.

        Args:
            place: Returns the mode of each sample, or -1 for none.
            places: The number of modes.
            samples: The number of samples of each generator.
        """
        self._place, self._places, self._samples = place, places, samples

    def measure(self, samples: SampledGenerator) -> dict[str, Tensor]:
        shown = self._place(samples.x.cpu().numpy())
        return {"hits": torch.from_numpy(np.bincount(shown[shown >= 0], minlength=self._places))}

    def score(self, inputs: Mapping[str, Tensor]) -> MixtureScorer:
        return CapturedScore(inputs["hits"], self._samples)


def _nearest_mode(dataset: Dataset) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """Return a function that assigns points to the modes of a toy, and the number of modes."""
    known = modes.modes_of(dataset)

    def place(x: np.ndarray) -> np.ndarray:
        nearest, distance = modes.assign(x, known)
        return np.where(distance < modes.WITHIN, nearest, -1)

    return place, len(known.means)


def _stack(dataset: Dataset) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that reads the three digits of stacked MNIST images as one mode."""
    try:
        reader = stacked_modes.reader(dataset.shape)
    except MetricSkipped as why:
        raise UserError(f"the score stacked_modes: {why}.") from why

    def place(x: np.ndarray) -> np.ndarray:
        return stacked_modes.triple(np.nan_to_num(x).astype(np.uint8), reader.predict)

    return place
