"""Breeds: members that share a generator architecture, and how the rows of several breeds lie in one stacked state.

All members' rows are as wide as the widest breed's, filled up with zeros that nothing ever touches; buffers have the number
of their breed in their name. So a state stays one dictionary of tensors [N, …], and a member one row of each. What a step
gets is a `Breed.view`: the same storage, under the names and with the widths of a herd of that breed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from ganherd.herd.state import ROWS, Blueprint, Seat, State, new_state, take_

_BUFFERS = "g.buffers."


@dataclass(frozen=True, eq=False)
class Breed:
    """One generator architecture, and the slots of every replica that have it."""

    name: str  # of the net
    g: Blueprint
    slots: range
    buffer_prefix: str = ""  # leads the names of its buffers; empty where the herd has no other breed

    def view(self, state: State) -> State:
        """The state of these members as a herd of this breed alone would have it; the same storage."""
        if not self.buffer_prefix:
            return state
        out: State = {}
        for name, value in state.items():
            if name.startswith(_BUFFERS):
                if name.startswith(_BUFFERS + self.buffer_prefix):
                    out[_BUFFERS + name.removeprefix(_BUFFERS + self.buffer_prefix)] = value
            else:
                out[name] = value[:, : self.g.num_params] if _is_row(name) else value
        return out


class Breeds:
    """All breeds of a herd, in the order of their slots. Which breed a member is of is told by its slot alone."""

    def __init__(self, each: Sequence[tuple[str, Blueprint, int]]) -> None:
        """(name of the net, blueprint, members of a replica) of each breed."""
        ends = [sum(members for *_, members in each[: i + 1]) for i in range(len(each))]
        self.all = tuple(
            Breed(name, g, range(end - members, end), f"{i}." if len(each) > 1 else "")
            for i, ((name, g, members), end) in enumerate(zip(each, ends, strict=True))
        )
        self.row_width = max(breed.g.num_params for breed in self.all)

    def of(self, slot: int) -> Breed:
        """The breed of the members in that slot."""
        return next((breed for breed in self.all[:-1] if slot in breed.slots), self.all[-1])

    def blocks(self, slots: Sequence[int]) -> list[tuple[slice, Breed]]:
        """Members in these slots as neighbours of one breed each."""
        out: list[tuple[slice, Breed]] = []
        first = 0
        for breed, own in groupby(self.of(slot) for slot in slots):
            out.append((slice(first, first + len(list(own))), breed))
            first = out[-1][0].stop
        return out

    def rows_of(self, breed: Breed, slots: Sequence[int]) -> list[int]:
        """Which of the members in these slots are of that breed."""
        return [row for row, slot in enumerate(slots) if self.of(slot) is breed]

    # -- rows under the names of their parameters -------------------------------------------------------------------

    def split_rows(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]:
        """Rows [n, width] as named parameters; where there are several breeds, `number/name` of that breed's members."""
        if len(self.all) == 1:
            return self.all[0].g.views(rows)
        out: dict[str, Tensor] = {}
        for number, breed in enumerate(self.all):
            if own := self.rows_of(breed, slots):
                views = breed.g.views(rows[own][:, : breed.g.num_params])
                out.update({f"{number}/{name}": view for name, view in views.items()})
        return out

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a parameter, by its name in files; None if there is none of that name."""
        if len(self.all) == 1:
            return self.all[0].g.shape_of(name)
        number, _, own = name.partition("/")
        known = number.isdecimal() and int(number) < len(self.all)
        return self.all[int(number)].g.shape_of(own) if known else None

    def join_rows(self, parts: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor:
        """The reverse of `parts`."""
        if len(self.all) == 1:
            return self.all[0].g.join_rows(parts, slots)
        if not parts:
            raise KeyError("no parameters")
        out = torch.zeros(len(slots), self.row_width, dtype=next(iter(parts.values())).dtype)
        for number, breed in enumerate(self.all):
            if own := self.rows_of(breed, slots):
                mine = {name: parts[f"{number}/{name}"] for name in breed.g.shapes}
                out[own, : breed.g.num_params] = breed.g.join_rows(mine, own)
        return out


def new_breeds(
    each: Sequence[tuple[str, Callable[[], nn.Module], int]],
    make_d: Callable[[], nn.Module],
    seats: Sequence[Seat],
    settings: Mapping[str, Sequence[float] | Sequence[int]],
    dtype: torch.dtype,
    ema: bool,
) -> tuple[Breeds, Blueprint, State]:
    """`new_state` for breeds, each (name of the net, what makes a generator, members of a replica)."""
    if len(each) == 1:
        name, make_g, members = each[0]
        g, d, whole = new_state(make_g, make_d, seats, settings, dtype, ema)
        return Breeds([(name, g, members)]), d, whole
    edges = [sum(members for *_, members in each[:i]) for i in range(len(each) + 1)]
    found = []
    for number, (name, make_g, members) in enumerate(each):
        slots = range(edges[number], edges[number + 1])
        rows = [row for row, seat in enumerate(seats) if seat.slot in slots]
        own = {key: [values[row] for row in rows] for key, values in settings.items()}
        g, d, part = new_state(make_g, make_d, [seats[row] for row in rows], own, dtype, ema)
        found.append((name, g, members, d, rows, part))
    breeds = Breeds([(name, g, members) for name, g, members, *_ in found])
    state: State = {}
    for breed, (*_, part) in zip(breeds.all, found, strict=True):
        for name, value in part.items():
            if name.startswith(_BUFFERS):
                name = _BUFFERS + breed.buffer_prefix + name.removeprefix(_BUFFERS)
            shape = (breeds.row_width,) if _is_row(name) else value.shape[1:]
            state.setdefault(name, torch.zeros(len(seats), *shape, dtype=value.dtype))
    for breed, (*_, rows, part) in zip(breeds.all, found, strict=True):
        take_(breed.view(state), part, rows, range(len(rows)))
    return breeds, found[0][3], state


def _is_row(name: str) -> bool:
    kind, _, what = name.partition(".")
    return kind == "g" and what in ROWS
