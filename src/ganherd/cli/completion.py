"""Complete words in the shell: recipes, keys of recipes, and runs. Nothing here imports PyTorch.

Each function takes the beginning of a word, `incomplete`, and returns the words that begin with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def complete_recipe(incomplete: str) -> list[str]:
    """Return the packaged recipes and the recipe files (.yaml) that begin with `incomplete`."""
    from ganherd.recipe.preset_texts import preset_names

    return [*_beginning(incomplete, preset_names()), *_paths(incomplete, (".yaml", ".yml"))]


def complete_training(incomplete: str) -> list[str]:
    """Return possible arguments of `ganherd train`: recipes, folders, and files of arrays (.npz, .npy)."""
    return [*complete_recipe(incomplete), *_paths(incomplete, (".npz", ".npy"), folders=True)]


def complete_setting(incomplete: str) -> list[str]:
    """Return keys of a recipe as `key=`; if `incomplete` has a `=` already, the choices of its key as `key=choice`."""
    from ganherd.recipe.reference.key_reference import key_sections

    keys = {key.key: key.values for section in key_sections() for key in section.keys}
    name, equals, _ = incomplete.partition("=")
    if not equals:
        return _beginning(incomplete, [f"{key}=" for key in keys])
    choices = keys.get(name, "").split("`")[1::2]  # the words between backticks in the description of the values
    return _beginning(incomplete, [f"{name}={choice}" for choice in choices])


def complete_run(incomplete: str) -> list[str]:
    """Return `@last`, tags (`@TAG`), the runs in the folder runs, and other folders that begin with `incomplete`."""
    from ganherd.runs.run_names import LAST, tags
    from ganherd.util.paths import RUNS

    runs = sorted(str(path.parent) for path in RUNS.glob("*/run.json"))
    named = _beginning(incomplete, [f"@{LAST}", *(f"@{tag}" for tag in tags()), *runs])
    return [*named, *(path for path in _paths(incomplete, folders=True) if path not in runs)]


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _paths(incomplete: str, suffixes: tuple[str, ...] = (), folders: bool = False) -> list[str]:
    """Return paths that begin with `incomplete`: visible files with these suffixes, and folders if `folders` is set."""
    parent = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)
    try:
        inside = sorted(path for path in parent.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    chosen = [path for path in inside if path.suffix in suffixes or (folders and path.is_dir())]
    return _beginning(incomplete, map(str, chosen))
