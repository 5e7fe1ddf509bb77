"""Recognise whether the argument of `ganherd train` is the user's own data instead of a recipe."""

from __future__ import annotations

import os
from pathlib import Path

from ganherd.recipe.preset_texts import preset_names
from ganherd.recipe.sources.data_address import HUB, parse_address
from ganherd.util.errors import UserError
from ganherd.util.paths import expanded
from ganherd.util.text import did_you_mean, nearest

_SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".txt", ".parquet", ".tar", ".tgz", ".tar.gz")


def refuse_misspelt(word: str) -> None:
    """Raise a `UserError` with a suggestion if an argument is a misspelt file of data or a misspelt folder."""
    place = "" if word.startswith(HUB) else parse_address(word).place
    if place.lower().endswith(_SUFFIXES) and not parse_address(word).is_pattern and not os.path.exists(place):
        around = expanded(place).parent
        files = [path.name for path in around.iterdir() if path.is_file()] if around.is_dir() else []
        hint = did_you_mean(Path(place).name, files) or "; name a file of data, a folder of images or a recipe"
        raise UserError(f"there is no file {place!r}{hint}")
    if Path(word).name != word or Path(word).exists() or word in preset_names() or nearest(word, preset_names()):
        return
    folders = [path.name for path in Path().iterdir() if path.is_dir()]
    if hint := did_you_mean(word, folders, "{}"):
        raise UserError(f"there is neither a recipe nor a folder {word!r}; {hint}")


def is_own_data(word: str) -> bool:
    """Return whether an argument names data: a folder without a recipe, a file of data, or a data set of the Hub.

    Raises:
        UserError: The folder has the name of a packaged recipe, contains runs, or contains the current folder.
    """
    path = expanded(word)
    try:
        has_recipe = any((path / name).is_file() for name in ("recipe.yaml", "run.json"))
        is_data = word != "" and not has_recipe and (path.is_dir() or _is_data_file(word))
    except (OSError, ValueError):  # not a path
        return False
    if is_data and word in preset_names():
        raise UserError(
            f"{word} is a recipe and also a folder here: write `ganherd train --recipe {word}` for the recipe, or "
            f"`ganherd train ./{word}` for the folder."
        )
    if is_data and path.is_dir() and any(path.glob("*/run.json")):
        raise UserError(f"{word} holds runs, not images: resume one with --resume, or name a folder of images.")
    if is_data and path.is_dir() and Path.cwd().is_relative_to(path.resolve()):
        raise UserError(
            f"{word} contains the current folder, so runs would be written into the data: change to another folder first."
        )
    return is_data


def _is_data_file(word: str) -> bool:
    """Return whether an argument names a table, a file of arrays or images, a pattern of files, or a Hub data set."""
    if word.startswith(HUB):
        return True
    address = parse_address(word)
    is_there = os.path.isfile(address.place) or address.is_pattern
    return is_there and address.place.lower().endswith(_SUFFIXES)
