"""What an individual is, and how individuals move: copies of rows within the same storage, generators and discriminators apart."""

from __future__ import annotations

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.pending import Fetch
from ganherd.herd.engine.engines import Herd
from ganherd.herd.state import State, finite_members
from ganherd.herd.step.opponents import opponent_tensors
from ganherd.recipe.strategy.cellular_config import CellularConfig as Settings
from ganherd.strategies.cellular.cells import Wiring
from ganherd.strategies.traffic import Traffic

KINDS = ("g", "d")
_KEPT = "meet.kept."


def individuals(state: State, settings: Settings) -> State:
    """A net with all that belongs to it, its learning rate, and the loss that it was created with; the same storage."""
    names = ["set.lr_g", "set.lr_d"]
    if settings.mutation.losses and settings.mutation.loss_each == "creation":
        names.append("set.loss")
    return {k: v for k, v in state.items() if k.startswith(("g.", "d.")) or k in names}


def belongs(name: str, kind: str) -> bool:
    """Whether a part of the state is the generator's or the discriminator's; a loss that was drawn is the generator's."""
    return name.startswith(f"{kind}.") or name == f"set.lr_{kind}" or (name == "set.loss" and kind == "g")


def sound(state: State, kind: str) -> np.ndarray:
    """bool, for each row: whether all numbers of that net are finite."""
    return finite_members({k: v for k, v in state.items() if k.startswith(f"{kind}.")}).cpu().numpy()


class GatheredIndividuals:
    """Individuals as they were when an iteration began: a rank's own, and all whom its cells meet."""

    def __init__(
        self,
        herd: Herd,
        settings: Settings,
        comm: Communicator,
        placement: Placement,
        traffic: Traffic | None = None,
        members: int | None = None,
    ) -> None:
        """`traffic`: where what comes is counted. `members`: of one replica; else all are."""
        self._herd, self._settings, self._comm, self._placement = herd, settings, comm, placement
        self._traffic, self._members = traffic or Traffic(), members or placement.size
        self._coming: list[Fetch] = []  # what `open` will need, on its way since `close`
        # whoever may come back or be copied is kept whole; of those that are only met, what an opponent is made of
        parts = individuals(herd.state, settings) if settings.selection else opponent_tensors(herd.state)
        self.own: State = {name: value.clone() for name, value in parts.items()}  # [n, …]
        self.all: State = self.own  # rows as `Wiring.wanted` has them; in one process the same

    @property
    def remembered(self) -> State:
        """What a checkpoint within an iteration has to hold."""
        return {_KEPT + name: value for name, value in self.own.items()}

    def take(self, wiring: Wiring, iteration: int) -> None:
        """As they are now, when that iteration begins; those of other ranks may be on their way already."""
        self._keep_own()
        if not self._coming:
            self.fetch(wiring)
            return
        came = {name: value for each in self._coming for name, value in each.wait().items()}
        self.all, self._coming = {name: came[name] for name in self.own}, []

    def _keep_own(self) -> None:
        for name, value in self.own.items():
            value.copy_(self._herd.state[name])

    def fetch(self, wiring: Wiring) -> None:
        """Those of other ranks, from what these remember."""
        if self._comm.size > 1:
            self._traffic.exchanges += 1
            self.all = self._begin(self.own, wiring).wait()

    def begin(self, kind: str, wiring: Wiring, iteration: int) -> None:
        """Sends those nets ahead of `take` of that iteration: nothing of them may change any more; first `g`, then `d`."""
        if self._comm.size > 1:
            self._traffic.exchanges += kind == KINDS[0]
            parts = {name: self._herd.state[name] for name in self.own if belongs(name, kind)}
            self._coming.append(self._begin(parts, wiring))
            if kind == KINDS[-1]:
                self.all = self.own  # all are judged and settled, and the next ones need the room

    def push(self) -> None:
        """Moves on what is on its way."""
        for each in self._coming:
            each.push()

    def forget(self) -> None:
        """What is on its way comes, and is not needed."""
        for each in self._coming:
            each.wait()
        self._coming = []

    def _begin(self, parts: State, wiring: Wiring) -> Fetch:
        return self._traffic.begin(self._comm, self._placement, self._members, parts, wiring.wanted)

    # -- into the herd ------------------------------------------------------------------------------------------------

    def clone(self, kind: str, rows: np.ndarray) -> None:
        """Rows [n] of those gathered over the rank's own members."""
        for name, value in self._parts(kind).items():
            source = self.all[name]
            value.copy_(source[torch.from_numpy(rows).to(source.device)])

    def settle(self, kind: str, rows: np.ndarray, trained: np.ndarray) -> None:
        """Each of the rank's members becomes the one that was trained in row `rows` [n], or the old one of that row."""
        stay = bool((rows == np.arange(len(rows))).all())
        if stay and trained.all():
            return
        for name, value in self._parts(kind).items():
            index = torch.from_numpy(rows).to(value.device)
            new = value if stay else value[index]
            if not trained.all():
                is_new = torch.from_numpy(trained).to(value.device).view(-1, *(1,) * (value.dim() - 1))
                new = torch.where(is_new, new, self.own[name][index])
            value.copy_(new)

    def _parts(self, kind: str) -> State:
        return {k: v for k, v in individuals(self._herd.state, self._settings).items() if belongs(k, kind)}
