"""Replica communication: members train on their own, but for some layers that are averaged over all of them now and then.

At a meeting every shared layer of every member becomes the mean of all members' own, within a replica (and, of a generator,
within a breed). So do Adam's moments of it and the running average of the generator: momentum that each kept for itself
would pull the layer apart again, to where it came from. Adam's counts and all buffers stay: batch norm's statistics are of
a member's own images, and the direction of a spectral norm follows its weight by itself. A member that is not finite
neither gives nor takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.herd.breeds import Breeds
from ganherd.herd.engine.engines import Herd
from ganherd.herd.state import ROWS, Blueprint, finite
from ganherd.recipe.base import nearest
from ganherd.recipe.strategy_config import ShareConfig as Settings
from ganherd.strategies.strategy import Event, Strategy
from ganherd.util.errors import UserError

_MOST_NAMES = 12  # in a sentence


@dataclass(frozen=True)
class SharedLayers:
    """Layers of one kind of net, and the slots of a replica that have them in common."""

    kind: str  # g, d
    columns: tuple[slice, ...]  # where they lie in a member's row
    slots: range


def columns(net: Blueprint, layers: Sequence[str]) -> tuple[slice, ...]:
    """Where the parameters of these names, or below them, lie in a row [P]; neighbours are one slice.

    >>> from torch import nn
    >>> net = Blueprint(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    >>> columns(net, ["0"]), columns(net, ["0.bias", "2.weight", "1"])
    ((slice(0, 9, None),), (slice(6, 12, None),))
    """
    wanted = {
        kept
        for name, kept in net.kept.items()
        if any(name == layer or name.startswith(f"{layer}.") for layer in layers)
    }
    found: list[slice] = []
    start = 0
    for name, size in zip(net.shapes, net.sizes, strict=True):
        if name in wanted:
            begin = found.pop().start if found and found[-1].stop == start else start
            found.append(slice(begin, start + size))
        start += size
    return tuple(found)


def shared_parts(settings: Settings, breeds: Breeds, d: Blueprint, members: int) -> list[SharedLayers]:
    """What the recipe's members share; a UserError where it names a layer that no net has."""
    kinds = {"generator": [breed.g for breed in breeds.all], "discriminator": [d]}
    for role, nets in kinds.items():
        for layer in getattr(settings, role):
            if not any(columns(net, [layer]) for net in nets):
                raise UserError(_unknown(role, nets, layer))
    if settings.layers and members < 2:
        raise UserError("strategy.share averages layers over members, and this herd has one: leave it out.")
    parts = [SharedLayers("g", columns(breed.g, settings.generator), breed.slots) for breed in breeds.all]
    return [
        part for part in (*parts, SharedLayers("d", columns(d, settings.discriminator), range(members))) if part.columns
    ]


def _unknown(role: str, nets: Sequence[Blueprint], layer: str) -> str:
    names = list(dict.fromkeys(name for net in nets for name in net.shapes))
    owners = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    above = [owner.rsplit(".", n)[0] for owner in owners for n in range(owner.count(".") + 1)]
    near = nearest(layer, dict.fromkeys([*owners, *above, *names])).removeprefix("; ")
    shown = ", ".join(owners[:_MOST_NAMES]) + (", …" if len(owners) > _MOST_NAMES else "")
    return f"strategy.share.{role} names {layer!r}, and the {role} has no such layer: {near or f'it has {shown}.'}"


class Share(Strategy):
    """Averages at `every`, 2 · `every`, … steps. It remembers nothing, so a resumed run goes on as it is."""

    def __init__(
        self,
        herd: Herd,
        settings: Settings,
        spans: Mapping[str, int],
        *,
        comm: Communicator,
        placement: Placement,
        members: int,
    ) -> None:
        super().__init__()
        self.herd, self.comm, self.placement, self.members = herd, comm, placement, members
        self.every = spans["every"]
        self.parts = shared_parts(settings, herd.breeds, herd.d, members)

    def next_after(self, step: int) -> int | None:
        return (step // self.every + 1) * self.every if self.every else None

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        well = self.comm.all_gather(finite(self.herd.state).cpu().numpy(), self.placement)  # [N]
        for part in self.parts:
            self._average(part, well)
        facts: dict[str, Any] = {"number": step // self.every}
        if unwell := np.flatnonzero(~well).tolist():
            facts["unwell"] = unwell
        yield "share", facts

    def _average(self, part: SharedLayers, well: np.ndarray) -> None:
        """The same sum in the same order on every rank that has a member of the group, so ranks do not matter."""
        replicas = range(0, self.placement.num_members, self.members)
        groups = [[first + slot for slot in part.slots if well[first + slot]] for first in replicas]
        wanted = [[m for group in groups if set(group) & set(own) for m in group] for own in self.placement.ranks]
        own, state = self.placement.ranks[self.comm.rank], self.herd.state
        mine = [group for group in groups if set(group) & set(own)]
        for name in (f"{part.kind}.{what}" for what in ROWS if f"{part.kind}.{what}" in state):
            for where in part.columns:  # one after another: what is fetched is as large as the layers of all members
                layers = state[name][:, where]  # [n, P] the same storage
                found = self.comm.fetch({name: layers}, self.placement, wanted)[name]
                for group, theirs in zip(mine, found.split([len(group) for group in mine]), strict=True):
                    rows = torch.tensor([row for row, m in enumerate(own) if m in group], device=layers.device)
                    layers.index_copy_(0, rows, theirs.mean(0, keepdim=True).expand(len(rows), -1))
