"""What weights can strive for: what each score needs of a generator's samples, computed once, and the score of that."""

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

CLASSES = ("tvd", "classifier_score", "label_accuracy")  # need a network that tells them
ASKED = ("ifid", "label_accuracy")  # need generators that take a label
BALLS = ("precision", "density", "coverage")
_REAL = 5000  # of the data's features, that others are compared with one by one


@dataclass(frozen=True)
class SampledGenerator:
    """Samples of one generator, and what the network says of them."""

    x: Tensor  # [n, …] in the data's own units
    features: Tensor  # float32 [n, F]
    logits: Tensor | None  # float32 [n, K]
    y: Tensor | None  # int64 [n], the label that each was asked for


class Objective(ABC):
    """One score of mixtures besides FID and TVD, which are always known."""

    @abstractmethod
    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        """What the score needs of one generator; this is all that travels between ranks."""

    @abstractmethod
    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        """From the same of G generators [G, …]."""


def find(
    name: str, reference: RealFeatures, samples: int, where: Callable[[int], torch.device], trust_code: bool = False
) -> Objective | None:
    """The aim of that name, as `refuse` let it pass; none for FID and TVD. `where`: where so many features are compared."""
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
    """One sentence, beginning with `what`, where this score cannot be had of such data and generators.

    `classes`: how many the network tells; none: it is not known yet, or does not matter.
    """
    if is_own(name):
        load(name, trust_code)
    if name in ASKED and not takes_label:
        raise UserError(f"{what} needs generators that take a label, and these do not: choose fid or classifier_score.")
    if name in ASKED and (fewest := int(samples * _rarest(dataset))) < 2:
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
            f"{what} needs a network that tells the classes of {dataset.name}: choose the network classifier."
        )


def no_classes(what: str, network: str) -> UserError:
    return UserError(
        f"{what} needs a network that tells classes, and {network} does not: choose fid, or another network."
    )


def load(name: str, trust_code: bool) -> Callable[..., Any]:
    """A user's function, which must take (features, weights, real)."""
    found = nets.load_own(name, "score", trust_code)
    if not callable(found):
        raise UserError(f"the score {name} is not a function.")
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError:
        raise UserError(
            f"the score {name} takes {inspect.signature(found)}: wanted is a function of (features, weights, real)."
        ) from None
    except ValueError:  # of compiled functions it is not known
        pass
    function: Callable[..., Any] = found
    return function


def _rarest(dataset: Dataset) -> float:
    """The share of the class that the data has fewest of."""
    counts = np.bincount(dataset.y[dataset.y >= 0])
    return float(counts[counts > 0].min() / counts.sum()) if counts.sum() else 0.0


class Own(Objective):
    """A user's function of the features themselves."""

    def __init__(self, name: str, real: Tensor, trust_code: bool) -> None:
        self._name, self._function, self._real = name, load(name, trust_code), real

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        return {"features": seen.features}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        return OwnScore(self._name, self._function, parts["features"], self._real)


class Kernel(Objective):
    """KID: features of every pair of generators are compared."""

    def __init__(self, real: RealSide) -> None:
        self._real = real

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        return {"features": seen.features}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        return KernelScore(parts["features"], self._real)


class Balls(Objective):
    """Precision, density and coverage: the neighbourhoods of real samples do not change with the weights."""

    def __init__(self, name: str, real: ExtractedFeatures, samples: int, where: Callable[[int], torch.device]) -> None:
        """As many real samples as generated ones, as `prdc` has it."""
        self._name, self._n = name, min(samples, len(real), prdc.MOST)
        self._real = prdc.some(real, self._n, "prdc real").x.double().to(where(real.dimension))
        self._radius = prdc.radius_of(self._real, prdc.NEIGHBOURS)

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        fake = seen.features[: self._n].to(self._real)
        chunks = zip(self._real.split(prdc.CHUNK), self._radius.split(prdc.CHUNK), strict=True)
        each = [torch.cdist(real, fake) < radius[:, None] for real, radius in chunks]  # [chunk, n]
        if self._name == "coverage":
            return {"hits": torch.cat([inside.sum(1) for inside in each])}  # [m]
        held = torch.stack([inside.sum(0) for inside in each]).sum(0).double()  # [n]
        return {"value": (held > 0).double().mean() if self._name == "precision" else held.mean() / prdc.NEIGHBOURS}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        if self._name == "coverage":
            return CapturedScore(parts["hits"], self._n, share=True)
        return LinearScore(parts["value"])


class Information(Objective):
    """The classifier score, by the classes that the network tells."""

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        assert seen.logits is not None
        logs = seen.logits.double().log_softmax(1)
        return {"share": logs.exp().mean(0), "entropy": -(logs.exp() * logs).nan_to_num(0.0).sum(1).mean()}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        return InformationScore(parts["share"], parts["entropy"])


class Accuracy(Objective):
    """Label accuracy, every class counting as much as any other."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        assert seen.logits is not None and seen.y is not None
        right = (seen.logits.argmax(1) == seen.y).double()
        each = [right[seen.y == k].mean() for k in range(self._classes) if bool((seen.y == k).any())]
        return {"value": torch.stack(each).mean()}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        return LinearScore(parts["value"])


class WithinClasses(Objective):
    """IFID: the Fréchet distance within each class, of mixtures that are asked for one."""

    def __init__(self, reference: RealFeatures, where: Callable[[int], torch.device]) -> None:
        y = reference.real.y
        self._classes, self._where = np.unique(y[y >= 0]).tolist(), where(reference.real.dimension)
        found = [reference.real_of((k,)).moments for k in self._classes]
        self._real = [Moments(one.mean.to(self._where), one.cov.to(self._where)) for one in found]

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        assert seen.y is not None
        own = [seen.features[seen.y == k].to(self._where) for k in self._classes]
        if min(map(len, own)) < 2:
            raise UserError("ifid needs at least 2 samples of every class of each generator: ask for more samples.")
        found = summarise(own)
        assert found.mean is not None and found.cov is not None and found.samples is not None
        return {"mean": found.mean, "cov": found.cov, "samples": found.samples}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        mean, cov, samples = parts["mean"], parts["cov"], parts["samples"]  # [G, K, F], [G, K, F, F], [G, K]
        return MeanScore(
            [FrechetScore(Summary(mean[:, k], cov[:, k], samples[:, k]), real) for k, real in enumerate(self._real)]
        )


class Places(Objective):
    """Modes that are known: how many of them a mixture hits."""

    def __init__(self, place: Callable[[np.ndarray], np.ndarray], places: int, samples: int) -> None:
        """`place`: of each sample the number of the mode that it shows, or -1 for none; `samples`: of each generator."""
        self._place, self._places, self._samples = place, places, samples

    def of(self, seen: SampledGenerator) -> dict[str, Tensor]:
        shown = self._place(seen.x.cpu().numpy())
        return {"hits": torch.from_numpy(np.bincount(shown[shown >= 0], minlength=self._places))}

    def score(self, parts: Mapping[str, Tensor]) -> MixtureScorer:
        return CapturedScore(parts["hits"], self._samples)


def _nearest_mode(dataset: Dataset) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    known = modes.modes_of(dataset)

    def place(x: np.ndarray) -> np.ndarray:
        nearest, distance = modes.assign(x, known)
        return np.where(distance < modes.WITHIN, nearest, -1)

    return place, len(known.means)


def _stack(dataset: Dataset) -> Callable[[np.ndarray], np.ndarray]:
    try:
        judge = stacked_modes.reader(dataset.shape)
    except MetricSkipped as why:
        raise UserError(f"the score stacked_modes: {why}.") from why

    def place(x: np.ndarray) -> np.ndarray:
        return stacked_modes.triple(np.nan_to_num(x).astype(np.uint8), judge.predict)

    return place
