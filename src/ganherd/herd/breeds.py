"""Stack members (GANs) with different generator architectures in one state. Members with the same one are a breed.

The parameters of a generator are a row of a tensor [N, P], with P of the largest breed; the rows of other breeds are
padded with zeros that nothing reads or writes. The names of buffers contain the number of their breed. So the state is
still one dictionary of tensors [N, …], in which a member is one row of each tensor. A training step works on a
`Breed.view`: the same storage, with the names and row lengths of a herd of that breed alone. The slot of a member is
its place in its replica, i.e. in one of several copies of the herd with other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor

from ganherd.herd.state import ROWS, Blueprint, MakeNet, MemberSettings, Seat, State, new_state, take_

_BUFFERS = "g.buffers."


@dataclass(frozen=True, eq=False)
class Breed:
    """One generator architecture, and the slots of the members that have it, in each replica."""

    name: str  # the name of the net
    g: Blueprint  # the generator
    slots: range
    buffer_prefix: str = ""  # begins the names of its buffers in the state; empty if the herd has only one breed

    @property
    def infinite_buffers(self) -> set[str]:
        """Return the names of this breed's buffers in the herd's state that hold infinity on purpose, e.g. masks."""
        return {_BUFFERS + self.buffer_prefix + name for name in self.g.infinite_buffers}

    def view(self, state: State) -> State:
        """Return a state of members of this breed with the names and row lengths of a herd of this breed alone.

        The tensors share storage with `state`, the state of these members in the herd.
        """
        if not self.buffer_prefix:
            return state
        prefix, out = _BUFFERS + self.buffer_prefix, State()
        for name, value in state.items():
            if name.startswith(prefix):
                out[_BUFFERS + name.removeprefix(prefix)] = value
            elif not name.startswith(_BUFFERS):
                out[name] = value[:, : self.g.num_params] if _is_row(name) else value
        return out


class Breeds:
    """All breeds of a herd, in the order of their slots. A member's slot alone determines its breed."""

    def __init__(self, each: Sequence[tuple[str, Blueprint, int]]) -> None:
        """Take (name of the net, generator's blueprint, number of members in a replica) for each breed."""
        slots = slot_ranges([members for *_, members in each])
        self.all = tuple(
            Breed(name, g, slots[number], f"{number}." if len(each) > 1 else "")
            for number, (name, g, _) in enumerate(each)
        )
        self.row_width = max(breed.g.num_params for breed in self.all)

    def of(self, slot: int) -> Breed:
        """Return the breed of the members in a slot."""
        return next((breed for breed in self.all[:-1] if slot in breed.slots), self.all[-1])

    def blocks(self, slots: Sequence[int]) -> list[tuple[slice, Breed]]:
        """Return (slice of `slots`, breed) for each series of neighbouring members that have one breed.

        Args:
            slots: The numbers in the herd of the members, in the order of their rows.
        """
        out: list[tuple[slice, Breed]] = []
        start = 0
        for breed, members in groupby(self.of(slot) for slot in slots):
            stop = start + len(list(members))
            out.append((slice(start, stop), breed))
            start = stop
        return out

    def rows_of(self, breed: Breed, slots: Sequence[int]) -> list[int]:
        """Return which of these slots belong to a breed, as positions in `slots`."""
        return [row for row, slot in enumerate(slots) if self.of(slot) is breed]

    # -- rows under the names of their parameters -------------------------------------------------------------------

    def split_rows(self, rows: Tensor, slots: Sequence[int]) -> dict[str, Tensor]:
        """Split rows [n, row_width] of members in these slots [n] into named parameters [m, …].

        With several breeds, names are `breed_number/name`, and each tensor has only the m members of that breed.
        """
        if len(self.all) == 1:
            return self.all[0].g.views(rows)
        out: dict[str, Tensor] = {}
        for number, breed in enumerate(self.all):
            if members := self.rows_of(breed, slots):
                views = breed.g.views(rows[members][:, : breed.g.num_params])
                out.update({f"{number}/{name}": view for name, view in views.items()})
        return out

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a parameter by its name in checkpoints, or None if no parameter has that name."""
        if len(self.all) == 1:
            return self.all[0].g.shape_of(name)
        number, _, parameter = name.partition("/")
        is_breed = number.isdecimal() and int(number) < len(self.all)
        return self.all[int(number)].g.shape_of(parameter) if is_breed else None

    def join_rows(self, params: Mapping[str, Tensor], slots: Sequence[int]) -> Tensor:
        """Join named parameters to rows [n, row_width] of members in these slots [n]; the inverse of `split_rows`."""
        if len(self.all) == 1:
            return self.all[0].g.join_rows(params, slots)
        if not params:
            raise KeyError("no parameters")
        out = torch.zeros(len(slots), self.row_width, dtype=next(iter(params.values())).dtype)
        for number, breed in enumerate(self.all):
            if members := self.rows_of(breed, slots):
                of_breed = {name: params[f"{number}/{name}"] for name in breed.g.shapes}
                out[members, : breed.g.num_params] = breed.g.join_rows(of_breed, members)
        return out


def slot_ranges(members: Sequence[int]) -> list[range]:
    """Return the slots of each breed from the number of its members in a replica.

    >>> slot_ranges([2, 3])
    [range(0, 2), range(2, 5)]
    """
    return [range(start, stop) for start, stop in pairwise(accumulate(members, initial=0))]


def new_breeds(
    each: Sequence[tuple[str, MakeNet, int]],
    make_d: MakeNet,
    seats: Sequence[Seat],
    settings: MemberSettings,
    dtype: torch.dtype,
    ema: bool,
) -> tuple[Breeds, Blueprint, State]:
    """Draw the initial state of a herd with one or more breeds; see `new_state`.

    Args:
        each: (name of the net, function that builds a generator, number of members in a replica) of each breed.

    Returns:
        The breeds, the discriminator's blueprint and the stacked state.
    """
    if len(each) == 1:
        name, make_g, members = each[0]
        g, d, whole = new_state(make_g, make_d, seats, settings, dtype, ema)
        return Breeds([(name, g, members)]), d, whole
    blueprints: list[tuple[str, Blueprint, int]] = []
    of_breeds: list[tuple[list[int], Blueprint, State]] = []  # rows of the breed's members, discriminator, state
    slots = slot_ranges([members for *_, members in each])
    for (name, make_g, members), own_slots in zip(each, slots, strict=True):
        rows = [row for row, seat in enumerate(seats) if seat.slot in own_slots]
        own_settings = {key: [values[row] for row in rows] for key, values in settings.items()}
        g, d, breed_state = new_state(make_g, make_d, [seats[row] for row in rows], own_settings, dtype, ema)
        blueprints.append((name, g, members))
        of_breeds.append((rows, d, breed_state))
    breeds = Breeds(blueprints)
    state: State = {}
    for breed, (_, _, breed_state) in zip(breeds.all, of_breeds, strict=True):
        for name, value in breed_state.items():
            if name.startswith(_BUFFERS):
                name = _BUFFERS + breed.buffer_prefix + name.removeprefix(_BUFFERS)
            shape = (breeds.row_width,) if _is_row(name) else value.shape[1:]
            state.setdefault(name, torch.zeros(len(seats), *shape, dtype=value.dtype))
    for breed, (rows, _, breed_state) in zip(breeds.all, of_breeds, strict=True):
        take_(breed.view(state), breed_state, rows, range(len(rows)))
    return breeds, of_breeds[0][1], state


def _is_row(name: str) -> bool:
    """Return whether a tensor of the state, by name, has one number for each parameter of the generator: [N, P]."""
    kind, _, tensor = name.partition(".")
    return kind == "g" and tensor in ROWS
