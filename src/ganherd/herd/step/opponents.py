"""Let members train against frozen copies of other members. A table lists the opponents that each member can meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State

OPPONENT_TENSORS = ("params", "buffers.")  # state tensors that an opponent needs, without the prefix `g.` or `d.`


@dataclass
class FrozenOpponents:
    """The opponents of a block of members. At each step a member meets one from its row of the table, drawn from its stream.

    Column 0 of the table is the member itself and means its partner as it is now (the living partner). All others are copies
    from the time when they were frozen.
    """

    frozen: State  # g.params, d.params and their buffers [M, …], on the device
    table: Tensor  # [N, S] rows of `frozen`
    count: Tensor  # [N] the number of columns in use

    def of(self, members: slice) -> FrozenOpponents:
        """Return the opponents of some members; the frozen copies are shared."""
        return FrozenOpponents(self.frozen, self.table[members], self.count[members])

    def freeze(self, rows: Tensor | None, state: State) -> None:
        """Copy members of a state into the frozen storage, in place because a captured graph reads that memory."""
        with torch.no_grad():
            for name, value in self.frozen.items():
                value.copy_(state[name] if rows is None else state[name][rows])

    def pick_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Choose opponents by draws u [N] in [0, 1): rows of `frozen` [N], and whether it is the living partner, bool [N]."""
        column = (u * self.count).long().clamp(max=self.table.shape[1] - 1)
        return self.table.gather(1, column[:, None])[:, 0], column == 0

    def pick(self, kind: str, state: State, u: Tensor) -> tuple[State, Tensor]:
        """Return parameters and buffers of the chosen opponents, and whether each is the living partner, bool [N].

        Args:
            kind: `g` for generators, `d` for discriminators.
            u: [N] draws in [0, 1).
        """
        row, is_living = self.pick_rows(u)
        living = {name: value for name, value in opponent_tensors(state).items() if name.startswith(f"{kind}.")}
        return choose_members(is_living, living, {name: self.frozen[name][row] for name in living}), is_living


def choose_members(which: Tensor, first: State, second: State) -> State:
    """Return a state with the members of `first` where `which`, bool [N], is True, and those of `second` elsewhere."""
    return {
        name: torch.where(which.view(-1, *(1,) * (value.dim() - 1)), value, second[name])
        for name, value in first.items()
    }


def opponent_tensors(state: State) -> State:
    """Return the tensors of a state that opponents need; storage is shared."""
    return {k: v for k, v in state.items() if k[:2] in ("g.", "d.") and k[2:].startswith(OPPONENT_TENSORS)}
