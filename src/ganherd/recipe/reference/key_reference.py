"""Describe every key of a recipe: its values, its default and its meaning.

Descriptions come from the source of the schema: a section of a recipe is a pydantic model (`Section`), a key is a field
of it, and the comment above or next to the field is the key's meaning.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ganherd.recipe.augment_config import AugmentConfig
from ganherd.recipe.base import Section
from ganherd.recipe.messages import also_called
from ganherd.recipe.net_config import NetConfig
from ganherd.recipe.plugins.named_entry import MetricEntry
from ganherd.recipe.schema import Recipe
from ganherd.recipe.strategy_config import StrategyConfig
from ganherd.util.errors import UserError
from ganherd.util.registry import AUGMENTATIONS, ENGINES, LOSSES, METRICS, STRATEGIES
from ganherd.util.text import did_you_mean

# How the types of fields are described to users.
TYPES = {
    "Augmentation": "augmentations",
    "Budget": "steps, epochs or time",
    "Bytes": "size of memory",
    "ChancePerMember": "number in [0, 1], or a list with one per member",
    "DecayPerMember": "number in [0, 1), or a list with one per member",
    "Device": "`auto`, `cpu`, `cuda` or `cuda:N`",
    "Graph": "list of lists of cells",
    "Layers": "list of names",
    "LossName": "name of a loss",
    "NetConfig": "name of a net, or a section",
    "PerMember": "number, or a list with one per member",
    "Positive": "number ≥ 0",
    "Settings": "mapping",
    "Span": "steps, epochs or a fraction of the run",
    "Steps": "number of steps",
    "Trial": "settings and values",
    "bool": "`true` or `false`",
    "float": "number",
    "int": "whole number",
    "str": "text",
}
# Meanings of keys that have no comment in the schema.
MEANINGS = {
    "nets.discriminator": "the discriminator of each member",
    "nets.breeds.generator": "the generator of these members",
    "strategy.name": "which members meet",
    "strategy.share.discriminator": "parameters of the discriminators that are averaged, by name or by how names begin",
    "strategy.gap.swap": "which nets change places",
    "strategy.cellular.topology": "which cells are neighbours",
    "strategy.cellular.tournament": "individuals in a tournament",
    "strategy.cellular.rewire.topology": "which cells are neighbours from then on",
    "strategy.cellular.fitness.samples": "samples that individuals are judged on",
    "strategy.cellular.mutation.probability": "probability of a mutation of learning rates",
    "strategy.cellular.mutation.each": "how often learning rates mutate",
    "strategy.cellular.mutation.loss_each": "how often losses are drawn",
    "strategy.cellular.mixing.when": "when weights evolve",
    "strategy.cellular.mixing.sigma": "standard deviation of a mutation of weights",
}
# Sections whose own fields are not listed as keys: they hold an entry of a registry by its name, with settings of its
# own.
_NAMED = (NetConfig, AugmentConfig, MetricEntry)
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def field_comments(section: type) -> dict[str, tuple[ast.AnnAssign, str]]:
    """Return the fields of a section by name, each with its declaration and the comment above it or next to it.

    Return an empty mapping if the source of the class is not available.
    """
    try:
        source = textwrap.dedent(inspect.getsource(section))
    except (OSError, TypeError):  # a plugin without source
        return {}
    lines, fields = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            above = first
            while lines[above - 1].lstrip().startswith("#"):
                above -= 1
            comment = [line.strip().lstrip("# ") for line in lines[above:first]]
            comment += [line.partition("  # ")[2].strip() for line in lines[first : last + 1] if "  # " in line]
            fields[node.target.id] = node, " ".join(comment)
    return fields


def shown_type(node: ast.expr, section: type) -> str:
    """Return a description of the values that a field may have; "" for None.

    Args:
        node: The annotation of the field, parsed from the source.
        section: The class that declares the field.
    """
    if isinstance(node, ast.BinOp):
        kinds = [shown_type(side, section) for side in (node.left, node.right)]
        return " or ".join(kind for kind in kinds if kind)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match ast.unparse(node.value):
            case "Literal":
                return ", ".join(f"`{ast.literal_eval(value)}`" for value in inner)
            case "Annotated":
                return shown_type(inner[0], section)
            case "list":
                return f"list of {shown_type(inner[0], section)}"
            case "dict":
                return "mapping"
            case "tuple":
                return "list of " + ", ".join(shown_type(each, section) for each in inner)
    name = ast.unparse(node)
    if name == "None":
        return ""
    alias = getattr(inspect.getmodule(section), name, None)
    if name not in TYPES and getattr(alias, "__origin__", None) is not None and "Literal" in repr(alias):
        return ", ".join(f"`{value}`" for value in typing.get_args(alias))
    return TYPES.get(name, "section" if inspect.isclass(alias) else name)


def bounds(value: ast.expr | None) -> str:
    """Return the limits that the default `Field(…)` of a declaration sets, such as ` ≥ 1`; "" if it sets none."""
    if not isinstance(value, ast.Call):
        return ""
    limits = [f"{BOUNDS[k.arg]} {ast.unparse(k.value)}" for k in value.keywords if k.arg in BOUNDS]
    return f" {' and '.join(limits)}" if limits else ""


def shown_default(info: Any) -> str:
    """Return the default of a pydantic field as Markdown; `required` if it has none, and – for an empty one."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if hasattr(value, "name") and hasattr(value, "settings"):  # a net
        return f"`{value.name}`"
    words = {None: "–", True: "`true`", False: "`false`", "": "–"}
    if value is None or (isinstance(value, (bool, str)) and value in words):
        return words[value]
    return "–" if value in ([], {}) else f"`{value}`"


def sections_in(annotation: Any) -> Iterator[type]:
    """Yield the section classes that occur in a type annotation, also inside unions and lists."""
    if inspect.isclass(annotation) and issubclass(annotation, Section):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from sections_in(inner)


def choices(key: str) -> str:
    """Return the registered names that a key may hold, as Markdown; "" if the key holds no such name."""
    names = {
        "strategy.name": STRATEGIES.names,
        "engine.name": lambda: ["auto", *ENGINES.names()],
        "loss.name": LOSSES.names,
        "train.augment": AUGMENTATIONS.names,
        "run.metrics": METRICS.names,
    }
    if key not in names:
        return ""
    listed = ", ".join(f"`{name}`" for name in names[key]())
    if key in ("train.augment", "run.metrics"):
        return f"list of {listed}"
    return listed + ("; or a list with one per member" if key == "loss.name" else "")


@dataclass(frozen=True)
class RecipeKey:
    """One key of a recipe, described for users; the descriptions are Markdown."""

    key: str
    values: str
    default: str
    meaning: str

    @property
    def plain(self) -> tuple[str, str, str]:
        """The values, the default and the meaning as plain text."""
        values, default, meaning = (text.replace("`", "") for text in (self.values, self.default, self.meaning))
        return values, default, meaning


@dataclass(frozen=True)
class KeySection:
    """The keys of one section of a recipe."""

    name: str  # the dotted key of the section; "" for the top level
    about: str  # what the section is for
    keys: tuple[RecipeKey, ...]


def key_sections(section: type[Section] = Recipe, prefix: str = "") -> Iterator[KeySection]:
    """Yield the keys of a section, then those of all sections within it; sections without keys are left out.

    Args:
        section: The class of the section.
        prefix: The dotted key of the section with a dot at its end; "" for the whole recipe.
    """
    keys, inner = [], []
    comments = field_comments(section)
    for name, info in section.model_fields.items():
        node, about = comments.get(name, (None, ""))
        key = f"{prefix}{info.alias or name}"
        below = list(sections_in(info.annotation))
        inner += [(f"{key}.", each) for each in below if each not in _NAMED]
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        if below and isinstance(default, below[0]) and below[0] not in _NAMED:
            continue  # The key is a section, which `inner` lists, and has no value of its own.
        values = (shown_type(node.annotation, section) + bounds(node.value)) if node else ""
        meaning = info.description or about or MEANINGS.get(key, "")
        keys.append(RecipeKey(key, choices(key) or values, shown_default(info), meaning))
    if section is StrategyConfig:
        inner += [(f"{prefix}{spec.section or name}.", spec.settings) for name, spec in STRATEGIES.items()]
    if keys:
        own = (section.__doc__ or "").strip() if "__doc__" in vars(section) else ""
        yield KeySection(prefix.rstrip("."), " ".join(own.split()), tuple(keys))
    for name, each in inner:
        yield from key_sections(each, name)


def find_keys(word: str = "") -> list[KeySection]:
    """Return the keys whose name, values or meaning contain a word, by section; all keys if the word is empty.

    A word by which other programs call a key finds this key too.

    Raises:
        UserError: No key contains the word.

    >>> [key.key for section in find_keys("learning_rate") for key in section.keys][:2]
    ['optim.lr_g', 'optim.lr_d']
    """
    sections = list(key_sections())
    wanted, also = word.lower(), also_called(word)
    matches = [
        KeySection(section.name, section.about, tuple(key for key in section.keys if _matches(key, wanted, also)))
        for section in sections
    ]
    if result := [section for section in matches if section.keys]:
        return result
    names = [key.key for section in sections for key in section.keys]
    hint = did_you_mean(word, [*names, *(name.rpartition(".")[2] for name in names)], " ({})")
    raise UserError(f"no key of a recipe is about {word!r}{hint}; `ganherd recipes --keys` lists all of them.")


def _matches(key: RecipeKey, word: str, also: tuple[str, ...]) -> bool:
    return key.key in also or any(word in text.lower() for text in (key.key, *key.plain))


def keys_text(sections: list[KeySection], width: int) -> str:
    """Return the keys of these sections as text for a terminal, in lines of at most `width` characters."""
    lines = []
    for section in sections:
        title = section.name or "at the top"
        lines += ["", *textwrap.wrap(f"{title}: {section.about}" if section.name else f"{title}:", width)]
        for key in section.keys:
            values, default, meaning = key.plain
            value = default if default in ("–", "required") else f"default {default}"
            first = f"  {key.key}  ({'; '.join(part for part in (values, value) if part not in ('', '–'))})"
            lines += textwrap.wrap(first.removesuffix("  ()"), width, subsequent_indent="      ")
            lines += textwrap.wrap(meaning, width, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines[1:])
