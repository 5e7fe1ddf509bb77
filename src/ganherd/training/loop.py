"""The training loop: train from stop to stop, and call the callbacks there.

Over several ranks each rank runs this loop with its own members. All are at the same step wherever anything but training
happens, and what is decided there is decided on all of them from numbers that all of them know. A strategy may let ranks run
apart for a while: then everything but meetings waits until they are synchronised again.
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
    """The engine of a rank that trains none of its members, while those of other ranks train."""

    def prepare(self, report: CompileReport = no_report) -> None:
        """Do nothing: there is nothing to compile."""

    def advance(self, start: int, stop: int, *_: Any) -> int:
        return stop


class Trainer:
    """Train one run, or one rank of it. The trainer owns its state; callbacks read it and call its methods."""

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
            resumed: The checkpoint that the run continues from.
            looks: How often the members are looked at; None: as the recipe says.
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
        self.deadline: float | None = None  # of the time budget that has ended the training
        self._will_stop = False  # a stop was requested while ranks ran apart
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
        """Add a callback, which is called after those that are there."""
        self.callbacks.append(callback)
        # the only hook that is called after every step
        self._each_step = [callback for callback in self.callbacks if callback.implements("on_step_end")]

    def notify(self, hook: str, *values: Any) -> None:
        """Call a hook on all callbacks, in their order."""
        for callback in self.callbacks:
            callback.call(hook, self, *values)

    # -- the page -------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> None:
        """Train to the last step. Raises `Interrupted` if a stop is requested before."""
        self.notify("on_start")
        if self.state.arrived:  # at a stop whose work was not done when a rank was lost
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
        """Report a step that was trained; called after every step."""
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
        """Write the events that a strategy yields, while it yields them."""
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
        """Train to a step without doing what is due there."""
        self.state.step = self.engine.advance(self.step, step, self.state.tally.sums)

    def close(self) -> None:
        """Close the files of the records."""
        self.recorder.close()

    # -- how it ends ----------------------------------------------------------------------------------------------

    def _enough(self, stop: StopRequest) -> Callable[[], bool]:
        """Return a function that tells the engine to stop early. Only a single process stops at any step; ranks stop together."""
        if not self.ranks.is_single_process:
            return never
        if self.budget.deadline is None or not self._ends_anywhere:
            return lambda: stop.asked
        return lambda: stop.asked or self.budget.is_over(self._seconds_when_done() + self._step_seconds / 2)

    @property
    def _ends_anywhere(self) -> bool:
        """Whether a time budget can end at any step, not only at a stop: one process has all members on its device."""
        return self.herd.is_resident and self.ranks.is_single_process

    def _seconds_when_done(self) -> float:
        """Return the seconds of training when the steps are done that were started. A GPU does them later than the host."""
        if self.herd.device.type != "cuda":
            return self.seconds
        return max(self.seconds, self._departed_at + (self._ticked - self._departed) * self._step_seconds)

    def _time_is_over(self) -> bool:
        """Return whether the time budget is used up, by the clock of the first rank; if not, the next stop is nearer to its end."""
        if self.budget.deadline is None or not self.sync.at(self.step):
            return False
        steps = 1 if self._ends_anywhere else self.strategy.max_unsynced_steps or self.next_stop() - self.step
        return self.ranks.broadcast(self.budget.is_over(self.seconds + steps * self._step_seconds / 2))

    def _end_now(self) -> None:
        """Make this step the last one, because the time is used up. A resume from here does not train further either."""
        self.event("budget", reason="the time was over", steps=self.step, planned=self.budget.steps)
        self.state.over = self.deadline = self.budget.deadline
        self.budget.end_at(self.step)
        self.progress.end_at(self.step)

    def _stop_requested(self, stop: StopRequest, step_seconds: float) -> str:
        """Return the signal by which any rank was asked to stop, or an empty string."""
        if stop.asked and not self.sync.at(self.step) and not self._will_stop:
            self._will_stop = True
            self.progress.say(
                f"stopping at step {self.sync.until:,}, when all ranks are synchronised; a second Ctrl-C stops at once."
            )
        return self.sync.heard(self.step, stop.name, step_seconds, self.recorder.ends)

    def _interrupt(self, name: str) -> None:
        self.checkpointer.save_if_needed(self)
        self.checkpointer.flush(self)
        self.strategy.on_interrupt()
        self.ranks.finish(Interrupted(f"stopped by {name} at step {self.step}."))
