"""The generators of a mixture: for each breed a net, and the parameters of the members that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from ganherd.nets.catalog import is_packaged
from ganherd.recipe.net_config import BreedConfig, NetConfig
from ganherd.util.errors import UserError, first_line


@dataclass(frozen=True, eq=False)
class Generators:
    """The generators of one breed."""

    net: NetConfig
    members: int  # number of members in one replica
    module: nn.Module  # a template in training mode; its weights are never used
    params: dict[str, Tensor]  # [replicas × members, …]
    buffers: dict[str, Tensor]

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return next((value.device for value in self.params.values()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the parameters."""
        return next((value.dtype for value in self.params.values()), torch.float32)

    @cached_property
    def evaluated(self) -> EvaluationCall:
        """Return the net in evaluation mode, as a function of parameters and inputs."""
        return EvaluationCall(self.module)

    def of(self, row: int) -> dict[str, Tensor]:
        """Return parameters and buffers of one generator; buffers are copies, because a forward pass may change them."""
        params = {name: value[row] for name, value in self.params.items()}
        return params | {name: value[row].clone() for name, value in self.buffers.items()}

    def of_replica(self, replica: int) -> Generators:
        """Return the generators of one replica."""
        rows = slice(replica * self.members, (replica + 1) * self.members)
        params, buffers = ({k: v[rows].clone() for k, v in each.items()} for each in (self.params, self.buffers))
        return Generators(self.net, self.members, self.module, params, buffers)

    def to(self, device: torch.device) -> Generators:
        """Return the same generators on a device."""
        params, buffers = ({k: v.to(device) for k, v in each.items()} for each in (self.params, self.buffers))
        return Generators(self.net, self.members, copy_module(self.module).to(device), params, buffers)


def with_weights(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module that has these parameters and buffers, in evaluation mode."""
    copy = copy_module(module)
    with torch.no_grad():
        for name, value in (*copy.named_parameters(), *copy.named_buffers()):
            value.data = state[name].clone()
    return copy.eval()


def tensors_of(breeds: tuple[Generators, ...]) -> dict[str, Tensor]:
    """Return all tensors under their names in the file; with several breeds, names begin with the number of the breed."""
    out: dict[str, Tensor] = {}
    for number, breed in enumerate(breeds):
        prefix = f"{number}/" if len(breeds) > 1 else ""
        out |= {f"{prefix}params/{name}": value for name, value in breed.params.items()}
        out |= {f"{prefix}buffers/{name}": value for name, value in breed.buffers.items()}
    return out


def breeds_of(
    facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path, trust_code: bool
) -> tuple[Generators, ...]:
    """Return the generators of a mixture.

    Args:
        facts: The content of mixture.json.
        tensors: The content of generators.safetensors.
        folder: The folder of both, for messages.
        trust_code: Whether nets that are not ganherd's may be built.

    Raises:
        UserError: A net is not trusted or cannot be built, or the tensors do not fit the nets.
    """
    per_breed = _tensors_by_breed(facts, tensors, folder)
    breeds = tuple(_build(breed, own_tensors, facts, folder, trust_code) for breed, own_tensors in per_breed)
    if len({takes_label(breed.module) for breed in breeds}) > 1:
        raise UserError(
            f"{folder / JSON} is not what ganherd writes: some of its generators take a label, others do not."
        )
    return breeds


def check_declared(facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse tensors that do not fit the nets, from declared shapes and without allocating: a file may claim any size.

    Nets that are not ganherd's are not checked, because they may only be built if they are trusted.
    """
    for breed, declared in _tensors_by_breed(facts, tensors, folder):
        if is_packaged(breed.generator.name):
            with _refusing(folder), torch.device("meta"):
                module = nets.build_generator(breed.generator, tuple(facts.shape), facts.latent, len(facts.labels))
                refuse_misfits(module, declared, len(facts.seeds) * breed.members, folder)


def _tensors_by_breed(
    facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path
) -> list[tuple[BreedConfig, dict[str, Tensor]]]:
    """Return the breeds of a mixture, each with its tensors."""
    breeds = facts.breeds or [BreedConfig(generator=facts.generator, members=len(facts.label_of))]
    by_number: dict[str, dict[str, Tensor]] = {str(number): {} for number in range(len(breeds))}
    for name, value in tensors.items():
        number, _, rest = name.partition("/") if len(breeds) > 1 else ("0", "/", name)
        if number not in by_number:
            raise UserError(f"{folder / TENSORS} and its nets do not fit: {name[:80]} is only in one of them.")
        by_number[number][rest] = value
    return list(zip(breeds, by_number.values(), strict=True))


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn any error of a net with impossible sizes into a UserError."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError, ArithmeticError, IndexError) as error:
        raise UserError(f"the generator that {folder} names cannot be built: {first_line(error)}.") from error


def _build(
    breed: BreedConfig, tensors: dict[str, Tensor], facts: MixtureFacts, folder: Path, trust_code: bool
) -> Generators:
    """Return the generators of one breed."""
    shape, classes, rows = tuple(facts.shape), len(facts.labels), len(facts.seeds) * breed.members

    with _refusing(folder):
        module = nets.build_generator(breed.generator, shape, facts.latent, classes, trust_code=trust_code)
    refuse_misfits(module, tensors, rows, folder)

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return Generators(breed.generator, breed.members, module, under("params/"), under("buffers/"))
