"""The generators of a mixture: a net for each breed, and the parameters of all its members.

A breed is all members that share a generator architecture. Replicas are independent copies of the herd with other
seeds; all have the same breeds and the same number of members.
"""

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
    """The generators of one breed in all replicas: one module, and tensors with a row for each generator."""

    net: NetConfig  # the name and the settings of the net
    members: int  # number of members in one replica
    module: nn.Module  # a template in training mode; its weights are never used
    params: dict[str, Tensor]  # parameters by name, each [replicas × members, …]
    buffers: dict[str, Tensor]  # buffers by name, each [replicas × members, …]

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
        """Return the parameters and buffers of the generator in a row, by name.

        Buffers are copies, because a forward pass may change them.
        """
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
    """Return a copy of a module in evaluation mode, with copies of these parameters and buffers (by their names)."""
    copy = copy_module(module)
    with torch.no_grad():
        for name, value in (*copy.named_parameters(), *copy.named_buffers()):
            value.data = state[name].clone()
    return copy.eval()


def tensors_of(breeds: tuple[Generators, ...]) -> dict[str, Tensor]:
    """Return the tensors of all breeds under their names in the file generators.safetensors.

    If there are several breeds, names begin with the number of the breed.
    """
    out: dict[str, Tensor] = {}
    for number, breed in enumerate(breeds):
        prefix = f"{number}/" if len(breeds) > 1 else ""
        out |= {f"{prefix}params/{name}": value for name, value in breed.params.items()}
        out |= {f"{prefix}buffers/{name}": value for name, value in breed.buffers.items()}
    return out


def breeds_of(
    facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path, trust_code: bool
) -> tuple[Generators, ...]:
    """Build the generators of a mixture from the content of its files, and return them by breed.

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
    """Raise a UserError if the tensors that a file declares do not fit the nets of a mixture.

    Nets are built on the meta device, without memory, because a damaged file may declare any size. Nets that are not
    ganherd's are not checked here, because they may only be built if they are trusted.

    Args:
        facts: The content of mixture.json.
        tensors: Tensors of the declared shapes, without values.
        folder: The folder of the files, for messages.
    """
    for breed, declared in _tensors_by_breed(facts, tensors, folder):
        if is_packaged(breed.generator.name):
            with _refusing(folder), torch.device("meta"):
                module = nets.build_generator(breed.generator, tuple(facts.shape), facts.latent, len(facts.labels))
                refuse_misfits(module, declared, len(facts.seeds) * breed.members, folder)


def _tensors_by_breed(
    facts: MixtureFacts, tensors: dict[str, Tensor], folder: Path
) -> list[tuple[BreedConfig, dict[str, Tensor]]]:
    """Return the breeds of a mixture, each with its tensors under their names within the breed."""
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
    """Turn the errors that a net with impossible sizes raises into a UserError that names the folder."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError, ArithmeticError, IndexError) as error:
        raise UserError(f"the generator that {folder} names cannot be built: {first_line(error)}.") from error


def _build(
    breed: BreedConfig, tensors: dict[str, Tensor], facts: MixtureFacts, folder: Path, trust_code: bool
) -> Generators:
    """Build the net of one breed, check that the tensors fit it, and return the generators of the breed."""
    shape, classes, rows = tuple(facts.shape), len(facts.labels), len(facts.seeds) * breed.members

    with _refusing(folder):
        module = nets.build_generator(breed.generator, shape, facts.latent, classes, trust_code=trust_code)
    refuse_misfits(module, tensors, rows, folder)

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return Generators(breed.generator, breed.members, module, under("params/"), under("buffers/"))
