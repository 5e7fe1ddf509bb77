"""Train lost members to where the others are, with the same loop and without writing anything again.

The steps that they repeat were recorded while their rank was there. All random draws belong to a member and a step, and all
decisions about a member that meets no other, repairs included, depend on its own numbers only. So they arrive in the same state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ganherd.comm.heartbeat import Heartbeat
from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd.engine.engines import Plan, never, place_state
from ganherd.herd.engine.subset import SubsetEngine
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget
from ganherd.training.callbacks import Callback
from ganherd.training.health.look_interval import LookInterval, Looks
from ganherd.training.loop import IdleEngine, Trainer
from ganherd.training.ranks.signs_of_life import HeartbeatNotes, heartbeat_of
from ganherd.training.ranks.solo_recovery import Back
from ganherd.training.recording.recorder import RecordWindow
from ganherd.training.schedule import Schedule
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.progress import Progress

if TYPE_CHECKING:
    from ganherd.training.ranks.recovery import Recovery
    from ganherd.training.session import Session


class RollbackPoint(Callback):
    """Note the checkpoints that are due, which were saved while the lost rank was there."""

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.saves_at(trainer.step):
            trainer.state.last_good = trainer.step


class FollowerSchedule(Schedule):
    """End where the other members are: a herd that has converged would end before, and these are but a part of one."""

    @property
    def last(self) -> int:
        return self.budget.steps


class Follower(Trainer):
    """Train without writing records, events, pictures and checkpoints: they were written before the loss."""

    writes = False
    schedule_type = FollowerSchedule

    def own_callbacks(self) -> list[Callback]:
        return [
            Looks(self.state, self.schedule),
            self.health,
            RecordWindow(self.state, self.schedule),
            RollbackPoint(),
        ]

    def follow(self, step: int) -> None:
        """Train to the arrival at that step."""
        arrived = self.state.arrived
        while self.step < step:
            if arrived:
                self.attend()
            engine = IdleEngine() if self.state.convergence.awake == [] else self.engine
            stop = min(step, self.next_stop())
            self.state.step = engine.advance(self.step, stop, self.state.tally.sums, never, self.tick)
            arrived = True

    def close(self) -> None:
        if isinstance(self.engine, SubsetEngine):
            self.engine.close()
        self.herd.feed.close()


def bring_back(recovery: Recovery, session: Session, back: Back, resumed: checkpoint.Checkpoint) -> None:
    """Train the lost members to where the others are. Called by all ranks, after a loss, if members never meet."""
    herd, ranks, folder = session.herd, session.ranks, session.source.folder
    assert folder is not None

    def work() -> tuple[int, list[str]]:
        found = catch_up(herd, session.own_plan, folder, session.looks, back, resumed, heart)
        recovery.alone.hold(ranks.local_members, resumed)
        recovery.caught_up(back, resumed.step - back.step)
        return found

    with heartbeat_of(ranks, folder.path) as heart:
        each = ranks.all_gather_json(run_on_all_ranks(ranks.member_comm, work))
    recovery.caught_up(back, max(repeated for repeated, _ in each))
    for sentence in dict.fromkeys(sentence for _, damaged in each for sentence in damaged):
        session.log(f"{sentence}; the checkpoint before it is used.")


def catch_up(
    assembly: PreparedHerd,
    plan: Plan,
    folder: RunFolder,
    looks: LookInterval | None,
    back: Back,
    resumed: checkpoint.Checkpoint,
    heart: Heartbeat | None = None,
) -> tuple[int, list[str]]:
    """Fill the rows of `resumed` that are to come back.

    Args:
        looks: How often the members are looked at; None: as the recipe says.
        resumed: This rank's members, and the step.

    Returns:
        The number of steps that were repeated, and a sentence for each checkpoint that is damaged.
    """
    if not back.members:
        return 0, []
    damaged: list[str] = []
    if (found := back.copies) is None:
        found, damaged = checkpoint.newest(folder.checkpoints, assembly.herd.nets, back.members, back.step)
    names = list(assembly.herd.state)
    some = assembly.only(back.members, {name: found.state[name].clone() for name in names})
    unvalidated = some.recipe.run.model_copy(update={"validation": 0})
    some.data = replace(some.data, recipe=some.recipe.model_copy(update={"run": unvalidated}))
    place_state(some.herd, plan)
    meta = found.meta.model_copy(
        update={
            "arrived": back.copies is not None,
            "sums": [[row[member] for member in back.members] for row in found.meta.sums],
            "repairs": [found.meta.repairs[member] for member in back.members],
        }
    )
    state = {name: value for name, value in found.state.items() if name not in names}
    before_it = checkpoint.Checkpoint(found.path, found.step, state, meta)
    notes = [HeartbeatNotes(heart)] if heart else []
    budget, progress = Budget(resumed.step), Progress([], quiet=True)
    follower = Follower(some, plan, folder, budget, progress, before_it, looks=looks, callbacks=notes)
    try:
        follower.follow(resumed.step)
    finally:
        follower.close()
    rows = [assembly.own.index(member) for member in back.members]
    for name, value in follower.state.tensors().items():
        resumed.state[name][rows] = value.detach().cpu()
    for sums, own in zip(resumed.meta.sums, follower.state.tally.sums.tolist(), strict=True):
        for member, value in zip(back.members, own, strict=True):
            sums[member] = value
    return resumed.step - found.step, damaged
