"""Turn a mistake in a recipe into one sentence: its line, its key, and what was probably meant.

In this module a path is a tuple of keys, such as ("train", "batch") for train.batch. A location is how pydantic reports
where an error is: a path, mixed with positions in lists and names of branches of unions.
"""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ganherd.recipe.base import Section
from ganherd.recipe.schema import Recipe
from ganherd.recipe.strategy.strategy_settings import StrategySpec
from ganherd.recipe.yaml_lines import InheritedLine, Lines, Path
from ganherd.util.registry import STRATEGIES
from ganherd.util.text import did_you_mean, nearest

_LENGTH, _RATES, _DEVICE = ("train.budget",), ("optim.lr_g", "optim.lr_d"), ("engine.device",)
_BATCH, _SIZE, _LATENT = ("train.batch",), ("data.size",), ("nets.latent",)
# Names under which other programs have these settings.
_ALSO_CALLED = {
    "lr": _RATES, "learning_rate": _RATES, "epochs": _LENGTH, "n_epochs": _LENGTH, "num_epochs": _LENGTH, "steps": _LENGTH,
    "max_steps": _LENGTH, "iterations": _LENGTH, "iters": _LENGTH, "duration": _LENGTH, "batch_size": _BATCH, "bs": _BATCH,
    "gpu": _DEVICE, "gpus": _DEVICE, "cuda": _DEVICE, "cpu": _DEVICE, "dataset": ("data.source",), "datadir": ("data.source",),
    "image_size": _SIZE, "img_size": _SIZE, "resolution": _SIZE, "latent_dim": _LATENT, "z_dim": _LATENT, "nz": _LATENT,
    "betas": ("optim.beta1", "optim.beta2"), "lambda_gp": ("loss.gp_weight",), "gp": ("loss.gp_weight",),
    "save_every": ("run.checkpoint_every",), "snapshot": ("run.checkpoint_every",), "random_seed": ("run.seed",),
    "mirror": ("train.flip",), "n_dis": ("train.n_critic",), "critic_iters": ("train.n_critic",), "amp": ("train.precision",),
}  # fmt: skip


def also_called(word: str) -> tuple[str, ...]:
    """Return the keys of a recipe that are called by this word in other programs; an empty tuple if there are none.

    >>> also_called("batch-size"), also_called("horse")
    (('train.batch',), ())
    """
    return _ALSO_CALLED.get(word.lower().replace("-", "_").replace(" ", "_"), ())


def sentence(error: ValidationError, data: Mapping[str, Any], lines: Lines, name: str) -> str:
    """Return a sentence about the first mistake in a recipe, in the order of its file.

    Args:
        error: What pydantic reports.
        data: The recipe as plain data.
        lines: The line, or the option, that set each key.
        name: The name of the recipe, for the message.
    """
    (_, line, place), _, what = min(_one(details, data, lines) for details in error.errors())
    return f"{place or (f'{name} line {line}' if line else name)}: {what}"


# Where a key was set: by an extended recipe (0), by the file (1) or by an option (2); the line in the file, 0 if
# unknown; and, if it was not set in the file, a text that names the place. Places sort in the order in which they take
# effect.
_Place = tuple[int, int, str]


def _place(paths: list[Path], lines: Lines) -> _Place:
    """Return the place that set one of these keys last: an option if one did, otherwise the last line of the file.

    If a key's own line is not known, that of a key inside it or of a section around it is used.
    """
    places: list[_Place] = []
    for path in paths:
        above = [path[:length] for length in range(len(path), 0, -1)]
        below = [p for p in lines if p[: len(path)] == path]  # `--set train.batch.x=1` makes a mapping of train.batch
        for known in [*above[:1], *below, *above]:
            if (at := lines.get(known)) is not None:
                places.append(
                    (0 if isinstance(at, InheritedLine) else 2, 0, at) if isinstance(at, str) else (1, at, "")
                )
                break
    return max(places, default=(1, 0, ""))


def _one(details: ErrorDetails, data: Mapping[str, Any], lines: Lines) -> tuple[_Place, int, str]:
    """Return the place of a mistake, the priority of its sentence (0 is highest), and the sentence.

    The priority decides between several mistakes at the same place. `details` is one error of pydantic.
    """
    kind, context = details["type"], details.get("ctx", {})
    path, field = _find(details["loc"])
    key = ".".join(path)
    if kind == "recipe":  # a whole sentence, with the keys that it is about
        keys = [tuple(k.split(".")) for k in context["keys"].split()] or [path]
        return _place(keys, lines), 0, context["sentence"]
    if kind == "extra_forbidden":
        path = (*path, str(details["loc"][-1]))
        return _place([path], lines), 1, f"unknown key {'.'.join(path)!r}{_meant(path)}"
    value = _value(data, path)
    if inner := _entry(details["loc"][len(path) :], field, value):
        name, field, value = inner
        key = f"{key}.{name}"
    message = str(context.get("error", "")) if kind == "value_error" else ""
    if message and not message.startswith("must be"):
        return _place([path], lines), 2, f"{key} {message}"
    hint = "" if message or not isinstance(value, str) else _hint(key, value, field)
    what = message or f"must be {_expects(field)}"
    return _place([path], lines), 2, f"{key or 'the recipe'} {what}, not {_show(value)}{hint}"


def field_sentence(key: str, details: ErrorDetails, field: FieldInfo | None, given: Mapping[str, Any]) -> str:
    """Return a sentence about a wrong value in the settings of a plug-in, whose fields may have any type.

    Args:
        key: The dotted key of the value.
        details: The error of pydantic.
        field: The field of the plug-in's model; None if it is unknown.
        given: All settings that were given.
    """
    own = str(details["loc"][0])
    if details["type"] == "missing":
        return f"{key} is missing: it must be {_expects(field)}"
    message = str(details.get("ctx", {}).get("error", "")) if details["type"] == "value_error" else ""
    expected = "" if message else _expects(field)
    if message and not message.startswith("must be"):
        return f"{key}: {message}"
    what = message or (f"must be {expected}" if "something else" not in expected else f"is wrong ({details['msg']})")
    value = given.get(own)
    return f"{key} {what}, not {_show(value)}{_hint(key, value, field) if isinstance(value, str) else ''}"


def _hint(key: str, value: str, field: FieldInfo | None) -> str:
    """Return a hint about a wrong text: the most similar allowed word; "" if there is none.

    If the key is a section with a name, as in `engine: fused`, return the hint that its `name` was meant.
    """
    section = _section(field.annotation) if field else None
    if section and "name" in section.model_fields:
        return f"; did you mean {key}.name?"
    return did_you_mean(value, _choices(field.annotation) if field else ())


def _find(loc: tuple[int | str, ...]) -> tuple[Path, FieldInfo | None]:
    """Return the longest known key with which a location in an error of pydantic begins, and its field.

    The rest of the location may be positions in a list or names of branches of unions, which are no keys.
    """
    model: type[Section] | None = Recipe
    path: Path = ()
    field = None
    for part in loc:
        if model is None or part not in model.known_fields():
            break
        path, field = (*path, str(part)), model.known_fields()[str(part)]
        model = _section(field.annotation)
    return path, field


def _entry(rest: tuple[int | str, ...], field: FieldInfo | None, value: Any) -> tuple[str, FieldInfo, Any] | None:
    """Return key, field and value inside an entry of a list of mappings; None if the location does not lead to one.

    Args:
        rest: The end of the location, after the key of the list: a position, then a key of the entry.
        field: The field of the list.
        value: The list.
    """
    parts = typing.get_args(field.annotation) if field and typing.get_origin(field.annotation) is list else ()
    section = _section(parts[0]) if parts else None
    if section is None or len(rest) < 2 or not isinstance(value, list) or not isinstance(rest[0], int):
        return None
    known = {of.alias or name: of for name, of in section.model_fields.items()}
    entry = value[rest[0]]
    if rest[1] not in known or not isinstance(entry, dict):
        return None
    return str(rest[1]), known[str(rest[1])], entry.get(rest[1])


def _section(annotation: Any) -> type[Section] | None:
    """Return the class of the section that a key of this type holds; None if it holds no section."""
    kinds = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType]
    if typing.get_origin(annotation) is types.UnionType and len(kinds) == 1:
        (annotation,) = kinds
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _keys(model: type[Section], prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of all keys of a section and of the sections inside it; `prefix` is the path of the section."""
    for name, field in model.known_fields().items():
        yield (*prefix, name)
        if inner := _section(field.annotation):
            yield from _keys(inner, (*prefix, name))


@lru_cache(maxsize=1)
def _known_keys(*strategies: tuple[str, StrategySpec]) -> tuple[Path, ...]:
    """Return the paths of all keys of a recipe; the known strategies are arguments only as a key of the cache."""
    return (("extends",), *_keys(Recipe))


def _meant(path: Path) -> str:
    """Return a suggestion for an unknown key: similar keys of its section, or of exactly that name in another section.

    If none is similar, list the keys of the section.
    """
    if also := also_called(path[-1]):
        example = ", e.g. --budget 20epochs" if also == _LENGTH else ""
        return f"; did you mean {' or '.join(map(repr, also))}{example}?"
    known = _known_keys(*((name, STRATEGIES[name]) for name in STRATEGIES))
    siblings = [p[-1] for p in known if p[:-1] == path[:-1]] or _listed(path[:-1])
    near = [(*path[:-1], word) for word in nearest(path[-1], siblings)]
    near += [p for p in known if p[-1] == path[-1] and p not in near][:1]
    if not near:
        leaf = nearest(path[-1], [p[-1] for p in known])[-1:]
        near = [p for p in known if p[-1] in leaf][:1]
    if near:
        return f"; did you mean {' or '.join(repr('.'.join(p)) for p in near)}?"
    return f"; {'.'.join(path[:-1]) or 'a recipe'} has {', '.join(siblings)}"


def _listed(path: Path) -> list[str]:
    """Return the keys that an entry of the list at this path may have; empty if there is no such list.

    >>> _listed(("nets", "breeds"))
    ['generator', 'members']
    """
    _, field = _find(path)
    left = [field.annotation] if field else []
    while left:
        annotation = left.pop()
        if section := _section(annotation):
            return _names(section)
        left += typing.get_args(annotation)
    return []


def _names(section: type[Section]) -> list[str]:
    """Return the keys of a section as a recipe writes them."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _value(data: Any, path: Path) -> Any:
    """Return the value at a path in plain data; None if there is none."""
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _show(value: Any) -> str:
    """Return a value as a message shows it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "empty", True: "true", False: "false"}[value]
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)


def _choices(annotation: Any) -> list[str]:
    """Return all words that a type annotation allows as literals."""
    if typing.get_origin(annotation) is Literal:
        return list(typing.get_args(annotation))
    return [choice for part in typing.get_args(annotation) for choice in _choices(part)]


def _expects(field: FieldInfo | None) -> str:
    """Return what a key must hold, in words."""
    if field is None:
        return "a mapping of sections"
    return _kind(field.annotation, list(field.metadata))


def _kind(annotation: Any, limits: list[Any], or_else: bool = False) -> str:
    """Return a type annotation with its limits in words, for a message.

    Args:
        annotation: The type.
        limits: Metadata of the field, such as `Ge(0)`.
        or_else: Whether the type is one of several alternatives.

    >>> from annotated_types import Ge
    >>> _kind(int | None, [Ge(2)]), _kind(list[typing.Annotated[int, Ge(0)]], [])
    ('a whole number of at least 2, or null', 'a list, each entry a whole number of at least 0')
    >>> _kind(float | list[float], [])
    'a number, or a list of such, one for each member'
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = [x for part in parts[1:] for x in (part.metadata if isinstance(part, FieldInfo) else [part])]
        return _kind(parts[0], inner, or_else)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(_kind(part, limits, True) for part in parts)
    if origin is Literal:
        return f"one of {', '.join(parts)}" if len(parts) > 1 else str(parts[0])
    if origin is list and (section := _section(parts[0])):
        return f"a list of mappings ({', '.join(_names(section))})"
    if origin is list:
        return "a list of such, one for each member" if or_else else f"a list, each entry {_kind(parts[0], [])}"
    if origin is dict:
        return f"a mapping of labels to {_kind(parts[1], []).removeprefix('a ').replace('number', 'numbers')}"
    if section := _section(annotation):
        return f"a mapping ({', '.join(section.known_fields())})"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return words.get(annotation, "something else") + (_limits(limits) if annotation in (int, float) else "")


def _limits(limits: list[Any]) -> str:
    """Return the limits of a number in words; other metadata in the list is ignored."""
    phrases = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
    words = [f"{phrases[name]} {getattr(each, name):g}" for each in limits for name in phrases if hasattr(each, name)]
    return " " + " and ".join(words) if words else ""
