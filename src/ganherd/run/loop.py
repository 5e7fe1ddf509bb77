"""The training loop: a page that says what happens between the first step and the mixture."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ganherd.errors import Interrupted
from ganherd.herd.engine import Plan, make_engine
from ganherd.herd.state import finite
from ganherd.herd.step import SUMS
from ganherd.run import cadence, checkpoint
from ganherd.run.alarms import ALARMS, Alarms, judge
from ganherd.run.assemble import Assembly
from ganherd.run.budget import Budget
from ganherd.run.cadence import Cadence
from ganherd.run.folder import RunFolder
from ganherd.run.preview import Preview
from ganherd.run.progress import Progress
from ganherd.run.record import Lines
from ganherd.run.repair import RunFailed, repair
from ganherd.run.stop import StopRequest
from ganherd.run.validate import Validation
from ganherd.run.watch import SCORES, Watch, recall
from ganherd.strategies.base import Event, Strategy

__all__ = ["RunFailed", "Trainer"]


class Trainer:
    """One run in one process: the herd, its engine, and everything that is written while it trains."""

    def __init__(
        self,
        assembly: Assembly,
        plan: Plan,
        folder: RunFolder,
        budget: Budget,
        progress: Progress,
        resumed: checkpoint.Checkpoint | None = None,
        also_record: Callable[[dict[str, Any]], None] = lambda line: None,
        paced: dict[str, Any] | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        """`paced`: how often an earlier process of this run found that the members can be looked at."""
        self.assembly, self.herd, self.folder, self.budget, self.progress = (
            assembly,
            assembly.herd,
            folder,
            budget,
            progress,
        )
        self.settings, self.also_record = assembly.recipe.run, also_record
        self.blueprints = self.herd.nets
        self.strategy = strategy or Strategy()
        self.engine = make_engine(self.herd, plan)
        self.preview = Preview(assembly)
        self.validation = Validation(assembly, self.settings.validation) if self.settings.validation else None
        remembered = resumed.state if resumed else None
        recall(self.strategy.state, remembered)
        if resumed:
            self.strategy.resume(resumed.step)
        self.watch, self.alarms = Watch(assembly, remembered), Alarms(self.herd.size, remembered)
        self.cadence, self.stopwatch = Cadence.of(self.settings.watch.every, paced), cadence.Stopwatch()
        facts = resumed.facts if resumed else {}
        self.step = resumed.step if resumed else 0
        self.sums = self.herd.no_sums()
        if resumed:
            self.sums.copy_(torch.tensor([[float(v) for v in row] for row in facts["sums"]], dtype=torch.float64))
        self.recorded = int(facts.get("recorded", 0))  # the step of the last record
        self.last_good: int | None = facts.get(
            "last_good"
        )  # the last checkpoint that was due, and so is rolled back to
        self.best: tuple[float, int] | None = tuple(facts["best"]) if facts.get("best") else None  # type: ignore[assignment]
        self.repairs: list[int] = list(facts.get("repairs", [0] * self.herd.size))
        self.seconds_before = float(facts.get("seconds", 0.0))
        self.over: float | None = facts.get("over")  # the deadline that ended the run here
        self.metrics = Lines(folder.metrics_path, facts.get("bytes", {}).get("metrics", 0 if resumed is None else None))
        self.events = Lines(folder.events_path, facts.get("bytes", {}).get("events", 0 if resumed is None else None))
        self.saved = self.step if resumed else None  # the step of the last checkpoint
        self.began = time.monotonic()

    # -- the page -------------------------------------------------------------------------------------------------

    def train(self, stop: StopRequest) -> None:
        """From where the run stands to its last step; raises `Interrupted` when it is asked to stop before."""
        if self.saved is None:
            self.look()  # how varied fresh weights are is what a collapse is measured against
            self.save()  # so that a run can be resumed, and a member rolled back, from the first moment on
        while self.step < self.budget.steps:
            began, start = time.monotonic(), self.step
            if self.step == 0 or self.strategy.meets_at(self.step):
                self.tell(self.strategy.open(self.step))
            left = time.monotonic()
            self.step = self.engine.advance(self.step, self.next_stop(), self.sums, self.enough(stop), self.tick)
            self.strategy.trained(time.monotonic() - left)
            if self.budget.is_over(self.seconds) and self.step < self.budget.steps:
                self.end()
            if self.cadence.every is None:
                self.pace(start, began)
            looked = self.cadence.is_due(self.step)
            if looked:
                self.look()
            if self.due(self.settings.record_every):
                self.record()
            meets = self.strategy.meets_at(self.step)
            if meets or self.due(self.settings.record_every) or self.due(self.settings.checkpoint_every):
                self.heal()  # before a member that turned NaN can meet another
            if looked:
                self.judge()
            if self.due(self.settings.record_every):
                self.recorded = self.step
                self.sums.zero_()
            if meets:
                self.tell(self.strategy.close(self.step))
            if self.due(self.settings.sample_every):
                self.show()
            if self.due(self.settings.checkpoint_every):
                self.save()
            if stop.asked:
                self.interrupt(stop)
        if self.saved != self.step:
            self.save()
        # After the checkpoint, since a longer run would not have looked here: what follows is made again if this run is extended.
        looked = self.cadence.every == 0 or self.cadence.is_due(self.step)
        if not looked:
            self.look()
        self.record()
        if not self.due(self.settings.record_every) and not self.due(self.settings.checkpoint_every):
            self.heal()
        if not looked:
            self.judge()
        if not self.due(self.settings.sample_every):
            self.show()

    def due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def next_stop(self) -> int:
        """The next step at which anything but training happens."""
        every = (self.settings.record_every, self.settings.sample_every, self.settings.checkpoint_every)
        stops = [self.step - self.step % e + e for e in every if e]
        meeting = self.strategy.next_after(self.step)
        stops += [meeting] if meeting is not None else []
        return min([self.budget.steps, *stops, *self.cadence.next_after(self.step)])

    def enough(self, stop: StopRequest) -> Callable[[], bool]:
        return lambda: stop.asked or self.budget.is_over(self.seconds)

    def tick(self, step: int) -> None:
        self.progress.at(step, self.seconds)

    @property
    def seconds(self) -> float:
        """Training time of the whole run so far, over all its processes."""
        return self.seconds_before + time.monotonic() - self.began

    # -- what happens at a stop -----------------------------------------------------------------------------------

    def record(self) -> None:
        """One line of metrics: means over the steps since the last one."""
        steps = range(self.recorded, self.step)
        if not steps:
            return
        counts, sums = self.counts(), dict(zip(SUMS, self.sums.tolist(), strict=True))
        means = {
            name: [v / n if n else math.nan for v, n in zip(sums[name], counts[name], strict=True)]
            if any(counts[name])
            else None
            for name in SUMS
        }
        line = {
            "step": self.step,
            "epoch": round(self.step / self.assembly.steps_per_epoch, 4),
            "seconds": round(self.seconds, 3),
            "rate": round(self.progress.rate * self.herd.size, 1),
            **means,
        }
        looked = int(self.watch.state["watch.at"].max())
        if looked > self.recorded:  # the last look since the last record
            line |= {"looked": looked, **{k: [round(v, 4) for v in each] for k, each in self.watch.scores().items()}}
        if self.validation:
            line |= {name: [round(v, 5) for v in each] for name, each in self.validation.look().items()}
        line |= self.strategy.measured()
        self.metrics.write(line)
        self.progress.record(line)
        self.also_record(line)

    def counts(self) -> dict[str, list[int]]:
        """How many updates of each member the sums hold."""
        spans = list(zip(self.herd.made(self.recorded), self.herd.made(self.step), strict=True))
        of_d = {span: sum(self.herd.rules.d_updates(step) for step in range(*span)) for span in set(spans)}
        d, g = [of_d[span] for span in spans], [stop - start for start, stop in spans]
        return {"loss_d": d, "loss_g": g, "real": d, "fake": d}

    def end(self) -> None:
        """The time is over: the run ends with this step, also if it is resumed from here."""
        self.event("budget", reason="the time was over", steps=self.step, planned=self.budget.steps)
        self.over = self.budget.deadline
        self.budget.end_at(self.step)

    def pace(self, start: int, began: float) -> None:
        """Chooses, once, how often the members are looked at; from then on it is a matter of steps."""
        if self.herd.device.type == "cuda":
            torch.cuda.synchronize(self.herd.device)
        self.stopwatch.add(self.step - start, time.monotonic() - began)
        if (step := self.stopwatch.step) is not None:
            every = cadence.choose(self.watch.cost(), step, self.settings.record_every)
            self.cadence = Cadence(every, self.step)
            self.folder.write_info(watch=vars(self.cadence))  # before the first look: a resume makes the same ones

    def look(self) -> None:
        if self.cadence.every != 0:
            self.watch.look(self.step)

    def judge(self) -> None:
        """Alarms from the last look; a member that was repaired since has no scores."""
        seen = {name: self.watch.state["watch.scores"][:, i] for i, name in enumerate(SCORES)}
        first = ALARMS.index("collapse")
        peak, age = self.watch.state["watch.peak"], self.step - self.watch.state["watch.born"]
        bad, known = judge(seen, peak, age, self.alarms.state["watch.bad"][:, first] > 0)
        self.raise_alarms(first, bad, known)

    def heal(self) -> None:
        """Notices members that turned NaN or diverged, names them, and repairs them as the recipe says."""
        loss = self.sums[:2].abs().amax(0) / max(1, self.step - self.recorded)
        good = finite(self.herd.state).cpu() & torch.isfinite(loss).cpu()
        calm = (loss.cpu() <= self.settings.repair.diverged) | ~good
        bad = ~torch.stack([good, calm], 1)
        self.raise_alarms(0, bad, torch.stack([torch.ones_like(good), good], 1))

    def raise_alarms(self, first: int, bad: torch.Tensor, known: torch.Tensor) -> None:
        """Tells what began and what is over, and does what the recipe says about the former."""
        begun, over = self.alarms.note(first, bad, known)
        for member, what in over:
            self.event("calm", what=what, member=member, name=self.assembly.name_of(member))
            self.progress.calm(member, what)
        scores = self.watch.scores() if begun else {}
        for member, what in begun:
            name = self.assembly.name_of(member)
            if what in ("nan", "diverged"):
                self.event(what, member=member, name=name)
            else:
                seen = {key: round(values[member], 4) for key, values in scores.items()}
                self.event("alarm", what=what, member=member, name=name, **seen)
            self.progress.alarm(member, what)
        self.progress.say_alarms(self.step, begun)
        for member, what in sorted(self.to_repair(begun).items()):
            repair(self, member, what, self.policy(what))

    def to_repair(self, begun: list[tuple[int, str]]) -> dict[int, str]:
        """Each member once, for the first of its alarms that asks for it."""
        return {m: w for m, w in reversed(begun) if self.policy(w) != "tell"}

    def policy(self, what: str) -> str:
        watch = self.settings.watch
        return str(self.settings.repair.policy if what in ("nan", "diverged") else getattr(watch, what))

    def show(self) -> None:
        """A picture of the samples."""
        self.preview.look()
        self.preview.draw(self.folder.samples / f"step-{self.step:08d}.png")

    def save(self) -> None:
        """A checkpoint; the newest, the best and the one to roll back to are kept."""
        score, _ = self.preview.look()
        scheduled = self.step == 0 or self.due(self.settings.checkpoint_every)
        if scheduled:
            self.last_good = self.step
            if score == score and (self.best is None or score < self.best[0]):
                self.best = (score, self.step)
            self.event("checkpoint", score=score, best=self.best[1] if self.best else None)
        facts: dict[str, Any] = {
            "sums": self.sums.tolist(),
            "recorded": self.recorded,
            "last_good": self.last_good,
            "best": self.best,
            "score": score,
            "repairs": self.repairs,
            "seconds": self.seconds,
            "over": self.over,
            "bytes": {"metrics": self.metrics.settle(), "events": self.events.settle()},
        }
        try:
            state = {**self.herd.state, **self.watch.state, **self.alarms.state, **self.strategy.state}
            checkpoint.save(self.folder.checkpoints, self.step, state, self.blueprints, facts)
        except OSError as error:
            before = "the one before is whole" if self.saved is not None else "it is the first one"
            raise Interrupted(
                f"the checkpoint of step {self.step} could not be written ({error.strerror}); {before}."
            ) from error
        self.saved = self.step
        checkpoint.prune(
            self.folder.checkpoints, self.settings.keep, [self.last_good, self.best[1] if self.best else None]
        )

    def interrupt(self, stop: StopRequest) -> None:
        if self.saved != self.step:
            self.save()
        raise Interrupted(f"stopped by {stop.name} at step {self.step}.")

    def tell(self, events: Iterable[Event]) -> None:
        for event, facts in events:
            self.event(event, **facts)

    def event(self, event: str, /, **facts: Any) -> None:
        self.events.write({"step": self.step, "event": event, **facts})

    def close(self) -> None:
        self.metrics.close()
        self.events.close()
