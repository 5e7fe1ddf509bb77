"""The files of a mixture: JSON that is checked key by key, tensors that must fit, and nothing that could be executed."""

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
from ganherd.util.errors import UserError

JSON, TENSORS = "mixture.json", "generators.safetensors"
_Weight = Annotated[float, Field(ge=0)]


class NeighbourhoodWinner(BaseModel):
    """The member that a contest found to be the best of its run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    member: Annotated[int, Field(ge=0)]
    replica: Annotated[int, Field(ge=0)] = 0
    by: Literal["gam2"] = "gam2"
    value: float  # what it had


class Neighbourhood(BaseModel):
    """Members of one replica that are a mixture together, as a cell and its neighbours, and how far that is from the data."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    replica: Annotated[int, Field(ge=0)] = 0
    cell: Annotated[int, Field(ge=0)]
    members: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    weights: list[_Weight]
    fid: float | None = None  # none: not a number
    tvd: float | None = None  # none: the network tells no classes
    kid: float | None = None  # none: nothing was chosen by it
    value: float | None = None  # by the score that they were judged by, where that is none of these


class Neighbourhoods(BaseModel):
    """All mixtures of a grid, and how they were judged; those of the best cell are the weights of the whole."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    by: Annotated[str, Field(max_length=200)]  # what the best was chosen by: a score, or a user's function by its name
    network: str
    samples: Annotated[int, Field(ge=1, le=1 << 53)]  # of each generator
    best: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]  # the cell, in each replica
    all: Annotated[list[Neighbourhood], Field(min_length=1)]
    # in each replica, whose generators these are, counted from 0; none: the last
    iteration: list[Annotated[int, Field(ge=0, le=1 << 53)]] | None = None

    def judged(self, one: Neighbourhood) -> float | None:
        """What it has of the score that the best was chosen by."""
        return getattr(one, self.by) if self.by in FIELDS else one.value

    def of(self, replica: int, cell: int) -> Neighbourhood:
        return next(one for one in self.all if (one.replica, one.cell) == (replica, cell))

    @property
    def cells(self) -> int:
        return len({one.cell for one in self.all})

    def refuse_misfits(self, members: int, replicas: int) -> None:
        """A ValueError, where they are not those of such a herd."""
        cells = range(self.cells)
        if [(one.replica, one.cell) for one in self.all] != [(r, c) for r in range(replicas) for c in cells]:
            raise ValueError("neighbourhoods must be one for each cell of each replica, in their order")
        if len(self.best) != replicas or max(self.best) >= self.cells:
            raise ValueError("neighbourhoods.best must be a cell for each replica")
        for one in self.all:
            if (
                len(one.weights) != len(one.members)
                or not 0 < sum(one.weights) < math.inf
                or max(one.members) >= members
            ):
                raise ValueError(f"neighbourhood {one.cell} needs members that are there, and a weight for each")


class MixtureFacts(BaseModel):
    """All that mixture.json says."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    format: Literal[1] = 1
    labels: list[str]
    shape: list[Annotated[int, Field(ge=1, le=1 << 20)]]
    offset: float
    scale: Annotated[float, Field(gt=0)]
    latent: Annotated[int, Field(ge=1, le=1 << 20)]
    prior: Prior | Annotated[list[Prior], Field(min_length=1)]  # of all members, or of each
    generator: NetConfig
    breeds: list[BreedConfig] = []  # members with different generators, in this order; none: all have the one above
    label_of: Annotated[list[Annotated[int, Field(ge=-1)]], Field(min_length=1)]
    weights: list[_Weight] | list[list[_Weight]]  # of all replicas, or of each
    label_weights: list[_Weight]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
    step: Annotated[int, Field(ge=0, le=1 << 53)]
    winner: NeighbourhoodWinner | None = None
    neighbourhoods: Neighbourhoods | None = None
    streams: Literal[1, 2] = (
        1  # the version that samples are drawn from; mixtures from before there were versions have the first
    )
    sha256: str = ""

    @model_validator(mode="after")
    def _fits(self) -> MixtureFacts:
        if len(self.shape) not in (1, 3):
            raise ValueError("shape is neither that of images nor that of points")
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
            raise ValueError("breeds must have as many members as there are")
        best = self.winner
        if best and (best.member >= len(self.label_of) or best.replica >= len(self.seeds)):
            raise ValueError("winner names a member that is not there")
        return self


def write(folder: Path, facts: MixtureFacts, tensors: dict[str, Tensor]) -> None:
    """Both files, each written aside and then renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    content = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
    facts = facts.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    files.atomic_write(folder / TENSORS, content, sync=False)
    files.atomic_write(folder / JSON, facts.model_dump_json(indent=1).encode(), sync=False)


def mark(folder: Path, winner: NeighbourhoodWinner | None) -> None:
    """Writes down which member won; nothing else of the mixture changes."""
    facts = MixtureFacts.model_validate(read_facts(folder).model_dump() | {"winner": winner})
    files.atomic_write(folder / JSON, facts.model_dump_json(indent=1).encode(), sync=False)


def read_facts(folder: Path) -> MixtureFacts:
    """What mixture.json says, checked."""
    try:
        return MixtureFacts.model_validate_json(files.read(folder / JSON, files.MOST_JSON))
    except OSError as error:
        raise UserError(f"the mixture in {folder} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{folder / JSON} is not what ganherd writes: {where}{': ' * bool(where)}{first['msg']}."
        ) from None


def read_tensors(folder: Path, sha256: str, check: Callable[[dict[str, Tensor]], None]) -> dict[str, Tensor]:
    """Return the generators' tensors; `check` is given their declared shapes before any number is read."""
    try:
        return tensor_file.read(folder / TENSORS, sha256, check)
    except OSError as error:
        raise UserError(f"the mixture in {folder} cannot be read: {error.strerror}.") from error
    except tensor_file.TensorMismatch as error:
        raise UserError(f"{folder / TENSORS} {error}.") from None


def refuse_misfits(module: nn.Module, tensors: dict[str, Tensor], rows: int, folder: Path) -> None:
    """Every parameter and buffer of the module, and nothing else, must be there for every row."""
    own: dict[str, Tensor] = {f"params/{name}": value for name, value in module.named_parameters()}
    own |= {f"buffers/{name}": value for name, value in module.named_buffers()}
    floats = {value.dtype for value in tensors.values() if value.is_floating_point()}
    for name in sorted({*own, *tensors}):
        if name not in own or name not in tensors:
            raise UserError(f"{folder / TENSORS} and its net do not fit: {name} is only in one of them.")
        if tuple(tensors[name].shape) != (rows, *own[name].shape):
            raise UserError(f"{folder / TENSORS} and its net do not fit: {name} has another shape.")
        if tensors[name].is_floating_point() != own[name].is_floating_point() or len(floats) > 1:
            raise UserError(f"{folder / TENSORS} and its net do not fit: {name} has another type.")
