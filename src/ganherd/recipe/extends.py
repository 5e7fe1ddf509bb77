"""Merge a recipe with the one that it extends: `extends: NAME` takes all keys from there that the recipe does not set."""

from __future__ import annotations

from ganherd.recipe.yaml_lines import Lines, Path, RecipeData

_NETS = (("nets", "generator"), ("nets", "discriminator"))


class InheritedLine(str):
    """The file and line in which an extended recipe sets a key, such as `base.yaml line 3`."""


def inherited(lines: Lines, name: str) -> Lines:
    """Return the lines of an extended recipe with its name, for messages about a recipe that extends it."""
    return {
        path: InheritedLine(line if isinstance(line, str) else f"{name} line {line}") for path, line in lines.items()
    }


def merge(base: RecipeData, own: RecipeData, lines: Lines, path: Path = ()) -> None:
    """Write the keys of a recipe into the data of the one that it extends.

    Mappings merge by key, and anything else replaces what was there. null removes a key, so that it has its default. A net that
    is named replaces the net, and a strategy of another name the strategy.

    Args:
        base: The data of the extended recipe, which is changed; nets are in their long form.
        lines: The lines of `base`; those of replaced keys are removed.

    >>> base = {"train": {"batch": 32, "flip": True}}
    >>> merge(base, {"train": {"batch": 64, "flip": None}}, {})
    >>> base
    {'train': {'batch': 64}}
    """
    for key, value in own.items():
        here, before = (*path, key), base.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and not _replaces(here, before, value):
            merge(before, value, lines, here)
            continue
        for old in [place for place in lines if place[: len(here)] == here]:
            del lines[old]
        if value is None and key in base:
            del base[key]
        else:
            base[key] = value


def _replaces(path: Path, before: RecipeData, value: RecipeData) -> bool:
    """Return whether a net or a strategy is replaced as a whole, because another one is named."""
    if path in _NETS:
        return "name" in value
    return path == ("strategy",) and "name" in value and value["name"] != before.get("name", value["name"])
