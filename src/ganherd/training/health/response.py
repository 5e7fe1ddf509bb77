"""What the loop does about its members' health: alarms, what follows them, and rest for those that have converged.

All ranks come here at the same step and see the numbers of all members, so they come to the same conclusions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ganherd.herd.engine.subset import SubsetEngine
from ganherd.herd.state import finite
from ganherd.training.health.alarms import ALARMS, judge
from ganherd.training.health.monitor import SCORES
from ganherd.training.health.repair import repair

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer


class Idle:
    """The engine of a rank whose members all rest, while those of others train."""

    def advance(self, start: int, stop: int, *_: Any) -> int:
        return stop


def judge_look(trainer: Trainer) -> None:
    """Alarms from the last look; a member that was repaired since has no scores."""
    seen = {name: trainer.watch.state["watch.scores"][:, i] for i, name in enumerate(SCORES)}
    first = ALARMS.index("collapse")
    peak, age = trainer.watch.state["watch.peak"], trainer.step - trainer.watch.state["watch.born"]
    found = judge(seen, peak, age, trainer.alarms.state["watch.bad"][trainer.own, first] > 0)
    bad, known = (trainer.ranks.all_gather(each) for each in found)
    raise_alarms(trainer, first, bad, known & trainer.rest.trains(trainer.ranks.num_members)[:, None])
    trainer.rest.note("differs", trainer.ranks.all_gather(seen["differs"]))


def settle(trainer: Trainer) -> None:
    """Members that have converged rest from here on; the others go on without them."""
    updates = torch.tensor(trainer.tally.updates(trainer.step)["real"], dtype=torch.float64)
    sums = trainer.tally.everyones()
    trainer.rest.note("gap", (sums[2] - sums[3]).abs() / updates)
    found = trainer.rest.judge(trainer.step, ~trainer.alarms.state["watch.ill"].any(1))
    for one in found:
        name, facts = trainer.assembly.name_of(one.member), {"before": round(one.before, 5), "now": round(one.now, 5)}
        trainer.event("converged", member=one.member, name=name, **facts)
        trainer.progress.say(f"{name} has converged at step {trainer.step:,}; it rests.")
    if found and (awake := trainer.rest.awake):
        if isinstance(trainer.engine, SubsetEngine):
            trainer.engine.close()
        trainer.engine = engine_of(trainer, awake)


def engine_of(trainer: Trainer, awake: Iterable[int]) -> SubsetEngine | Idle:
    """An engine for those of this rank's members that do not rest."""
    rows = [row for member in awake if (row := trainer.ranks.local_row(member)) is not None]
    return SubsetEngine(trainer.herd, trainer.plan, rows) if rows else Idle()


def heal(trainer: Trainer) -> None:
    """Notices members that turned NaN or diverged, names them, and repairs them as the recipe says."""
    sums = trainer.tally.sums[:2]
    seen = torch.cat([sums, finite(trainer.herd.state)[None].to(sums)]).cpu()  # [3, n] in one trip from the device
    loss, well = seen[:2].abs().amax(0) / max(1, trainer.step - trainer.tally.since), seen[2] > 0
    good = well & torch.isfinite(loss)
    calm = (loss <= trainer.settings.repair.diverged) | ~good
    good, calm, well = trainer.ranks.all_gather(torch.stack([good, calm, well], 1)).T
    trainer.strategy.on_health_check(trainer.step, well.numpy())
    bad = ~torch.stack([good, calm], 1)
    raise_alarms(trainer, 0, bad, torch.stack([torch.ones_like(good), good], 1))


def raise_alarms(trainer: Trainer, first: int, bad: torch.Tensor, known: torch.Tensor) -> None:
    """Tells what began and what is over, and does what the recipe says about the former; bad, known: of all members."""
    begun, over = trainer.alarms.note(first, bad, known)
    for member, what in over:
        trainer.event("calm", what=what, member=member, name=trainer.assembly.name_of(member))
        trainer.progress.calm(member, what)
    scores = trainer.watch.scores() if begun else {}
    for member, what in begun:
        name = trainer.assembly.name_of(member)
        if what in ("nan", "diverged"):
            trainer.event(what, member=member, name=name)
        else:
            seen = {key: round(values[member], 4) for key, values in scores.items()}
            trainer.event("alarm", what=what, member=member, name=name, **seen)
        trainer.progress.alarm(member, what)
    trainer.progress.say_alarms(trainer.step, begun)
    for member, what in sorted(_to_repair(trainer, begun).items()):
        repair(trainer, member, what, _policy(trainer, what))


def _to_repair(trainer: Trainer, begun: list[tuple[int, str]]) -> dict[int, str]:
    """Each member once, for the first of its alarms that asks for it."""
    return {m: w for m, w in reversed(begun) if _policy(trainer, w) != "tell"}


def _policy(trainer: Trainer, what: str) -> str:
    watch = trainer.settings.watch
    return str(trainer.settings.repair.policy if what in ("nan", "diverged") else getattr(watch, what))
