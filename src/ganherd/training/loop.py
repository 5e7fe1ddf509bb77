"""The training loop: train from stop to stop, and call the callbacks at each stop.

A stop is a step at which anything but training happens. On several ranks each rank runs this loop with its own members.
At a stop all ranks are at the same step, and each makes the same decisions, because these depend only on numbers that
all ranks have. A strategy may let ranks run for some steps without synchronising; everything except meetings then waits
for the end of that phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ganherd.comm.ranks import Ranks
from ganherd.herd.engine.engines import CompileReport, Engine, Plan, StackedHerd, make_engine, never, no_report
from ganherd.herd.engine.subset import SubsetEngine
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.strategies.strategy import Event, Strategy
from ganherd.training.budget import Budget
from ganherd.training.callbacks import Callback, Looks, Meetings, RecordWindow, SamplePictures
from ganherd.training.checkpointing import Checkpointer
from ganherd.training.health import look_interval
from ganherd.training.health.look_interval import LookInterval
from ganherd.training.health.response import Health
from ganherd.training.ranks.rank_sync import RankSync
from ganherd.training.recording.preview import Preview
from ganherd.training.recording.progress import Progress
from ganherd.training.recording.recorder import Recorder
from ganherd.training.recording.sprite_recorder import SpriteRecorder
from ganherd.training.run_state import RunState
from ganherd.training.schedule import Schedule
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import Interrupted
from ganherd.util.host import give_back

_MOST_FREED = 1 << 28  # bytes of freed memory that a process may keep between steps and stops, on a CPU


class IdleEngine:
    """Stand in for the engine on a rank that trains none of its members, while other ranks train theirs."""

    def prepare(self, report: CompileReport = no_report) -> None:
        """Do nothing: there is nothing to compile."""

    def advance(self, start: int, stop: int, *_: Any) -> int:
        """Return `stop`, as if the steps had been trained."""
        return stop


class Trainer:
    """Train one run, or one rank of it.

    Callbacks may read the trainer and call its methods; only the trainer sets its state.
    """

    schedule_type: type[Schedule] = Schedule
    writes = True  # whether records, events, pictures and checkpoints are written

    def __init__(
        self,
        prepared: PreparedHerd,
        plan: Plan,
        folder: RunFolder,
        budget: Budget,
        progress: Progress,
        resumed: checkpoint.Checkpoint | None = None,
        *,
        looks: LookInterval | None = None,
        strategy: Strategy | None = None,
        callbacks: Sequence[Callback] = (),
        began: float | None = None,
    ) -> None:
        """Create a trainer at the first step, or at the step of a checkpoint.

        Args:
            resumed: The checkpoint that the run continues from; None: start at step 0.
            looks: How often the health of the members is checked; None: as the recipe says.
            strategy: What happens between members; None: they never meet.
            callbacks: More callbacks, which are called after ganherd's own.
            began: When the training began, on the clock of `time.monotonic`; its time budget counts from then. Default: now.
        """
        self._began = time.monotonic() if began is None else began
        self.prepared, self.plan, self.folder, self.budget, self.progress = prepared, plan, folder, budget, progress
        self.strategy = strategy or Strategy()
        self.state = RunState(prepared, self.strategy, resumed)
        self.sync = RankSync(prepared, self.strategy, self.step)
        looks = look_interval.planned(prepared) if looks is None else looks
        self.schedule = self.schedule_type(self, looks)
        self.engine: Engine | SubsetEngine | IdleEngine = make_engine(self.herd, plan)
        if trained := self.state.convergence.trained_members:
            self.train_only(trained)
        self.preview = Preview(prepared)
        self.recorder = Recorder(self)
        self.checkpointer = Checkpointer(prepared)
        self.health = Health()
        self.callbacks: list[Callback] = []
        for callback in (*self.own_callbacks(), *callbacks):
            self.attach(callback)
        self.is_trained = False
        self.deadline: float | None = None  # the deadline that has ended the training; None: none has yet
        self._will_stop = False  # a stop was requested while ranks were not synchronised
        self._step_seconds = 0.0  # between the last two stops; 0: not known yet
        # The step of the last stop, and the last step that was sent to the device.
        self._departed = self._ticked = self.step
        self._departed_at = 0.0  # seconds of training at the last stop

    def own_callbacks(self) -> list[Callback]:
        """Return ganherd's own callbacks. Their order is the order of what happens at a stop."""
        return [
            Looks(),
            self.recorder,
            self.health,
            RecordWindow(),
            Meetings(),
            SamplePictures(),
            SpriteRecorder(self),
            self.checkpointer,
        ]

    def attach(self, callback: Callback) -> None:
        """Add a callback, which is called after the callbacks added before."""
        self.callbacks.append(callback)
        # on_step_end is called after every step, so it is only called on callbacks that override it
        self._each_step = [callback for callback in self.callbacks if callback.implements("on_step_end")]

    def notify(self, hook: str, *values: Any) -> None:
        """Call a hook on all callbacks, in their order."""
        for callback in self.callbacks:
            callback.call(hook, self, *values)

    # -- the loop -------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> None:
        """Train to the last step. Raises `Interrupted` if a stop is requested before."""
        self.notify("on_start")
        if self.state.arrived:  # a rank was lost at this stop, before the work that was due here was done
            self._stop_here(stop, self.step, 0.0)
        while self.step < self.schedule.last:
            start = self.step
            self._return_memory()
            self.notify("on_departure")
            self._departed, self._departed_at = start, self.seconds
            self.state.step = self.engine.advance(
                start, self.next_stop(), self.state.tally.sums, self._enough(stop), self.tick
            )
            seconds = self.seconds - self._departed_at
            self._step_seconds = seconds / max(1, self.step - start)
            self.strategy.on_steps_done(seconds, self.step)
            self._return_memory()
            self._stop_here(stop, start, seconds)
        self.progress.end_at(self.step)
        self.notify("on_last_step")
        self.notify("on_train_end")
        self.is_trained = True

    def _stop_here(self, stop: StopRequest, start: int, seconds: float) -> None:
        """Do everything that is due after training from `start` to the current step, which took `seconds`."""
        self.notify("on_arrival")
        if self._time_is_over() and self.step < self.schedule.last:
            self._end_now()
        self.attend()
        step_seconds = seconds / max(1, self.step - start)
        self.notify("on_stop_end", step_seconds)
        if name := self._stop_requested(stop, step_seconds):
            self._interrupt(name)

    def _return_memory(self) -> None:
        """Return freed memory to the system if it is much. Blocks that steps need seldom fit what is done at stops."""
        if self.herd.device.type == "cpu":
            give_back(above=_MOST_FREED)

    def attend(self) -> None:
        """Do what is due for the members: looks, the record, repairs, meetings, the picture, the checkpoint."""
        self.notify("on_stop")

    def tick(self, step: int) -> None:
        """Report that `step` was trained; called by the engine after every step."""
        self._ticked = step
        self.strategy.poll()
        self.progress.at(step, self.seconds, self.state.tally.per_step)
        for callback in self._each_step:
            callback.call("on_step_end", self, step)

    def next_stop(self) -> int:
        """Return the next step at which anything but training happens."""
        return self.schedule.next_stop(self.step, (callback.every for callback in self.callbacks))

    # -- what callbacks read and call -----------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The number of steps that were trained."""
        return self.state.step

    @property
    def herd(self) -> StackedHerd:
        """The members of this rank."""
        return self.prepared.herd

    @property
    def ranks(self) -> Ranks:
        """The placement of members on ranks, and the connections to the other ranks."""
        return self.prepared.ranks

    @property
    def seconds(self) -> float:
        """Seconds of training so far, over all processes of the run."""
        return self.state.seconds_before + self.seconds_here

    @property
    def seconds_here(self) -> float:
        """Seconds of training in this process."""
        return time.monotonic() - self._began

    def event(self, event: str, /, **facts: Any) -> None:
        """Write an event to events.jsonl."""
        if self.recorder.event(self.step, event, facts):
            self.notify("on_event", event, facts)

    def record_events(self, events: Iterable[Event]) -> None:
        """Write each event that a strategy yields, at the moment it is yielded."""
        for event, facts in events:
            self.event(event, **facts)

    def stop_replicas(self, replicas: Sequence[int]) -> None:
        """Do not train the members of these replicas any more."""
        if replicas:
            each = self.prepared.members
            members = [replica * each + member for replica in replicas for member in range(each)]
            self.state.convergence.stop(members, self.step)
            self.train_only(self.state.convergence.trained_members or ())

    def train_only(self, members: Iterable[int]) -> None:
        """Train only these members of the herd from now on."""
        if isinstance(self.engine, SubsetEngine):
            self.engine.close()
        rows = [row for member in members if (row := self.ranks.local_row(member)) is not None]
        self.engine = SubsetEngine(self.herd, self.plan, rows) if rows else IdleEngine()

    def advance_to(self, step: int) -> None:
        """Train to `step` without calling any callback."""
        self.state.step = self.engine.advance(self.step, step, self.state.tally.sums)

    def close(self) -> None:
        """Close the files of the records."""
        self.recorder.close()

    # -- how it ends ----------------------------------------------------------------------------------------------

    def _enough(self, stop: StopRequest) -> Callable[[], bool]:
        """Return a function that the engine calls between steps, and that returns True if it shall stop early.

        On several ranks it always returns False: they end together, at a stop of the loop.
        """
        if not self.ranks.is_single_process:
            return never
        if self.budget.deadline is None or not self._ends_anywhere:
            return lambda: stop.asked
        return lambda: stop.asked or self.budget.is_over(self._seconds_when_done() + self._step_seconds / 2)

    @property
    def _ends_anywhere(self) -> bool:
        """Whether a time budget can end at any step, not only at a stop of the loop.

        True for a single process that has all of its members on the device.
        """
        return self.herd.is_resident and self.ranks.is_single_process

    def _seconds_when_done(self) -> float:
        """Return the seconds of training at which all steps that were started will be done.

        A GPU runs behind the host, so the time is estimated from the mean duration of a step. On a CPU it is now.
        """
        if self.herd.device.type != "cuda":
            return self.seconds
        return max(self.seconds, self._departed_at + (self._ticked - self._departed) * self._step_seconds)

    def _time_is_over(self) -> bool:
        """Return whether to end the run here, because its time budget is used up.

        It is if the budget ends before the middle between now and the next step at which the run can end. The clock of
        the first rank decides for all ranks.
        """
        if self.budget.deadline is None or not self.sync.at(self.step):
            return False
        steps = 1 if self._ends_anywhere else self.strategy.max_unsynced_steps or self.next_stop() - self.step
        return self.ranks.broadcast(self.budget.is_over(self.seconds + steps * self._step_seconds / 2))

    def _end_now(self) -> None:
        """Make this step the last one, because the time is used up.

        This is saved: a run resumed from here trains no further.
        """
        self.event("budget", reason="the time was over", steps=self.step, planned=self.budget.steps)
        self.state.over = self.deadline = self.budget.deadline
        self.budget.end_at(self.step)
        self.progress.end_at(self.step)

    def _stop_requested(self, stop: StopRequest, step_seconds: float) -> str:
        """Return the name of a signal that asked any rank to stop.

        Empty if no rank received one, or if ranks are not synchronised at this step: then the run stops when they are.
        """
        if stop.asked and not self.sync.at(self.step) and not self._will_stop:
            self._will_stop = True
            self.progress.say(
                f"stopping at step {self.sync.until:,}, when all ranks are synchronised; a second Ctrl-C stops at once."
            )
        return self.sync.heard(self.step, stop.name, step_seconds, self.recorder.ends)

    def _interrupt(self, name: str) -> None:
        """Save a checkpoint, and end the run on all ranks because a signal of this name asked for it."""
        self.checkpointer.save_if_needed(self)
        self.checkpointer.flush(self)
        self.strategy.on_interrupt()
        self.ranks.finish(Interrupted(f"stopped by {name} at step {self.step:,}."))
