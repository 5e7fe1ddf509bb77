"""Let members (GANs) train against frozen copies of other members, drawn at random from a table of opponents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State

OPPONENT_TENSORS = ("params", "buffers.")  # state tensors that an opponent needs, without the prefix `g.` or `d.`


@dataclass
class FrozenOpponents:
    """The possible opponents of a block of N members; in each update a member trains against one drawn at random.

    An opponent of a generator is a discriminator, and vice versa. Column 0 of the table stands for the member's own
    partner with its present weights (the living partner). All other columns stand for copies from the time when they
    were frozen.
    """

    frozen: State  # parameters and buffers of M frozen members, [M, …], on the device
    table: Tensor  # [N, S] the possible opponents of each member, as rows of `frozen`
    count: Tensor  # [N] the number of columns of the table that each member uses

    def of(self, members: slice) -> FrozenOpponents:
        """Return the opponents of some members of the block; the frozen copies are shared."""
        return FrozenOpponents(self.frozen, self.table[members], self.count[members])

    def freeze(self, rows: Tensor | None, state: State) -> None:
        """Overwrite the frozen copies with members of a state, in place, because captured graphs read that memory.

        Args:
            rows: The members to copy, as rows of the state; None: all.
        """
        with torch.no_grad():
            for name, value in self.frozen.items():
                value.copy_(state[name] if rows is None else state[name][rows])

    def pick_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Choose an opponent for each member by draws u [N] in [0, 1).

        Returns:
            The opponents as rows of `frozen`, [N], and whether each is the living partner, bool [N].
        """
        column = (u * self.count).long().clamp(max=self.table.shape[1] - 1)
        return self.table.gather(1, column[:, None])[:, 0], column == 0

    def pick(self, kind: str, state: State, u: Tensor) -> tuple[State, Tensor]:
        """Choose an opponent for each member, and return the opponents' parameters and buffers.

        Args:
            kind: The opponents' nets: `g` for generators, `d` for discriminators.
            state: The members' present state, from which living partners are taken.
            u: [N] draws in [0, 1).

        Returns:
            Parameters and buffers [N, …] by their names in the state, and whether each is that of a living partner,
            bool [N].
        """
        row, is_living = self.pick_rows(u)
        living = {name: value for name, value in opponent_tensors(state).items() if name.startswith(f"{kind}.")}
        return choose_members(is_living, living, {name: self.frozen[name][row] for name in living}), is_living


def choose_members(which: Tensor, first: State, second: State) -> State:
    """Return a state that takes member n from `first` if which[n] (bool [N]) is True, otherwise from `second`."""
    return {
        name: torch.where(which.view(-1, *(1,) * (value.dim() - 1)), value, second[name])
        for name, value in first.items()
    }


def opponent_tensors(state: State) -> State:
    """Return the tensors of a state that opponents need, i.e. parameters and buffers; storage is shared."""
    return {k: v for k, v in state.items() if k[:2] in ("g.", "d.") and k[2:].startswith(OPPONENT_TENSORS)}
