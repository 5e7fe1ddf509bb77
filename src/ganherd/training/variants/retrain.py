"""Retrain some classes of a finished run in its own folder: their members get fresh weights, and the others are paused.

The last checkpoint is rewritten with fresh weights for the members of these classes, and the run is resumed from there.
It can be interrupted like any other run, and ends with a new mixture, new scores and a new report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganherd.herd import rng
from ganherd.herd.engine.engine_trials import measure_rate
from ganherd.herd.state import State, members_of, take_
from ganherd.recipe import trust
from ganherd.recipe.schema import parse_budget
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.runs.records import JsonLinesWriter
from ganherd.training.health.alarms import Alarms
from ganherd.training.health.convergence import Convergence
from ganherd.training.health.monitor import Monitor
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.identity import check_facts, check_joined, check_names, recorded, recorded_streams
from ganherd.util.errors import UserError, few
from ganherd.util.text import reads_as_number


def prepare(path: str | Path, which: str, budget: str | None = None, trust_code: bool = False) -> str:
    """Give some members of a finished run fresh weights, so that a resume trains them, and return a message.

    Args:
        path: The run folder.
        which: Classes or numbers of members, e.g. `cat`, `cat,dog` or `3`.
        budget: How long to train them: steps, epochs or a time. Default: the number of steps that they have made so
            far.
        trust_code: Whether code of the user's own may be imported to build nets.
    """
    folder = RunFolder.open(path)
    check_joined(folder.info, folder)
    if folder.info.state != "finished":
        raise UserError(f"--retrain is for finished runs, and {path} is not: `{folder.again}` continues it.")
    if trust_code:
        trust.vouch(folder.recipe)
    recipe = folder.recipe
    if recipe.strategy.meets:
        raise UserError(
            "--retrain needs members that never meet: with this run's strategy every member depends on the others."
        )
    with folder.lock(), rng.using(recorded_streams(folder.info, folder)):
        prepared = assemble(recipe, trust_code, begins=False)
        last, _ = checkpoint.newest(folder.checkpoints, prepared.herd.nets)
        check_names(prepared, last)
        check_facts(last, prepared.size)
        everyone = range(prepared.size)
        fresh = {name: value.clone() for name, value in prepared.herd.state.items()}
        take_(prepared.herd.state, last.state, everyone, everyone)
        members = chosen(prepared, which)
        until = last.step + _steps(prepared, folder, members, budget)
        restarted = [_restart(prepared, fresh, member) for member in members]
        events = JsonLinesWriter(folder.events_path)
        for facts in restarted:
            events.write({"step": last.step, "event": "retrain", **facts, "until": until})
        sizes = {"metrics": folder.metrics_path.stat().st_size, "events": events.flush()}
        events.close()
        changed = {
            "sums": [[0.0] * prepared.size for _ in last.meta.sums],
            "recorded": last.step,
            "counted_from": [],
            "last_good": last.step,
            "repairs": [0 if m in members else count for m, count in enumerate(last.meta.repairs)],
            "over": None,
            "bytes": sizes,
        }
        state = {**last.state, **prepared.herd.state, **_remembered(prepared, last, members, until)}
        checkpoint.save(folder.checkpoints, last.step, state, prepared.herd.nets, last.meta.model_copy(update=changed))
        # The end of the retraining is saved in the checkpoint (`rest.until`); run.json repeats it for readers.
        folder.write_info(state="interrupted", budget={"steps": until, "deadline": None})
    names = few([facts["name"] for facts in restarted], 3)
    return f"retraining for {until - last.step:,} steps: {names}; the others are paused"


def chosen(prepared: PreparedHerd, which: str) -> list[int]:
    """Return the numbers of all members, in all replicas, that have these classes or numbers; see `prepare`."""
    labels, slots = prepared.dataset.labels, set()
    # then a number is meant as the name of a class, also if there is no such class
    are_other_numbers = all(map(reads_as_number, labels)) and list(labels) != list(map(str, range(len(labels))))
    for word in map(str.strip, which.split(",")):
        labelled = [m for m in range(prepared.members) if prepared.label[m] >= 0]
        named = [m for m in labelled if word in (labels[prepared.label[m]], prepared.label_name(m))]
        if not named and word.isdecimal() and int(word) < prepared.members and not are_other_numbers:
            named = [int(word)]
        if not named:
            known = ", ".join(prepared.label_name(m) or str(m) for m in range(prepared.members))
            raise UserError(f"--retrain {word}: there is no such class or member; there are {known}.")
        slots |= set(named)
    return [m for m in range(prepared.size) if m % prepared.members in slots]


def _steps(prepared: PreparedHerd, folder: RunFolder, members: Sequence[int], budget: str | None) -> int:
    """Return the number of steps for which these members are retrained; see `prepare` for `budget`."""
    if budget is None:
        return max(1, int(prepared.herd.state["g.adam.t"][list(members)].max()))
    try:
        kind, amount = parse_budget(budget)
    except ValueError as error:
        raise UserError(f"--budget {error}, not {budget!r}.") from None
    if kind == "steps":
        return int(amount)
    if kind == "epochs":
        return max(1, round(amount * prepared.steps_per_epoch))
    herd = prepared.herd
    retrained = replace(herd, state=members_of(herd.state, list(members)), feed=herd.feed.select(members))
    return max(1, int(amount * measure_rate(retrained, recorded(folder.info, folder)[0], 1.0) / len(members)))


def _restart(prepared: PreparedHerd, fresh: State, member: int) -> dict[str, Any]:
    """Give a member fresh weights and the settings of the recipe, and return facts about it for the event.

    The weights come from the random stream of its next `life`, the number that also counts repairs.

    Args:
        fresh: The state of the herd before the checkpoint was loaded, which has the settings of the recipe.
    """
    herd = prepared.herd
    life = int(herd.state["set.life"][member]) + 1
    settings = {name: value[[member]] for name, value in fresh.items() if name.startswith("set.")}
    take_(herd.breed_of(member).view(herd.state), settings | prepared.fresh_member(member, life), [member], [0])
    return {"member": member, "name": prepared.name_of(member), "life": life}


def _remembered(prepared: PreparedHerd, last: checkpoint.Checkpoint, members: Sequence[int], until: int) -> State:
    """Return the health and convergence state [N, …] of the checkpoint, reset for the retrained members.

    All other members are paused until the step `until`.
    """
    watch, alarms = Monitor(prepared, last.state), Alarms(prepared.size, last.state)
    rest = Convergence(prepared.recipe.train.stop, prepared.size, last.state, ())
    rest.end_pauses(last.step)  # pauses of an earlier retraining
    for member in members:
        watch.forget(member, last.step)
        alarms.forget(member)
        rest.forget(member, last.step)
    rest.pause(set(range(prepared.size)) - set(members), last.step, until)
    return {**watch.state, **alarms.state, **rest.state}
