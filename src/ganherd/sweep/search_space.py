"""Parse the settings that a sweep varies, and propose its trials (the settings to try).

A list of values (`loss.name=hinge,wasserstein-gp`) is tried value by value, a range (`optim.lr_g=1e-5..1e-2`) is
sampled. Samples come from a low-discrepancy sequence, which covers the ranges evenly for any number of trials; the seed
shifts it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ganherd.data.keyed_random import shuffle
from ganherd.recipe import yaml_lines
from ganherd.recipe.member_values import TRIAL_KEYS, Trial, Value
from ganherd.util.errors import UserError
from ganherd.util.text import split_values, yaml_word

DEFAULT_TRIALS = 16
_TRIES = 16  # draw at most this many samples for each trial, because whole numbers and lists may repeat
_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_RANGE = re.compile(rf"\s*{_NUMBER}\s*\.\.\s*{_NUMBER}\s*")
_FACTOR = 10.0  # ranges over at least this factor are sampled on a logarithmic scale


@dataclass(frozen=True)
class Dimension:
    """A setting that a sweep varies: its key, and a list of values or a range."""

    key: str
    values: tuple[Value, ...] = ()  # empty: a range
    low: float = 0.0  # of the range
    high: float = 0.0
    is_whole: bool = False  # whether the range has whole numbers only

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def is_logarithmic(self) -> bool:
        """Whether the setting is better shown and sampled on a logarithmic scale."""
        low, high = self.low, self.high
        if self.values:
            numbers = [value for value in self.values if isinstance(value, int | float) and not isinstance(value, bool)]
            if len(numbers) < len(self.values):
                return False
            low, high = min(numbers), max(numbers)
        return low > 0 and high / low >= _FACTOR

    def at(self, share: float) -> Value:
        """Return the value at a relative position in [0, 1) of the list or the range.

        >>> Dimension("optim.lr_g", low=1e-5, high=1e-1).at(0.5), Dimension("loss.name", ("a", "b")).at(0.7)
        (0.001, 'b')
        """
        if self.values:
            return self.values[int(share * len(self.values))]
        if self.is_logarithmic:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        return round(value) if self.is_whole else float(f"{value:.4g}")  # exactly the four digits that are printed


def parse_dimension(text: str) -> Dimension:
    """Parse the text of `--vary`: `key=a,b,c` or `key=low..high`. Commas inside brackets belong to a value.

    >>> parse_dimension("optim.lr_g=1e-5..1e-2").low, parse_dimension("loss.name=hinge,minimax").values
    (1e-05, ('hinge', 'minimax'))
    """
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not key or not equals or not rest:
        raise UserError(
            f"--vary {text}: write a key of the recipe and its values, e.g. optim.lr_g=1e-5..1e-2 or loss.name=hinge,minimax."
        )
    key = key.replace("nets.discriminator.settings.", "nets.discriminator.")  # two spellings of the same setting
    if "..." not in rest and (match := _RANGE.fullmatch(rest)):  # three dots would be ambiguous, as in 1...5
        low, high = float(match[1]), float(match[2])
        if not low < high or not math.isfinite(high):
            raise UserError(f"--vary {text}: a range goes from a smaller to a larger number, e.g. {key}=1e-5..1e-2.")
        return Dimension(key, low=low, high=high, is_whole=not re.search(r"[.eE]", match[1] + match[2]))
    if ".." in rest and "/" not in rest:  # not a path such as ../images
        raise UserError(f"--vary {text}: a range has two numbers, e.g. {key}=1e-5..1e-2.")
    values = tuple(_value(part, text) for part in split_values(rest))
    if len(values) < 2 or len({str(value) for value in values}) < len(values):
        raise UserError(f"--vary {text}: give at least two different values, or a range such as {key}=1e-5..1e-2.")
    return Dimension(key, values)


def _value(text: str, option: str) -> Value:
    """Parse one value of a list as YAML; `option` is the whole text of --vary, for errors."""
    if not text.strip():
        raise UserError(f"--vary {option}: a value is empty; separate values by single commas.")
    value, _ = yaml_lines.read(text.strip(), f"--vary {option}", option=True)
    if isinstance(value, dict):
        raise UserError(f"--vary {option}: a value must be a number, a word or a list, not a mapping.")
    result: Value = value
    return result


def propose(dimensions: Sequence[Dimension], trials: int | None, seed: int = 0) -> list[Trial]:
    """Return the settings of each trial: all combinations if there are only lists and few enough, otherwise a sample.

    Args:
        dimensions: The settings that are varied.
        trials: The largest number of trials; None: all combinations, or 16 if there is a range.
        seed: Determines the sample.

    >>> propose([parse_dimension("train.ema=0.9,0.99"), parse_dimension("loss.name=hinge,minimax")], None)[1]
    {'train.ema': 0.9, 'loss.name': 'minimax'}
    """
    keys = [dimension.key for dimension in dimensions]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"--vary {key} is given twice: list all of its values in one.")
    if not any(dimension.is_range for dimension in dimensions):
        combinations = [dict(zip(keys, values, strict=True)) for values in product(*(d.values for d in dimensions))]
        if trials is None or len(combinations) <= trials:
            return combinations
        order = np.sort(shuffle(len(combinations), "sweep", seed)[:trials])
        return [combinations[number] for number in order]
    wanted, proposed = trials or DEFAULT_TRIALS, dict[str, Trial]()
    for shares in _quasi_random(len(dimensions), _TRIES * wanted, seed):
        settings = {dimension.key: dimension.at(share) for dimension, share in zip(dimensions, shares, strict=True)}
        proposed.setdefault(str(settings), settings)  # drop repeated settings
        if len(proposed) == wanted:
            break
    return list(proposed.values())


def _quasi_random(dimensions: int, count: int, seed: int) -> np.ndarray:
    """Return quasi-random points [count, dimensions] in [0, 1), which are more evenly spread than random ones.

    This is Roberts' R sequence: point i is (shift + i · steps) mod 1, with powers of a generalised golden ratio as
    steps.
    """
    base = 2.0
    for _ in range(64):  # fixed-point iteration for the solution of x^(d+1) = x + 1, the generalised golden ratio
        base = (1.0 + base) ** (1.0 / (dimensions + 1))
    steps = base ** -np.arange(1.0, dimensions + 1)
    shift = shuffle(1 << 16, "sweep", seed)[:dimensions] / (1 << 16) if seed else 0.5
    return np.asarray((shift + np.arange(1, count + 1)[:, None] * steps) % 1.0)


def split(trial: Mapping[str, Value]) -> tuple[Trial, Trial]:
    """Split a trial's settings: those in which members of one run may differ, and those that need a separate run."""
    fused = {key: value for key, value in trial.items() if key in TRIAL_KEYS}
    return fused, {key: value for key, value in trial.items() if key not in TRIAL_KEYS}


def as_overrides(trial: Mapping[str, Value]) -> list[str]:
    """Return the settings of a trial as a list of `key=value`, in the form of `--set`.

    >>> as_overrides({"optim.lr_g": 1e-05, "train.ema": None, "train.flip": True})
    ['optim.lr_g=1e-05', 'train.ema=null', 'train.flip=true']
    """
    return [f"{key}={yaml_word(value)}" for key, value in trial.items()]
