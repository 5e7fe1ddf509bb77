"""Define the cases of the benchmarks: pairs of nets with batch size and loss, and the random images they train on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    import torch

IMAGES = 5_000  # number of random images: as many as in a class of CIFAR-10
SEVERAL = (1, 4, 10, 16, 64)  # default numbers of members for small nets on a CPU


@dataclass(frozen=True)
class Case:
    """A pair of nets, the shape of the data, and how they train; all other settings are the defaults of a recipe."""

    about: str  # description for the table
    net: str  # name of the nets of generator and discriminator
    shape: tuple[int, int, int]  # of an image
    latent: int  # number of noise values
    batch: int
    loss: str
    sizes: tuple[int, ...]  # default numbers of members on a GPU
    cpu_sizes: tuple[int, ...]  # the same on a CPU
    generator: Mapping[str, object] = field(default_factory=dict)  # settings of the generator
    discriminator: Mapping[str, object] = field(default_factory=dict)  # settings of the discriminator


def _wide(generator: int, discriminator: int, batch: int) -> Case:
    """Return the case of one residual GAN like that of SNGAN, with these numbers of channels and this batch size."""
    return Case(
        f"residual nets of one width ({generator} and {discriminator}) at 32 px, spectral norm, batch {batch}, hinge",
        "residual", (3, 32, 32), 128, batch, "hinge", (1,), (1,),
        {"width": generator, "growth": 1}, {"width": discriminator, "growth": 1, "smallest": 8, "flat_blocks": 2},
    )  # fmt: skip


CASES: dict[str, Case] = {
    "wcgan": Case(
        "W-CGAN's Tables 1 and 2 at 32 px, batch 64, weight clipping",
        "wcgan", (3, 32, 32), 100, 64, "wasserstein", (1, 10, 100), (1, 4),
    ),
    "dcgan64": Case(
        "DCGAN at 64 px (ngf 64), batch 128, non-saturating",
        "dcgan", (3, 64, 64), 100, 128, "non-saturating", (1, 8, 10, 100), (1, 2),
    ),
    "mlp": Case(
        "the MLP of the cellular paper (64-256-256-784), batch 100, non-saturating",
        "mlp", (1, 28, 28), 64, 100, "non-saturating", (1, 10, 16, 100, 256), SEVERAL,
    ),
    "residual": Case(
        "the residual nets for one class (32 px, spectral norm), batch 64, hinge",
        "residual", (3, 32, 32), 128, 64, "hinge", (1, 10, 100), (1, 2),
    ),
    "wide": _wide(256, 128, 64),
    "wide-batch": _wide(256, 128, 256),
    "wider": _wide(384, 256, 256),
    "small": Case(
        "the default's nets (8 px), batch 64, gradient penalty",
        "small", (1, 8, 8), 32, 64, "wasserstein-gp", (1, 10, 100), SEVERAL,
    ),
}  # fmt: skip
ON_GPU = ("wcgan", "dcgan64", "mlp", "residual")  # the default cases
ON_CPU = ("mlp",)


def known(name: str) -> Case:
    """Return a case by its name, or raise a `UserError`.

    >>> known("mlp").batch
    100
    """
    if name not in CASES:
        raise UserError(f"there is no benchmark of {name!r}; there are {', '.join(CASES)}.")
    return CASES[name]


def recipe_of(case: Case, members: int, source: Path | str, device: str, precision: str) -> Recipe:
    """Return the recipe that trains a case with this many members, all on the same data.

    Each step updates the discriminator once (n_critic 1); Adam has betas (0.5, 0.999), and there is no running average.

    Args:
        source: The file of the images, or the name of a data set.
    """
    settings: dict[str, Any] = {
        "data": {"source": str(source), "partition": "all", "holdout": 0.0},
        "herd": {"members": members},
        "nets": {
            "generator": {"name": case.net, **case.generator},
            "discriminator": {"name": case.net, **case.discriminator},
            "latent": case.latent,
        },
        "loss": {"name": case.loss},
        "train": {"batch": case.batch, "n_critic": 1, "precision": precision},
        "engine": {"device": device},
    }
    return recipe_file.load(settings)


@dataclass(frozen=True)
class BenchmarkRequest:
    """The options of a benchmark; None: the default of the device."""

    cases: Sequence[str] | None = None  # their names
    members: Sequence[int] | None = None  # numbers of members
    seconds: float = 1.0  # time to measure each row
    device: str = "auto"
    precision: str | None = None

    def check(self) -> None:
        """Raise a UserError for an unknown case, device or precision, before torch is loaded."""
        for name in self.cases or ():
            known(name)
        self.recipe(self.precision or "float32")

    def recipe(self, precision: str) -> Recipe:
        """Return a small recipe with the requested device and a precision; building it checks both."""
        return recipe_of(CASES["small"], 2, "random", self.device, precision)

    def with_defaults(self) -> tuple[torch.device, str, Sequence[str]]:
        """Return the device, the precision and the names of the cases, with defaults for those that were not given."""
        from ganherd.herd.engine.device import device_of

        device = device_of(self.recipe("float32"))
        gpu = device.type == "cuda"
        return device, self.precision or ("bf16" if gpu else "float32"), self.cases or (ON_GPU if gpu else ON_CPU)


def images(case: Case) -> np.ndarray:
    """Return the random images of a case, uint8 [n, C, H, W].

    >>> images(known("small")).shape
    (5000, 1, 8, 8)
    """
    return np.random.default_rng(0).integers(0, 256, (IMAGES, *case.shape), dtype=np.uint8)


@contextmanager
def as_file(case: Case) -> Iterator[Path]:
    """Write the random images of a case to a temporary .npz, and yield its path for use as the data of a recipe."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "random.npz"
        np.savez(path, x=images(case))
        yield path
