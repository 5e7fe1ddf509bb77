"""Building blocks of the sections of a recipe: types of values, checks, and errors whose message is a whole sentence.

A budget is the length of a run, such as `20epochs` or `10m`. A span is a length of time within a run, such as
`300steps`, or `0.1run` for a tenth of the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ganherd.losses import ALSO_CALLED
from ganherd.util.registry import LOSSES


def refuse(keys: str, sentence: str) -> PydanticCustomError:
    """Return an error, for the caller to raise, whose message is a whole sentence.

    Args:
        keys: The dotted keys that cause it, separated by spaces; "": the key that is being read.
        sentence: The message.
    """
    return PydanticCustomError("recipe", "{sentence}", {"sentence": sentence, "keys": keys})


_UNITS: dict[str, tuple[Literal["steps", "epochs", "seconds"], float]] = {
    **dict.fromkeys(("", "step", "steps"), ("steps", 1.0)),
    **dict.fromkeys(("epoch", "epochs"), ("epochs", 1.0)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), ("seconds", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600.0)),
}
_LONGEST = 1e15  # steps, epochs or seconds: no run is that long, and whole numbers stay exact
_OF_RUN = re.compile(r"\s*(\d*\.?\d+)\s*run\s*")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_budget(text: str) -> tuple[Literal["steps", "epochs", "seconds"], float]:
    """Return the unit and the amount of a budget; minutes and hours become seconds.

    Raises:
        ValueError: Its message states what a budget must be.

    >>> parse_budget("5000steps"), parse_budget("20epochs"), parse_budget("1.5h")
    (('steps', 5000.0), ('epochs', 20.0), ('seconds', 5400.0))
    """
    match = _QUANTITY.fullmatch(text)
    if match and match[2].lower() in _UNITS:
        kind, unit = _UNITS[match[2].lower()]
        amount = float(match[1]) * unit
        if 0 < amount < _LONGEST and (kind != "steps" or amount.is_integer()):
            return kind, amount
    raise ValueError("must be steps, epochs or time above zero, e.g. 5000steps, 20epochs, 90s, 10m or 2h")


def parse_span(text: str) -> tuple[Literal["steps", "epochs", "run"], float]:
    """Return the unit and the amount of a span; the unit `run` stands for a fraction of the whole run.

    Raises:
        ValueError: Its message states what a span must be.

    >>> parse_span("300steps"), parse_span("0.5epochs"), parse_span("0.1run")
    (('steps', 300.0), ('epochs', 0.5), ('run', 0.1))
    """
    if text == "0":
        return "steps", 0.0
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
    """Return a span as a number of steps: 0 for the span "0", otherwise at least 1.

    Args:
        span: The span, such as 0.5epochs.
        steps_per_epoch: The number of steps in an epoch.
        steps: The number of steps of the run.

    >>> in_steps("0.5epochs", 30.0), in_steps("0.1run", 30.0, 200), in_steps("0", 30.0)
    (15, 20, 0)
    """
    if span == "0":
        return 0
    kind, amount = parse_span(span)
    return max(1, round(amount * {"steps": 1, "epochs": steps_per_epoch, "run": steps}[kind]))


def portion(text: str, share: float) -> str:
    """Return this share (0 to 1) of a budget, written as a budget.

    >>> portion("10m", 0.75), portion("1000steps", 0.25), portion("3epochs", 0.5)
    ('450s', '250steps', '1.5epochs')
    """
    kind, amount = parse_budget(text)
    if kind == "steps":
        return f"{max(1, round(amount * share))}steps"
    return f"{amount * share:.10g}{'s' if kind == 'seconds' else kind}"


def parse_bytes(text: str) -> int:
    """Return a size of memory in bytes. KB, MB, … are powers of 1000; KiB, MiB, … and K, M, … are powers of 1024.

    Raises:
        ValueError: Its message states what a size must be.

    >>> parse_bytes("4GiB"), parse_bytes("500MB"), parse_bytes("2g")
    (4294967296, 500000000, 2147483648)
    """
    match = _QUANTITY.fullmatch(text)
    unit = re.fullmatch(r"([kmgt]?)(i?b)?", match[2].lower()) if match else None
    if match and unit and unit.group() != "ib":
        size = float(match[1]) * (1000 if unit[2] == "b" else 1024) ** ("kmgt".index(unit[1]) + 1 if unit[1] else 0)
        if 1 <= size < math.inf:
            return int(size)
    raise ValueError("must be a size of memory, such as 4GiB or 500MB")


def steps_of(value: Any) -> Any:
    """Return the number of steps in a text such as `50steps`; return anything else unchanged."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+)\s*(?:steps?)?\s*", value, re.ASCII)):
        return int(match[1])
    return value


def _accepted_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that accepts a text if `parse` does, and returns it unchanged."""

    def check(value: str) -> str:
        parse(value)
        return value

    return AfterValidator(check)


def _device(value: str) -> str:
    """Return the name of a device unchanged, or raise a ValueError if it is none."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value, re.ASCII):
        raise ValueError("must be auto, cpu, cuda or one GPU, such as cuda:1")
    return value


def _loss(value: str) -> str:
    """Return the name of a loss unchanged, or raise an error if no such loss is registered."""
    if not LOSSES.accepts(value):
        raise refuse("", LOSSES.unknown(value, ALSO_CALLED))
    return value


_STEPS_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\s*\d+\s*(steps?)?\s*$"}]}
)
Steps = Annotated[int, BeforeValidator(steps_of), Field(ge=0), _STEPS_SCHEMA]
Budget = Annotated[str, _accepted_by(parse_budget)]
Span = Annotated[str, _accepted_by(parse_span)]
Bytes = Annotated[str, _accepted_by(parse_bytes)]
Device = Annotated[str, AfterValidator(_device)]
LossName = Annotated[str, AfterValidator(_loss)]
Positive = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
# one value for all, or one for each member of the herd
PerMember = Positive | Annotated[list[Positive], Field(min_length=1)]
DecayPerMember = Decay | Annotated[list[Decay], Field(min_length=1)]
Chance = Annotated[float, Field(ge=0, le=1)]
ChancePerMember = Chance | Annotated[list[Chance], Field(min_length=1)]


MOST_THREADS = 1024
# The largest whole numbers that make sense, by the name of the key; any other key stays below 2⁵³.
_MOST = {
    "batch": 1 << 20,
    "n_critic": 1 << 20,
    "members": 1 << 20,
    "per_class": 1 << 16,
    "seeds": 1 << 16,
    "latent": 1 << 20,
    "chunk": 1 << 24,
    "threads": MOST_THREADS,
    "samples": 1 << 24,
    "validation": 1 << 24,
    "population": 1 << 16,
    "generations": 1 << 20,
    "grid": 1 << 12,
    "size": 1 << 14,
    "points": 1 << 28,
}


class Section(BaseModel):
    """A section of a recipe: unknown keys are errors, and its values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)

    @classmethod
    def known_fields(cls) -> dict[str, FieldInfo]:
        """Return the fields that messages may suggest, by name; a subclass may know more than its declared ones."""
        return cls.model_fields

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers: Python counts True as 1, so `batch: true` would train with a batch of one."""
        values = value if isinstance(value, list) else [value]
        if any(isinstance(v, bool) for v in values) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _is_possible(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse whole numbers that are too large to be meant, before they overflow or exhaust the memory elsewhere."""
        most = _MOST.get(info.field_name or "", 1 << 53)
        if any(type(v) is int and v > most for v in (value if isinstance(value, list) else [value])):
            raise ValueError(f"must be at most {most:,}")
        return value
