"""Training some classes of a finished run anew, in place: their members start another life, all others rest meanwhile.

The last checkpoint is written again with fresh weights for them, and the run is resumed from there: so it can be interrupted
as any other, and ends with a mixture, scores and a report of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganherd.herd import rng
from ganherd.herd.engine.engines import measure_rate
from ganherd.herd.state import Seat, State, members_of, new_state, take_
from ganherd.recipe.schema import parse_budget
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.runs.records import JsonLinesWriter
from ganherd.training.health.alarms import Alarms
from ganherd.training.health.convergence import Convergence
from ganherd.training.health.monitor import Monitor
from ganherd.training.setup.assemble import PreparedHerd, assemble, makers
from ganherd.training.setup.identity import check_facts, check_joined, check_names, recorded, recorded_streams
from ganherd.util.errors import UserError, few


def prepare(path: str | Path, which: str, budget: str | None = None, trust_code: bool = False) -> str:
    """Makes a finished run one whose named classes (or members, by number) have yet to be trained, for so long; in words.

    `which`: as cat or cat,dog or 3; `budget`: steps, epochs or a time; by default as many steps as each had.
    """
    folder = RunFolder.open(path)
    check_joined(folder.info, folder)
    if folder.info.state != "finished":
        raise UserError(f"--retrain is for finished runs, and {path} is not: `{folder.again}` goes on with it.")
    recipe = folder.recipe
    if recipe.strategy.meets:
        raise UserError("--retrain is for members that meet nobody: with this run's strategy one is made by all.")
    with folder.lock(), rng.using(recorded_streams(folder.info, folder)):
        assembly = assemble(recipe, trust_code, begins=False)
        last, _ = checkpoint.newest(folder.checkpoints, assembly.herd.nets)
        check_names(assembly, last)
        check_facts(last, assembly.size)
        everyone = range(assembly.size)
        fresh = {name: value.clone() for name, value in assembly.herd.state.items()}
        take_(assembly.herd.state, last.state, everyone, everyone)
        members = chosen(assembly, which)
        until = last.step + _steps(assembly, folder, members, budget)
        told = [_anew(assembly, fresh, member) for member in members]
        events = JsonLinesWriter(folder.events_path)
        for facts in told:
            events.write({"step": last.step, "event": "retrain", **facts, "until": until})
        sizes = {"metrics": folder.metrics_path.stat().st_size, "events": events.flush()}
        events.close()
        changed = {
            "sums": [[0.0] * assembly.size for _ in last.meta.sums],
            "recorded": last.step,
            "last_good": last.step,
            "repairs": [0 if m in members else count for m, count in enumerate(last.meta.repairs)],
            "over": None,
            "bytes": sizes,
        }
        state = {**last.state, **assembly.herd.state, **_remembered(assembly, last, members, until)}
        checkpoint.save(folder.checkpoints, last.step, state, assembly.herd.nets, last.meta.model_copy(update=changed))
        # the checkpoint alone says how far the run goes; this is for those who only read run.json
        folder.write_info(state="interrupted", budget={"steps": until, "deadline": None})
    names = few([facts["name"] for facts in told], 3)
    return f"trained anew, for {until - last.step:,} steps: {names}; the others rest"


def chosen(assembly: PreparedHerd, which: str) -> list[int]:
    """The members of all replicas that are meant, by the names of their classes or by their numbers."""
    labels, slots = assembly.dataset.labels, set()
    for word in (part.strip() for part in which.split(",")):
        named = [m for m in range(assembly.members) if assembly.label[m] >= 0 and labels[assembly.label[m]] == word]
        if not named and word.isdecimal() and int(word) < assembly.members:
            named = [int(word)]
        if not named:
            known = ", ".join(labels[k] if k >= 0 else str(m) for m, k in enumerate(assembly.label[: assembly.members]))
            raise UserError(f"--retrain {word}: there is no such class or member; there are {known}.")
        slots |= set(named)
    return [m for m in range(assembly.size) if m % assembly.members in slots]


def _steps(assembly: PreparedHerd, folder: RunFolder, members: Sequence[int], budget: str | None) -> int:
    if budget is None:
        return max(1, int(assembly.herd.state["g.adam.t"][list(members)].max()))
    try:
        kind, amount = parse_budget(budget)
    except ValueError as error:
        raise UserError(f"--budget {error}, not {budget!r}.") from None
    if kind == "steps":
        return int(amount)
    if kind == "epochs":
        return max(1, round(amount * assembly.steps_per_epoch))
    herd = assembly.herd
    part = replace(herd, state=members_of(herd.state, list(members)), feed=herd.feed.select(members))
    return max(1, int(amount * measure_rate(part, recorded(folder.info, folder)[0], 1.0) / len(members)))


def _anew(assembly: PreparedHerd, fresh: State, member: int) -> dict[str, Any]:
    """Fresh weights from the stream of its next life, and the recipe's settings."""
    herd, data = assembly.herd, assembly.dataset
    seat = Seat(assembly.seats[member].seed, assembly.seats[member].slot, int(herd.state["set.life"][member]) + 1)
    # trusted: a net of the user's own was built by `assemble` already, with leave
    make_g, make_d = makers(assembly.recipe, data.shape, len(data.labels), trust_code=True, slot=seat.slot)
    state = herd.breed_of(member).view(herd.state)
    drawn = new_state(make_g, make_d, [seat], {}, state["g.params"].dtype, "g.ema" in state)[2]
    settings = {name: value[[member]] for name, value in fresh.items() if name.startswith("set.")}
    take_(state, {**settings, **drawn}, [member], [0])
    return {"member": member, "name": assembly.name_of(member), "life": seat.life}


def _remembered(assembly: PreparedHerd, last: checkpoint.Checkpoint, members: Sequence[int], until: int) -> State:
    """What is remembered of the members' health and rest: nothing of those that begin."""
    watch, alarms = Monitor(assembly, last.state), Alarms(assembly.size, last.state)
    rest = Convergence(assembly.recipe.train.stop, assembly.size, last.state, ())
    rest.wake(last.step)  # who waited for an earlier one
    for member in members:
        watch.forget(member, last.step)
        alarms.forget(member)
        rest.forget(member, last.step)
    rest.wait(set(range(assembly.size)) - set(members), last.step, until)
    return {**watch.state, **alarms.state, **rest.state}
