"""Recipes in and out: packaged ones and files, overrides, every mistake as one sentence with its line.

>>> load("digits-wcgan", ["train.batch=32"]).train.batch
32
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ganherd.recipe import yaml_lines
from ganherd.recipe.absolute_paths import located
from ganherd.recipe.messages import sentence
from ganherd.recipe.schema import Recipe, Section
from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

DEFAULT = "digits-wcgan"  # what `ganherd train` trains when it is told nothing
_ALSO = {"cifar10-wcgan-wgan": "cifar10-wgan"}  # other names by which a recipe is looked for, beside its kin
_MOST_BYTES = 2**20  # nobody writes a recipe of a megabyte; a wrong file should not fill the memory


def load(source: str | Path | dict[str, Any] | Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a packaged name, a file or a mapping, with `key=value` overrides; a UserError for any mistake.

    A name comes before a file of the same name: `./digits-wcgan` is the file.

    >>> load({"train": {"bacth": 3}})
    Traceback (most recent call last):
    ganherd.util.errors.UserError: recipe: unknown key 'train.bacth'; did you mean 'train.batch'?
    """
    data, lines, name = _read(source)
    _long_nets(data, lines)
    for text in overrides:
        _override(data, lines, text)
    _drop_empty(data)
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise UserError(sentence(error, data, lines, name)) from None
    file = Path(name) if name == str(source) else None
    if file is not None and (file.parent / "run.json").exists():
        return recipe  # of a run, which was located when it was started
    return located(recipe, None if file is None else file.parent, _packaged())


def dump(recipe: Recipe) -> str:
    """The recipe as YAML with every default written out, in the order of the schema; `load` gives it back equal."""
    return "\n".join(yaml_lines.write({key: value}) for key, value in recipe.model_dump().items())


def names() -> list[tuple[str, str]]:
    """The packaged recipes, each with one line about it; the default first."""
    found = [(name, _first_line(text(name))) for name in _packaged()]
    return sorted(found, key=lambda row: (row[0] != DEFAULT, row[0]))


def text(name: str) -> str:
    """A packaged recipe as it was written, with its comments."""
    name = _ALSO.get(name, name)
    if name not in _packaged():
        raise UserError(
            f"there is no recipe {name!r}{did_you_mean(name, _packaged()) or '; `ganherd recipes` lists them'}"
        )
    return (resources.files(__package__) / "presets" / f"{name}.yaml").read_text(encoding="utf-8")


def difference(old: Recipe, new: Recipe) -> list[str]:
    """What the new recipe says otherwise, a line for each key.

    >>> difference(Recipe(), Recipe.model_validate({"train": {"batch": 32}}))
    ['train.batch: 64 -> 32']
    """
    return differing(old.model_dump(), new.model_dump())


def differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The same of what was written down of them."""
    return [f"{key}: {_show(a)} -> {_show(b)}" for key, a, b in _differences(old, new, "")]


_ABSENT = object()


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any, Any]]:
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


def _packaged() -> list[str]:
    folder = resources.files(__package__) / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def _first_line(recipe: str) -> str:
    """The first comment says what the recipe is; reading it is quicker than reading the YAML."""
    return recipe.partition("\n")[0].lstrip("# ").rstrip()


def _read(source: str | Path | dict[str, Any] | Recipe) -> tuple[dict[str, Any], yaml_lines.Lines, str]:
    """The plain data of a source, the line of each key, and what the source is called in messages."""
    if isinstance(source, Recipe):
        return source.model_dump(), {}, "recipe"
    if isinstance(source, dict):
        return _copy(source), {}, "recipe"
    if isinstance(source, str) and _ALSO.get(source, source) in _packaged():
        name, content = f"recipe {source}", text(source)
    else:
        name, content = str(source), _read_file(source)
    data, lines = yaml_lines.read(content, name)
    if data is None:
        raise UserError(f"{name} is empty; `ganherd recipes {DEFAULT}` prints a recipe to start from")
    if not isinstance(data, dict):
        what = "a list" if isinstance(data, list) else "a single value"
        raise UserError(f"{name} line 1: a recipe is made of sections (data:, nets:, train: …), and this is {what}")
    return data, lines, name


def _copy(data: Any) -> Any:
    """Plain data of the caller's, which may hold whole sections."""
    if isinstance(data, Section):
        data = data.model_dump()
    if isinstance(data, os.PathLike):
        return os.fspath(data)
    if isinstance(data, list | tuple):
        return [_copy(value) for value in data]
    return {str(key): _copy(value) for key, value in data.items()} if isinstance(data, dict) else copy.copy(data)


def _read_file(source: str | Path) -> str:
    path = Path(source)
    try:
        if source == "":
            raise UserError("the name of the recipe is empty; name a recipe file, or a recipe of `ganherd recipes`")
        if path.is_dir():
            inside = path / "recipe.yaml"
            hint = f"; did you mean {inside}?" if inside.is_file() else "; name a recipe file in it"
            raise UserError(f"{source} is a folder, not a recipe{hint}")
        if not path.exists():
            hint = "" if isinstance(source, Path) else did_you_mean(path.name.removesuffix(".yaml"), _packaged())
            raise UserError(
                f"there is no recipe file {str(source)!r} and no packaged recipe of that name"
                f"{hint or '; `ganherd recipes` lists them'}"
            )
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


def _long_nets(data: dict[str, Any], lines: yaml_lines.Lines) -> None:
    """Nets written short (`generator: mlp`, settings beside the name) become long, so that overrides find one form."""
    nets = data.get("nets")
    if not isinstance(nets, dict):
        return
    for role in ("generator", "discriminator"):
        net = nets.get(role)
        if isinstance(net, str):
            nets[role] = net = {"name": net}
        if not isinstance(net, dict) or not isinstance(net.setdefault("settings", {}), dict):
            continue  # wrong: the schema says how
        for key in [k for k in net if k not in ("name", "settings") and k not in net["settings"]]:
            net["settings"][key] = net.pop(key)
            beside = ("nets", role, key)
            for path in [p for p in lines if p[:3] == beside]:
                lines["nets", role, "settings", *path[2:]] = lines.pop(path)


def _override(data: dict[str, Any], lines: yaml_lines.Lines, text: str) -> None:
    """Sets one key as `--set key=value` says; whether it may be so is the schema's matter."""
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    option = f"--set {text}"
    if not equals or not all(path):
        raise UserError(f"{option}: write key=value, as in --set train.batch=32")
    parsed, _ = yaml_lines.read(value, option, option=True)
    if path[0] == "nets" and len(path) > 2 and path[1] in ("generator", "discriminator"):
        if path[2] not in ("name", "settings"):
            path = (*path[:2], "settings", *path[2:])
        nets = _mapping(data, "nets")
        if not isinstance(nets.get(path[1]), dict):  # a setting alone is one of the default net's
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
    """The list or the mapping under a key, or at a place of a list, to set something in."""
    if isinstance(here, list):
        place = _entry(here, key, option)
        if not isinstance(here[place], dict | list):
            here[place] = {}
        return here[place]
    if key in ("generator", "discriminator") and isinstance(here.get(key), str):
        here[key] = {"name": here[key]}
    return here[key] if isinstance(here.get(key), list) else _mapping(here, key)


def _entry(here: list[Any], key: str, option: str) -> int:
    if not key.isdecimal() or int(key) >= len(here):
        raise UserError(f"{option}: the list has {len(here)} entries, counted from 0, and {key!r} is none of them.")
    return int(key)


def _mapping(data: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under the key; a value that stands there is replaced by an empty one."""
    if not isinstance(data.get(key), dict):
        data[key] = {}
    inner: dict[str, Any] = data[key]
    return inner


def _drop_empty(data: dict[str, Any]) -> None:
    """A section whose lines are all commented out is one with defaults only."""
    for key in [k for k, value in data.items() if value is None and k in Recipe.model_fields and k != "about"]:
        del data[key]
    run = data.get("run")
    for key in ("repair", "watch"):
        if isinstance(run, dict) and run.get(key, 0) is None:
            del run[key]
