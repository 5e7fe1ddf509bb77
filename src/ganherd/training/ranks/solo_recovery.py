"""Recover only the members of a lost rank if members never meet: all others keep their state and repeat no step.

Ranks notice that one is lost when they wait for each other. That is at a stop of the loop, when its work may be half
done, and some ranks may be one stop ahead of the others. So each rank saves a mark (`ArrivalMark`) when it arrives at a
stop, before anything is done there. After the loss all ranks go to the newest stop that any of them has reached: a rank
that is one stop behind trains on to it, and a rank in the middle of it returns to its mark, which repeats no step. The
lost members are trained to that stop from copies or a checkpoint (`catch_up.py`). Then all ranks do the work that is
due there. A record that was written there before the loss is cut off and written again, with the numbers of all
members.
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
    """A copy, made on arrival at a stop, of everything that the work at the stop may change.

    The herd's tensors only change there if a member is repaired; `save_row` then copies the member's row.
    """

    step: int
    arrived: bool  # False: the training begins at this step, and no work is due
    small: State  # [n, …] the tensors of this rank's members that are not the herd's
    facts: JsonObject  # what state.json would hold; `bytes` is empty if only the first rank knows it
    repaired: dict[int, State] = field(default_factory=dict)  # row of the herd -> its tensors before the repair

    @classmethod
    def of(cls, trainer: Trainer, arrived: bool = True) -> ArrivalMark:
        """Return a mark of a trainer's current state.

        Args:
            arrived: Whether the work that is due at its step is still to be done.
        """
        state = trainer.state
        small = {**state.member_tensors(), _SUMS: state.tally.sums.T}
        facts = {**state.common_facts(trainer.seconds), "saved": state.saved, "bytes": trainer.sync.ends}
        return cls(trainer.step, arrived, {name: value.cpu().clone() for name, value in small.items()}, facts)

    def save_row(self, row: int, state: State) -> None:
        """Copy a row of the herd's state before a repair changes it."""
        self.repaired.setdefault(row, {name: value[row].cpu().clone() for name, value in state.items()})


@dataclass(frozen=True)
class Hold:
    """Copies of members in host memory, in the state in which they arrived at a step."""

    step: int
    members: tuple[int, ...]
    rows: State  # [n, …] in the order of `members`
    facts: JsonObject  # as in `ArrivalMark`

    @classmethod
    def of(cls, trainer: Trainer, mark: ArrivalMark) -> Hold:
        """Return copies of a trainer's members as they were when `mark` was made."""
        rows = {name: value.detach().to("cpu", copy=True) for name, value in trainer.herd.state.items()}
        for row, before in mark.repaired.items():
            for name, value in before.items():
                rows[name][row] = value
        return cls(mark.step, tuple(trainer.prepared.own), {**rows, **mark.small}, mark.facts)


@dataclass(frozen=True)
class LostMembers:
    """Members of a lost rank that this rank gets.

    Their newest known state is of an earlier step, so they have to catch up.
    """

    members: tuple[int, ...]
    step: int  # of their newest known state
    source: str  # of that state: "memory" or "checkpoint"
    copies: checkpoint.Checkpoint | None  # their state on arrival at `step`; None: it is read from the checkpoint
    on_all_ranks: frozenset[int]  # all members that were lost, whichever rank gets them


class SoloRecovery:
    """Hold copies of this rank's members from the loss of a rank until training continues with all members."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []  # all of the same step; they may have members in common
        self.step: int | None = None  # the step at which all continue; None: all go back to the newest checkpoint
        self._facts: JsonObject = {}
        self.lost: LostMembers | None = None  # the lost members that this rank has to train to that step

    def position(self, mark: ArrivalMark | None) -> JsonObject | None:
        """Return what this rank reports to the others after the loss of a rank: its step, and the facts of its mark.

        None if it has not reached any step, as on a spare.
        """
        if mark is not None:
            return {"step": mark.step, "arrived": mark.arrived, "facts": mark.facts}
        return {"step": self._holds[0].step, "arrived": True, "facts": self._holds[0].facts} if self._holds else None

    def agree(
        self, positions: Sequence[JsonObject | None], trainer: Trainer | None, mark: ArrivalMark | None
    ) -> int | None:
        """Determine the step at which all ranks continue, train to it if this rank is behind, and hold its members.

        Args:
            positions: What each remaining rank returned by `position`.
            trainer: The trainer that was interrupted; None: this rank was not training.
            mark: The newest mark of this rank.

        Returns:
            The rank that knows the longest record files, of the ranks at that step. None if no rank has reached a stop
            yet; then all ranks go back to the newest checkpoint.
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
        """Send the held members to their new ranks, and return those of this rank.

        Called by all ranks, including spares.

        Members that no rank holds are set as `lost`; their rows are zero until they have caught up.

        Args:
            job: The remaining ranks.
            ranks: The new placement of all members.
            buddies: Copies of the lost members, if there are any.
            folder: The run's folder.

        Returns:
            The state of this rank's members. None if all ranks have to take the newest checkpoint instead, because it
            is of the same step or nothing else is left.
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
        """Return the source of the lost members' state ("memory" or "checkpoint") and its step.

        Called by the first rank.

        The source is empty if no rank can continue from the members that it holds: then all take the newest checkpoint.

        Args:
            copied: The step of the copies of all lost members in memory; None: some copies are missing.
            any_lost: Whether any member is lost.
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
        """Hold the members `own` as they are in `resumed`, in case that another rank is lost before training starts."""
        sums = torch.tensor(resumed.meta.sums, dtype=torch.float64)[:, list(own)].T
        self._holds.append(Hold(resumed.step, tuple(own), {**resumed.state, _SUMS: sums}, self._facts))

    def clear(self) -> None:
        """Discard everything, because all members are in place, or because all go back to the newest checkpoint."""
        self._holds, self.step, self.lost = [], None, None


def _caught_up_mark(trainer: Trainer, mark: ArrivalMark, step: int) -> ArrivalMark:
    """Train to the step at which all ranks continue, if this rank is one stop behind, and return its mark there."""
    if mark.step == step:
        return mark
    trainer.advance_to(step)
    return ArrivalMark.of(trainer)


def _scatter_rows(state: State, members: Sequence[int], own: Sequence[int]) -> State:
    """Return a state with a row for each of `own`: its row of `state`, whose rows are `members`, or otherwise zeros."""
    out = {name: value.new_zeros(len(own), *value.shape[1:]) for name, value in state.items()}
    rows = [own.index(member) for member in members]
    for name, value in state.items():
        out[name][rows] = value
    return out
