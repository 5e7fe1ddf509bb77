"""The generators of a mixture, breed by breed: a net each, and the weights of the members that share it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.herd.checks.module_copies import copy_module
from ganherd.herd.evaluation import EvaluationCall
from ganherd.herd.state import takes_label
from ganherd.mixture.mixture_files import JSON, TENSORS, MixtureFacts, refuse_misfits
from ganherd.nets.catalog import is_foreign
from ganherd.recipe.net_config import BreedConfig, NetConfig
from ganherd.util.errors import UserError, first_line


@dataclass(frozen=True, eq=False)
class Generators:
    """Members that share a net."""

    net: NetConfig
    members: int  # of one replica
    module: nn.Module  # a template as it trains: its own weights are never used
    params: dict[str, Tensor]  # [replicas × members, …]
    buffers: dict[str, Tensor]

    @property
    def device(self) -> torch.device:
        return next((value.device for value in self.params.values()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return next((value.dtype for value in self.params.values()), torch.float32)

    @cached_property
    def evaluated(self) -> EvaluationCall:
        """The net in evaluation mode."""
        return EvaluationCall(self.module)

    def of(self, row: int) -> dict[str, Tensor]:
        """Parameters and buffers of one of them; the buffers are copies, which a forward pass may change."""
        params = {name: value[row] for name, value in self.params.items()}
        return params | {name: value[row].clone() for name, value in self.buffers.items()}

    def to(self, device: torch.device) -> Generators:
        params, buffers = ({k: v.to(device) for k, v in part.items()} for part in (self.params, self.buffers))
        return Generators(self.net, self.members, copy_module(self.module).to(device), params, buffers)


def tensors_of(breeds: tuple[Generators, ...]) -> dict[str, Tensor]:
    """As they stand in a file; where there are several breeds, under the number of each."""
    out: dict[str, Tensor] = {}
    for number, breed in enumerate(breeds):
        mark = f"{number}/" if len(breeds) > 1 else ""
        out |= {f"{mark}params/{name}": value for name, value in breed.params.items()}
        out |= {f"{mark}buffers/{name}": value for name, value in breed.buffers.items()}
    return out


def breeds_of(
    facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path, trust_code: bool
) -> tuple[Generators, ...]:
    """The generators that a mixture's files hold; a net that is not ganherd's is built only if trusted."""
    found = tuple(_built(breed, part, facts, folder, trust_code) for breed, part in _each(facts, tensors, folder))
    if len({takes_label(breed.module) for breed in found}) > 1:
        raise UserError(
            f"{folder / JSON} is not what ganherd writes: some of its generators take a label, others do not."
        )
    return found


def check_declared(facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse tensors that do not fit the nets, by their shapes alone and without memory: a file may claim any size.

    Nets that are not ganherd's are left out: they may be built only if they are trusted.
    """
    for breed, part in _each(facts, tensors, folder):
        if not is_foreign(breed.generator.name):
            with _refusing(folder), torch.device("meta"):
                module = nets.build_generator(breed.generator, tuple(facts.shape), facts.latent, len(facts.labels))
                refuse_misfits(module, part, len(facts.seeds) * breed.members, folder)


def _each(facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path) -> list[tuple[BreedConfig, dict[str, Tensor]]]:
    """Return the breeds of a mixture, each with its tensors."""
    breeds = facts.breeds or [BreedConfig(generator=facts.generator, members=len(facts.label_of))]
    parts: dict[str, dict[str, Tensor]] = {str(number): {} for number in range(len(breeds))}
    for name, value in tensors.items():
        number, _, rest = name.partition("/") if len(breeds) > 1 else ("0", "/", name)
        if number not in parts:
            raise UserError(f"{folder / TENSORS} and its nets do not fit: {name[:80]} is only in one of them.")
        parts[number][rest] = value
    return list(zip(breeds, parts.values(), strict=True))


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn whatever a net with impossible sizes raises into one sentence."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError, ArithmeticError, IndexError) as error:
        raise UserError(f"the generator that {folder} names cannot be built: {first_line(error)}.") from error


def _built(
    breed: BreedConfig, tensors: dict[str, Tensor], facts: MixtureFacts, folder: Path, trust_code: bool
) -> Generators:
    shape, classes, rows = tuple(facts.shape), len(facts.labels), len(facts.seeds) * breed.members

    with _refusing(folder):
        module = nets.build_generator(breed.generator, shape, facts.latent, classes, trust_code=trust_code)
    refuse_misfits(module, tensors, rows, folder)

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return Generators(breed.generator, breed.members, module, part("params/"), part("buffers/"))
