"""Recover only the lost members if members never meet: all others stay where they are and repeat no step.

Ranks notice a loss when they wait for each other: in the middle of a stop, some of them one stop ahead of the others. So each
rank saves a mark when it arrives at a stop, before anything is done there. After a loss all ranks go to the newest of these stops:
a rank that is one stop behind trains on to it, and a rank in the middle of it goes back to its mark, which repeats no step. The
lost members are trained to that stop from copies or a checkpoint (`catch_up.py`). Then all ranks do what is due there. A record
that was written there before the loss is cut off and written again, with the numbers of all members.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ganherd.comm.buddies import Buddies, empty_rows, row_layout
from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.ranks import Ranks
from ganherd.herd.state import State
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.models import TrainerState
from ganherd.util.files import JsonObject

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer

_SUMS = "tally.sums"  # [n, 4] of the steps since the last record


@dataclass
class ArrivalMark:
    """A copy of everything that may change during a stop, made on arrival. Members that are repaired are added by `save_row`."""

    step: int
    arrived: bool  # False: the loop begins here, and nothing is due
    small: State  # [n, …] the tensors of this rank's members that are not the herd's
    facts: JsonObject  # what state.json would hold; `bytes` is empty if only the first rank knows it
    repaired: dict[int, State] = field(default_factory=dict)  # row -> as it was

    @classmethod
    def of(cls, trainer: Trainer, arrived: bool = True) -> ArrivalMark:
        state = trainer.state
        small = {**state.member_tensors(), _SUMS: state.tally.sums.T}
        facts = {**state.common_facts(trainer.seconds), "saved": state.saved, "bytes": trainer.sync.ends}
        return cls(trainer.step, arrived, {name: value.cpu().clone() for name, value in small.items()}, facts)

    def save_row(self, row: int, state: State) -> None:
        """Copy a row of the herd's state before a repair changes it."""
        self.repaired.setdefault(row, {name: value[row].cpu().clone() for name, value in state.items()})


@dataclass(frozen=True)
class Hold:
    """Copies of members in the host's memory, in the state of their arrival at a step."""

    step: int
    members: tuple[int, ...]
    rows: State  # [n, …]
    facts: JsonObject

    @classmethod
    def of(cls, trainer: Trainer, mark: ArrivalMark) -> Hold:
        rows = {name: value.detach().to("cpu", copy=True) for name, value in trainer.herd.state.items()}
        for row, before in mark.repaired.items():
            for name, value in before.items():
                rows[name][row] = value
        return cls(mark.step, tuple(trainer.prepared.own), {**rows, **mark.small}, mark.facts)


@dataclass(frozen=True)
class LostMembers:
    """Members of a lost rank that this rank gets. Their newest state is of an earlier step: they have to catch up."""

    members: tuple[int, ...]
    step: int  # of their newest state
    source: str  # of that state: "memory" or "checkpoint"
    copies: checkpoint.Checkpoint | None  # their state on arrival at the step; None: it is read from the checkpoint
    on_all_ranks: frozenset[int]  # all members that were lost, whichever rank gets them


class SoloRecovery:
    """Hold copies of a rank's members from a loss until all members have continued on some rank."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []  # all of the same step; they may have members in common
        self.step: int | None = None  # at which all continue; None: all go back together
        self._facts: JsonObject = {}
        self.lost: LostMembers | None = None  # the members that this rank has to train to that step

    def position(self, mark: ArrivalMark | None) -> JsonObject | None:
        """Return what this rank reports to the others after a loss: its step, and what it knows of the run there."""
        if mark is not None:
            return {"step": mark.step, "arrived": mark.arrived, "facts": mark.facts}
        return {"step": self._holds[0].step, "arrived": True, "facts": self._holds[0].facts} if self._holds else None

    def agree(
        self, positions: Sequence[JsonObject | None], trainer: Trainer | None, mark: ArrivalMark | None
    ) -> int | None:
        """Agree on the step at which all ranks continue, train to it if this rank is behind, and hold its members there.

        Returns:
            The rank that knows most of the files, of those that sent `positions`; None: all go back together, since no rank has
            reached any step yet.
        """
        there = [each for each in positions if each is not None]
        step = max((each["step"] for each in there), default=0)
        known = [each for each in there if each["step"] == step and each["arrived"] and each["facts"]["bytes"]]
        if not known:
            self.clear()
            return None
        speaker = max(known, key=lambda each: sum(each["facts"]["bytes"].values()))
        self.step, self.lost, self._facts = step, None, speaker["facts"]
        self._holds = [hold for hold in self._holds if hold.step == step]
        if trainer is not None and mark is not None:
            self._holds.append(Hold.of(trainer, _caught_up_mark(trainer, mark, step)))
        return next(rank for rank, each in enumerate(positions) if each is speaker)

    def place(
        self, job: Communicator, ranks: Ranks, buddies: Buddies, folder: RunFolder
    ) -> checkpoint.Checkpoint | None:
        """Return the members that this rank has from now on. Called by all ranks, including spares.

        Members that some rank holds are complete. The rows of the others (`lost`) are zero until they have caught up.

        Returns:
            None: all ranks take the newest checkpoint, because it is of the same step or nothing else is left.
        """
        if self.step is None:
            return None
        mine = {member: (hold, row) for hold in self._holds for row, member in enumerate(hold.members)}
        known = row_layout(self._holds[0].rows) if self._holds else None
        members, layouts = zip(
            *map(json.loads, job.all_gather_bytes(json.dumps([list(mine), known]).encode())), strict=True
        )
        holders: dict[int, int] = {}
        for rank, own in enumerate(members):
            for member in own:
                holders.setdefault(member, rank)
        lost = [member for member in range(ranks.num_members) if member not in holders]
        buddy_copies = buddies.find(job, lost)
        copied = buddy_copies.step if not buddy_copies.missing else None
        decided = json.dumps(self._source(folder, copied, bool(lost))).encode() if job.rank == 0 else None
        source, step = json.loads(job.broadcast(decided))
        if not source:
            self.clear()
            return None
        placement = Placement(tuple(tuple(m for m in own if holders[m] == rank) for rank, own in enumerate(members)))
        local = [mine[member] for member in placement.ranks[job.rank]]
        empty = empty_rows(next(each for each in layouts if each))
        rows = {name: torch.stack([hold.rows[name][row] for hold, row in local]) for name in empty} if local else empty
        held = [[member for member in own if member in holders] for own in ranks.members_by_rank]
        state = _scatter_rows(job.fetch(rows, placement, held), held[job.rank], ranks.local_members)
        sums = torch.zeros(state[_SUMS].shape[1], ranks.num_members, dtype=torch.float64)
        sums[:, list(ranks.local_members)] = state.pop(_SUMS).T
        missing = [[member for member in own if member not in holders] for own in ranks.members_by_rank]
        copies = None
        if lost and source == "memory":
            path = checkpoint.path_of(folder.checkpoints, step)
            copies = checkpoint.Checkpoint(
                path, step, buddy_copies.fetch(job, missing), TrainerState.parse(buddy_copies.facts[0])
            )
        self.lost = LostMembers(tuple(missing[job.rank]), step, source, copies, frozenset(lost))
        meta = TrainerState.parse({**self._facts, "sums": sums.tolist(), "arrived": True})
        return checkpoint.Checkpoint(checkpoint.path_of(folder.checkpoints, self.step), self.step, state, meta)

    def _source(self, folder: RunFolder, copied: int | None, any_lost: bool) -> tuple[str, int]:
        """Return the source of the lost members ("memory" or "checkpoint") and its step.

        An empty source: no rank can continue from its own members, and all take the newest checkpoint.

        Called by the first rank.
        """
        assert self.step is not None
        newest = max(saved_steps(folder.checkpoints), default=-1)
        if newest >= self.step or not folder.has_written(self._facts["bytes"]):
            return "", newest
        if not any_lost:
            return "memory", self.step
        if copied is not None and newest <= copied <= self.step:
            return "memory", copied
        return "checkpoint" if newest >= 0 else "", newest

    def hold(self, own: Sequence[int], resumed: checkpoint.Checkpoint) -> None:
        """Hold this rank's members at the step of `resumed`, for the case that another rank is lost before training starts."""
        sums = torch.tensor(resumed.meta.sums, dtype=torch.float64)[:, list(own)].T
        self._holds.append(Hold(resumed.step, tuple(own), {**resumed.state, _SUMS: sums}, self._facts))

    def clear(self) -> None:
        """Discard everything: all members are in place, or all go back together."""
        self._holds, self.step, self.lost = [], None, None


def _caught_up_mark(trainer: Trainer, mark: ArrivalMark, step: int) -> ArrivalMark:
    """Train to the step at which all ranks continue, if this rank is one stop behind, and return its mark there."""
    if mark.step == step:
        return mark
    trainer.advance_to(step)
    return ArrivalMark.of(trainer)


def _scatter_rows(state: State, members: Sequence[int], own: Sequence[int]) -> State:
    """Return a state for the members `own` that has the rows of `members` and is zero for the others."""
    out = {name: value.new_zeros(len(own), *value.shape[1:]) for name, value in state.items()}
    rows = [own.index(member) for member in members]
    for name, value in state.items():
        out[name][rows] = value
    return out
