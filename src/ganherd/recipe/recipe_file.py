"""Read and write recipes. A recipe is given as a packaged name, a file or a mapping, and overrides may change its keys.

A mistake is reported in a sentence with its line.

>>> load("digits-wcgan", ["train.batch=32"]).train.batch
32
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ganherd.recipe import yaml_lines
from ganherd.recipe.absolute_paths import located
from ganherd.recipe.base import Section
from ganherd.recipe.messages import sentence
from ganherd.recipe.preset_texts import complete_text, first_line, preset_names
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sources.option_override import option_of
from ganherd.recipe.strategy_config import read_strategy
from ganherd.recipe.yaml_lines import RecipeData, inherited, merge
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.paths import expanded
from ganherd.util.plugin_leave import Packages, reading_recipe
from ganherd.util.text import did_you_mean
from ganherd.util.user_code import importable_from

DEFAULT = "digits-wcgan"  # the recipe of `ganherd train` without arguments
_ALSO = {  # a further name of a packaged recipe: its own name
    "cifar10-speedrun": "cifar10-perclass",
    "cifar10-speedrun-first": "cifar10-conditional",
    "cifar10-wcgan-wgan": "cifar10-wgan",
}
_MOST_BYTES = 2**20  # no recipe is this long; a wrong file must not fill the memory

RecipeSource = str | Path | RecipeData | Recipe


def load(
    source: RecipeSource, overrides: Sequence[str] = (), sections: RecipeData | None = None, *, is_own: bool = True
) -> Recipe:
    """Read a recipe, apply overrides, check it, and return it with absolute paths.

    A packaged name takes precedence over a file of the same name; write `./digits-wcgan` for the file. A recipe of the
    user's own permits the import of the plug-ins that it names.

    Args:
        source: A packaged name, a file, or the recipe as a mapping or object.
        overrides: Texts of the form key=value, such as train.batch=32.
        sections: Sections of a recipe whose keys replace those of the source; overrides are applied after them.
        is_own: Whether the user wrote the recipe. A file in a run folder is never taken as the user's own.

    Raises:
        UserError: The recipe has a mistake.

    >>> load({"train": {"bacth": 3}})
    Traceback (most recent call last):
    ganherd.util.errors.UserError: recipe: unknown key 'train.bacth'; did you mean 'train.batch'?
    """
    read = _read(source)
    if sections:
        own = _copy(sections)
        _long_nets(own, {})
        merge(read.data, own, read.lines)
        read.lines.update(dict.fromkeys(_paths(own), "your settings"))
    for text in overrides:
        _override(read.data, read.lines, text)
    _drop_empty(read.data)
    own = is_own and not any(map(is_of_a_run, read.files))
    try:
        with reading_recipe(own, read.recorded_packages), importable_from(read.code_folders):
            recipe = Recipe.model_validate(read.data)
    except ValidationError as error:
        raise UserError(sentence(error, read.data, read.lines, read.name)) from None
    if read.is_recorded_recipe:
        return recipe  # its paths were made absolute when the run was started
    return located(recipe, [file.parent for file in read.files], preset_names())


def files_of(source: RecipeSource) -> list[Path]:
    """Return the files that a recipe is read from, its own and those that it extends; empty for packaged recipes."""
    return _read(source).files


def dump(recipe: Recipe) -> str:
    """Return the recipe as YAML with every default, in the order of the schema; `load` reads it back equal."""
    return "\n".join(yaml_lines.write({key: value}) for key, value in recipe.model_dump().items())


def up_to_date(data: RecipeData) -> RecipeData:
    """Convert the plain data of a recipe that an earlier version wrote to the form of this version.

    Data that is not a recipe is returned unchanged.

    >>> up_to_date({"strategy": {"name": "gap", "gap": {"every": "3steps"}, "share": {}}})["strategy"]["gap"]["every"]
    '3steps'
    """
    try:
        return {**data, "strategy": read_strategy(data["strategy"]).model_dump(mode="json")}
    except (KeyError, ValueError):  # not a recipe
        return data


def names() -> list[tuple[str, str]]:
    """Return the names of the packaged recipes, each with one line about it; the default recipe comes first."""
    rows = [(name, first_line(name)) for name in preset_names()]
    return sorted(rows, key=lambda row: (row[0] != DEFAULT, row[0]))


def text(name: str) -> str:
    """Return a packaged recipe in full, with its comments."""
    name = _ALSO.get(name, name)
    packaged = preset_names()
    if name not in packaged:
        raise UserError(f"there is no recipe {name!r}{_suggestion(name)}")
    return complete_text(name)


def _suggestion(name: str) -> str:
    """Return a hint for the name of a recipe that does not exist.

    It names a recipe for the data of that name, or the most similar recipe, or the command that lists all.

    >>> _suggestion("mnist"), _suggestion("digits-wcgn")
    ("; did you mean 'mnist-wcgan'? `ganherd recipes mnist` lists others", "; did you mean 'digits-wcgan'?")
    """
    names = preset_names()
    family = [other for other in names if other.startswith(f"{name}-")]
    usual = [f"{name}-{kind}" for kind in ("wcgan", "perclass") if f"{name}-{kind}" in family]
    if family:
        return f"; did you mean {(usual or family)[0]!r}? `ganherd recipes {name}` lists others"
    return did_you_mean(name, names) or "; `ganherd recipes` lists them"


def difference(old: Recipe, new: Recipe) -> list[str]:
    """Return a line for each key in which two recipes differ.

    >>> difference(Recipe(), Recipe.model_validate({"train": {"batch": 32}}))
    ['train.batch: 64 -> 32']
    """
    return differing(old.model_dump(), new.model_dump())


def differing(old: RecipeData, new: RecipeData) -> list[str]:
    """Return a line for each key in which two recipes, given as plain data, differ."""
    return [f"{key}: {_show(a)} -> {_show(b)}" for key, a, b in _differences(old, new, "")]


_ABSENT = object()


def _differences(old: RecipeData, new: RecipeData, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each dotted key, after `prefix`, in which two mappings differ, with its old and its new value."""
    for key in dict.fromkeys((*old, *new)):  # in the order of the schema
        a, b = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield prefix + key, a, b


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "(not set)"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


@dataclass
class _RecipeData:
    """A recipe that is read but not checked yet."""

    data: RecipeData
    lines: yaml_lines.Lines  # the line of each key
    name: str  # the name of the recipe in messages
    files: list[Path]  # the files that it is read from: its own first, then those that it extends

    @property
    def is_recorded_recipe(self) -> bool:
        """Return whether this recipe is the recipe.yaml of a run folder."""
        return bool(self.files) and (self.files[0].parent / "run.json").exists()

    def recorded_packages(self) -> Packages:
        """Return the package of each plug-in by kind and name, from run.json; empty if this is not a run's recipe."""
        if not self.is_recorded_recipe:
            return {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            plugins = files.read_json(self.files[0].parent / "run.json")["plugins"]
            return {(str(one["kind"]), str(one["name"])): str(one["package"]) for one in plugins}
        return {}

    @property
    def code_folders(self) -> list[str]:
        """The folders of the user's own modules: those that the key `code` lists, or those of the recipe's files."""
        listed = self.data.get("code")
        if self.is_recorded_recipe or (isinstance(listed, list) and listed):
            return [str(place) for place in listed] if isinstance(listed, list) else []
        return [str(file.parent.absolute()) for file in self.files]

    @property
    def identity(self) -> str:
        """Return a text that identifies the recipe: the path of its file, or its name if it has no file."""
        return str(self.files[0].resolve()) if self.files else self.name

    def at(self, key: str) -> str:
        """Return the beginning of a message about a key: the name of the recipe, with the line of the key if it is known."""
        line = self.lines.get((key,))
        return f"{self.name} line {line}" if line else self.name


def is_of_a_run(source: Any) -> bool:
    """Return whether a recipe is a file in a run folder, directly or in a folder inside it.

    A run folder is a folder with a run.json, even if that is a broken link.
    """
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return False
    places = (Path(os.path.abspath(source)), Path(source).resolve())
    folders = {folder for place in places for folder in map(str, place.parents)}
    return any(os.path.lexists(os.path.join(folder, "run.json")) for folder in folders)


def _read(source: RecipeSource, extending: tuple[_RecipeData, ...] = ()) -> _RecipeData:
    """Return the data of a recipe, merged with that of the recipe that it extends.

    Args:
        source: The recipe.
        extending: The recipes that extend this one, directly or indirectly, to notice a cycle.
    """
    own = _read_one(source)
    chain = (*extending, own)
    if own.identity in [one.identity for one in extending]:
        raise UserError(f"it leads back to itself: {' > '.join(one.name for one in chain)}")
    _long_nets(own.data, own.lines)
    base, at = own.data.pop("extends", None), f"{own.at('extends')}: extends"
    own.lines.pop(("extends",), None)
    if base is None:
        return own
    if not isinstance(base, str) or not base:
        raise UserError(f"{at} must be the name or the file of one recipe, not {_show(base)}")
    if own.is_recorded_recipe:
        raise UserError(f"{at} cannot be used here: the recipe of a run is complete")
    try:
        below = _read(_base_of(base, own), chain)
    except UserError as error:
        if extending:
            raise
        raise UserError(f"{at}: {error}") from None
    below.data.pop("about", None)
    lines = inherited(below.lines, below.name)
    merge(below.data, own.data, lines)
    return _RecipeData(below.data, lines | own.lines, own.name, own.files + below.files)


def _base_of(base: str, own: _RecipeData) -> str | Path:
    """Return the packaged name or the file that `extends` names.

    A relative path starts at the folder of the recipe that extends it, `own`.
    """
    if _ALSO.get(base, base) in preset_names():
        return base
    path = expanded(base)
    file = own.files[0].parent / path if own.files else path
    return file if file.exists() or path.exists() else base


def _read_one(source: RecipeSource) -> _RecipeData:
    """Return the data of one recipe, without that of the recipe that it extends."""
    if isinstance(source, Recipe):
        return _RecipeData(source.model_dump(), {}, "recipe", [])
    if isinstance(source, dict):
        return _RecipeData(_copy(source), {}, "recipe", [])
    own_files: list[Path] = []
    if isinstance(source, str) and _ALSO.get(source, source) in preset_names():
        name, content = f"recipe {source}", text(source)
    else:
        name, content, own_files = str(source), _read_file(source), [Path(source)]
    data, lines = yaml_lines.read(content, name)
    if data is None:
        raise UserError(f"{name} is empty; `ganherd recipes {DEFAULT}` prints a recipe to start from")
    if not isinstance(data, dict):
        what = "a list" if isinstance(data, list) else "a single value"
        raise UserError(f"{name} line 1: a recipe is made of sections (data:, nets:, train: …), and this is {what}")
    return _RecipeData(data, lines, name, own_files)


def _copy(data: Any) -> Any:
    """Return a deep copy of the caller's data as plain data: sections become dictionaries, and paths become text."""
    if isinstance(data, Section):
        data = data.model_dump()
    if isinstance(data, os.PathLike):
        return os.fspath(data)
    if isinstance(data, list | tuple):
        return [_copy(value) for value in data]
    return {str(key): _copy(value) for key, value in data.items()} if isinstance(data, dict) else copy.copy(data)


def _read_file(source: str | Path) -> str:
    """Return the text of a recipe file.

    Raises:
        UserError: The file does not exist, cannot be read, is too large, or is not UTF-8.
    """
    path = Path(source)
    try:
        if source == "":
            raise UserError("the name of the recipe is empty; name a recipe file, or a recipe of `ganherd recipes`")
        if path.is_dir():
            inside = path / "recipe.yaml"
            hint = f"; did you mean {inside}?" if inside.is_file() else "; name a recipe file in it"
            raise UserError(f"{source} is a folder, not a recipe{hint}")
        if not path.exists():
            hint = "" if isinstance(source, Path) else _suggestion(path.name.removesuffix(".yaml"))
            raise UserError(f"there is no recipe file {str(source)!r} and no packaged recipe of that name{hint}")
        if not path.is_file():
            raise UserError(f"{source} is not a file, so it cannot be a recipe")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}") from None
    except ValueError:  # a zero byte in the name
        raise UserError(f"{str(source)!r} is not the name of a recipe or a file") from None
    if len(content) > _MOST_BYTES:
        raise UserError(f"{source} is too large to be a recipe (more than 1 MiB)")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{source} line {line}: this is not UTF-8 text; save the recipe as UTF-8") from None


def _long_nets(data: RecipeData, lines: yaml_lines.Lines) -> None:
    """Bring the nets in the data of a recipe into their long form {name, settings}, in place.

    Overrides and merges need one form. `lines`, the line of each key, changes accordingly.
    """
    nets = data.get("nets")
    if not isinstance(nets, dict):
        return
    for role in ("generator", "discriminator"):
        net = nets.get(role)
        if isinstance(net, str):
            nets[role] = net = {"name": net}
        if not isinstance(net, dict) or not isinstance(net.setdefault("settings", {}), dict):
            continue  # a mistake that the schema reports
        for key in [k for k in net if k not in ("name", "settings") and k not in net["settings"]]:
            net["settings"][key] = net.pop(key)
            for path in [p for p in lines if p[:3] == ("nets", role, key)]:
                lines["nets", role, "settings", *path[2:]] = lines.pop(path)


def _override(data: RecipeData, lines: yaml_lines.Lines, text: str) -> None:
    """Set one key in the data of a recipe, as in `--set key=value`; the schema checks the value later.

    Args:
        data: The data, which is changed.
        lines: The line of each key, which is changed.
        text: The text key=value.
    """
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    option = option_of(text)
    if not equals or not all(path):
        raise UserError(f"{option}: write key=value, for example --set train.batch=32")
    parsed, _ = yaml_lines.read(value, option, option=True)
    if path[0] == "nets" and len(path) > 2 and path[1] in ("generator", "discriminator"):
        if path[2] not in ("name", "settings"):
            path = (*path[:2], "settings", *path[2:])
        nets = _inside(data, "nets", option)
        if isinstance(nets, dict) and not isinstance(nets.get(path[1]), dict):  # not given: write out the default net
            nets[path[1]] = {"name": getattr(Recipe().nets, path[1]).name, "settings": {}}
    here: Any = data
    for part in path[:-1]:
        here = _inside(here, part, option)
    here[_entry(here, path[-1], option) if isinstance(here, list) else path[-1]] = parsed
    for old in [p for p in lines if p[: len(path)] == path]:
        del lines[old]
    lines[path] = option
    _long_nets(data, lines)


def _inside(here: Any, key: str, option: str) -> Any:
    """Return the list or mapping under a key of a mapping, or at a position of a list.

    Any other value there is replaced by an empty mapping. `option` is the command-line option, for messages.
    """
    place: Any = _entry(here, key, option) if isinstance(here, list) else key
    inner = here[place] if isinstance(here, list) else here.get(key)
    if key in ("generator", "discriminator") and isinstance(inner, str):
        inner = {"name": inner}
    here[place] = inner if isinstance(inner, dict | list) else {}
    return here[place]


def _entry(here: list[Any], key: str, option: str) -> int:
    """Return the position in the list `here` that an option names by `key`; raise a UserError if there is none."""
    if not key.isdecimal() or int(key) >= len(here):
        raise UserError(f"{option}: the list has the entries 0 to {len(here) - 1}, and {key!r} is not one of them.")
    return int(key)


def _paths(data: RecipeData, above: yaml_lines.Path = ()) -> Iterator[yaml_lines.Path]:
    """Yield the path (tuple of keys) of every key whose value is not a section; `above` is the path of `data`.

    >>> list(_paths({"train": {"batch": 32}, "about": ""}))
    [('train', 'batch'), ('about',)]
    """
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, (*above, key))
        else:
            yield (*above, key)


def _drop_empty(data: RecipeData) -> None:
    """Remove sections without keys from the data, so that they get their defaults.

    A section has no keys, for example, if all of its lines are commented out.
    """
    for key in [k for k, value in data.items() if value is None and k in Recipe.model_fields and k != "about"]:
        del data[key]
    run = data.get("run")
    for key in ("repair", "watch"):
        if isinstance(run, dict) and run.get(key, 0) is None:
            del run[key]
