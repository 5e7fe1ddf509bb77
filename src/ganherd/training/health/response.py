"""Respond to the health of members: raise alarms, repair members, and stop training those that have converged.

All ranks call this code at the same step with the numbers of all members, so they make the same decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ganherd.herd.state import finite_members
from ganherd.runs.records import LOOK_SCORES
from ganherd.training.callbacks import Callback
from ganherd.training.health.alarms import ALARMS, judge
from ganherd.training.health.repair import repair
from ganherd.util.meter import Detail

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Health(Callback):
    """Check the members when a record, a checkpoint or a meeting is due, and act as the recipe says."""

    def on_start(self, trainer: Trainer) -> None:
        if trainer.state.saved is None:
            for member in trainer.state.convergence.frozen_members:
                trainer.event("kept", member=member, name=trainer.prepared.name_of(member))

    def on_stop(self, trainer: Trainer) -> None:
        step, schedule = trainer.step, trainer.schedule
        is_noted = schedule.records_at(step) or schedule.saves_at(step)
        if is_noted or (trainer.strategy.meets_at(step) and trainer.sync.at(step)):
            self.heal(trainer)  # before a member that turned NaN can meet another
        if schedule.looks_at(step):
            self.judge_look(trainer)
        if schedule.records_at(step):
            self.retire_converged(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        step, schedule = trainer.step, trainer.schedule
        if not schedule.records_at(step) and not schedule.saves_at(step):
            self.heal(trainer)
        if schedule.looks.every and not schedule.looks_at(step):
            self.judge_look(trainer)

    def heal(self, trainer: Trainer) -> None:
        """Find members that turned NaN or diverged, and repair them as the recipe says."""
        tally, sums = trainer.state.tally, trainer.state.tally.sums[:2]
        # [3, n]: both losses and whether the state is finite, in one transfer from the device
        seen = torch.cat([sums, finite_members(trainer.herd.state, trainer.herd.infinite_buffers)[None].to(sums)]).cpu()
        updates, own = tally.updates(trainer.step), list(trainer.ranks.local_members)
        each = torch.tensor([updates["loss_d"], updates["loss_g"]])[:, own].clamp(min=1)
        loss, is_finite = (seen[:2].abs() / each).amax(0), seen[2] > 0
        good = is_finite & torch.isfinite(loss)
        calm = (loss <= trainer.schedule.settings.repair.diverged) | ~good
        good, calm, is_finite = trainer.ranks.all_gather(torch.stack([good, calm, is_finite], 1)).T
        trainer.strategy.on_health_check(trainer.step, is_finite.numpy())
        bad = ~torch.stack([good, calm], 1)
        self.raise_alarms(trainer, 0, bad, torch.stack([torch.ones_like(good), good], 1))

    def judge_look(self, trainer: Trainer) -> None:
        """Raise alarms from the scores of the last look.

        A member that was repaired after it has no scores and no alarm.
        """
        state, ranks = trainer.state, trainer.ranks
        monitor = state.monitor.state
        seen = {name: monitor["watch.scores"][:, i] for i, name in enumerate(LOOK_SCORES)}
        first = ALARMS.index("collapse")
        age = trainer.step - monitor["watch.born"]
        falling = state.alarms.state["watch.bad"][list(ranks.local_members), first] > 0
        bad, known = (ranks.all_gather(each) for each in judge(seen, monitor["watch.peak"], age, falling))
        trains = state.convergence.is_trained[:, None]
        self.raise_alarms(trainer, first, bad, known & trains)
        state.convergence.note("differs", ranks.all_gather(seen["differs"]))

    def retire_converged(self, trainer: Trainer) -> None:
        """Stop training members that have converged; the others continue without them."""
        tally, convergence = trainer.state.tally, trainer.state.convergence
        updates = torch.tensor(tally.updates(trainer.step)["real"], dtype=torch.float64)
        sums = tally.gather()
        convergence.note("gap", (sums[2] - sums[3]).abs() / updates)
        converged = convergence.judge(trainer.step, ~trainer.state.alarms.state["watch.ill"].any(1))
        for one in converged:
            name = trainer.prepared.name_of(one.member)
            before, now = round(one.before, 5), round(one.now, 5)
            trainer.event("converged", member=one.member, name=name, before=before, now=now)
            trainer.progress.say(Detail(f"{name} has converged at step {trainer.step:,} and is not trained further."))
        if converged and (trained := convergence.trained_members):
            trainer.train_only(trained)

    def raise_alarms(self, trainer: Trainer, first: int, bad: torch.Tensor, known: torch.Tensor) -> None:
        """Report alarms that began or ended, and do what the recipe says about those that began.

        Args:
            first: The position in `ALARMS` of the first alarm that was checked.
            bad: bool [N, checked alarms] of all members, True if the check found the problem.
            known: bool [N, checked alarms], False for what could not be checked.
        """
        name_of = trainer.prepared.name_of
        begun, over = trainer.state.alarms.note(first, bad, known)
        for member, what in over:
            trainer.event("calm", what=what, member=member, name=name_of(member))
            trainer.progress.calm(member, what)
        scores = trainer.state.monitor.scores() if begun else {}
        for member, what in begun:
            seen: dict[str, float] = {}
            if what in ("nan", "diverged"):
                trainer.event(what, member=member, name=name_of(member))
            else:
                seen = {key: round(values[member], 4) for key, values in scores.items()}
                trainer.event("alarm", what=what, member=member, name=name_of(member), **seen)
            trainer.progress.alarm(member, what)
            trainer.notify("on_alarm", what, member, {"name": name_of(member), **seen})
        trainer.progress.say_alarms(trainer.step, begun)
        # repair each member only once, for the first of its alarms whose policy is more than to report it
        settings = trainer.schedule.settings
        policies = {"nan": settings.repair.policy, "diverged": settings.repair.policy, **dict(settings.watch)}
        repairs = {member: what for member, what in reversed(begun) if policies[what] != "tell"}
        for member, what in sorted(repairs.items()):
            repair(trainer, member, what, str(policies[what]))
