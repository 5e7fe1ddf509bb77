"""Make the paths of a recipe absolute, so that its run can be resumed, scored and sampled from any folder.

The keys that hold paths are `data.source`, `herd.start_from`, `herd.grow_from`, `herd.members[].from`,
`herd.first.recipe`, `code`, and some of the strategy's settings. Relative paths start at the current folder. A path
that does not exist is not changed, so that the code that reads it can report it as the user wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

from ganherd.recipe.base import Section
from ganherd.recipe.plugins.recipe_plugins import is_named_source
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sources.data_address import absolute_address
from ganherd.util.paths import expanded
from ganherd.util.user_code import folders_with

S = TypeVar("S", bound=Section)


def located(recipe: Recipe, folders: Sequence[Path], packaged: Collection[str]) -> Recipe:
    """Return a copy of the recipe with absolute paths, and with `code` set to the folders of the user's own modules.

    Args:
        recipe: The recipe.
        folders: The folders of the recipe's file and of the files that it extends.
        packaged: Names of recipes that come with ganherd.
    """
    herd, strategy = recipe.herd, recipe.strategy
    settings = strategy.settings.with_absolute_paths(absolute_path)
    first = herd.first and _with(herd.first, recipe=absolute_path(herd.first.recipe, packaged))
    members = (
        [_with(one, run=absolute_path(one.run)) for one in herd.members]
        if isinstance(herd.members, list)
        else herd.members
    )
    places = [str(folder.absolute()) for folder in folders]
    return _with(
        recipe,
        code=[absolute_path(place) for place in recipe.code] or folders_with(recipe.own_names, [*places, os.getcwd()]),
        data=_with(recipe.data, source=absolute_source(recipe.data.source)),
        herd=_with(
            herd,
            members=members,
            start_from=herd.start_from and absolute_path(herd.start_from),
            grow_from=herd.grow_from and absolute_path(herd.grow_from),
            first=first,
        ),
        strategy=strategy if settings == strategy.settings else strategy.with_settings(settings),
    )


def _with(section: S, **values: object) -> S:
    """Return a copy of the section with these values, or the section itself if it has them already."""
    changed = {key: value for key, value in values.items() if getattr(section, key) != value}
    return section.model_copy(update=changed) if changed else section


def absolute_source(source: str) -> str:
    """Return `data.source` with an absolute path if it is a path that exists; otherwise return it unchanged."""
    return source if is_named_source(source) else absolute_path(source)


def absolute_path(text: str, names: Collection[str] = ()) -> str:
    """Make a path absolute if it exists; return any other text, and each of `names`, unchanged."""
    if not text or text in names:
        return text
    try:
        path = os.path.abspath(expanded(text))
        return path if os.path.exists(path) else absolute_address(text)
    except (OSError, RuntimeError, ValueError):  # e.g. ~USER without such a user, or a zero byte
        return text
