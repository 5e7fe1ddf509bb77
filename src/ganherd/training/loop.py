"""The training loop: a page that says what happens between the first step and the mixture.

Over several ranks each runs this page with its own members. All are at the same step wherever anything but training happens,
and what is decided there is decided on all of them, from numbers that all of them know. A strategy may let them go on apart for
a while: then all of this waits, but for meetings, until they are together again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ganherd.comm.liveness.heartbeat import Heartbeat
from ganherd.herd.engine.engines import Engine, Plan, make_engine, never
from ganherd.herd.engine.subset import SubsetEngine
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.runs.records import PROCESS_EVENTS, JsonLinesWriter, line_of, significant
from ganherd.strategies.strategy import Event, Strategy
from ganherd.training import snapshot
from ganherd.training.async_writer import AsyncCheckpointWriter
from ganherd.training.budget import Budget
from ganherd.training.health import look_interval, response
from ganherd.training.health.alarms import OF_ALL, Alarms
from ganherd.training.health.convergence import Convergence
from ganherd.training.health.monitor import Monitor, recall
from ganherd.training.ranks import rank_sync
from ganherd.training.ranks.recovery import Recovery
from ganherd.training.ranks.solo_recovery import ArrivalMark
from ganherd.training.recording.preview import Preview
from ganherd.training.recording.tally import Tally
from ganherd.training.recording.validation import Validation
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import never_meet
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import Interrupted
from ganherd.util.progress import Progress


class Trainer:
    """One run, or one rank of it: the herd, its engine, and everything that is written while it trains."""

    def __init__(
        self,
        assembly: PreparedHerd,
        plan: Plan,
        folder: RunFolder,
        budget: Budget,
        progress: Progress,
        resumed: checkpoint.Checkpoint | None = None,
        also_record: Callable[[dict[str, Any]], None] = lambda line: None,
        paced: dict[str, Any] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        """`paced`: how often the members are looked at, as run.json has it."""
        self.assembly, self.herd, self.ranks, self.own = assembly, assembly.herd, assembly.ranks, list(assembly.own)
        self.folder, self.budget, self.progress = folder, budget, progress
        self.will_stop = False  # it was asked to, while ranks were apart
        self.strategy = strategy or Strategy()
        self.settings, self.also_record = (
            rank_sync.waiting(assembly.recipe.run, self.strategy.max_unsynced_steps),
            also_record,
        )
        self.blueprints = self.herd.nets
        self.plan = plan
        self.engine: Engine | SubsetEngine | response.Idle = make_engine(self.herd, plan)
        self.preview = Preview(assembly)
        self.validation = Validation(assembly, self.settings.validation) if self.settings.validation else None
        remembered = resumed.state if resumed else None
        recall(self.strategy.state, remembered)
        if resumed:
            self.strategy.resume(resumed.step)
        self.watch = Monitor(assembly, remembered)
        known = {
            k: self.ranks.all_gather(v) for k, v in (remembered or {}).items() if k in OF_ALL or k.startswith("rest.")
        }
        self.alarms = Alarms(self.ranks.num_members, known)  # of all members, on every rank; so is who rests
        self.rest = Convergence(assembly.recipe.train.stop, self.ranks.num_members, known, assembly.kept or None)
        self.rest.wake(resumed.step if resumed else 0)
        assembly.kept = self.rest.kept
        if awake := self.rest.awake:
            self.engine = response.engine_of(self, awake)
        self.cadence = rank_sync.waiting_looks(look_interval.planned(assembly, paced), self.strategy.max_unsynced_steps)
        facts = resumed.facts if resumed else {}
        self.step = resumed.step if resumed else 0
        self.together = rank_sync.RankSync(assembly, self.strategy, self.step)
        self.tally = Tally(assembly, self.rest, facts)
        self.last_good: int | None = facts.get("last_good")  # the last checkpoint that was due: what is rolled back to
        self.best: tuple[float, int] | None = tuple(facts["best"]) if facts.get("best") else None  # type: ignore[assignment]
        self.repairs: list[int] = list(facts.get("repairs", [0] * self.ranks.num_members))  # [N]
        self.seconds_before = float(facts.get("seconds", 0.0))
        self.over: float | None = facts.get("over")  # the deadline that ended the run here
        paths = {"metrics": folder.metrics_path, "events": folder.events_path} if self.writes else {}
        ends = facts.get("bytes", {})
        self.lines = {
            name: JsonLinesWriter(path, ends.get(name, None if resumed else 0), sums=name == "metrics")
            for name, path in paths.items()
        }
        self.saved: int | None = facts.get("saved", self.step) if resumed else None  # the step of the last checkpoint
        self.behind = AsyncCheckpointWriter.of(self.herd.device, self.ranks.is_single_process)
        self.rescue: Recovery | None = None  # where a lost rank can be outlived
        self.mark: ArrivalMark | None = None  # … and members go back alone: the arrival at this step
        self.arrived: bool = facts.get("arrived", False)  # what is due at this step is still to be done
        self.heart: Heartbeat | None = None  # where there are several
        self.began = time.monotonic()

    # -- the page -------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> None:
        """From where the run stands to its last step; raises `Interrupted` when it is asked to stop before."""
        if self.saved is None:
            for member in self.rest.kept:
                self.event("kept", member=member, name=self.assembly.name_of(member))
            self.look()  # how varied fresh weights are is what a collapse is measured against
            self.save()  # so that a run can be resumed, and a member rolled back, from the first moment on
        if self.rescue and self.goes_alone:
            self.rescue.stand(self)
        else:
            self.keep()
        if self.arrived:
            self.stop_here(stop, self.step, 0.0)
        while self.step < self.last:
            start = self.step
            self.together.part(self.step, self.last)
            if self.step == 0 or self.strategy.meets_at(self.step):
                self.tell(self.strategy.open(self.step))
            left = time.monotonic()
            self.step = self.engine.advance(self.step, self.next_stop(), self.tally.sums, self.enough(stop), self.tick)
            took = time.monotonic() - left
            self.strategy.on_steps_done(took, self.step)
            self.stop_here(stop, start, took)
        if self.saved != self.step:
            self.save()
        # After the checkpoint, since a longer run would not have looked here: what follows is made again if this run is extended.
        looked = self.cadence.every == 0 or self.cadence.is_due(self.step)
        if not looked:
            self.look()
        self.record()
        if not self.due(self.settings.record_every) and not self.due(self.settings.checkpoint_every):
            response.heal(self)
        if not looked:
            response.judge_look(self)
        if not self.due(self.settings.sample_every):
            self.show()
        snapshot.settle(self)

    def stop_here(self, stop: StopRequest, start: int, took: float) -> None:
        """All that is due at a step; it was trained from `start` on, and the engine `took` so many seconds."""
        if self.goes_alone:
            self.mark = ArrivalMark.of(self)
            if self.due(self.kept_every) or start == self.step:  # members that have new homes have new copies, too
                self.keep()
        if self.is_over() and self.step < self.last:
            self.end()
        self.attend()
        if self.due(self.kept_every) and not self.goes_alone:
            self.keep()
        if asked := self.heard(stop, took / max(1, self.step - start)):
            self.interrupt(asked)

    def attend(self) -> None:
        """What is due for the members, in its order: looks, the record, repairs, rest, meetings, the checkpoint."""
        looked = self.cadence.is_due(self.step)
        if looked:
            self.look()
        if self.due(self.settings.record_every):
            self.record()
        meets = self.strategy.meets_at(self.step)
        noted = self.due(self.settings.record_every) or self.due(self.settings.checkpoint_every)
        if noted or (meets and self.is_together):
            response.heal(self)  # before a member that turned NaN can meet another
        if looked:
            response.judge_look(self)
        if self.due(self.settings.record_every):
            response.settle(self)
            self.tally.begin(self.step)
        if meets:
            self.tell(self.strategy.close(self.step, continues=self.step < self.last))
        if self.strategy.max_unsynced_steps and self.is_together:
            self.tell(self.strategy.end_unsynced(self.step))
        if self.due(self.settings.sample_every):
            self.show()
        if self.due(self.settings.checkpoint_every):
            self.save()

    def due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def next_stop(self) -> int:
        """The next step at which anything but training happens."""
        settings = self.settings
        every = (settings.record_every, settings.sample_every, settings.checkpoint_every, self.kept_every)
        stops = [self.step - self.step % e + e for e in every if e]
        meeting = self.strategy.next_after(self.step)
        stops += [meeting] if meeting is not None else []
        return min([self.last, *stops, *self.together.next_after(self.step), *self.cadence.next_after(self.step)])

    @property
    def is_together(self) -> bool:
        """Whether all ranks are at this step, and may take part in something."""
        return self.together.at(self.step)

    @property
    def last(self) -> int:
        """The step that the run ends with, as it looks now."""
        return self.rest.last(self.budget.steps, self.budget.deadline is not None)

    def enough(self, stop: StopRequest) -> Callable[[], bool]:
        """One process stops at any step; ranks stop where all of them do."""
        return (lambda: stop.asked or self.budget.is_over(self.seconds)) if self.ranks.is_single_process else never

    def is_over(self) -> bool:
        """Whether the time is, by the clock of the first rank."""
        if self.budget.deadline is None or not self.is_together:
            return False
        return self.ranks.broadcast(self.budget.is_over(self.seconds))

    def heard(self, stop: StopRequest, seconds: float) -> str:
        """The signal that any rank was asked to stop by; none: it goes on. `seconds`: what a step of this rank takes."""
        if self.heart:
            before = self.heart.now.step_seconds or seconds
            self.heart.note(step_seconds=round(0.8 * before + 0.2 * seconds, 6), **vars(self.strategy.traffic))
        if stop.asked and not self.is_together and not self.will_stop:
            self.will_stop = True
            where = f"step {self.together.until:,}, where all ranks are together"
            self.progress.say(f"stopping at {where}; a second Ctrl-C stops at once.")
        return self.together.heard(self.step, stop.name, seconds, self.ends)

    def tick(self, step: int) -> None:
        self.strategy.poll()
        self.progress.at(step, self.seconds, self.tally.per_step)
        if self.heart:
            self.heart.note(step=step, rate=round(self.progress.rate * self.tally.per_step_here, 1))

    @property
    def seconds(self) -> float:
        """Training time of the whole run so far, over all its processes."""
        return self.seconds_before + time.monotonic() - self.began

    # -- what happens at a stop -----------------------------------------------------------------------------------

    def record(self) -> None:
        """One line of metrics: means over the steps since the last one."""
        if self.step <= self.tally.since:
            return
        line = line_of(self)
        if self.ranks.is_first:
            self.lines["metrics"].write(line)
            self.progress.record(line)
            self.also_record(line)

    def end(self) -> None:
        """The time is over: the run ends with this step, also if it is resumed from here."""
        self.event("budget", reason="the time was over", steps=self.step, planned=self.budget.steps)
        self.progress.say(f"the time is over: it ends at step {self.step:,}, {self.budget.steps:,} were planned")
        self.over = self.budget.deadline
        self.budget.end_at(self.step)

    def look(self) -> None:
        if self.cadence.every != 0:
            self.watch.look(self.step)

    def show(self) -> None:
        """A picture of the samples."""
        self.preview.look(self.step)
        self.preview.draw(self.folder.samples / f"step-{self.step:08d}.png")

    def save(self) -> None:
        snapshot.save(self)

    @property
    def kept_every(self) -> int:
        """Steps between copies in memory, which only ranks make that can go on without one of them."""
        return self.settings.buddy_every if self.rescue and self.rescue.outlives(self.ranks) else 0

    @property
    def goes_alone(self) -> bool:
        """Whether only the members of a lost rank go back, then."""
        return self.rescue is not None and self.rescue.outlives(self.ranks) and never_meet(self.assembly.recipe)

    def keep(self) -> None:
        if self.rescue and self.kept_every:
            self.rescue.keep(self)

    def interrupt(self, asked: str) -> None:
        if self.saved != self.step:
            self.save()
        snapshot.settle(self)
        self.strategy.on_stop()
        self.ranks.finish(Interrupted(f"stopped by {asked} at step {self.step}."))

    def tell(self, events: Iterable[Event]) -> None:
        for event, facts in events:
            self.event(event, **facts)

    def event(self, event: str, /, **facts: Any) -> None:
        """A line of events.jsonl."""
        if self.writes:
            known = facts if event in PROCESS_EVENTS else significant(facts)
            self.lines["events"].write({"step": self.step, "event": event, **known})

    @property
    def writes(self) -> bool:
        """Whether this rank writes metrics and events: all of them come to the same."""
        return self.ranks.is_first

    @property
    def ends(self) -> dict[str, int]:
        """How many bytes of them were written."""
        return {name: lines.end for name, lines in self.lines.items()}

    def close(self) -> None:
        for lines in self.lines.values():
            lines.close()
