"""Take snapshots of individuals, and copy nets from a snapshot into the herd, generators and discriminators separately.

An individual is a member that its cell keeps from one iteration to the next; a cell is a group of members on one rank.
The snapshot of a rank holds its members and all individuals that its cells meet, as they were when the iteration began.
Nets of one kind are all generators (`g`) or all discriminators (`d`).
"""

from __future__ import annotations

import numpy as np
import torch

from ganherd.comm.row_messages import Fetch
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import State, finite_members
from ganherd.herd.step.opponents import opponent_tensors
from ganherd.recipe.strategy.cellular_config import CellularConfig as Settings
from ganherd.strategies.cellular.cells import Wiring
from ganherd.strategies.member_ranks import MemberRanks, Traffic

KINDS = ("g", "d")
_SNAPSHOT = "meet.kept."  # prefix of names in checkpoints


def individuals(state: State, settings: Settings) -> State:
    """Return those tensors of a herd's state that are copied with an individual; storage is shared with `state`.

    They are its nets with all their state (buffers, optimiser), its learning rates, and its loss if it was drawn at
    creation.
    """
    names = ["set.lr_g", "set.lr_d"]
    if settings.mutation.losses and settings.mutation.loss_each == "creation":
        names.append("set.loss")
    return {k: v for k, v in state.items() if k.startswith(("g.", "d.")) or k in names}


def belongs(name: str, kind: str) -> bool:
    """Return whether a tensor is copied with nets of a kind, g or d; the index of a randomly chosen loss goes with generators."""
    return name.startswith(f"{kind}.") or name == f"set.lr_{kind}" or (name == "set.loss" and kind == "g")


def finite_nets(herd: StackedHerd, state: State, kind: str) -> np.ndarray:
    """Return bool [n], True for rows of a state whose net of that kind (g or d) has only finite numbers.

    Args:
        herd: The herd, which knows the buffers that may be infinite.
        state: Tensors with one row for each of n members, under the names of the herd's state.
        kind: g or d.
    """
    nets = {name: value for name, value in state.items() if name.startswith(f"{kind}.")}
    return finite_members(nets, herd.infinite_buffers).cpu().numpy()


class GatheredIndividuals:
    """A snapshot of this rank's members and of all individuals that its cells meet, as an iteration began."""

    def __init__(self, herd: StackedHerd, settings: Settings, ranks: MemberRanks, traffic: Traffic) -> None:
        """Allocate the snapshot.

        Args:
            herd: The herd of this rank.
            settings: The recipe's settings.
            ranks: The ranks with members.
            traffic: Counts received bytes.
        """
        self._herd, self._settings, self._ranks, self._traffic = herd, settings, ranks, traffic
        self._pending: list[Fetch] = []  # transfers that `begin` started for the next `take`
        # With selection, individuals may be restored or copied, so all their tensors are stored. Without selection they
        # only serve as opponents, which need fewer tensors.
        tensors = individuals(herd.state, settings) if settings.selection else opponent_tensors(herd.state)
        self.local: State = {name: value.clone() for name, value in tensors.items()}  # [n, …] of this rank's members
        # Tensors with the rows that `Wiring.wanted` lists for this rank; in a run on one process the same as `local`.
        self.all: State = self.local

    @property
    def checkpoint_state(self) -> State:
        """Return the part of the snapshot that a checkpoint within an iteration has to hold: the rows of this rank."""
        return {_SNAPSHOT + name: value for name, value in self.local.items()}

    def take(self, wiring: Wiring, iteration: int) -> None:
        """Take the snapshot at the beginning of an iteration.

        If `begin` has started to send nets for it, wait for them; otherwise fetch the individuals of other ranks now.
        """
        self._copy_local()
        if not self._pending:
            self.fetch(wiring)
            return
        received = {name: value for fetch in self._pending for name, value in fetch.wait().items()}
        self.all, self._pending = {name: received[name] for name in self.local}, []

    def _copy_local(self) -> None:
        """Copy this rank's individuals from the herd into the snapshot."""
        for name, value in self.local.items():
            value.copy_(self._herd.state[name])

    def fetch(self, wiring: Wiring) -> None:
        """Complete the snapshot: fetch the individuals of other ranks from the snapshots that those ranks took."""
        if self._ranks.comm.world_size > 1:
            self._traffic.exchanges += 1
            self.all = self._begin_fetch(self.local, wiring).wait()

    def begin(self, kind: str, wiring: Wiring, iteration: int) -> None:
        """Start to send this rank's nets of a kind for the next `take`; call it for `g`, then for `d`.

        The nets must not change before `take`.
        """
        if self._ranks.comm.world_size > 1:
            self._traffic.exchanges += kind == KINDS[0]
            tensors = {name: self._herd.state[name] for name in self.local if belongs(name, kind)}
            self._pending.append(self._begin_fetch(tensors, wiring))
            if kind == KINDS[-1]:
                self.all = self.local  # The old neighbours are no longer needed, and the next ones need their memory.

    def poll(self) -> None:
        """Let pending transfers make progress, without waiting for them."""
        for fetch in self._pending:
            fetch.poll()

    def discard_pending(self) -> None:
        """Complete pending transfers and drop their results."""
        for fetch in self._pending:
            fetch.wait()
        self._pending = []

    def _begin_fetch(self, tensors: State, wiring: Wiring) -> Fetch:
        """Start to fetch the rows of these tensors that `Wiring.wanted` lists for each rank."""
        return self._traffic.begin_fetch(self._ranks, tensors, wiring.wanted)

    # -- into the herd ------------------------------------------------------------------------------------------------

    def clone(self, kind: str, rows: np.ndarray) -> None:
        """Overwrite the nets of one kind (g or d) of this rank's n members by copies from the snapshot.

        Args:
            kind: g or d.
            rows: int64 [n], the row of the snapshot (`all`) that each member takes its net from.
        """
        for name, value in self._tensors(kind).items():
            source = self.all[name]
            value.copy_(source[torch.from_numpy(rows).to(source.device)])

    def replace(self, kind: str, rows: np.ndarray, trained: np.ndarray) -> None:
        """Set the net of each of this rank's n members to a trained net of the herd, or to an old one of the snapshot.

        Args:
            kind: g or d.
            rows: int64 [n], the row on this rank that each member takes its net from.
            trained: bool [n], True to take the trained net of that row, False to take the old one.
        """
        stay = bool((rows == np.arange(len(rows))).all())
        if stay and trained.all():
            return
        for name, value in self._tensors(kind).items():
            index = torch.from_numpy(rows).to(value.device)
            new = value if stay else value[index]
            if not trained.all():
                is_new = torch.from_numpy(trained).to(value.device).view(-1, *(1,) * (value.dim() - 1))
                new = torch.where(is_new, new, self.local[name][index])
            value.copy_(new)

    def _tensors(self, kind: str) -> State:
        """Return the tensors of individuals of one kind in the herd's state."""
        return {k: v for k, v in individuals(self._herd.state, self._settings).items() if belongs(k, kind)}
