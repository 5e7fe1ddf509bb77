"""Check settings that are given as arguments in Python: overrides and a budget."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from ganherd.util.errors import UserError


def check_overrides(overrides: Sequence[str], name: str = "overrides") -> None:
    """Raise a `UserError` if the overrides, an argument with this name, are not a list of texts such as `train.batch=32`."""
    if isinstance(overrides, str | Mapping) or not isinstance(overrides, Iterable):
        wrong = [f"is a {type(overrides).__name__}"]
    else:
        wrong = [f"holds a {type(text).__name__}" for text in overrides if not isinstance(text, str)]
    if wrong:
        raise UserError(f"{name} {wrong[0]}: give a list of settings such as ['train.batch=32'].")


def budget_text(budget: str | int | None) -> str | None:
    """Return a budget as recipes write it; a number counts steps.

    >>> budget_text(300), budget_text("20epochs")
    ('300steps', '20epochs')
    """
    if budget is None or isinstance(budget, str):
        return budget
    if isinstance(budget, SupportsIndex) and not isinstance(budget, bool):
        return f"{operator.index(budget)}steps"
    raise UserError(
        f"budget is a {type(budget).__name__}: give a number of steps or a text such as 5000steps, 20epochs or 10m."
    )
