"""Choose the opponents that members may train against in an iteration, and store them for the training step.

The opponents of a generator are discriminators, and vice versa. The partner of a net is the other net of the same
member. The key `opponents` of the recipe chooses:

- `winners`: the partner if a cell trains one net of each kind; otherwise, at each batch, the net of a random member of
  the cell, all of which began the iteration as copies of tournament winners.
- `partner`: always the partner.
- `neighbourhood`, and every run without selection: at each batch a random individual of the whole neighbourhood.

The partner keeps training; all other opponents are frozen as they were when the iteration began.
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
    """Fill the table of possible opponents for each iteration.

    `rivals` holds the table and the frozen nets; it is None if all members train against their partners. Its tensors
    are allocated once and only written in place, so that a step captured as a CUDA graph can read them.
    """

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
            opponents: `winners`, `partner` or `neighbourhood`, as in the recipe; `neighbourhood` in runs without
                selection.
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
        """Set the opponents for an iteration that begins or is resumed.

        Args:
            wiring: The neighbourhoods of the iteration.
            won: int64 [n, 2], for this rank's n members the member that the generator was copied from, and the member
                that the discriminator was copied from.
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
        """Copy nets of one kind (g or d) from these rows of the snapshot to the first rows of the opponents."""
        assert self.rivals is not None
        for name, value in self.rivals.frozen.items():
            source = self._gathered.all[name]
            if name.startswith(kind) and value.data_ptr() != source.data_ptr():  # They may share storage.
                value[: len(rows)].copy_(source[torch.from_numpy(rows).to(source.device)])
