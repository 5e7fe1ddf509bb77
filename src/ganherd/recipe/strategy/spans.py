"""Spans of training in steps, epochs or fractions of the run."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from ganherd.recipe.base import parse_budget

_OF_RUN = re.compile(r"\s*(\d*\.?\d+)\s*run\s*")


def parse_span(text: str) -> tuple[Literal["steps", "epochs", "run"], float]:
    """Return the unit and the amount of a span; `run` counts in fractions of the whole run.

    >>> parse_span("300steps"), parse_span("0.5epochs"), parse_span("0.1run")
    (('steps', 300.0), ('epochs', 0.5), ('run', 0.1))
    """
    if match := _OF_RUN.fullmatch(text):
        if 0 < float(match[1]) <= 1:
            return "run", float(match[1])
    else:
        try:
            kind, amount = parse_budget(text)
        except ValueError:
            kind = "seconds"
        if kind != "seconds":
            return kind, amount
    raise ValueError("must be steps, epochs or a fraction of the run, such as 300steps, 0.5epochs or 0.1run")


def in_steps(span: str, steps_per_epoch: float, steps: int = 0) -> int:
    """Return a span as a number of steps, for a run of `steps` steps; "0" is 0 steps.

    >>> in_steps("0.5epochs", 30.0), in_steps("0.1run", 30.0, 200), in_steps("0", 30.0)
    (15, 20, 0)
    """
    if span == "0":
        return 0
    kind, amount = parse_span(span)
    return max(1, round(amount * {"steps": 1, "epochs": steps_per_epoch, "run": steps}[kind]))


def _span(value: str) -> str:
    if value != "0":
        parse_span(value)
    return value


Span = Annotated[str, AfterValidator(_span)]
