"""Write the relative paths of a recipe out, so that its run can be resumed, scored and sampled from any folder.

The keys that hold paths: `data.source`, `herd.start_from`, `herd.grow_from`, `herd.members[].from`, `herd.first.recipe`,
`strategy.cellular.mixing.network`, and `code`. Paths are relative to the current folder. A path at which nothing lies is
left unchanged, so that a later error message shows it as the user wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

from ganherd.recipe.schema import Recipe, Section
from ganherd.util.user_code import folders_with

S = TypeVar("S", bound=Section)


def located(recipe: Recipe, folder: Path | None, packaged: Collection[str]) -> Recipe:
    """Return the recipe with absolute paths, and with the folders of the user's own modules.

    Args:
        folder: that of the recipe's file; None: it has none.
        packaged: names of recipes that come with ganherd.
    """
    from ganherd.data.readers.named import NAMED

    herd, cellular = recipe.herd, recipe.strategy.cellular
    mixing = _with(cellular.mixing, network=_network(cellular.mixing.network))
    first = herd.first and _with(herd.first, recipe=_absolute(herd.first.recipe, packaged))
    members = (
        [_with(one, run=_absolute(one.run)) for one in herd.members] if isinstance(herd.members, list) else herd.members
    )
    places = [] if folder is None else [str(folder.absolute())]
    return _with(
        recipe,
        code=[_absolute(place) for place in recipe.code] or folders_with(recipe.own_names, [*places, os.getcwd()]),
        data=_with(recipe.data, source=_absolute(recipe.data.source, NAMED)),
        herd=_with(
            herd,
            members=members,
            start_from=herd.start_from and _absolute(herd.start_from),
            grow_from=herd.grow_from and _absolute(herd.grow_from),
            first=first,
        ),
        strategy=_with(recipe.strategy, cellular=_with(cellular, mixing=mixing)),
    )


def _network(text: str) -> str:
    """Return a score network whose file is named as an absolute path; FILE#sha256=… keeps what follows the file."""
    path, mark, digest = text.partition("#")
    return f"{_absolute(path)}{mark}{digest}" if Path(path).suffix else text  # inception and others are names


def _with(section: S, **values: object) -> S:
    """Return the section with these values; itself if it has them already."""
    changed = {key: value for key, value in values.items() if getattr(section, key) != value}
    return section.model_copy(update=changed) if changed else section


def _absolute(text: str, names: Collection[str] = ()) -> str:
    """Return the absolute path of what lies there; a name, or a path at which nothing lies, as it is."""
    if not text or text in names:
        return text
    try:
        path = os.path.abspath(Path(text).expanduser())
        return path if os.path.exists(path) else text
    except (OSError, RuntimeError, ValueError):  # no such user, a zero byte
        return text
