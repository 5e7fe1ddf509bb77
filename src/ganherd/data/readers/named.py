"""Read a data source: one that a recipe can name, or a file or folder, whose name or content determines its format."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from ganherd.data.arrays import RawData, tidy
from ganherd.data.readers import files_by_format
from ganherd.data.readers.class_folders import read_folder
from ganherd.data.readers.synthetic import STACKED, draw, stack
from ganherd.data.readers.tables import read_table
from ganherd.recipe import schema
from ganherd.util.errors import UserError, with_type
from ganherd.util.paths import data_home
from ganherd.util.registry import DATA_SOURCES
from ganherd.util.user_code import must_take

_HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

_WINE = (  # the names of columns are those of scikit-learn
    "alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids", "nonflavanoid_phenols",
    "proanthocyanins", "color_intensity", "hue", "od280/od315_of_diluted_wines", "proline",
)  # fmt: skip
_NUCLEI = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)  # fmt: skip
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = tuple(_HUNDRED.split())
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class NamedSource:
    """A data source that a recipe can name."""

    read: Any = None  # function of DataConfig that returns RawData; None: read the files of `places`
    about: str = ""  # one line about the data
    places: tuple[str, ...] = ()  # files or folders below the data folder, of which the first that exists is read
    is_idx: bool = False  # a folder of `places` must hold four idx files, or it is ignored
    labels: tuple[str, ...] | None = None  # names of the classes, if the files do not hold them
    made_of: str = ""  # name of the source from whose files it is made; "": it has its own
    draws_points: bool = False  # it draws data.points points, and data.holdout times as many held-out ones
    settings: type[BaseModel] | None = None  # model of `data.settings`

    @classmethod
    def adopt(cls, name: str, target: Any, *, about: str = "", settings: type[BaseModel] | None = None) -> NamedSource:
        """Check a data source that a user registers, and return its entry (see `ganherd.register.data`)."""
        must_take(f"the data source {name}", target, "settings", "folder")

        def read(config: schema.DataConfig) -> RawData:
            own = None if settings is None else settings.model_validate(config.settings)
            try:
                answer = target(own, data_home() / name.rpartition(":")[2])
            except UserError:
                raise
            except Exception as error:  # whatever a user's function raises
                raise UserError(f"the data source {name} failed: {with_type(error)}.") from error
            return _raw(name, answer)

        return cls(read, about or (inspect.getdoc(target) or "").partition("\n")[0], settings=settings)


def _raw(name: str, answer: Any) -> RawData:
    """Check what a user's data source returned, and return it as `RawData`.

    It must be (x, y, labels), or a mapping with some of the keys x, y, labels, x_test, y_test.
    """
    keys = ("x", "y", "labels", "x_test", "y_test")
    if isinstance(answer, tuple) and len(answer) == 3:
        answer = dict(zip(keys[:3], answer, strict=True))
    if not isinstance(answer, Mapping) or answer.get("x") is None or set(answer) - set(keys):
        raise UserError(
            f"the data source {name} must return (x, y, labels), or a mapping with some of {', '.join(keys)}."
        )
    arrays: Any = {key: np.asarray(answer[key]) for key in keys if key != "labels" and answer.get(key) is not None}
    labels = answer.get("labels")
    return RawData(**arrays, labels=None if labels is None else tuple(map(str, labels)))


def _of_scikit_learn(file: str) -> Path:
    """Return the path of a data file that comes with scikit-learn, without importing that package."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None  # ganherd requires it
    return Path(package.origin).parent / "datasets" / "data" / file


def _digits(settings: schema.DataConfig) -> RawData:
    """Return scikit-learn's handwritten digits. Its file is read without importing scikit-learn, which takes a second."""
    table = np.loadtxt(_of_scikit_learn("digits.csv.gz"), delimiter=",")
    x = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 0 … 16 to 0 … 255
    return RawData(x, table[:, -1].astype(int), labels=tuple("0123456789"))


def _wine(settings: schema.DataConfig) -> RawData:
    return _table_of_scikit_learn("wine_data.csv", _WINE)


def _breast_cancer(settings: schema.DataConfig) -> RawData:
    each = (form.format(name) for form in ("mean {}", "{} error", "worst {}") for name in _NUCLEI)
    return _table_of_scikit_learn("breast_cancer.csv", tuple(each))


def _table_of_scikit_learn(file: str, columns: tuple[str, ...]) -> RawData:
    """Read a CSV table of scikit-learn with these columns.

    Its first line ends with the names of the classes, and its last column holds the numbers of the classes.
    """
    path = _of_scikit_learn(file)
    with path.open(encoding="utf-8") as text:
        labels = text.readline().strip().split(",")[2:]  # after the numbers of rows and columns
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    return RawData(table[:, :-1], table[:, -1].astype(int), labels=tuple(labels), columns=columns)


def _r15(settings: schema.DataConfig) -> RawData:
    return read_table(Path(__file__).with_name("r15.txt"))  # its first lines name the source


def _stacked_mnist(settings: schema.DataConfig) -> RawData:
    return stack(tidy(read_files(STACKED, settings), "mnist"))


_SOURCES = {
    "digits": NamedSource(_digits, "1,797 handwritten digits, 8 × 8 grey, ten classes; comes with scikit-learn"),
    "wine": NamedSource(
        _wine, "178 wines from three growers, 13 chemical measurements each (UCI, CC BY 4.0); comes with scikit-learn"
    ),
    "breast_cancer": NamedSource(
        _breast_cancer,
        "569 tumours, malignant or benign, 30 measurements of cell nuclei each (UCI, CC BY 4.0); comes with scikit-learn",
    ),
    "ring8": NamedSource(
        lambda settings: draw("ring8", settings.points, settings.holdout),
        "2-D points: a ring of 8 Gaussians, radius 1, std 0.01; drawn when needed",
        draws_points=True,
    ),
    "grid25": NamedSource(
        lambda settings: draw("grid25", settings.points, settings.holdout),
        "2-D points: a 5 × 5 grid of Gaussians, two apart, std 0.05; drawn when needed",
        draws_points=True,
    ),
    "r15": NamedSource(_r15, "2-D points: 600 in 15 clusters (Veenman et al. 2002); comes with ganherd"),
    "mnist": NamedSource(
        about="70,000 handwritten digits, 28 × 28 grey, ten classes",
        places=("mnist.npz", "mnist"),
        is_idx=True,
    ),
    "fashion-mnist": NamedSource(
        about="70,000 pictures of clothes, 28 × 28 grey, ten classes",
        places=("fashion-mnist.npz", "fashion-mnist"),
        is_idx=True,
        labels=FASHION,
    ),
    STACKED: NamedSource(
        _stacked_mnist,
        "128,000 stacks of three MNIST digits, 28 × 28 RGB, a thousand modes, no labels",
        places=("mnist.npz", "mnist"),
        made_of="mnist",
    ),
    "cifar10": NamedSource(
        about="60,000 photographs, 32 × 32 RGB, ten classes",
        places=(
            "cifar10.npz",
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
        ),
        labels=CIFAR10,
    ),
    "cifar100": NamedSource(
        about="60,000 photographs, 32 × 32 RGB, a hundred classes",
        places=(
            "cifar100.npz",
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            "cifar-100-python",
            "cifar-100-python.tar.gz",
        ),
        labels=CIFAR100,
    ),
}
for _name, _source in _SOURCES.items():
    DATA_SOURCES.add(_name, _source)
DATA_SOURCES.seal()


def read_named(settings: schema.DataConfig) -> RawData:
    """Read the named data source of a recipe, and return its arrays before they are checked."""
    source = DATA_SOURCES[settings.source]
    if source.read is not None:
        raw: RawData = source.read(settings)
        return raw
    raw = read_files(settings.source, settings)
    return replace(raw, labels=raw.labels or source.labels)


def read_files(name: str, settings: schema.DataConfig) -> RawData:
    """Read the files of the data source `name`; large arrays are memory-mapped if their format allows it.

    Raises:
        UserError: The files are not on this machine, or cannot be read.
    """
    path = find(name)
    if path is None:
        raise missing(name)
    try:
        return read_path(path, settings, mapped=True)
    except files_by_format.UnreadableFile as error:
        again = f"remove it, and `ganherd data get {DATA_SOURCES[name].made_of or name}` fetches it again"
        raise UserError(f"{str(error).rstrip('.')}; {again}.") from None


def find(name: str) -> Path | None:
    """Return the file or folder of a named source in the data folder; None if it is not there or incomplete."""
    name = DATA_SOURCES[name].made_of or name
    source = DATA_SOURCES[name]
    for place in source.places:
        path = data_home() / place
        if path.is_file() or (path.is_dir() and (not source.is_idx or files_by_format.is_idx_complete(path))):
            return path
    return None


def missing(name: str) -> UserError:
    """Return an error, for the caller to raise: the files of a named source are not on this machine."""
    name = DATA_SOURCES[name].made_of or name
    places = " or ".join(str(data_home() / place) for place in DATA_SOURCES[name].places[:2])
    return UserError(f"the data {name} is not on this machine: run `ganherd data get {name}`, or put it at {places}.")


def read_path(path: Path, settings: schema.DataConfig, mapped: bool = False) -> RawData:
    """Read an .npz, .npy, idx or text file, CIFAR's archives, or a folder of images.

    Args:
        path: The file or folder.
        settings: The section `data` of the recipe.
        mapped: Map large arrays into memory instead of copying them; for files that do not change.
    """
    name = path.name.lower()
    if path.is_dir():
        if files_by_format.is_idx(path):
            return files_by_format.read_idx(path, mapped)
        return files_by_format.read_cifar(path) if files_by_format.is_cifar(path) else read_folder(path, settings)
    if not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder.")
    if name.endswith(".npz"):
        return files_by_format.read_npz(path, mapped)
    if name.endswith(".npy"):
        return files_by_format.read_npy(path)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return files_by_format.read_cifar(path)
    if name.endswith((".txt", ".csv", ".tsv")):
        return read_table(path, settings.label)
    if "idx" in name or name.endswith("ubyte"):
        return files_by_format.read_idx_images(path)
    raise UserError(
        f"{path} is no data that ganherd reads: an .npz, .npy, .parquet or .tar, a table or points in .csv or .txt, idx files, "
        "CIFAR, or a folder of images."
    )
