"""The training loop: a page that says what happens between the first step and the mixture."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ganherd.errors import Interrupted
from ganherd.herd.engine import Plan, make_engine
from ganherd.herd.state import finite, take_
from ganherd.herd.step import SUMS
from ganherd.run import checkpoint
from ganherd.run.assemble import Assembly
from ganherd.run.budget import Budget
from ganherd.run.folder import RunFolder
from ganherd.run.preview import Preview
from ganherd.run.progress import Progress
from ganherd.run.record import Lines
from ganherd.run.stop import StopRequest

_COLLAPSED = 0.1  # a member whose samples spread less than this fraction of its data's has collapsed


class RunFailed(Exception):
    """A run that cannot go on by itself; the message says why and what to try."""


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
    ) -> None:
        self.assembly, self.herd, self.folder, self.budget, self.progress = (
            assembly,
            assembly.herd,
            folder,
            budget,
            progress,
        )
        self.settings, self.also_record = assembly.recipe.run, also_record
        self.blueprints = {"g": self.herd.g, "d": self.herd.d}
        self.engine = make_engine(self.herd, plan)
        self.preview = Preview(assembly)
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
            self.save()  # so that a run can be resumed, and a member rolled back, from the first moment on
        while self.step < self.budget.steps:
            self.step = self.engine.advance(self.step, self.next_stop(), self.sums, self.enough(stop), self.tick)
            if self.budget.is_over(self.seconds) and self.step < self.budget.steps:
                self.end()
            if self.due(self.settings.record_every):
                self.record()
            if self.due(self.settings.record_every) or self.due(self.settings.checkpoint_every):
                self.heal()
            if self.due(self.settings.record_every):
                self.recorded = self.step
                self.sums.zero_()
            if self.due(self.settings.sample_every):
                self.show()
            if self.due(self.settings.checkpoint_every):
                self.save()
            if stop.asked:
                self.interrupt(stop)
        if self.saved != self.step:
            self.save()
        # After the checkpoint, since a longer run would not have looked here: what follows is made again if this run is extended.
        self.record()
        if not self.due(self.settings.record_every) and not self.due(self.settings.checkpoint_every):
            self.heal()
        if not self.due(self.settings.sample_every):
            self.show()

    def due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def next_stop(self) -> int:
        """The next step at which anything but training happens."""
        every = (self.settings.record_every, self.settings.sample_every, self.settings.checkpoint_every)
        return min([self.budget.steps, *(self.step - self.step % e + e for e in every if e)])

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
        updates = sum(self.herd.rules.d_updates(step) for step in steps)
        counts = {"loss_d": updates, "loss_g": len(steps), "real": updates, "fake": updates}
        sums = dict(zip(SUMS, self.sums.tolist(), strict=True))
        means = {name: [v / counts[name] for v in sums[name]] if counts[name] else None for name in SUMS}
        line = {
            "step": self.step,
            "epoch": round(self.step / self.assembly.steps_per_epoch, 4),
            "seconds": round(self.seconds, 3),
            "rate": round(self.progress.rate * self.herd.size, 1),
            **means,
        }
        self.metrics.write(line)
        self.progress.record(line)
        self.also_record(line)

    def end(self) -> None:
        """The time is over: the run ends with this step, also if it is resumed from here."""
        self.event("budget", reason="the time was over", steps=self.step, planned=self.budget.steps)
        self.over = self.budget.deadline
        self.budget.end_at(self.step)

    def heal(self) -> None:
        """Notices members that turned NaN or diverged, names them, and repairs them as the recipe says."""
        loss = self.sums[:2].abs().amax(0) / max(1, self.step - self.recorded)
        good = finite(self.herd.state).cpu() & torch.isfinite(loss).cpu()
        calm = (loss.cpu() <= self.settings.repair.diverged) | ~good
        for member in (~(good & calm)).nonzero().flatten().tolist():
            self._repair(member, "diverged" if good[member] else "nan")

    def _repair(self, member: int, what: str) -> None:
        name, policy = self.assembly.name_of(member), self.settings.repair.policy
        why = "its loss left all bounds" if what == "diverged" else "it turned NaN"
        self.event(what, member=member, name=name)
        self.progress.alarm(member, what)
        if policy == "tell":
            return
        if policy == "stop" or self.repairs[member] >= self.settings.repair.limit:
            raise RunFailed(
                f"{name} cannot go on: {why} at step {self.step}, after {self.repairs[member]} repairs; "
                "try a lower optim.lr_g and optim.lr_d, or optim.grad_clip."
            )
        assert self.last_good is not None  # step 0 is saved before the first step
        state = self.herd.state
        rates = [float(state[key][member]) for key in ("set.lr_g", "set.lr_d")]
        life = int(state["set.life"][member]) + 1
        good, damaged = checkpoint.newest(self.folder.checkpoints, self.blueprints, [member], self.last_good)
        for sentence in damaged:
            self.progress.say(f"{sentence}; the checkpoint before it is used.")
        take_(state, good.state, [member], [0])
        state["set.lr_g"][member], state["set.lr_d"][member] = rates[0] / 2, rates[1] / 2
        state["set.life"][member] = life
        self.sums[:, member] = 0.0
        self.repairs[member] += 1
        self.event(
            "repair",
            member=member,
            name=name,
            reason=why,
            from_step=good.step,
            lr_g=rates[0] / 2,
            lr_d=rates[1] / 2,
            life=life,
        )
        self.progress.say(
            f"{name}: {why} at step {self.step}; it goes on from step {good.step} with half its learning rate."
        )

    def show(self) -> None:
        """A picture of the samples, and a word about members that have collapsed."""
        _, spread = self.preview.look()
        for member, ratio in enumerate(spread):
            if ratio < _COLLAPSED:
                self.event("alarm", what="collapse", member=member, name=self.assembly.name_of(member), spread=ratio)
                self.progress.alarm(member, "collapse")
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
            checkpoint.save(self.folder.checkpoints, self.step, self.herd.state, self.blueprints, facts)
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

    def event(self, event: str, /, **facts: Any) -> None:
        self.events.write({"step": self.step, "event": event, **facts})

    def close(self) -> None:
        self.metrics.close()
        self.events.close()
