"""After the loss of a rank, train its members from an older copy to the step of the others, without recording it.

This is only used if members never meet. The lost members repeat steps that were recorded before their rank was lost, in
the same training loop. All random draws belong to a member and a step, and all decisions about a member that meets no
other, including repairs, depend on its own numbers only. So lost members reach the same state as before.
"""

from __future__ import annotations

from ganherd.comm.heartbeat import Heartbeat
from ganherd.herd.engine.engines import Plan, never, place_state
from ganherd.herd.engine.subset import SubsetEngine
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget
from ganherd.training.callbacks import Callback, Looks, RecordWindow
from ganherd.training.health.look_interval import LookInterval
from ganherd.training.loop import IdleEngine, Trainer
from ganherd.training.ranks.signs_of_life import HeartbeatNotes
from ganherd.training.ranks.solo_recovery import LostMembers
from ganherd.training.recording.progress import Progress
from ganherd.training.schedule import Schedule
from ganherd.training.setup.assemble import PreparedHerd


class RollbackPoint(Callback):
    """Note the step of each checkpoint that is due, because repairs roll back to it.

    It was saved before the rank was lost.
    """

    def on_stop(self, trainer: Trainer) -> None:
        if trainer.schedule.saves_at(trainer.step):
            trainer.state.last_good = trainer.step


class FollowerSchedule(Schedule):
    """End at the step of the other members, even if all lost members converge (stop being trained) before it."""

    @property
    def last(self) -> int:
        """The step that the other members have reached."""
        return self._trainer.budget.steps


class Follower(Trainer):
    """A trainer that writes no records, events, pictures or checkpoints: they were written before the rank was lost."""

    writes = False
    schedule_type = FollowerSchedule

    def own_callbacks(self) -> list[Callback]:
        """Return only the callbacks that act on members: checks, repairs, and the notes that these need."""
        return [Looks(), self.health, RecordWindow(), RollbackPoint()]

    def follow(self, step: int) -> None:
        """Train to a step, and do what is due at all stops before it, but not at the step itself."""
        arrived = self.state.arrived
        while self.step < step:
            if arrived:
                self.attend()
            engine = IdleEngine() if self.state.convergence.trained_members == [] else self.engine
            stop = min(step, self.next_stop())
            self.state.step = engine.advance(self.step, stop, self.state.tally.sums, never, self.tick)
            arrived = True

    def close(self) -> None:
        """Release the engine and the data of the lost members."""
        if isinstance(self.engine, SubsetEngine):
            self.engine.close()
        self.herd.feed.close()


def catch_up(
    prepared: PreparedHerd,
    plan: Plan,
    folder: RunFolder,
    looks: LookInterval | None,
    lost: LostMembers,
    resumed: checkpoint.Checkpoint,
    heart: Heartbeat | None = None,
) -> tuple[int, list[str]]:
    """Train this rank's lost members to the step of `resumed`, and write their state into their rows of `resumed`.

    Args:
        looks: How often the health of members is checked; None: as the recipe states.
        lost: The members, and the state that they start from.
        resumed: The state of all members of this rank at the step that the other members have reached; the rows of lost
            members are zero.
        heart: Writes heartbeats while the members train; None: write none.

    Returns:
        The number of steps that were repeated, and a sentence for each damaged checkpoint that was skipped.
    """
    if not lost.members:
        return 0, []
    damaged: list[str] = []
    if (last := lost.copies) is None:
        last, damaged = checkpoint.newest(folder.checkpoints, prepared.herd.nets, lost.members, lost.step)
    names = list(prepared.herd.state)
    some = prepared.only(lost.members, {name: last.state[name].clone() for name in names})
    place_state(some.herd, plan)
    meta = last.meta.model_copy(
        update={
            "arrived": lost.copies is not None,
            "sums": [[row[member] for member in lost.members] for row in last.meta.sums],
            "repairs": [last.meta.repairs[member] for member in lost.members],
            "counted_from": [last.meta.counted_from[member] for member in lost.members if last.meta.counted_from],
        }
    )
    state = {name: value for name, value in last.state.items() if name not in names}
    before_it = checkpoint.Checkpoint(last.path, last.step, state, meta)
    notes = [HeartbeatNotes(heart)] if heart else []
    budget, progress = Budget(resumed.step), Progress([], quiet=True)
    follower = Follower(some, plan, folder, budget, progress, before_it, looks=looks, callbacks=notes)
    try:
        follower.follow(resumed.step)
    finally:
        follower.close()
    rows = [prepared.own.index(member) for member in lost.members]
    for name, value in follower.state.tensors().items():
        resumed.state[name][rows] = value.detach().cpu()
    for sums, own in zip(resumed.meta.sums, follower.state.tally.sums.tolist(), strict=True):
        for member, value in zip(lost.members, own, strict=True):
            sums[member] = value
    return resumed.step - last.step, damaged
