"""Choose and load the network that computes features of samples; raise an error with the reason if it is unusable."""

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
LARGEST = 8  # `pixels` averages images down to this side: covariances of thousands of pixels are slow and inaccurate
SMALLEST = 32  # smallest side in pixels of images for which Inception is the default


@dataclass(frozen=True)
class Network:
    """A module that maps samples in the units of the data to features [B, d] and logits [B, k] or None."""

    name: str  # reported with every score
    module: nn.Module
    resizing: str  # in words, how an image is resized before the network sees it
    digest: str | None  # sha256 of the weights, for the key of the cache; None: features are not cached
    batch: int = 1024  # samples that are passed through the network at once
    heavy: bool = False  # whether a hundred images take seconds on a CPU
    held_out_accuracy: float | None = None  # of the classifier
    # of the classifier: for each class (number of held-out rows that it recognises, number of held-out rows)
    held_out_classes: tuple[tuple[int, int], ...] = ()
    as_inception: bool = False  # Inception, or a script in its place: its logits give the Inception Score

    def described(self, samples: int) -> ScoreEntry:
        """Return the fields of scores.json about a score that this network measured on `samples` samples."""
        facts: ScoreEntry = {"samples": samples, "network": self.name, "resizing": self.resizing}
        return facts | {"held_out_accuracy": self.held_out_accuracy}


class Pixels(nn.Module):
    """Return the samples themselves as features [B, d], in the units of the nets. Images are averaged down to 8 × 8.

    Args:
        shape: The shape of a sample, [C, H, W] or [d].
        offset: With `scale`, converts samples from the units of the data to those of the nets.
        scale: See `offset`.
    """

    def __init__(self, shape: tuple[int, ...], offset: Units, scale: Units) -> None:
        super().__init__()
        self.offset, self.scale = offset, scale
        self.sides = (min(shape[1], LARGEST), min(shape[2], LARGEST)) if len(shape) == 3 else None

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        x = to_model(x.float(), self)
        return (x if self.sides is None else F.adaptive_avg_pool2d(x, self.sides)).flatten(1), None


class Penultimate(nn.Module):
    """Return features [B, d] and logits [B, k] of a classifier.

    The features are the inputs of its last layer; for images, they are averaged over the positions.
    """

    def __init__(self, net: nn.Module, offset: Units, scale: Units) -> None:
        super().__init__()
        *body, self.head = copy.deepcopy(net).children()  # a copy, so that moving this does not move the classifier
        self.body = nn.Sequential(*body)
        self.maps = 0  # number of channels before the last layer; 0: no image
        if any(isinstance(layer, nn.Flatten) for layer in body):
            self.maps = next(layer.out_channels for layer in reversed(body) if isinstance(layer, nn.Conv2d))
        self.offset, self.scale = offset, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.body(to_model(x.float(), self))
        features = seen.reshape(len(seen), self.maps, -1).mean(2) if self.maps else seen
        return features, self.head(seen)


class InModelUnits(nn.Module):
    """Wrap a user's module: convert samples to the units of the nets, which the module takes like a discriminator.

    The module returns features, or a tuple of features and logits.
    """

    def __init__(self, net: nn.Module, offset: Units, scale: Units) -> None:
        super().__init__()
        self.net, self.offset, self.scale = net, offset, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        output = self.net(to_model(x.float(), self))
        features, logits = output if isinstance(output, tuple) else (output, None)
        return features.flatten(1), logits


def choose(dataset: Dataset) -> str:
    """Return the name of the default network: Inception if it fits and is on this machine, otherwise `cheap`."""
    from ganherd.features import inception

    if dataset.is_image and dataset.shape[0] == 3 and min(dataset.shape[1:]) >= SMALLEST and inception.find():
        return "inception"
    return cheap(dataset)


def cheap(dataset: Dataset) -> str:
    """Return the name of the network for this data that takes only seconds on any machine."""
    return "classifier" if dataset.is_image and len(dataset.labels) >= 2 else "pixels"


def known_as(name: str, dataset: Dataset) -> str | None:
    """Return which of NAMES a recorded score was measured with; None if it is none of them or not available here.

    Args:
        name: `Network.name` from a file. It is only compared, never used as a path or as code, so it may be a
            stranger's.
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
    """Load and return a feature network.

    Args:
        wanted: One of NAMES, the path of a file (.pt: a TorchScript that is used like inception; .npz: the weights of
            lipizzaner-mnist), or a user's `package.module:Class`. `FILE.pt#sha256=…` states the digest it must have.
        head: An .npz with a linear classifier of Inception's features.
        trust_code: Whether the user trusts the TorchScript or the class.

    Raises:
        UserError: There is no such network, or it is not trusted.
        MetricSkipped: The network is not available here, or not for this data.
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
    """Return Inception, or the user's TorchScript that replaces it; raise `MetricSkipped` for data it cannot take."""
    from ganherd.features import inception

    # if the file is missing, `inception.load` reports that instead
    if (not dataset.is_image or dataset.shape[0] not in (1, 3)) and (path is None or path.is_file()):
        raise MetricSkipped("the network inception looks at grey or RGB images, and this is other data")
    module, name, digest = inception.load(path, head, stated, trust_code)
    resizing = inception.RESIZING + (", grey repeated to RGB" if dataset.shape[0] == 1 else "")
    batch = 250 if torch.cuda.is_available() else 32
    return Network(name, module, resizing, digest, batch, heavy=True, as_inception=True)


def _lipizzaner(path: Path | None, dataset: Dataset) -> Network:
    """Return the small MNIST network of the cellular papers; raise `MetricSkipped` for data of another shape."""
    from ganherd.features import lipizzaner

    if tuple(dataset.shape) != (1, 28, 28) and (path is None or path.is_file()):
        raise MetricSkipped("the network lipizzaner-mnist looks at grey images of 28 × 28, and this is other data")
    module, digest = lipizzaner.load(path)
    return Network("lipizzaner-mnist", module, lipizzaner.RESIZING, digest)


def _classifier(dataset: Dataset, progress: Progress | None) -> Network:
    """Return the classifier of the data as a network, whose features are the inputs of its last layer."""
    from ganherd.features.classifier import classifier_for

    if len(dataset.labels) < 2:
        raise MetricSkipped("the network classifier is trained on the data's labels, and there are none to tell apart")
    judge = classifier_for(dataset, progress=progress)
    module = Penultimate(judge.net, judge.offset, judge.scale)
    return Network(
        f"classifier ({judge.name})",
        module,
        judge.resizing,
        _digest(judge.net),
        held_out_accuracy=judge.held_out_accuracy,
        held_out_classes=judge.held_out_classes,
    )


def _pixels(dataset: Dataset) -> Network:
    """Return the network whose features are the samples themselves: pixels, coordinates or standardised columns."""
    module = Pixels(dataset.shape, dataset.offset, dataset.scale)
    if module.sides is None:
        return Network("coordinates" if dataset.kind == "points" else "columns", module, "none", None)
    down = module.sides != tuple(dataset.shape[1:])
    return Network("pixels", module, f"averaged down to {' × '.join(map(str, module.sides))}" if down else "none", None)


def _own(name: str, dataset: Dataset, trust_code: bool) -> Network:
    """Return a network that wraps the user's class `package.module:Class`; its features are never cached."""
    from ganherd import nets
    from ganherd.recipe import schema

    try:  # the class is built like a discriminator: it may take the shape and the number of classes
        net = schema.NetConfig(name=name)
        module = nets.build_discriminator(net, dataset.shape, len(dataset.labels), trust_code=trust_code)
    except UserError as error:
        raise UserError(str(error).replace("the discriminator", "the network", 1)) from error
    return Network(name, InModelUnits(module.eval(), dataset.offset, dataset.scale), "as the network does it", None)


def _digest(module: nn.Module) -> str:
    """Return the sha256 of the names, shapes and values of a module's weights and buffers."""
    total = hashlib.sha256()
    for name, value in module.state_dict().items():
        total.update(f"{name}{tuple(value.shape)}".encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()
