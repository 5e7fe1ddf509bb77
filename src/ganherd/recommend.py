"""Choose a packaged recipe and its settings for a data set and this machine, for `ganherd train FOLDER` and `data inspect`.

The rules are a table: the first rule that fits is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ganherd.data.dataset import Dataset, load
from ganherd.data.readers import survey as surveys
from ganherd.data.readers.class_folders import FORMATS
from ganherd.data.readers.survey import ImageSurvey
from ganherd.data.shards.shards import ShardRows
from ganherd.recipe import recipe_file
from ganherd.recipe.base import in_steps
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.registry import DATA_SOURCES
from ganherd.util.text import duration, note_lines, size

ENOUGH = 1000  # images of a class with which a GAN can start from nothing
FEW = 100  # images of a class below which a GAN may memorise them
SIZES = (32, 64, 128)  # pixels that folders are resized to
TWO_PHASES = ("herd.first={recipe: folder-all, share: 0.5}", "train.budget=20m")


@dataclass(frozen=True)
class DataSummary:
    """What a recommendation depends on."""

    source: str
    kind: str  # images, points or rows
    side: int  # the shorter side of an image in pixels, the median if sizes differ; 0 for points and rows
    classes: int  # 0: no labels
    images: int
    fewest: int  # images of the smallest class, or of all if there are no labels
    gpu: bool
    varied: bool = False  # the images have different sizes


@dataclass(frozen=True)
class Rule:
    """A recipe, the data that it fits, and the reason."""

    recipe: str
    fits: Callable[[DataSummary], bool]
    why: str
    two_phases: bool = False  # first one GAN over all classes, from which the members then start
    resizes: bool = False  # images are resized to the largest of SIZES that is not above theirs


RULES: tuple[Rule, ...] = (
    Rule("breast-cancer-wcgan", lambda look: look.source == "breast_cancer", "it was made for this table"),
    Rule("wine-wcgan", lambda look: look.kind == "rows", "a table: a small Wasserstein GAN for each class, on a CPU"),
    Rule("ring8", lambda look: look.source == "ring8", "it was made for this toy"),
    Rule("grid25", lambda look: look.source == "grid25", "it was made for this toy"),
    Rule("r15", lambda look: look.source == "r15", "it was made for this toy"),
    Rule(
        "r15",
        lambda look: look.kind == "points" and look.images < 10_000,
        "few points in the plane: four small GANs see them all",
    ),
    Rule("ring8", lambda look: look.kind == "points", "points in the plane: four small GANs see them all"),
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
        "no GPU here: a small Wasserstein GAN for each class, on small images",
    ),
)


@dataclass(frozen=True)
class Choice:
    """A recipe and its settings for a data set."""

    look: DataSummary
    recipe: str
    why: str
    sets: tuple[str, ...]  # overrides of the recipe
    notes: tuple[str, ...]  # what a user should know before a long training

    @property
    def command(self) -> str:
        """The command that trains this."""
        return " ".join(["ganherd train", self.recipe, *(f"--set {shlex.quote(one)}" for one in self.sets)])

    @cached_property
    def loaded(self) -> Recipe:
        """The recipe with its settings."""
        return recipe_file.load(self.recipe, self.sets)

    def text(self, in_python: bool = False) -> str:
        """Return what was chosen and why, for people.

        Args:
            in_python: Leave out what is to be typed in a shell.
        """
        pixels, length = self.loaded.data.size, self.loaded.train.budget
        resized = f"cropped to the centre square and resized to {pixels} × {pixels} pixels" if pixels else "as they are"
        rows = {
            "recipe": f"{self.recipe} ({self.why})",
            "images": resized,
            "length": f"{length}; {'budget=' if in_python else '--budget'} sets another",
            **({} if in_python else {"same as": self.command}),
        }
        shown = {name: row for name, row in rows.items() if name != "images" or self.look.kind == "images"}
        return "\n".join([*(f"{name:<9}{row}" for name, row in shown.items()), *note_lines(self.notes)])


def choose_for(source: str, asked: str | None = None, given: Sequence[str] = ()) -> Choice:
    """Choose a recipe for the user's data without measuring anything.

    Args:
        source: A folder of images, a prepared folder, or a file.
        asked: The recipe, if the user named one.
        given: The user's own overrides, which come last.
    """
    if surveys.holds_image_files(source):
        return choose_for_folder(source, surveys.survey(source), asked, given)
    DATA_SOURCES.vouch(source)
    labels = [text for text in given if text.startswith("data.label=")]
    dataset = load(recipe_file.load({"data": {"source": source}}, labels).data)
    facts = {
        "kind": dataset.kind,
        "shape": dataset.shape,
        "train": len(dataset.x),
        "classes": [
            {"name": name, "train": int(np.count_nonzero(dataset.y == k))} for k, name in enumerate(dataset.labels)
        ],
    }
    return _choice(look_at(source, facts), facts, given, prepared=has_fixed_size(dataset), asked=asked)


def choose_for_folder(source: str, files: ImageSurvey, asked: str | None = None, given: Sequence[str] = ()) -> Choice:
    """Choose a recipe for a folder of images; see `choose_for`."""
    if not files.images:
        broken = f" ({files.broken_files})" if files.unreadable else ""
        raise UserError(
            f"{source} holds no images that can be read{broken}: name a folder of images ({', '.join(FORMATS)})."
        )
    facts, skip = survey_facts(files), ["data.bad_images=skip"]  # a file with a header may be damaged, too
    return _choice(look_at(source, facts), facts, [*skip, *given], prepared=False, asked=asked)


def choose_from_facts(
    source: str, facts: Mapping[str, Any], given: Sequence[str] = (), prepared: bool = False
) -> Choice:
    """Choose a recipe from the facts of `data inspect`, with a note if it holds out another fraction than they have.

    Args:
        given: Overrides that were needed to read the data.
        prepared: Whether the data was prepared, so that its size is fixed.
    """
    choice = _choice(look_at(source, facts), facts, given, prepared)
    held = choice.loaded.data.holdout
    if facts["holdout"] in (None, held):
        return choice
    numbers = f"the numbers of training and held-out {facts['kind']}"
    differs = f"the recipe has data.holdout {held:g}, so {numbers} differ from those above"
    return replace(choice, notes=(*choice.notes, differs))


def survey_facts(files: ImageSurvey) -> JsonObject:
    """Return the facts of a survey that `look_at` needs."""
    return {
        "kind": "images",
        "shape": [3, files.side, files.side],
        "train": files.train,
        "classes": [{"name": name, "train": number} for name, number in files.classes.items()],
        "files": files.facts(),
    }


def has_fixed_size(dataset: Dataset) -> bool:
    """Return whether the size of the images is fixed, because the data was prepared."""
    return isinstance(dataset.x, ShardRows)


def recommend(source: str, facts: Mapping[str, Any], data: Sequence[str] = (), prepared: bool = False) -> JsonObject:
    """Recommend a recipe from the facts of `data inspect`, and measure it with a dry run.

    Args:
        data: Overrides that were needed to read the data.
        prepared: Whether the data was prepared, so that its size is fixed.
    """
    from ganherd.training.setup import dry_run

    choice = choose_from_facts(source, facts, data, prepared)
    measured = dry_run.describe(choice.loaded)  # of the second phase, if there are two; the first takes no more memory
    return {
        "recipe": choice.recipe,
        "why": choice.why,
        "commands": [choice.command],
        "members": measured["members"],
        "memory_bytes": sum(measured[f"{what}_bytes"] for what in ("state", "training", "data")),
        "seconds": round(measured["seconds"], 1),
        "engine": measured["engine"],
        "notes": list(choice.notes),
    }


def _choice(
    look: DataSummary, facts: Mapping[str, Any], data: Sequence[str], prepared: bool, asked: str | None = None
) -> Choice:
    rule = choose(look) if asked is None else Rule(asked, lambda look: True, "as you asked")
    recipe = recipe_file.load(rule.recipe)
    known = ["data.bad_images=skip"] if recipe.data.bad_images == "skip" else []
    sets = overrides(rule, look, recipe, [one for one in data if one not in known], prepared)
    more = notes(look, facts, recipe_file.load(rule.recipe, sets).data.size)
    own, is_given = recipe.train.budget, any(one.startswith("train.budget=") for one in data)
    if recipe.data.source != look.source and parse_budget(own)[0] == "epochs" and not is_given:
        from ganherd.training import budget

        steps = _steps(recipe_file.load(rule.recipe, sets))
        if steps < budget.ENOUGH:
            sets.append(f"train.budget={budget.ENOUGH}steps")
            more.append(f"{own}, which the recipe has, would be {steps:,} steps of this data: hence {budget.ENOUGH:,}")
    return Choice(look, rule.recipe, rule.why, tuple(sets), tuple(more))


def _steps(recipe: Recipe) -> int:
    """Return the number of steps of a recipe whose budget is in epochs."""
    from ganherd.training.setup.member_data import cut

    return in_steps(recipe.train.budget, cut(recipe).steps_per_epoch)


def look_at(source: str, facts: Mapping[str, Any]) -> DataSummary:
    """Summarise the data for the rules."""
    import torch

    counts: list[int] = [row["train"] for row in facts["classes"]]
    files: JsonObject | None = facts.get("files")
    is_image = facts["kind"] == "images"
    return DataSummary(
        source=source,
        kind=facts["kind"],
        side=0 if not is_image else files["side"] if files else min(facts["shape"][1:]),
        classes=len(counts),
        images=facts["train"],
        fewest=min(counts, default=facts["train"]),
        gpu=torch.cuda.is_available(),
        varied=files is not None and files["sizes"] > 1,
    )


def choose(look: DataSummary) -> Rule:
    """Return the first rule that fits; the last one fits everything.

    >>> choose(DataSummary("digits", "images", 8, 10, 1438, 140, gpu=False)).recipe
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
    if look.kind == "images" and prepared and own.size is not None:
        out.append("data.size=null")
    elif rule.resizes and not prepared and not given:
        out.append(f"data.size={max((n for n in SIZES if n <= look.side), default=SIZES[0])}")
    elif look.varied and own.size is None and not given:
        out.append(f"data.size={look.side}")
    if own.points is not None:
        out.append("data.points=null")  # all that there are
    if not look.classes and own.partition == "by-class":
        out.append("data.partition=all")
    return [*out, *(TWO_PHASES if rule.two_phases else ()), *data]


def notes(look: DataSummary, facts: Mapping[str, Any], pixels: int | None = None) -> list[str]:
    """Return what a user should know before a long training; `pixels` is the size to which images are resized."""
    out = []
    if pixels and look.side > 64 and pixels < look.side:
        limit = "128 pixels are the most that ganherd's nets were made for" if look.gpu else "more takes a GPU"
        size_before = f"{'about ' if look.varied else ''}{look.side} pixels"
        out.append(
            f"images of {size_before} become {pixels} × {pixels}: expect shapes and colours, not fine detail; {limit}"
        )
    if look.kind != "points" and look.classes and look.fewest < FEW:
        few = [row["name"] for row in facts["classes"] if row["train"] < FEW]
        names = ", ".join(few[:5]) + (", …" if len(few) > 5 else "")
        out.append(
            f"{len(few)} of {look.classes} classes have fewer than {FEW} {look.kind} ({names}): a GAN may memorise them; "
            "collect more, join classes, or watch the memorising alarm"
        )
    if look.kind == "images" and not look.classes:
        out.append(
            "no labels: one GAN learns all images; labels are the names of folders, `y` of an .npz, or #label=KEY after a .tar "
            "or a data set of the Hub"
        )
    if look.kind == "rows" and not look.classes:
        out.append("no labels: one GAN learns all rows; if a column holds the class of each row, name it in data.label")
    return out


def text(advice: Mapping[str, Any]) -> str:
    """Return the recommendation as text."""
    lines = [
        f"recommended: {advice['recipe']} ({advice['why']})",
        f"  members  {advice['members']}",
        f"  memory   {size(advice['memory_bytes'])}, data included",
        f"  time     about {duration(advice['seconds'])} here ({advice['engine']})",
        *(f"  type     {command}" for command in advice["commands"]),
    ]
    return "\n".join([*lines, *note_lines(advice["notes"])])
