"""Whom members meet at each batch of an iteration, in storage that a step goes on reading.

With selection: the partner, or, where a cell has several individuals, one of the cell's winners at random. Without: one of
the whole neighbourhood at random. A member's own partner is the living one, all others are as the iteration found them.
"""

from __future__ import annotations

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.herd.engine.engines import Herd
from ganherd.herd.step.opponents import FrozenOpponents, opponent_tensors
from ganherd.strategies.cellular.cells import Cells, Wiring, in_front
from ganherd.strategies.cellular.individuals import KINDS, GatheredIndividuals, sound


class Matchups:
    def __init__(
        self,
        herd: Herd,
        gathered: GatheredIndividuals,
        cells: Cells,
        comm: Communicator,
        placement: Placement,
        *,
        selection: bool,
        widest: int,
    ) -> None:
        """`widest`: the largest neighbourhood, in cells, of all iterations to come."""
        self._gathered, self._cells, self._rank, self._selection = gathered, cells, comm.rank, selection
        self.rivals: FrozenOpponents | None = None
        p, n, device = cells.population, len(cells.own), herd.device
        if selection and p == 1:
            return
        width = p if selection else p * widest
        frozen = {name: value.to(device) for name, value in opponent_tensors(gathered.own).items()}
        if selection:  # winners: others than those that were gathered
            frozen = {name: value.clone() for name, value in frozen.items()}
        elif comm.size > 1:  # room for all whom this rank's cells may ever meet
            most = min(placement.size, n * width)
            frozen = {name: value.new_zeros(most, *value.shape[1:]) for name, value in frozen.items()}
        table = torch.zeros(n, width, dtype=torch.int64, device=device)
        self.rivals = FrozenOpponents(frozen, table, torch.ones(n, dtype=torch.int64, device=device))

    def set(self, wiring: Wiring, won: np.ndarray) -> None:
        """For the iteration that begins, or is gone on with; `won` [n, 2]: the members whom the rank's own are copies of."""
        if self.rivals is None:
            return
        everyone = self._gathered.all
        well = {kind: sound(everyone, kind) for kind in KINDS}  # of all that were gathered
        if self._selection:
            p = self._cells.population
            rows = np.searchsorted(np.array(wiring.wanted[self._rank]), won)  # [n, 2] of those gathered
            for number, kind in enumerate(KINDS):
                self._freeze(kind, rows[:, number])
            first = np.repeat(self._cells.first, p)[:, None]
            table = first + (np.arange(len(rows))[:, None] - first + np.arange(p)) % p  # itself, then the others
            able = (well["g"][rows[:, 0]] & well["d"][rows[:, 1]])[table]
        else:
            for kind in KINDS:
                self._freeze(kind, np.arange(len(wiring.wanted[self._rank])))
            table = wiring.members
            able = np.repeat(wiring.real, self._cells.population, 0) & (well["g"] & well["d"])[table]
        table, count = in_front(table, able)
        self.rivals.table[:, : table.shape[1]] = torch.from_numpy(table).to(self.rivals.table.device)
        self.rivals.count.copy_(torch.from_numpy(count))

    def _freeze(self, kind: str, rows: np.ndarray) -> None:
        assert self.rivals is not None
        for name, value in self.rivals.frozen.items():
            source = self._gathered.all[name]
            if name.startswith(kind) and value.data_ptr() != source.data_ptr():  # else it lies there already
                value[: len(rows)].copy_(source[torch.from_numpy(rows).to(source.device)])
