"""Recommend a packaged recipe for a data set, with its memory, its time and the command (`data inspect --recommend`).

The rules are a table: the first rule that fits is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.util.files import JsonObject
from ganherd.util.text import duration, size

ENOUGH = 1000  # images of a class with which a GAN can start from nothing
FEW = 100  # images of a class below which a GAN may memorise them
SIZES = (32, 64, 128)  # pixels that folders are resized to


@dataclass(frozen=True)
class DataSummary:
    """What a recommendation depends on."""

    source: str
    points: bool  # in the plane, not images
    side: int  # the shorter side of an image in pixels; 0 for points
    classes: int  # 0: no labels
    images: int
    fewest: int  # images of the smallest class, or of all if there are no labels
    gpu: bool


@dataclass(frozen=True)
class Rule:
    """A recipe, the data that it fits, and the reason."""

    recipe: str
    fits: Callable[[DataSummary], bool]
    why: str
    two_phases: bool = False  # first one GAN over all classes, from which the members then start
    resizes: bool = False  # images are resized to the largest of SIZES that is not above theirs


RULES: tuple[Rule, ...] = (
    Rule("ring8", lambda look: look.source == "ring8", "it was made for this toy"),
    Rule("grid25", lambda look: look.source == "grid25", "it was made for this toy"),
    Rule("r15", lambda look: look.source == "r15", "it was made for this toy"),
    Rule(
        "r15",
        lambda look: look.points and look.images < 10_000,
        "few points in the plane: four small GANs see them all",
    ),
    Rule("ring8", lambda look: look.points, "points in the plane: four small GANs see them all"),
    Rule("stacked-mnist-gap4", lambda look: look.source == "stacked-mnist", "it was made for these thousand modes"),
    Rule("digits-wcgan", lambda look: look.side <= 16, "tiny images: small MLPs learn them on a CPU in a minute or so"),
    Rule("mnist-wcgan", lambda look: look.side <= 28, "small images: an MLP for each class is enough"),
    Rule(
        "cifar10-perclass",
        lambda look: look.gpu and look.source == "cifar10",
        "it was made for these images: a conditional GAN first, then one GAN for each class from it",
    ),
    Rule(
        "cifar100-perclass",
        lambda look: look.gpu and look.source == "cifar100",
        "500 images of a class are few: one GAN over all classes first, from which every class starts",
    ),
    Rule(
        "folder-perclass",
        lambda look: look.gpu and look.classes > 1 and look.fewest < ENOUGH,
        f"fewer than {ENOUGH:,} images of a class: one GAN over all classes first, from which every class starts",
        two_phases=True,
        resizes=True,
    ),
    Rule(
        "folder-perclass",
        lambda look: look.gpu,
        "a GPU and enough images: a residual GAN with augmentation for each class",
        resizes=True,
    ),
    Rule(
        "folder-perclass-small",
        lambda look: True,
        "no GPU here: a small Wasserstein GAN for each class, on images resized to 32 pixels",
    ),
)


def recommend(source: str, facts: Mapping[str, Any], data: Sequence[str] = (), prepared: bool = False) -> JsonObject:
    """Recommend a recipe from the facts of `data inspect`, and measure it with a dry run.

    Args:
        data: Overrides that were needed to read the data.
        prepared: Whether the data was prepared, so that its size is fixed.
    """
    from ganherd.recipe import recipe_file
    from ganherd.training import budget
    from ganherd.training.setup import dry_run

    look = look_at(source, facts)
    rule = choose(look)
    recipe = recipe_file.load(rule.recipe)
    known = ["data.bad_images=skip"] if recipe.data.bad_images == "skip" else []
    sets = overrides(rule, look, recipe, [one for one in data if one not in known], prepared)
    measured = dry_run.describe(
        recipe_file.load(rule.recipe, sets)
    )  # of one phase; the other takes as much memory and time
    seconds, length, more = measured["seconds"], "", notes(look, facts)
    own = recipe.train.budget
    unit, amount = parse_budget(own)
    if rule.two_phases and unit == "seconds":
        seconds += amount
    held = recipe.data.holdout
    if facts["holdout"] not in (None, held):
        more.append(
            f"the recipe has data.holdout {held:g}, so the numbers of training and held-out images differ from those above"
        )
    # epochs that were set for other data may be far too few
    if recipe.data.source != source and unit == "epochs" and measured["steps"] < budget.ENOUGH:
        seconds, length = seconds * budget.ENOUGH / measured["steps"], f"{budget.ENOUGH}steps"
        more.append(
            f"{own}, which the recipe has, would be {measured['steps']:,} steps of this data: hence --budget {length}"
        )
    return {
        "recipe": rule.recipe,
        "why": rule.why,
        "commands": commands(rule, sets, length),
        "members": measured["members"],
        "memory_bytes": sum(measured[f"{what}_bytes"] for what in ("state", "training", "data")),
        "seconds": round(seconds, 1),
        "engine": measured["engine"],
        "notes": more,
    }


def commands(rule: Rule, sets: Sequence[str], budget: str = "") -> list[str]:
    """Return the commands to type in order; `budget` replaces that of the recipe if it does not fit the data."""
    if not rule.two_phases:
        return [_typed(rule.recipe, sets) + (f" --budget {budget}" if budget else "")]
    first = _typed(rule.recipe, [*sets, "data.partition=all"])
    return [f"{first} --run runs/all", _typed(rule.recipe, [*sets, "herd.start_from=runs/all"])]


def _typed(recipe: str, sets: Sequence[str]) -> str:
    return " ".join(["ganherd train", recipe, *(f"--set {shlex.quote(one)}" for one in sets)])


def look_at(source: str, facts: Mapping[str, Any]) -> DataSummary:
    """Summarise the data for the rules."""
    import torch

    counts = [row["train"] for row in facts["classes"]]
    points = facts["kind"] == "points"
    return DataSummary(
        source=source,
        points=points,
        side=0 if points else min(facts["shape"][1:]),
        classes=len(counts),
        images=facts["train"],
        fewest=min(counts, default=facts["train"]),
        gpu=torch.cuda.is_available(),
    )


def choose(look: DataSummary) -> Rule:
    """Return the first rule that fits; the last one fits everything.

    >>> choose(DataSummary("digits", False, 8, 10, 1438, 140, gpu=False)).recipe
    'digits-wcgan'
    """
    return next(rule for rule in RULES if rule.fits(look))


def overrides(rule: Rule, look: DataSummary, recipe: Recipe, data: Sequence[str], prepared: bool) -> list[str]:
    """Return the overrides with which the recipe trains on this data."""
    own = recipe.data
    if own.source == look.source:
        return list(data)
    out = [f"data.source={look.source}"]
    given = any(one.startswith("data.size=") for one in data)
    if not look.points and prepared and own.size is not None:
        out.append("data.size=null")
    elif rule.resizes and not prepared and not given:
        out.append(f"data.size={max((n for n in SIZES if n <= look.side), default=SIZES[0])}")
    if own.points is not None:
        out.append("data.points=null")  # all that there are
    if not look.classes and own.partition == "by-class":
        out.append("data.partition=all")
    return [*out, *data]


def notes(look: DataSummary, facts: Mapping[str, Any]) -> list[str]:
    """Return what a user should know before a long training."""
    out = []
    if not look.points and look.classes and look.fewest < FEW:
        few = [row["name"] for row in facts["classes"] if row["train"] < FEW]
        names = ", ".join(few[:5]) + (", …" if len(few) > 5 else "")
        out.append(
            f"{len(few)} of {look.classes} classes have fewer than {FEW} images ({names}): a GAN may memorise them; "
            "collect more, join classes, or watch the memorising alarm"
        )
    if not look.points and not look.classes:
        out.append("no labels: one GAN learns all images; put them into one folder for each class to get labels")
    return out


def text(advice: Mapping[str, Any]) -> str:
    """Return the recommendation as text."""
    lines = [
        f"recommended: {advice['recipe']} ({advice['why']})",
        f"  members  {advice['members']}",
        f"  memory   {size(advice['memory_bytes'])}, data included",
        f"  time     about {duration(advice['seconds'])} here ({advice['engine']})",
        *(f"  {'type' if not i else 'then'}     {command}" for i, command in enumerate(advice["commands"])),
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in advice["notes"])])
