"""What a recipe would train, before it does: members, nets, memory, steps and time."""

from __future__ import annotations

from typing import Any

from ganherd.herd import autotune
from ganherd.herd.engine import memory_per_member, rate
from ganherd.herd.state import bytes_per_member
from ganherd.recipe import Recipe, parse_budget
from ganherd.run import phases
from ganherd.run.assemble import assemble
from ganherd.run.budget import plan_budget, too_short
from ganherd.run.meetings import never_due, plan_meetings, refuse_impossible
from ganherd.run.progress import duration, size


def describe(recipe: Recipe) -> dict[str, Any]:
    """Assembles the herd and runs it for a second on copies; nothing is written."""
    unit, amount = parse_budget(recipe.train.budget)
    if (first := phases.pending(recipe)) is None:
        notes, assembly = [], assemble(recipe, trust_code=True)
    else:
        before = phases.before(recipe)
        notes = [f"{first.recipe} is trained first, for {before.train.budget}; the rest is the herd's own"]
        assembly = phases.foreseen(phases.after(recipe), before)
    refuse_impossible(assembly)
    herd, recipe = assembly.herd, assembly.recipe
    plan = autotune.choose(herd, recipe.engine, lambda text: None)
    speed = rate(herd, plan, 1.0)
    budget = plan_budget(recipe.train.budget, assembly.steps_per_epoch, lambda: (speed / herd.size, 2.0))
    meetings = plan_meetings(recipe, assembly.steps_per_epoch, budget.steps)
    return {
        "data": f"{assembly.dataset.name}, {len(assembly.dataset.x):,} of shape {list(assembly.dataset.shape)}, "
        f"{len(assembly.dataset.x_test):,} held out",
        "members": herd.size,
        "replicas": recipe.herd.seeds,
        "images_per_member": [int(assembly.count.min()), int(assembly.count.max())],
        "generator": {"net": recipe.nets.generator.name, "parameters": herd.breeds.all[0].g.size},
        "breeds": [
            {"net": breed.name, "parameters": breed.g.size, "members": len(breed.slots)} for breed in herd.breeds.all
        ],
        "discriminator": {"net": recipe.nets.discriminator.name, "parameters": herd.d.size},
        "loss": recipe.loss.name,
        "engine": plan.describe(herd.size),
        "state_bytes": bytes_per_member(herd.state) * herd.size,
        "training_bytes": memory_per_member(herd) * min(plan.chunk if plan.name != "loop" else 1, herd.size),
        "data_bytes": int(herd.feed.x.numel() * herd.feed.x.element_size()),
        "steps": budget.steps,
        "epochs": round(budget.steps / assembly.steps_per_epoch, 2),
        "member_steps_per_second": round(speed, 1),
        "seconds": amount if unit == "seconds" else round(budget.steps * herd.size / speed, 1),
        "notes": [
            *notes,
            *assembly.notes,
            *too_short(recipe.train.budget, budget.steps),
            *never_due(recipe, meetings, budget.steps),
        ],
    }


def text(facts: dict[str, Any]) -> str:
    low, high = facts["images_per_member"]
    many = len(facts["breeds"]) > 1
    each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    rows = {
        "data": facts["data"],
        "herd": f"{facts['members']} members, each with {each} images"
        + (f"; {facts['replicas']} seeds stacked" if facts["replicas"] > 1 else ""),
        "generator": "; ".join(
            (f"{breed['members']} × " if many else "") + f"{breed['net']}, {breed['parameters']:,} parameters"
            for breed in facts["breeds"]
        ),
        "discriminator": "{net}, {parameters:,} parameters".format(**facts["discriminator"]),
        "loss": facts["loss"] if isinstance(facts["loss"], str) else ", ".join(facts["loss"]),
        "engine": facts["engine"],
        "memory": "{} state, {} while training, {} data".format(
            *(size(facts[f"{what}_bytes"]) for what in ("state", "training", "data"))
        ),
        "length": f"{facts['steps']:,} steps, {facts['epochs']:g} epochs",
        "time": f"about {duration(facts['seconds'])} at {facts['member_steps_per_second']:,.0f} member-steps/s, measured",
    }
    lines = [f"{name:<14}{value}" for name, value in rows.items()]
    return "\n".join(
        [*lines, *(f"note: {note}" for note in facts["notes"]), "Nothing was written: leave --dry-run out to train."]
    )
