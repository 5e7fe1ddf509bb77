"""Split a recipe with `herd.first` into two phases, each with its own recipe.

The first phase is a run of another recipe. The second phase is the herd, whose members start from the members of that
run.
"""

from __future__ import annotations

from pathlib import Path

from ganherd.nets.catalog import is_packaged
from ganherd.recipe import recipe_file
from ganherd.recipe.base import portion
from ganherd.recipe.net_config import NetsConfig
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sections.herd_config import FirstPhaseConfig
from ganherd.recipe.yaml_lines import RecipeData
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.variants.finetune import as_taken
from ganherd.util.errors import UserError, few


def pending(recipe: Recipe) -> FirstPhaseConfig | None:
    """Return the first phase that has to be trained before this recipe's herd.

    None if the herd starts from an existing run or from fresh weights.
    """
    return recipe.herd.first if recipe.herd.start_from is None else None


def refuse(recipe: Recipe) -> None:
    """Raise a `UserError` if the recipe has a first phase: separate jobs with `--members` cannot train it together."""
    if (first := pending(recipe)) is not None:
        raise UserError(
            f"herd.first is not for --members: train {first.recipe} by itself, then all parts with --set herd.start_from=RUN."
        )


def before(recipe: Recipe) -> Recipe:
    """Return the recipe of the first phase, with its share of the budget.

    It is the recipe that `herd.first` names, with the data, seeds, precision, engine and sizes of nets of `recipe`. The
    first phase is not scored.
    """
    assert recipe.herd.first is not None
    first, own = recipe.herd.first, recipe_file.load(recipe.herd.first.recipe, is_own=False)
    if own.herd.first is not None:
        raise UserError(f"herd.first: {first.recipe} has a first phase itself; name a recipe that has none.")
    changes = {
        "data": {**recipe.data.model_dump(), "partition": own.data.partition, "diet": own.data.diet},
        "herd": {"seeds": recipe.herd.seeds},
        "nets": {} if recipe.nets.thawed == NetsConfig() else _sized(own.nets, recipe.nets),
        "train": {"budget": portion(recipe.train.budget, first.share), "precision": recipe.train.precision},
        "engine": recipe.engine.model_dump(),
        "run": {"seed": recipe.run.seed, "scores": False},
    }
    return _changed(own, changes)


def after(recipe: Recipe, start_from: Path | None = None) -> Recipe:
    """Return the recipe of the second phase, with the rest of the budget.

    If the recipe names no nets and the first phase has nets of the user's own, the result names these nets and their
    code, because whoever trusts the recipe also trusts the one that it names as first phase.

    Args:
        recipe: The recipe with `herd.first`.
        start_from: The run of the first phase. None: start from fresh weights, for example to describe the herd.
    """
    assert recipe.herd.first is not None
    budget = portion(recipe.train.budget, 1 - recipe.herd.first.share)
    start = None if start_from is None else str(start_from)
    changes: RecipeData = {"herd": {"first": None, "start_from": start}, "train": {"budget": budget}}
    own = recipe_file.load(recipe.herd.first.recipe, is_own=False)
    if recipe.nets.thawed == NetsConfig() and not all(is_packaged(net.name) for net in own.nets.all):
        changes["nets"] = {**as_taken(recipe, own.nets).model_dump(), "frozen": recipe.nets.frozen}
        recipe = recipe.model_copy(update={"code": list(dict.fromkeys([*recipe.code, *own.code]))})
    return _changed(recipe, changes)


def foreseen(recipe: Recipe, first: Recipe) -> PreparedHerd:
    """Prepare the herd of the second phase before the first phase is trained, so that mistakes are reported early.

    Args:
        recipe: The recipe of the second phase, without a run to start from.
        first: The recipe of the first phase.

    Raises:
        UserError: The nets or the numbers of members of the two phases do not fit.
    """
    inherited = as_taken(recipe, first.nets)
    if recipe.nets.thawed not in (inherited, NetsConfig()):
        lines = recipe_file.differing({"nets": inherited.model_dump()}, {"nets": recipe.nets.thawed.model_dump()})
        raise UserError(
            f"this herd cannot start from what herd.first trains, because its nets differ ({few(lines, 3)}): make them "
            "alike, or leave nets out of the recipe."
        )
    nets = {**inherited.model_dump(), "frozen": recipe.nets.frozen}
    inheriting = recipe_file.load({**recipe.model_dump(), "nets": nets}, is_own=False)
    prepared = assemble(inheriting, trust_code=True)
    if first.herd.count not in (None, 1, prepared.members):
        raise UserError(
            f"herd.first trains {first.herd.count} members and this herd has {prepared.members}: it must train as many, or one."
        )
    return prepared


def _sized(nets: NetsConfig, like: NetsConfig) -> RecipeData:
    """Return a recipe section `nets` with the nets of `nets`, and with latent, prior and sizes of `like`.

    A setting of a net is taken from `like` if both have it.
    """
    sized = {}
    for role in ("generator", "discriminator"):
        net, other = getattr(nets, role), getattr(like, role)
        settings = {key: other.settings.get(key, value) for key, value in net.settings.items()}
        sized[role] = {"name": net.name, "settings": settings}
    return {"latent": like.latent, "prior": like.prior, **sized}


def _changed(recipe: Recipe, changes: dict[str, RecipeData]) -> Recipe:
    """Return the recipe with other values of some keys, by section."""
    whole = recipe.model_dump()
    changed = {**whole, **{section: {**whole[section], **own} for section, own in changes.items()}}
    return recipe_file.load(changed, is_own=False)
