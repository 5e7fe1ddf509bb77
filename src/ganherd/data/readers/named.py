"""Where the named sources lie on this machine, and what to say when one does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ganherd.data.readers.files_by_format import is_idx_complete
from ganherd.util.errors import UserError
from ganherd.util.paths import data_home

_HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = tuple(_HUNDRED.split())


@dataclass(frozen=True)
class NamedSource:
    """A source that a recipe may name; `places` are looked for under the data folder, in this order."""

    about: str
    places: tuple[str, ...] = ()  # none: it needs no file
    labels: tuple[str, ...] | None = None  # names that its files may lack
    made_of: str = ""  # another source, whose files it is made of


NAMED = {
    "digits": NamedSource("1,797 handwritten digits, 8 × 8 grey, ten classes; comes with scikit-learn"),
    "ring8": NamedSource("2-D points: a ring of 8 Gaussians, radius 1, std 0.01; drawn when needed"),
    "grid25": NamedSource("2-D points: a 5 × 5 grid of Gaussians, two apart, std 0.05; drawn when needed"),
    "r15": NamedSource("2-D points: 600 in 15 clusters (Veenman et al. 2002); comes with ganherd"),
    "mnist": NamedSource("70,000 handwritten digits, 28 × 28 grey, ten classes", ("mnist.npz", "mnist")),
    "stacked-mnist": NamedSource(
        "128,000 stacks of three MNIST digits, 28 × 28 RGB, a thousand modes, no labels",
        ("mnist.npz", "mnist"),
        made_of="mnist",
    ),
    "cifar10": NamedSource(
        "60,000 photographs, 32 × 32 RGB, ten classes",
        (
            "cifar10.npz",
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
        ),
        CIFAR10,
    ),
    "cifar100": NamedSource(
        "60,000 photographs, 32 × 32 RGB, a hundred classes",
        ("cifar100.npz", "cifar-100-binary", "cifar-100-binary.tar.gz", "cifar-100-python", "cifar-100-python.tar.gz"),
        CIFAR100,
    ),
}


def find(name: str) -> Path | None:
    """Where a named source lies, or None."""
    name = NAMED[name].made_of or name
    for place in NAMED[name].places:
        path = data_home() / place
        if path.is_file() or (path.is_dir() and (name != "mnist" or is_idx_complete(path))):
            return path
    return None


def missing(name: str) -> UserError:
    name = NAMED[name].made_of or name
    places = " or ".join(str(data_home() / place) for place in NAMED[name].places[:2])
    return UserError(f"the data {name} is not on this machine: run `ganherd data get {name}`, or put it at {places}.")
