"""A recipe of two phases: what is trained first, and what starts from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ganherd import recipe_file
from ganherd.recipe import First, Net, Recipe
from ganherd.recipe_base import portion
from ganherd.run.folder import RunFolder


def first_of(run: Path) -> RunFolder:
    """The folder of the first phase of a run: beside it."""
    return RunFolder(run.with_name(f"{run.name}-first"))


def pending(recipe: Recipe) -> First | None:
    """What has to be trained before this recipe; none where it starts from a run that is there, or from nothing."""
    return recipe.herd.first if recipe.herd.start_from is None else None


def before(recipe: Recipe) -> Recipe:
    """The recipe of the first phase, with its share of the budget: on the same data, with the same seeds, in the same precision on
    the same engine, and with nets of the same size."""
    assert recipe.herd.first is not None
    first, own = recipe.herd.first, recipe_file.load(recipe.herd.first.recipe)
    sizes = {
        role: _sized(getattr(own.nets, role), getattr(recipe.nets, role)) for role in ("generator", "discriminator")
    }
    changes = {
        "data": {**recipe.data.model_dump(), "partition": own.data.partition, "diet": own.data.diet},
        "herd": {"seeds": recipe.herd.seeds},
        "nets": {"latent": recipe.nets.latent, **sizes},
        "train": {"budget": portion(recipe.train.budget, first.share), "precision": recipe.train.precision},
        "engine": recipe.engine.model_dump(),
        "run": {"seed": recipe.run.seed},
    }
    return _changed(own, changes)


def after(recipe: Recipe, start_from: Path | None = None) -> Recipe:
    """The recipe of the herd itself, with the rest of the budget; None: from nothing, to look at it alone."""
    assert recipe.herd.first is not None
    budget = portion(recipe.train.budget, 1 - recipe.herd.first.share)
    start = None if start_from is None else str(start_from)
    return _changed(recipe, {"herd": {"first": None, "start_from": start}, "train": {"budget": budget}})


def _sized(net: Net, like: Net) -> dict[str, Any]:
    """The net with those settings of the other one that it has, too."""
    return {"name": net.name, "settings": {key: like.settings.get(key, value) for key, value in net.settings.items()}}


def _changed(recipe: Recipe, changes: dict[str, dict[str, Any]]) -> Recipe:
    whole = recipe.model_dump()
    return recipe_file.load({**whole, **{section: {**whole[section], **own} for section, own in changes.items()}})
