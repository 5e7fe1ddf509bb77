"""A recipe of two phases: what is trained first, and what starts from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ganherd.nets.catalog import is_foreign
from ganherd.recipe import recipe_file
from ganherd.recipe.base import portion
from ganherd.recipe.net_config import NetsConfig
from ganherd.recipe.schema import FirstPhaseConfig, Recipe
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.variants.finetune import as_taken
from ganherd.util.errors import UserError


def pending(recipe: Recipe) -> FirstPhaseConfig | None:
    """What has to be trained before this recipe; none where it starts from a run that is there, or from nothing."""
    return recipe.herd.first if recipe.herd.start_from is None else None


def refuse(recipe: Recipe) -> None:
    """Several processes, and parts of a herd, have no first phase of their own."""
    if (first := pending(recipe)) is not None:
        raise UserError(
            f"herd.first is trained by one process: train {first.recipe} by itself, then this with --set herd.start_from=RUN."
        )


def before(recipe: Recipe) -> Recipe:
    """The recipe of the first phase, with its share of the budget: on the same data, with the same seeds, in the same precision on
    the same engine, and with nets of the same size; not scored."""
    assert recipe.herd.first is not None
    first, own = recipe.herd.first, recipe_file.load(recipe.herd.first.recipe)
    if own.herd.first is not None:
        raise UserError(f"herd.first: {first.recipe} has a first phase itself; name a recipe that has none.")
    changes = {
        "data": {**recipe.data.model_dump(), "partition": own.data.partition, "diet": own.data.diet},
        "herd": {"seeds": recipe.herd.seeds},
        "nets": {} if recipe.nets == NetsConfig() else _sized(own.nets, recipe.nets),
        "train": {"budget": portion(recipe.train.budget, first.share), "precision": recipe.train.precision},
        "engine": recipe.engine.model_dump(),
        "run": {"seed": recipe.run.seed, "scores": False},
    }
    return _changed(own, changes)


def after(recipe: Recipe, start_from: Path | None = None) -> Recipe:
    """The recipe of the herd itself, with the rest of the budget; None: from nothing, to look at it alone.

    If it leaves the nets to a first phase that has a user's own, it names these itself: the user's recipe vouches for them.
    """
    assert recipe.herd.first is not None
    budget = portion(recipe.train.budget, 1 - recipe.herd.first.share)
    start = None if start_from is None else str(start_from)
    changes: dict[str, Any] = {"herd": {"first": None, "start_from": start}, "train": {"budget": budget}}
    own = recipe_file.load(recipe.herd.first.recipe)
    if recipe.nets == NetsConfig() and any(is_foreign(net.name) for net in own.nets.all):
        changes["nets"] = as_taken(recipe, own.nets).model_dump()
        recipe = recipe.model_copy(update={"code": list(dict.fromkeys([*recipe.code, *own.code]))})
    return _changed(recipe, changes)


def foreseen(recipe: Recipe, first: Recipe) -> PreparedHerd:
    """The herd that will start from a run of `first`, as long as that is not there; refused where it never could."""
    found = as_taken(recipe, first.nets)
    if recipe.nets not in (found, NetsConfig()):
        one, other = (
            f"{nets.generator.name} and {nets.discriminator.name}, latent {nets.latent}, prior {nets.prior}"
            for nets in (first.nets, recipe.nets)
        )
        raise UserError(
            f"this herd cannot start from what herd.first trains, whose nets are others ({one}) than its own ({other}): "
            "make them alike, or leave nets out of the recipe."
        )
    assembly = assemble(recipe_file.load({**recipe.model_dump(), "nets": found.model_dump()}), trust_code=True)
    if first.herd.count not in (None, 1, assembly.members):
        raise UserError(
            f"herd.first trains {first.herd.count} members and this herd has {assembly.members}: it must train as many, or one."
        )
    return assembly


def _sized(nets: NetsConfig, like: NetsConfig) -> dict[str, Any]:
    """The nets with those settings of the other ones that they have, too."""
    sized = {}
    for role in ("generator", "discriminator"):
        net, other = getattr(nets, role), getattr(like, role)
        settings = {key: other.settings.get(key, value) for key, value in net.settings.items()}
        sized[role] = {"name": net.name, "settings": settings}
    return {"latent": like.latent, "prior": like.prior, **sized}


def _changed(recipe: Recipe, changes: dict[str, dict[str, Any]]) -> Recipe:
    whole = recipe.model_dump()
    return recipe_file.load({**whole, **{section: {**whole[section], **own} for section, own in changes.items()}})
