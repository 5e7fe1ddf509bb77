"""What is compared: recipes with settings of their own (`RECIPE:key=value`), and settings of one recipe (`--vary key=a,b`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ganherd.compare.entry import names_of
from ganherd.util.errors import UserError
from ganherd.util.text import shortened, split_values

_OVERRIDE = re.compile(r":(?=[A-Za-z_]\w*(?:\.\w+)*=)")  # a colon that begins an override, and not one of a value


@dataclass(frozen=True)
class Contender:
    """One recipe of a comparison: where it is read from, and what is changed in it."""

    name: str
    source: str
    overrides: tuple[str, ...] = ()


def contenders(sources: Sequence[str], vary: Sequence[str] = ()) -> list[Contender]:
    """Return each recipe with each combination of the varied settings.

    >>> [one.name for one in contenders(["digits-wcgan:train.batch=8", "digits-nonsat"])]
    ['digits-wcgan,batch=8', 'digits-nonsat']
    >>> [one.name for one in contenders(["digits-wcgan"], ["optim.lr_g=1e-4,5e-4"])]
    ['lr_g=1e-4', 'lr_g=5e-4']
    """
    choices = [[f"{key}={value}" for value in values] for key, values in map(_varied, vary)]
    each = [
        (source, (*own, *chosen))
        for source, *own in map(_OVERRIDE.split, sources)
        for chosen in (product(*choices) if choices else [()])
    ]
    if len(each) < 2:
        raise UserError(
            "a comparison needs at least two recipes: name them one after the other, or use --vary key=a,b."
        )
    is_one_recipe = len({source for source, _ in each}) == 1
    named = []
    for source, overrides in each:
        stem = Path(source).name.removesuffix(".yaml") or "recipe"
        words = [_short(text, each) for text in overrides]
        named.append(",".join(words if is_one_recipe and words else [stem, *words]))
    return [Contender(name, *one) for name, one in zip(names_of(named), each, strict=True)]


def folder_name(compared: Sequence[Contender]) -> str:
    """Return the name of a folder for a comparison, which depends on what is compared only.

    >>> folder_name(contenders(["digits-wcgan"], ["optim.lr_g=1e-4,5e-4"]))
    'digits-wcgan,lr_g=1e-4-vs-lr_g=5e-4'
    """
    stems = {Path(one.source).name.removesuffix(".yaml") for one in compared}
    name = "-vs-".join(one.name for one in compared)
    stem = stems.pop() if len(stems) == 1 else ""
    return shortened(f"{stem},{name}" if stem and not name.startswith(stem) else name)


def _varied(text: str) -> tuple[str, list[str]]:
    """Split `key=a,b` into the key and its values; commas inside of brackets belong to a value.

    >>> _varied("optim.lr_g=1e-4,5e-4"), _varied("strategy.cellular.grid=[2,2],[3,3]")
    (('optim.lr_g', ['1e-4', '5e-4']), ('strategy.cellular.grid', ['[2,2]', '[3,3]']))
    """
    key, equals, rest = text.partition("=")
    values = split_values(rest)
    if not key or not equals or len(values) < 2 or not all(value.strip() for value in values):
        raise UserError(f"--vary {text}: give a key of the recipe and at least two values, e.g. optim.lr_g=1e-4,5e-4.")
    return key.strip(), [value.strip() for value in values]


def _short(override: str, each: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """Return an override as part of a folder's name: `key=value` without characters that folders should not have.

    The key is cut to its last part if no other key has the same last part.

    Args:
        override: The override, such as "optim.lr_g=1e-4".
        each: The recipes and overrides of all contenders.
    """
    key, _, value = override.partition("=")
    last = key.rpartition(".")[2]
    keys = {text.partition("=")[0] for _, overrides in each for text in overrides}
    alike = [other for other in keys if other.rpartition(".")[2] == last]
    return re.sub(r"[^\w.=,+-]+", "-", f"{last if len(alike) == 1 else key}={value}")
