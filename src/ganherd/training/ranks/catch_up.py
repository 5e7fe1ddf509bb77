"""Lost members catch up with the others: trained by the same loop, by themselves, and nothing of it is told again.

What they do again was recorded, and its events told, while their rank was there. All draws belong to a member and a step, and
what is decided about a member that meets nobody comes from its own numbers, repairs and rest included: so they arrive as they
would have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ganherd.comm.liveness.heartbeat import Heartbeat
from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd.engine.engines import Plan, never, place
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import snapshot
from ganherd.training.budget import Budget
from ganherd.training.health import response
from ganherd.training.loop import Trainer
from ganherd.training.ranks.recovery import Recovery
from ganherd.training.ranks.solo_recovery import Back
from ganherd.training.ready import beating
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.progress import Progress


class Follower(Trainer):
    """The loop without its records, events, pictures and checkpoints, which are there."""

    writes = False

    @property
    def last(self) -> int:
        """Where the others stand: a herd that rests as a whole would end before, and these are but a part of one."""
        return self.budget.steps

    def follow(self, step: int) -> None:
        """To the arrival at that step."""
        while self.step < step:
            if self.arrived:
                self.attend()
            engine = response.Idle() if self.rest.awake == [] else self.engine
            self.step = engine.advance(self.step, min(step, self.next_stop()), self.tally.sums, never, self.tick)
            self.arrived = True

    def record(self) -> None:
        return

    def show(self) -> None:
        return

    def save(self) -> None:
        self.last_good = self.step

    def close(self) -> None:
        if isinstance(self.engine, response.SubsetEngine):
            self.engine.close()
        self.herd.feed.close()


def bring_back(
    rescue: Recovery,
    assembly: PreparedHerd,
    plan: Plan,
    folder: RunFolder,
    paced: dict[str, Any] | None,
    resumed: checkpoint.Checkpoint,
    say: Callable[[str], None],
) -> None:
    """After a loss, where members go back alone: those that are lost come to where the others stand. Called by all ranks."""
    if (back := rescue.alone.back) is None:
        return
    ranks = assembly.ranks

    def work() -> tuple[int, list[str]]:
        found = catch_up(assembly, plan, folder, paced, back, resumed, heart)
        rescue.alone.hold(ranks.local_members, resumed)
        rescue.caught_up(back, resumed.step - back.step)
        return found

    with beating(ranks, folder.path) as heart:
        told = ranks.all_gather_json(run_on_all_ranks(ranks.member_comm, work))
    rescue.caught_up(back, max(repeated for repeated, _ in told))
    for sentence in dict.fromkeys(sentence for _, damaged in told for sentence in damaged):
        say(f"{sentence}; the checkpoint before it is used.")


def catch_up(
    assembly: PreparedHerd,
    plan: Plan,
    folder: RunFolder,
    paced: dict[str, Any] | None,
    back: Back,
    resumed: checkpoint.Checkpoint,
    heart: Heartbeat | None = None,
) -> tuple[int, list[str]]:
    """Fills the rows of `resumed` that are to come back. How many steps were done again for it, and a sentence for each
    checkpoint that was found damaged.

    `paced`: how often the members are looked at, where that was found. `resumed`: this rank's members, and the step.
    """
    if not back.members:
        return 0, []
    damaged: list[str] = []
    if (found := back.copies) is None:
        found, damaged = checkpoint.newest(folder.checkpoints, assembly.herd.nets, back.members, back.step)
    names = list(assembly.herd.state)
    some = assembly.only(back.members, {name: found.state[name].clone() for name in names})
    some.recipe = some.recipe.model_copy(update={"run": some.recipe.run.model_copy(update={"validation": 0})})
    place(some.herd, plan)
    facts = {**found.facts, "arrived": back.copies is not None}
    facts["sums"] = [[row[member] for member in back.members] for row in facts["sums"]]
    facts["repairs"] = [facts["repairs"][member] for member in back.members]
    state = {name: value for name, value in found.state.items() if name not in names}
    before_it = checkpoint.Checkpoint(found.path, found.step, state, facts)
    follower = Follower(some, plan, folder, Budget(resumed.step), Progress([], quiet=True), before_it, paced=paced)
    follower.heart = heart
    try:
        follower.follow(resumed.step)
    finally:
        follower.close()
    rows = [assembly.own.index(member) for member in back.members]
    for name, value in snapshot.state(follower).items():
        resumed.state[name][rows] = value.detach().cpu()
    for sums, own in zip(resumed.facts["sums"], follower.tally.sums.tolist(), strict=True):
        for member, value in zip(back.members, own, strict=True):
            sums[member] = value
    return resumed.step - found.step, damaged
