"""The errors that end a command with one sentence and an exit code, and helpers for messages."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """Raised for bad input. The message is one sentence with what to do; the command exits with code 2."""


class NotFinite(UserError):
    """Raised if a generator returns NaN or infinite values."""


class Interrupted(Exception):
    """Raised if a run stopped before its end and can be resumed.

    The message names the command to resume it; exit code 75.
    """


class RunFailed(Exception):
    """Raised if a run failed and cannot be resumed as it is.

    The message gives the reason and what to try; exit code 1.
    """


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return `value` as an int; raise a `UserError` if it is not a whole number, or less than `least`.

    Args:
        name: The name of the argument, for the error message.

    >>> whole_number("n", 3)
    3
    >>> whole_number("n", "3", 1)
    Traceback (most recent call last):
    ganherd.util.errors.UserError: n must be a whole number of at least 1, not '3'.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise UserError(
            f"{name} must be a whole number{'' if least is None else f' of at least {least}'}, not {value!r}."
        )
    return number


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, without a full stop; the error's type if there is none.

    >>> first_line(ValueError("Too large.\\nUse less.")), first_line(ValueError(""))
    ('Too large', 'ValueError')
    """
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def with_type(error: BaseException) -> str:
    """Return the type of an error and the first line of its message, as `TYPE: LINE`.

    >>> with_type(ValueError("Too large.")), with_type(ValueError(""))
    ('ValueError: Too large', 'ValueError: no reason given')
    """
    kind, line = type(error).__name__, first_line(error)
    return f"{kind}: {'no reason given' if line == kind else line}"


def first_invalid(error: ValidationError) -> str:
    """Return the first field that a pydantic model refused and why, as `KEY.KEY: REASON`."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(key)[:40] for key in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def few(names: Sequence[str], most: int) -> str:
    """Return the first `most` names joined by commas, followed by the number of names that are left out.

    >>> few(["a", "b"], 2), few(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def counted(number: int, plural: str) -> str:
    """Return a number with a noun. The noun is given in the plural; it becomes singular if the number is 1.

    >>> counted(1, "images"), counted(2, "classes"), counted(1, "classes"), counted(1200, "points")
    ('1 image', '2 classes', '1 class', '1,200 points')
    """
    noun = plural if number != 1 else plural.removesuffix("es") if plural.endswith("sses") else plural.removesuffix("s")
    return f"{number:,} {noun}"


def few_of(number: int, plural: str) -> str:
    """Return the beginning of a warning that this number of something is small; the noun is given in the plural.

    >>> few_of(1, "samples"), few_of(30, "images")
    ('1 sample is few', '30 images are few')
    """
    return f"{counted(number, plural)} {'is' if number == 1 else 'are'} few"
