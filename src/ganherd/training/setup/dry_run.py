"""Describe what a recipe would train, for `ganherd train --dry-run`: members, nets, memory, steps and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ganherd.herd.engine import autotune
from ganherd.herd.engine.device import missing_gpu
from ganherd.herd.engine.engine_trials import measure_rate, memory_per_member
from ganherd.herd.state import bytes_per_member
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.training.budget import Budget, Timing, plan_budget
from ganherd.training.closing_time import ClosingTime, estimate_closing
from ganherd.training.setup import net_guard, preflight
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import plan_meetings, strategy_class
from ganherd.training.setup.disk import disk_need
from ganherd.training.setup.start_times import record_start, recorded_starts
from ganherd.training.variants import phases
from ganherd.util.files import JsonObject
from ganherd.util.memory import refused_if_too_large
from ganherd.util.text import duration, note_lines, size

LONG = 3.0  # seconds; if one step of one member takes longer, nothing else is measured
_SECONDS = 1.0  # duration of the training that measures the steps per second


@refused_if_too_large()
def describe(
    recipe: Recipe,
    on_known: Callable[[Mapping[str, Any]], None] = lambda facts: None,
    began: float | None = None,
) -> JsonObject:
    """Return facts about what a recipe would train: data, members, nets, notes, engine, memory, disk, steps and time.

    The herd is built, and trained for a second on copies to measure it. No run is written.

    Args:
        on_known: Called with the facts that are known before anything is measured.
        began: When the command was started, on the clock of `time.monotonic`. Default: now.
    """
    began = time.monotonic() if began is None else began
    if (first := phases.pending(recipe)) is None:
        notes, prepared = [], assemble(recipe, trust_code=True)
    else:
        before = phases.before(recipe)
        notes = [f"{first.recipe} is trained first, for {before.train.budget}; the rest is the herd's own"]
        prepared = phases.foreseen(phases.after(recipe), before)
    strategy_class(recipe).refuse_impossible(prepared)
    preflight.check_plugins(prepared.recipe)
    herd, nets, data = prepared.herd, prepared.recipe.nets, prepared.dataset
    facts: JsonObject = {
        "data": f"{data.name}, {len(data.x):,} {data.kind} of shape {list(data.shape)}, {len(data.x_test):,} held out",
        "members": herd.num_members,
        "replicas": recipe.herd.replicas,
        "kind": data.kind,
        "images_per_member": [int(prepared.count.min()), int(prepared.count.max())],
        "generator": {"net": nets.generator.name, "parameters": herd.breeds.all[0].g.num_params},
        "breeds": [
            {"net": breed.name, "parameters": breed.g.num_params, "members": len(breed.slots)}
            for breed in herd.breeds.all
        ],
        "discriminator": {"net": nets.discriminator.name, "parameters": herd.d.num_params},
        "loss": recipe.loss.name,
        "notes": [*notes, *prepared.notes, *missing_gpu(recipe)],
    }
    on_known(facts)
    measurements = _measured(prepared, began)
    unit, amount = parse_budget(recipe.train.budget)
    if unit == "seconds":  # the time budget covers both phases
        first_phase = amount - parse_budget(prepared.recipe.train.budget)[1]
        for start in ("warm", "cold"):
            measurements[start]["seconds"] += first_phase
        measurements["seconds"] = amount
    return facts | measurements | {"notes": [*facts["notes"], *measurements["notes"]]}


def _measured(prepared: PreparedHerd, began: float) -> JsonObject:
    """Measure the herd, and return its engine, memory, length and time.

    If nets are far too slow for this machine, only one step of one member is measured.
    """
    herd, recipe = prepared.herd, prepared.recipe
    assembled = time.monotonic()
    memory = memory_per_member(herd)
    took = time.monotonic() - assembled
    cold = warm = assembled - began
    if slow := herd.device.type == "cpu" and took > LONG:  # the first step on a GPU compiles
        engine, at_once, speed = f"not chosen yet: one step of one member takes {duration(took)} here", 1, 1 / took
    else:
        net_guard.examine(prepared)
        examined = time.monotonic()
        plan = autotune.choose(herd, recipe.engine, lambda text: None)
        cold, warm = _starts(prepared, time.monotonic() - began - took, time.monotonic() - examined)
        engine, at_once = plan.describe(herd.num_members), 1 if plan.one_by_one else plan.chunk
        speed = measure_rate(autotune.measured_members(herd), plan, _SECONDS)
    closing, rate = ClosingTime() if slow else estimate_closing(prepared), speed / herd.num_members
    budget, budget_cold = (
        plan_budget(recipe.train.budget, prepared.steps_per_epoch, partial(Timing, rate, start, closing))
        for start in (warm, cold)
    )
    meetings = plan_meetings(recipe, prepared.steps_per_epoch, budget.steps)
    disk = disk_need(prepared, budget.steps)
    return {
        "engine": engine,
        "state_bytes": bytes_per_member(herd.state) * herd.num_members,
        "training_bytes": memory * min(at_once, herd.num_members),
        "data_bytes": int(herd.feed.x.numel() * herd.feed.x.element_size()),
        "disk_bytes": disk.total,
        "disk": disk.describe(),
        "steps": budget.steps,
        "epochs": round(budget.steps / prepared.steps_per_epoch, 2),
        "member_steps_per_second": round(speed, 1 if speed >= 1 else 4),
        "measured": "one step of one member" if slow else "the herd",
        "seconds": round(budget.steps / rate, 1),
        "warm": _whole(budget, warm, rate, closing),
        "cold": _whole(budget_cold, cold, rate, closing),
        "notes": preflight.check_length(recipe, meetings, budget),
    }


def _starts(prepared: PreparedHerd, seconds: float, choice: float) -> tuple[float, float]:
    """Return the seconds from the start of a command to its first step: (cold, warm).

    A cold start, the first of a recipe on this machine, measures engines and compiles kernels; a warm one finds both in
    caches. Both times come from records of earlier starts, if there are any. Otherwise this start was cold, and it is
    recorded; a warm one is estimated by choosing the engine again, now from the cache.

    Args:
        seconds: The duration of this process's start.
        choice: The part of these seconds in which the engine was chosen.
    """
    recorded = recorded_starts(prepared.recipe)
    if recorded:
        return recorded[0], recorded[-1] if len(recorded) > 1 else seconds
    record_start(prepared.recipe, seconds)
    began = time.monotonic()
    autotune.choose(prepared.herd, prepared.recipe.engine, lambda text: None)
    return seconds, min(seconds, seconds - choice + time.monotonic() - began)


def _whole(budget: Budget, start: float, rate: float, closing: ClosingTime) -> JsonObject:
    """Return the seconds to the first step, the number of steps, and the seconds from the start to the mixture."""
    seconds = start + budget.steps / rate + closing.seconds
    return {"start_seconds": round(start, 1), "steps": budget.steps, "seconds": round(seconds, 1)}


def known(facts: Mapping[str, Any]) -> str:
    """Return a text of those `describe` facts that are known before anything is measured."""
    low, high = facts["images_per_member"]
    many = len(facts["breeds"]) > 1
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    rows = {
        "data": facts["data"],
        "herd": ("1 member" if facts["members"] == 1 else f"{facts['members']} members, each")
        + f" with {each} {facts['kind']}"
        + (f"; {facts['replicas']} copies stacked" if facts["replicas"] > 1 else ""),
        "generator": "; ".join(
            (f"{breed['members']} × " if many else "") + f"{breed['net']}, {breed['parameters']:,} parameters"
            for breed in facts["breeds"]
        ),
        "discriminator": "{net}, {parameters:,} parameters".format(**facts["discriminator"]),
        "loss": facts["loss"] if isinstance(facts["loss"], str) else ", ".join(facts["loss"]),
    }
    return "\n".join([*_lines(rows), *note_lines(facts["notes"])])


def measured(facts: Mapping[str, Any], shown: Sequence[str] = ()) -> str:
    """Return a text of those `describe` facts that were measured, and of the notes that are not in `shown`."""
    speed = facts["member_steps_per_second"]
    rows = {
        "engine": facts["engine"],
        "memory": "{} state, {} while training, {} data".format(
            *(size(facts[f"{what}_bytes"]) for what in ("state", "training", "data"))
        ),
        "disk": facts["disk"],
        "length": f"{facts['steps']:,} steps, {facts['epochs']:,.6g} epochs",
        "time": f"about {duration(facts['seconds'])} at {speed:{',.0f' if speed >= 1 else '.2g'}} member-steps/s, "
        f"measured on {facts['measured']}",
        "warm": _line(facts["warm"]),
        "cold": f"{_line(facts['cold'])}, if nothing is measured or compiled yet",
    }
    notes = note_lines(note for note in facts["notes"] if note not in shown)
    return "\n".join([*_lines(rows), *notes, "Nothing was written: leave --dry-run out to train."])


def _line(whole: Mapping[str, Any]) -> str:
    """Return a phrase about the time of a command. `whole`: what `_whole` returns.

    >>> _line({"start_seconds": 3.1, "steps": 1234, "seconds": 60.0})
    'first step after 3 s, mixture of 1,234 steps after 1 min'
    """
    start, end = duration(whole["start_seconds"]), duration(whole["seconds"])
    return f"first step after {start}, mixture of {whole['steps']:,} steps after {end}"


def _lines(rows: dict[str, str]) -> list[str]:
    """Return the rows of a table with two columns as lines."""
    return [f"{name:<14}{value}" for name, value in rows.items()]
