"""Which rows of members cross between ranks, and how they lie in one message for each peer: bytes, in a fixed order of names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ganherd.herd.state import State


@dataclass(frozen=True)
class Routes:
    """What one rank sends, receives and already has."""

    rank: int
    crosses: bool  # whether anything crosses anywhere: the same on every rank
    send: dict[int, list[int]]  # peer -> the rows of this rank that it wants, each once
    receive: dict[int, list[int]]  # peer -> the members that come from it, each once
    places: dict[int, tuple[list[int], list[int]]]  # source -> (places among the wanted, rows of that source)
    count: int  # of the wanted


def routes(home: Mapping[int, tuple[int, int]], wanted: Sequence[Sequence[int]], rank: int) -> Routes:
    """From where each member lives and what every rank wants; a member goes to a rank once, however often it is wanted.

    >>> home = {0: (0, 0), 1: (0, 1), 2: (1, 0)}
    >>> found = routes(home, [[2, 0, 2], [1]], rank=0)
    >>> found.send, found.receive, found.places
    ({1: [1]}, {1: [2]}, {1: ([0, 2], [0, 0]), 0: ([1], [0])})
    """
    send: dict[int, list[int]] = {}
    receive: dict[int, list[int]] = {}
    places: dict[int, tuple[list[int], list[int]]] = {}
    crosses = False
    for taker, members in enumerate(wanted):
        for member in dict.fromkeys(members):
            giver, row = home[member]
            if giver == taker:
                continue
            crosses = True
            if giver == rank:
                send.setdefault(taker, []).append(row)
            elif taker == rank:
                receive.setdefault(giver, []).append(member)
    numbers = {peer: {member: n for n, member in enumerate(members)} for peer, members in receive.items()}
    for place, member in enumerate(wanted[rank]):
        giver, row = home[member]
        at, rows = places.setdefault(giver, ([], []))
        at.append(place)
        rows.append(row if giver == rank else numbers[giver][member])
    return Routes(rank, crosses, send, receive, places, len(wanted[rank]))


@dataclass(frozen=True)
class TensorSlice:
    """One tensor of the state, less its first axis."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of a row

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The parts of a message: all rows of one name, then of the next; large numbers first, so that each lies aligned."""

    parts: tuple[TensorSlice, ...]

    @staticmethod
    def of(state: State) -> Layout:
        parts = [TensorSlice(name, value.dtype, tuple(value.shape[1:])) for name, value in state.items()]
        return Layout(tuple(sorted(parts, key=lambda part: (-part.dtype.itemsize, part.name))))

    @property
    def width(self) -> int:
        """Bytes of one member."""
        return sum(part.width for part in self.parts)

    def empty(self, rows: int, device: torch.device) -> Tensor:
        """A message of so many members, to be filled."""
        return torch.empty(rows * self.width, dtype=torch.uint8, device=device)

    def pack(self, state: State, rows: Sequence[int], device: torch.device) -> Tensor:
        """uint8 [bytes] those rows of this rank's members."""
        message = self.empty(len(rows), device)
        for part, room in zip(self.parts, self._cut(message, len(rows)), strict=True):
            room.copy_(_rows(state[part.name].detach(), rows))
        return message

    def pack_all(self, state: State, send: Mapping[int, Sequence[int]], device: torch.device) -> dict[int, Tensor]:
        """A message for each peer; those who want the same members get the same one, which lies in memory once."""
        packed = {rows: self.pack(state, rows, device) for rows in {tuple(rows) for rows in send.values()}}
        return {peer: packed[tuple(rows)] for peer, rows in send.items()}

    def own(self, state: State, routes: Routes) -> State:
        """Copies of the wanted members that live here; names in the order of `state`."""
        _, rows = routes.places.get(routes.rank, ([], []))
        return {name: _rows(value.detach(), rows) for name, value in state.items()}

    def fill(self, own: State, routes: Routes, messages: Mapping[int, Tensor]) -> State:
        """All the wanted members: those that live here, and those that came."""
        here, _ = routes.places.get(routes.rank, ([], []))
        if len(here) == routes.count:
            return own
        found = {name: value.new_empty(routes.count, *value.shape[1:]) for name, value in own.items()}
        for name, value in own.items():
            _put(found[name], here, value)
        for peer, message in messages.items():
            places, rows = routes.places[peer]
            for part, given in zip(self.parts, self._cut(message, len(routes.receive[peer])), strict=True):
                _put(found[part.name], places, _rows(given, rows))
        return found

    def _cut(self, message: Tensor, rows: int) -> list[Tensor]:
        """Views [rows, …] of the message's bytes, a tensor for each part."""
        pieces = message.split([rows * part.width for part in self.parts])
        return [piece.view(part.dtype).view(rows, *part.shape) for piece, part in zip(pieces, self.parts, strict=True)]


def _put(out: Tensor, places: Sequence[int], given: Tensor) -> None:
    out.index_copy_(0, index(places, out.device), given.to(out.device))


def _rows(value: Tensor, rows: Sequence[int]) -> Tensor:
    return value.index_select(0, index(rows, value.device))


def index(rows: Sequence[int], device: torch.device) -> Tensor:
    """int64 [n] on that device; the host does not wait until it is there, nor for what the device does before."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
