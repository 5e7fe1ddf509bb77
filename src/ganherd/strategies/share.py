"""Average some layers over all members, of all classes, at regular steps; otherwise members train independently.

Every shared layer becomes the mean over the members of a replica (one of several independent copies of the herd);
layers of generators over the members of a breed (members with the same generator architecture). Adam's moments of the
layer and the running average of the generator are averaged too, because different moments would pull the layers apart
again. Adam's step counts and all buffers stay: the statistics of batch norm belong to a member's own images, and the
vectors of a spectral norm adapt to the new weight. A member with non-finite state neither contributes nor changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ganherd.herd.breeds import Breeds
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import ROWS, Blueprint, finite_members
from ganherd.recipe.strategy.share_config import ShareConfig
from ganherd.recipe.strategy.strategy_settings import StrategySettings
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event, Facts, Strategy
from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd

_MOST_NAMES = 12  # most names of layers that a message lists


@dataclass(frozen=True)
class SharedLayers:
    """Layers of generators or discriminators, and the members that share them."""

    kind: str  # g or d
    columns: tuple[slice, ...]  # positions of the layers' parameters in a member's row of all parameters
    slots: range  # positions of these members in each replica


def columns(net: Blueprint, layers: Sequence[str]) -> tuple[slice, ...]:
    """Return the positions of some layers in a row [P] of all parameters of a net; adjacent ones are one slice.

    Args:
        net: The net.
        layers: Names of parameters or modules; a module stands for all parameters inside it.

    >>> from torch import nn
    >>> net = Blueprint(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    >>> columns(net, ["0"]), columns(net, ["0.bias", "2.weight", "1"])
    ((slice(0, 9, None),), (slice(6, 12, None),))
    """
    wanted = {
        kept
        for name, kept in net.canonical_names.items()
        if any(name == layer or name.startswith(f"{layer}.") for layer in layers)
    }
    slices: list[slice] = []
    start = 0
    for name, size in zip(net.shapes, net.param_sizes, strict=True):
        if name in wanted:
            begin = slices.pop().start if slices and slices[-1].stop == start else start
            slices.append(slice(begin, start + size))
        start += size
    return tuple(slices)


def shared_layers(settings: ShareConfig, breeds: Breeds, d: Blueprint, members: int) -> list[SharedLayers]:
    """Return the layers that the members of a recipe share, by kind of net and breed.

    Args:
        settings: The names of the layers.
        breeds: The generators, by architecture.
        d: The discriminator.
        members: The number of members in a replica.

    Raises:
        UserError: The settings name a layer that no net has, or there is one member only.
    """
    kinds = {"generator": [breed.g for breed in breeds.all], "discriminator": [d]}
    for role, nets in kinds.items():
        for layer in getattr(settings, role):
            if not any(columns(net, [layer]) for net in nets):
                raise UserError(_unknown(role, nets, layer))
    if settings.layers and members < 2:
        raise UserError("strategy.share averages layers over members, and this herd has one: leave it out.")
    layers = [SharedLayers("g", columns(breed.g, settings.generator), breed.slots) for breed in breeds.all]
    layers.append(SharedLayers("d", columns(d, settings.discriminator), range(members)))
    return [shared for shared in layers if shared.columns]


def _unknown(role: str, nets: Sequence[Blueprint], layer: str) -> str:
    """Return the message about a layer that none of these nets has, with the most similar name or a list of names."""
    names = list(dict.fromkeys(name for net in nets for name in net.shapes))
    owners = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    above = [owner.rsplit(".", n)[0] for owner in owners for n in range(owner.count(".") + 1)]
    near = did_you_mean(layer, dict.fromkeys([*owners, *above, *names]), "{}")
    shown = ", ".join(owners[:_MOST_NAMES]) + (", …" if len(owners) > _MOST_NAMES else "")
    return f"strategy.share.{role} names {layer!r}, and the {role} has no such layer: {near or f'it has {shown}.'}"


class Share(Strategy):
    """Average the shared layers at `every`, 2 · `every`, … steps.

    The strategy has no state, so a resumed run needs nothing restored.
    """

    @classmethod
    def check_nets(cls, settings: StrategySettings, breeds: Breeds, d: Blueprint, members: int) -> None:
        assert isinstance(settings, ShareConfig)
        shared_layers(settings, breeds, d, members)

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        settings = prepared.recipe.strategy.settings
        assert isinstance(settings, ShareConfig)
        ranks = MemberRanks.of(prepared, across_classes=True)
        return cls(prepared.herd, settings, spans, ranks) if settings.layers else Strategy()

    def __init__(self, herd: StackedHerd, settings: ShareConfig, spans: Mapping[str, int], ranks: MemberRanks) -> None:
        super().__init__()
        self.herd, self.ranks, self.every = herd, ranks, spans["every"]
        self.layers = shared_layers(settings, herd.breeds, herd.d, ranks.members)

    def next_after(self, step: int) -> int | None:
        return (step // self.every + 1) * self.every if self.every else None

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        well = self.ranks.all_gather(finite_members(self.herd.state, self.herd.infinite_buffers).cpu().numpy())  # [N]
        for shared in self.layers:
            self._average(shared, well)
        facts: Facts = {"number": step // self.every}
        if unwell := np.flatnonzero(~well).tolist():
            facts["unwell"] = unwell
        yield "share", facts

    def _average(self, shared: SharedLayers, well: np.ndarray) -> None:
        """Set some layers of this rank's members to their mean over the members that share them.

        Every rank that has one of these members computes the mean itself, in the same order, so that the result does
        not depend on the number of ranks.

        Args:
            shared: The layers.
            well: bool [N], False for members whose state is not finite; these are left out.
        """
        placement, own, state = self.ranks.placement, self.ranks.own, self.herd.state
        replicas = range(0, placement.num_members, self.ranks.members)
        groups = [[first + slot for slot in shared.slots if well[first + slot]] for first in replicas]
        wanted = [[m for group in groups if set(group) & set(each) for m in group] for each in placement.ranks]
        mine = [group for group in groups if set(group) & set(own)]
        for name in (f"{shared.kind}.{what}" for what in ROWS if f"{shared.kind}.{what}" in state):
            for where in shared.columns:  # one after another, because each fetch holds these layers of all members
                layers = state[name][:, where]  # [n, P], shares storage with the state
                rows_of_all = self.ranks.comm.fetch({name: layers}, placement, wanted)[name]
                for group, theirs in zip(mine, rows_of_all.split([len(group) for group in mine]), strict=True):
                    rows = torch.tensor([row for row, m in enumerate(own) if m in group], device=layers.device)
                    layers.index_copy_(0, rows, theirs.mean(0, keepdim=True).expand(len(rows), -1))
