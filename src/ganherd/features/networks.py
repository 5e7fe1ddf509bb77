"""Feature networks: choose one for the data, load it, and report why it cannot be used."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ganherd.data.units import Units, to_model
from ganherd.features.material import MetricSkipped
from ganherd.recipe.trust import script_of
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import UserError
from ganherd.util.meter import Progress
from ganherd.util.paths import expanded
from ganherd.util.text import did_you_mean

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset

NAMES = ("inception", "classifier", "lipizzaner-mnist", "pixels")
LARGEST = 8  # `pixels` averages images down to this side; a covariance of thousands of pixels would be slow and rough
SMALLEST = 32  # Inception is not the default for smaller images


@dataclass(frozen=True)
class Network:
    """A module that maps samples in the units of the data to features [B, d] and logits [B, k] or None."""

    name: str  # reported with every number
    module: nn.Module
    resizing: str  # what is done to an image before the network sees it
    digest: str | None  # of the weights, for the key of the cache; None: never cached
    batch: int = 1024
    heavy: bool = False  # takes seconds for a hundred images on a CPU
    held_out_accuracy: float | None = None
    as_inception: bool = False  # Inception, or a script in its place: its logits give the Inception Score

    def described(self, samples: int) -> ScoreEntry:
        """Return the fields of scores.json about the network, for this many samples."""
        facts: ScoreEntry = {"samples": samples, "network": self.name, "resizing": self.resizing}
        return facts | {"held_out_accuracy": self.held_out_accuracy}


class Pixels(nn.Module):
    """Return the samples themselves as features, in the units of the nets; large images are averaged down."""

    def __init__(self, shape: tuple[int, ...], offset: Units, scale: Units) -> None:
        super().__init__()
        self.offset, self.scale = offset, scale
        self.sides = (min(shape[1], LARGEST), min(shape[2], LARGEST)) if len(shape) == 3 else None

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        x = to_model(x.float(), self)
        return (x if self.sides is None else F.adaptive_avg_pool2d(x, self.sides)).flatten(1), None


class Penultimate(nn.Module):
    """Return features and logits of a classifier.

    The features are the inputs of its last layer, averaged over the positions of the image.
    """

    def __init__(self, net: nn.Module, offset: Units, scale: Units) -> None:
        super().__init__()
        *body, self.head = copy.deepcopy(net).children()  # the classifier itself stays on its device
        self.body = nn.Sequential(*body)
        self.maps = 0
        if any(isinstance(layer, nn.Flatten) for layer in body):
            self.maps = next(layer.out_channels for layer in reversed(body) if isinstance(layer, nn.Conv2d))
        self.offset, self.scale = offset, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.body(to_model(x.float(), self))
        features = seen.reshape(len(seen), self.maps, -1).mean(2) if self.maps else seen
        return features, self.head(seen)


class InModelUnits(nn.Module):
    """Wrap a user's module, which takes the same input as a discriminator, and returns features, or features and logits."""

    def __init__(self, net: nn.Module, offset: Units, scale: Units) -> None:
        super().__init__()
        self.net, self.offset, self.scale = net, offset, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        output = self.net(to_model(x.float(), self))
        features, logits = output if isinstance(output, tuple) else (output, None)
        return features.flatten(1), logits


def choose(dataset: Dataset) -> str:
    """Return the name of the network that is used by default."""
    from ganherd.features import inception

    if dataset.is_image and dataset.shape[0] == 3 and min(dataset.shape[1:]) >= SMALLEST and inception.find():
        return "inception"
    return cheap(dataset)


def cheap(dataset: Dataset) -> str:
    """Return the name of a network that takes only seconds on any machine."""
    return "classifier" if dataset.is_image and len(dataset.labels) >= 2 else "pixels"


def known_as(name: str, dataset: Dataset) -> str | None:
    """Return the name that `find` takes for the network that a score names; None if it is not in NAMES or not available here.

    A name that comes from a file is only looked up, and never loaded as a path or as code.
    """
    from ganherd.features import inception

    if name == inception.FILE.removesuffix(".pt"):
        return "inception" if inception.find() else None
    if name.startswith("classifier ("):
        return "classifier" if cheap(dataset) == "classifier" else None
    return {
        "pixels": "pixels",
        "coordinates": "pixels",
        "columns": "pixels",
        "lipizzaner-mnist": "lipizzaner-mnist",
    }.get(name)


def find(
    wanted: str,
    dataset: Dataset,
    *,
    head: Path | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> Network:
    """Return a network by name, by path (.pt: inception, .npz: lipizzaner-mnist) or by a user's `package.module:Class`.

    Another TorchScript file can replace inception if `trust_code` is set; `FILE.pt#sha256=…` states the digest that it must have.

    Raises:
        UserError: There is no such network, or it is not trusted.
        MetricSkipped: It is not available here, or not for this data.
    """
    path, script = expanded(wanted), script_of(wanted)
    if head is not None and wanted != "inception" and script is None:
        raise UserError(f"--head is for the network inception, and the network here is {wanted}.")
    if wanted == "inception" or script is not None:
        file, stated = script or (None, "")
        return _inception(file, stated, head, dataset, trust_code)
    if wanted == "lipizzaner-mnist" or path.suffix == ".npz":
        return _lipizzaner(path if wanted != "lipizzaner-mnist" else None, dataset)
    if wanted == "classifier":
        return _classifier(dataset, progress)
    if wanted == "pixels":
        return _pixels(dataset)
    if ":" in wanted:
        return _own(wanted, dataset, trust_code)
    hint = did_you_mean(wanted, NAMES, " ({})")
    raise UserError(
        f"there is no network named {wanted!r}{hint}: use {', '.join(NAMES)}, the path of a .pt or .npz file, "
        "or your own package.module:Class."
    )


def _inception(path: Path | None, stated: str, head: Path | None, dataset: Dataset, trust_code: bool) -> Network:
    """Return Inception, or the TorchScript file that takes its place."""
    from ganherd.features import inception

    # a missing file is reported first
    if (not dataset.is_image or dataset.shape[0] not in (1, 3)) and (path is None or path.is_file()):
        raise MetricSkipped("the network inception looks at grey or RGB images, and this is other data")
    module, name, digest = inception.load(path, head, stated, trust_code)
    resizing = inception.RESIZING + (", grey repeated to RGB" if dataset.shape[0] == 1 else "")
    batch = 250 if torch.cuda.is_available() else 32
    return Network(name, module, resizing, digest, batch, heavy=True, as_inception=True)


def _lipizzaner(path: Path | None, dataset: Dataset) -> Network:
    """Return the small MNIST network of the cellular papers."""
    from ganherd.features import lipizzaner

    if tuple(dataset.shape) != (1, 28, 28) and (path is None or path.is_file()):
        raise MetricSkipped("the network lipizzaner-mnist looks at grey images of 28 × 28, and this is other data")
    module, digest = lipizzaner.load(path)
    return Network("lipizzaner-mnist", module, lipizzaner.RESIZING, digest)


def _classifier(dataset: Dataset, progress: Progress | None) -> Network:
    """Return the classifier of the data without its last layer."""
    from ganherd.features.classifier import classifier_for

    if len(dataset.labels) < 2:
        raise MetricSkipped("the network classifier is trained on the data's labels, and there are none to tell apart")
    judge = classifier_for(dataset, progress=progress)
    module = Penultimate(judge.net, judge.offset, judge.scale)
    accuracy, name = judge.held_out_accuracy, f"classifier ({judge.name})"
    return Network(name, module, judge.resizing, _digest(judge.net), held_out_accuracy=accuracy)


def _pixels(dataset: Dataset) -> Network:
    """Return the network whose features are the samples themselves: pixels, coordinates or standardised columns."""
    module = Pixels(dataset.shape, dataset.offset, dataset.scale)
    if module.sides is None:
        return Network("coordinates" if dataset.kind == "points" else "columns", module, "none", None)
    down = module.sides != tuple(dataset.shape[1:])
    return Network("pixels", module, f"averaged down to {' × '.join(map(str, module.sides))}" if down else "none", None)


def _own(name: str, dataset: Dataset, trust_code: bool) -> Network:
    """Return a network of the user's class."""
    from ganherd import nets
    from ganherd.recipe import schema

    try:  # it is built like a discriminator: from shape and classes, if it takes them
        net = schema.NetConfig(name=name)
        module = nets.build_discriminator(net, dataset.shape, len(dataset.labels), trust_code=trust_code)
    except UserError as error:
        raise UserError(str(error).replace("the discriminator", "the network", 1)) from error
    return Network(name, InModelUnits(module.eval(), dataset.offset, dataset.scale), "as the network does it", None)


def _digest(module: nn.Module) -> str:
    """Return the sha256 of the weights."""
    total = hashlib.sha256()
    for name, value in module.state_dict().items():
        total.update(f"{name}{tuple(value.shape)}".encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()
