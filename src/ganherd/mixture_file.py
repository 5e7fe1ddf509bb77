"""The files of a mixture: JSON that is checked key by key, tensors that must fit, and nothing that could be executed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from torch import Tensor, nn

from ganherd.errors import UserError
from ganherd.recipe import Net

JSON, TENSORS = "mixture.json", "generators.safetensors"
_Weight = Annotated[float, Field(ge=0)]


class Winner(BaseModel):
    """The member that a contest found to be the best of its run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    member: Annotated[int, Field(ge=0)]
    replica: Annotated[int, Field(ge=0)] = 0
    by: Literal["gam2"] = "gam2"
    value: float  # what it had


class Facts(BaseModel):
    """All that mixture.json says."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    format: Literal[1] = 1
    labels: list[str]
    shape: list[Annotated[int, Field(ge=1)]]
    offset: float
    scale: Annotated[float, Field(gt=0)]
    latent: Annotated[int, Field(ge=1)]
    prior: Literal["normal", "uniform"]
    generator: Net
    label_of: Annotated[list[Annotated[int, Field(ge=-1)]], Field(min_length=1)]
    weights: list[_Weight]
    label_weights: list[_Weight]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
    step: Annotated[int, Field(ge=0)]
    winner: Winner | None = None
    sha256: str = ""

    @model_validator(mode="after")
    def _fits(self) -> Facts:
        if len(self.shape) not in (1, 3):
            raise ValueError("shape is neither that of images nor that of points")
        if max(self.label_of) >= len(self.labels):
            raise ValueError("label_of names a label that is not there")
        if len(self.weights) != len(self.label_of) or not sum(self.weights) > 0:
            raise ValueError("weights must be one for each member, and not all zero")
        if len(self.label_weights) != len(self.labels) or (self.labels and not sum(self.label_weights) > 0):
            raise ValueError("label_weights must be one for each label, and not all zero")
        best = self.winner
        if best and (best.member >= len(self.label_of) or best.replica >= len(self.seeds)):
            raise ValueError("winner names a member that is not there")
        return self


def write(folder: Path, facts: Facts, tensors: dict[str, Tensor]) -> None:
    """Both files, each written aside and then renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    content = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
    facts = facts.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    _replace(folder / TENSORS, content)
    _replace(folder / JSON, facts.model_dump_json(indent=1).encode())


def mark(folder: Path, winner: Winner | None) -> None:
    """Writes down which member won; nothing else of the mixture changes."""
    facts = Facts.model_validate(_facts(folder).model_dump() | {"winner": winner})
    _replace(folder / JSON, facts.model_dump_json(indent=1).encode())


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{path.name}.new")
    aside.unlink(missing_ok=True)  # whatever lies there, even a link: nothing is written through it
    with aside.open("xb") as handle:
        handle.write(data)
    aside.replace(path)


def _facts(folder: Path) -> Facts:
    try:
        return Facts.model_validate_json((folder / JSON).read_bytes())
    except OSError as error:
        raise UserError(f"the mixture in {folder} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{folder / JSON} is not what ganherd writes: {where}{': ' * bool(where)}{first['msg']}."
        ) from None


def read(folder: Path) -> tuple[Facts, dict[str, Tensor]]:
    facts = _facts(folder)
    try:
        content = (folder / TENSORS).read_bytes()
    except OSError as error:
        raise UserError(f"the mixture in {folder} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(content).hexdigest() != facts.sha256:
        raise UserError(f"{folder / TENSORS} is not what was written: its sha256 differs.")
    try:
        return facts, safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{folder / TENSORS} is not a safetensors file: {error}.") from None


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
