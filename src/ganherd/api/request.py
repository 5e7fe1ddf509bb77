"""Combine the arguments of `ganherd.train` to a recipe that is ready to be trained."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganherd import recommend
from ganherd.api.given_objects import GivenObjects
from ganherd.comm.backends.detect import detect
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sources.given_settings import budget_text, check_overrides
from ganherd.recipe.yaml_lines import RecipeData
from ganherd.util.errors import UserError
from ganherd.util.text import say

Source = str | Path | RecipeData | Recipe


@dataclass(frozen=True)
class TrainingRequest:
    """A recipe that is ready to be trained, and where it comes from."""

    source: Source | None  # the recipe as the user gave it
    recipe: Recipe
    name: str  # of the recipe
    changes: list[str]  # the user's own settings as key=value, for run.json
    given: GivenObjects

    @classmethod
    def of(
        cls,
        source: Source | None,
        overrides: Sequence[str],
        *,
        data: Any,
        nets: Any,
        budget: str | int | None,
        seeds: int | None,
        device: str | None,
        sections: Mapping[str, Any],
        quiet: bool,
    ) -> TrainingRequest:
        """Create the request from the arguments of `ganherd.train`.

        Raises:
            UserError: An argument is wrong.
        """
        if not isinstance(source, str | Path | dict | Recipe | None):
            raise UserError(
                f"the recipe is a {type(source).__name__}: give the name of one, a file, a mapping or a ganherd.Recipe."
            )
        check_overrides(overrides)
        given = GivenObjects.of(nets, data, quiet)
        if isinstance(source, dict) and "nets" in source:
            source = {**source, "nets": given.name_nets(source["nets"])}
        if isinstance(source, dict) and isinstance(source.get("data"), Mapping):
            source = {**source, "data": given.name_data(source["data"], quiet)}
        if given.held and detect(os.environ) != "local":
            raise UserError(
                f"{given.held[0].label} is an object of this process, and a job of several ranks cannot share it: put nets into a "
                "module and data into a file, and start `ganherd train`."
            )
        own = _join_sections(sections, given, budget, seeds, device)
        changes = [*_flat(own), *overrides]
        base, name = _choose_recipe(source, given, changes, quiet)
        return cls(source, recipe_file.load(base, overrides, own), name, changes, given)

    def check_code(self, trust_code: bool) -> None:
        """Raise a `UserError` if the recipe names code that is neither the user's own nor trusted."""
        trust.check_recipe(self.recipe, self.recipe if self.source is None else self.source, trust_code)


_CHOSEN = ("data.size=", "data.label=", "train.budget=")  # settings on which the choice of a recipe for data depends


def _join_sections(
    sections: Mapping[str, Any], given: GivenObjects, budget: str | int | None, seeds: int | None, device: str | None
) -> RecipeData:
    """Return the sections of settings that replace those of the recipe.

    Arguments such as `budget` and `device` take precedence over the same settings in `sections`.
    """
    for name, value in sections.items():
        if not isinstance(value, Mapping) and name in Recipe.model_fields:
            raise UserError(f"{name} is a {type(value).__name__}: give a mapping, such as {{'lr_g': 0.0001}}.")
        if not isinstance(value, Mapping):
            raise UserError(
                f"ganherd.train has no argument {name!r}; sections of a recipe are mappings, such as optim={{'lr_g': 1e-4}}."
            )
    named: dict[str, RecipeData] = dict(given.sections)
    for section, key, value in (
        ("train", "budget", budget_text(budget)),
        ("herd", "seeds", seeds),
        ("engine", "device", None if device is None else str(device)),  # also a torch.device
    ):
        if value is not None:
            named.setdefault(section, {})[key] = value
    return {**sections, **{name: {**sections.get(name, {}), **values} for name, values in named.items()}}


def _choose_recipe(
    source: Source | None, given: GivenObjects, changes: Sequence[str], quiet: bool
) -> tuple[Source, str]:
    """Return the recipe to start from, and its name.

    If the user gives data, a named recipe is adapted to the data; without a recipe, one is chosen for the data.
    """
    data = given.sections.get("data", {}).get("source")
    if data is not None and (source is None or isinstance(source, str | Path)):
        wanted = None if source is None else str(source)
        choice = recommend.choose_for(data, wanted, [change for change in changes if change.startswith(_CHOSEN)])
        if not quiet:
            say(choice.text(in_python=True))
        return recipe_file.load(choice.recipe, choice.sets), choice.recipe if source is None else Path(source).stem
    if source is None:
        return recipe_file.DEFAULT, recipe_file.DEFAULT
    return source, Path(source).stem if isinstance(source, str | Path) else "run"


def _flat(section: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return nested settings as texts `section.key=value`.

    >>> _flat({"optim": {"lr_g": 1e-4}, "train": {"augment": ["flip"]}})
    ['optim.lr_g=0.0001', 'train.augment=["flip"]']
    """
    out: list[str] = []
    for key, value in section.items():
        if isinstance(value, Mapping):
            out += _flat(value, f"{prefix}{key}.")
        else:
            out.append(f"{prefix}{key}={value if isinstance(value, str) else json.dumps(value, default=str)}")
    return out
