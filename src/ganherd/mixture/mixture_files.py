"""Read and write the files of a mixture: mixture.json, which is validated, and tensors, whose shapes are checked.

Nothing in these files is executed. Replicas are independent copies of the herd, trained in the same run with different
seeds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from ganherd.recipe.mixture_scores import FIELDS
from ganherd.recipe.net_config import BreedConfig, NetConfig, Prior
from ganherd.util import files, tensor_file
from ganherd.util.errors import UserError, first_invalid

JSON, TENSORS = "mixture.json", "generators.safetensors"
_Weight = Annotated[float, Field(ge=0)]


class BestMember(BaseModel):
    """The best member of a run by the metric GAM-II (generative adversarial metric)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    member: Annotated[int, Field(ge=0)]
    replica: Annotated[int, Field(ge=0)] = 0
    by: Literal["gam2"] = "gam2"
    value: float  # its score


class Neighbourhood(BaseModel):
    """The mixture of the generators of a cell and its neighbours in one replica, with its scores."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    replica: Annotated[int, Field(ge=0)] = 0
    cell: Annotated[int, Field(ge=0)]
    members: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    weights: list[_Weight]
    fid: float | None = None  # None: not a finite number
    tvd: float | None = None  # None: the network predicts no classes
    kid: float | None = None  # None: not computed
    value: float | None = None  # the score that mixtures were chosen by, if it is none of these


class Neighbourhoods(BaseModel):
    """The mixtures of all cells of a run's grids, and how they were scored.

    A grid has a mixture for each of its cells. The weights of the best of them are the weights of the run's mixture.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    by: Annotated[str, Field(max_length=200)]  # the score that the best was chosen by, or the name of a user's function
    network: str  # the network that extracted features
    samples: Annotated[int, Field(ge=1, le=1 << 53)]  # number of samples of each generator
    best: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]  # the best cell of each grid
    all: Annotated[list[Neighbourhood], Field(min_length=1)]
    # The iteration from which the generators of each grid are, counted from 0; None: from the last one.
    iteration: list[Annotated[int, Field(ge=0, le=1 << 53)]] | None = None
    # The number of grids in a replica, whose cells are numbered one grid after another: one for each class, or one in all.
    classes: Annotated[int, Field(ge=1)] = 1

    def judged(self, one: Neighbourhood) -> float | None:
        """Return the score of a cell's mixture by which the best cell was chosen (`by`); None if it is unknown."""
        return getattr(one, self.by) if self.by in FIELDS else one.value

    def of(self, replica: int, cell: int) -> Neighbourhood:
        """Return the mixture of a cell. A replica may have several grids, one for each class; cells are numbered over all."""
        return next(one for one in self.all if (one.replica, one.cell) == (replica, cell))

    @property
    def cells(self) -> int:
        """Return the number of cells in a replica, in all its grids."""
        return len({one.cell for one in self.all})

    def only_replica(self, replica: int) -> Neighbourhoods:
        """Return the mixtures of one replica alone, as replica 0."""
        own = [one.model_copy(update={"replica": 0}) for one in self.all if one.replica == replica]
        grids = slice(replica * self.classes, (replica + 1) * self.classes)
        iteration = None if self.iteration is None else self.iteration[grids]
        return self.model_copy(update={"best": self.best[grids], "all": own, "iteration": iteration})

    def best_of(self, replica: int) -> list[int]:
        """Return the best cell of each grid of a replica."""
        return self.best[replica * self.classes : (replica + 1) * self.classes]

    def refuse_misfits(self, members: int, replicas: int) -> None:
        """Raise a ValueError if these are not the mixtures of a herd with this many members and replicas."""
        cells = range(self.cells)
        if [(one.replica, one.cell) for one in self.all] != [(r, c) for r in range(replicas) for c in cells]:
            raise ValueError("neighbourhoods must be one for each cell of each replica, in their order")
        if self.cells % self.classes:
            raise ValueError("neighbourhoods.classes must be grids of equally many cells")
        grids = [number % self.classes for number in range(replicas * self.classes)]
        if [cell * self.classes // self.cells for cell in self.best] != grids:
            raise ValueError("neighbourhoods.best must be a cell for each grid of each replica")
        for one in self.all:
            if (
                len(one.weights) != len(one.members)
                or not 0 < sum(one.weights) < math.inf
                or max(one.members) >= members
            ):
                raise ValueError(f"neighbourhood {one.cell} needs members that are there, and a weight for each")


class MixtureFacts(BaseModel):
    """The content of mixture.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    format: Literal[1] = 1
    labels: list[str]
    shape: list[Annotated[int, Field(ge=1, le=1 << 20)]]
    offset: float | list[float]  # one for all values, or one for each column
    scale: Annotated[float, Field(gt=0)] | list[Annotated[float, Field(ge=0)]]
    latent: Annotated[int, Field(ge=1, le=1 << 20)]
    prior: Prior | Annotated[list[Prior], Field(min_length=1)]  # noise: one for all members, or one for each
    generator: NetConfig
    breeds: list[BreedConfig] = []  # in the order of their members; empty: all members have `generator`
    label_of: Annotated[list[Annotated[int, Field(ge=-1)]], Field(min_length=1)]
    weights: list[_Weight] | list[list[_Weight]]  # one list for all replicas, or one for each
    label_weights: list[_Weight]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
    step: Annotated[int, Field(ge=0, le=1 << 53)]
    winner: BestMember | None = None
    neighbourhoods: Neighbourhoods | None = None
    # The version of the random streams of samples; mixtures without this field have the first.
    streams: Literal[1, 2] = 1
    columns: list[str] = []  # names of the columns, if samples are rows
    plane: list[list[float]] = []  # two directions of rows, for pictures; empty for images and points
    is_part: bool = False  # whether members of weight 0 are left out even if only they have the label that is asked for
    sha256: str = ""

    @model_validator(mode="after")
    def _fits(self) -> MixtureFacts:
        """Check that the fields fit each other."""
        if len(self.shape) not in (1, 3):
            raise ValueError("shape is neither that of images nor that of points or rows")
        units = [unit for unit in (self.offset, self.scale) if isinstance(unit, list)]
        lengths = [len(self.columns) or self.shape[0], *map(len, self.plane), *map(len, units)]
        per_column = bool(self.columns or self.plane or units)
        if (per_column and any([length] != self.shape for length in lengths)) or len(self.plane) not in (0, 2):
            raise ValueError("offset, scale, columns and plane must have as many entries as there are columns")
        if max(self.label_of) >= len(self.labels):
            raise ValueError("label_of names a label that is not there")
        each = [row for row in self.weights if isinstance(row, list)]
        rows = each or [[weight for weight in self.weights if not isinstance(weight, list)]]
        if each and len(each) != len(self.seeds):
            raise ValueError("weights must be the same for all replicas, or a list for each")
        if any(len(row) != len(self.label_of) or not 0 < sum(row) < math.inf for row in rows):
            raise ValueError("weights must be one for each member, and not all zero")
        if self.neighbourhoods:
            self.neighbourhoods.refuse_misfits(len(self.label_of), len(self.seeds))
        if len(self.label_weights) != len(self.labels) or (self.labels and not 0 < sum(self.label_weights) < math.inf):
            raise ValueError("label_weights must be one for each label, and not all zero")
        if isinstance(self.prior, list) and len(self.prior) != len(self.label_of):
            raise ValueError("prior must be one for all members, or one for each")
        if self.breeds and sum(breed.members for breed in self.breeds) != len(self.label_of):
            raise ValueError("breeds must have as many members as the mixture")
        best = self.winner
        if best and (best.member >= len(self.label_of) or best.replica >= len(self.seeds)):
            raise ValueError("winner names a member that is not there")
        return self


def write(folder: Path, facts: MixtureFacts, tensors: dict[str, Tensor]) -> None:
    """Write the two files of a mixture, each atomically, with the digest of the tensors in mixture.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
    facts = facts.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    files.atomic_write(folder / TENSORS, content, sync=False)
    files.atomic_write(folder / JSON, facts.model_dump_json(indent=1).encode(), sync=False)


def set_winner(folder: Path, winner: BestMember | None) -> None:
    """Set the best member in the mixture.json of a folder, and change nothing else; None removes it."""
    facts = MixtureFacts.model_validate(read_facts(folder).model_dump() | {"winner": winner})
    files.atomic_write(folder / JSON, facts.model_dump_json(indent=1).encode(), sync=False)


def read_facts(folder: Path) -> MixtureFacts:
    """Read and validate mixture.json.

    Raises:
        UserError: It is missing or damaged.
    """
    try:
        return MixtureFacts.model_validate_json(files.read(folder / JSON, files.MOST_JSON))
    except OSError as error:
        raise UserError(f"the mixture in {folder} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise UserError(f"{folder / JSON} is not what ganherd writes: {first_invalid(error)}.") from None


def read_tensors(folder: Path, sha256: str, check: Callable[[dict[str, Tensor]], None]) -> dict[str, Tensor]:
    """Return the generators' tensors by name.

    Args:
        folder: The folder of the mixture.
        sha256: The expected digest of the file.
        check: Called with tensors of the declared shapes before any number is read; it raises an error if they are
            wrong.

    Raises:
        UserError: The file is missing or damaged.
    """
    try:
        return tensor_file.read(folder / TENSORS, sha256, check)
    except OSError as error:
        raise UserError(f"the mixture in {folder} cannot be read: {error.strerror}.") from error
    except tensor_file.TensorMismatch as error:
        raise UserError(f"{folder / TENSORS} {error}.") from None


def refuse_misfits(module: nn.Module, tensors: dict[str, Tensor], rows: int, folder: Path) -> None:
    """Raise a UserError unless the tensors are the module's parameters and buffers, stacked for `rows` generators.

    Args:
        module: The net.
        tensors: Tensors by name, each with a first axis of length `rows`.
        rows: The number of generators.
        folder: The folder of the mixture, for messages.
    """
    expected: dict[str, Tensor] = {f"params/{name}": value for name, value in module.named_parameters()}
    expected |= {f"buffers/{name}": value for name, value in module.named_buffers()}
    floats = {value.dtype for value in tensors.values() if value.is_floating_point()}
    for name in sorted({*expected, *tensors}):
        if name not in expected or name not in tensors:
            raise UserError(f"{folder / TENSORS} and its net do not fit: {name} is only in one of them.")
        if tuple(tensors[name].shape) != (rows, *expected[name].shape):
            raise UserError(f"{folder / TENSORS} and its net do not fit: {name} has another shape.")
        if tensors[name].is_floating_point() != expected[name].is_floating_point() or len(floats) > 1:
            raise UserError(f"{folder / TENSORS} and its net do not fit: {name} has another type.")
