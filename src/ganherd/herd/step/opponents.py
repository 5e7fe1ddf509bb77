"""Opponents other than one's own partner: frozen copies of members, and which of them each member may meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ganherd.herd.state import State, buffers_of

OPPONENT_TENSORS = ("params", "buffers.")  # the parts of a net that an opponent is made of


@dataclass
class FrozenOpponents:
    """Everyone meets, at each step, one out of its row of the table, drawn from its own stream.

    Column 0 of the table is the member itself: its partner is the living one. The others are met
    as they were when they were frozen.
    """

    frozen: State  # g.params, d.params and their buffers [M, …], on the device
    table: Tensor  # [N, S] rows of `frozen`
    count: Tensor  # [N] how many columns of its row are in use

    def of(self, members: slice) -> FrozenOpponents:
        """Those of some members; the frozen ones are shared."""
        return FrozenOpponents(self.frozen, self.table[members], self.count[members])

    def freeze(self, rows: Tensor | None, state: State) -> None:
        """Copies members into the frozen storage, in place: a captured graph goes on reading it."""
        with torch.no_grad():
            for name, value in self.frozen.items():
                value.copy_(state[name] if rows is None else state[name][rows])

    def pick_rows(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """(row of `frozen` [N], whether it is the living partner [N]) for draws u [N] in [0, 1)."""
        column = (u * self.count).long().clamp(max=self.table.shape[1] - 1)
        return self.table.gather(1, column[:, None])[:, 0], column == 0

    def pick(self, kind: str, state: State, u: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The nets of that kind that are met: rows [N, P], buffers, and who of them is the living partner [N]."""
        row, living = self.pick_rows(u)

        def pick(name: str) -> Tensor:
            live = state[name]
            return torch.where(living.view(-1, *(1,) * (live.dim() - 1)), live, self.frozen[name][row])

        buffers = {name: pick(f"{kind}.buffers.{name}") for name in buffers_of(state, kind)}
        return pick(f"{kind}.params"), buffers, living


def opponent_tensors(state: State) -> State:
    """What of a state an opponent is made of; the same storage."""
    return {k: v for k, v in state.items() if k[:2] in ("g.", "d.") and k[2:].startswith(OPPONENT_TENSORS)}
