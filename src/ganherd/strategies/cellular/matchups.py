"""Choose the opponents that members meet at each batch of an iteration, in storage that the training step reads.

With selection, a member meets its own partner, or, if a cell trains several nets, a random winner of its cell
(`opponents: winners`); always its own partner (`partner`); or a random individual of the whole neighbourhood
(`neighbourhood`), as without selection. Its own partner is the net in training; all others are frozen as they were when the
iteration began.
"""

from __future__ import annotations

import numpy as np
import torch

from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.step.opponents import FrozenOpponents, opponent_tensors
from ganherd.strategies.cellular.cells import Cells, Wiring, valid_first
from ganherd.strategies.cellular.individuals import KINDS, GatheredIndividuals, finite_nets
from ganherd.strategies.member_ranks import MemberRanks


class Matchups:
    """Fill the table of opponents for each iteration. Its storage never moves, so that a captured step can read it."""

    def __init__(
        self,
        herd: StackedHerd,
        gathered: GatheredIndividuals,
        cells: Cells,
        ranks: MemberRanks,
        *,
        opponents: str,
        widest: int,
    ) -> None:
        """Allocate the storage of opponents.

        Args:
            herd: The herd of this rank.
            gathered: The snapshot of the neighbourhoods.
            cells: The cells of this rank.
            ranks: The ranks with members.
            opponents: winners, partner or neighbourhood, as in the recipe; without selection, neighbourhood.
            widest: The number of cells in the largest neighbourhood of all iterations.
        """
        self._herd, self._gathered, self._cells, self._rank = herd, gathered, cells, ranks.comm.rank
        self._winners = opponents == "winners"
        self.rivals: FrozenOpponents | None = None
        n, device = len(cells.own), herd.device
        if opponents == "partner" or (self._winners and cells.rows == 1):
            return
        width = cells.rows if self._winners else cells.population * widest
        frozen = {name: value.to(device) for name, value in opponent_tensors(gathered.local).items()}
        if self._winners:  # Opponents are winners, which differ from the gathered individuals.
            frozen = {name: value.clone() for name, value in frozen.items()}
        elif ranks.comm.world_size > 1:  # Reserve room for all individuals that this rank's cells can meet.
            most = min(ranks.placement.num_members, n * width)
            frozen = {name: value.new_zeros(most, *value.shape[1:]) for name, value in frozen.items()}
        table = torch.zeros(n, width, dtype=torch.int64, device=device)
        self.rivals = FrozenOpponents(frozen, table, torch.ones(n, dtype=torch.int64, device=device))

    def set(self, wiring: Wiring, won: np.ndarray) -> None:
        """Set the opponents of the iteration that begins or is resumed.

        Args:
            wiring: The neighbourhoods of the iteration.
            won: int64 [n, 2], the members that the rank's generators and discriminators are copies of.
        """
        if self.rivals is None:
            return
        finite = {kind: finite_nets(self._herd, self._gathered.all, kind) for kind in KINDS}
        if self._winners:
            p = self._cells.rows
            rows = np.searchsorted(np.array(wiring.wanted[self._rank]), won)  # [n, 2] of the snapshot
            for number, kind in enumerate(KINDS):
                self._freeze(kind, rows[:, number])
            first = np.repeat(self._cells.first, p)[:, None]
            table = first + (np.arange(len(rows))[:, None] - first + np.arange(p)) % p  # itself, then the others
            valid = (finite["g"][rows[:, 0]] & finite["d"][rows[:, 1]])[table]
        else:
            for kind in KINDS:
                self._freeze(kind, np.arange(len(wiring.wanted[self._rank])))
            table = wiring.members
            valid = np.repeat(wiring.real, self._cells.rows, 0) & (finite["g"] & finite["d"])[table]
        table, count = valid_first(table, valid)
        self.rivals.table[:, : table.shape[1]] = torch.from_numpy(table).to(self.rivals.table.device)
        self.rivals.count.copy_(torch.from_numpy(count))

    def _freeze(self, kind: str, rows: np.ndarray) -> None:
        """Copy these rows of the snapshot into the storage of opponents."""
        assert self.rivals is not None
        for name, value in self.rivals.frozen.items():
            source = self._gathered.all[name]
            if name.startswith(kind) and value.data_ptr() != source.data_ptr():  # They may share storage.
                value[: len(rows)].copy_(source[torch.from_numpy(rows).to(source.device)])
