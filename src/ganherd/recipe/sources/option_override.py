"""Remember which option or argument gave an override of a recipe, if that was not --set."""

from __future__ import annotations


class OptionOverride(str):
    """The text `key=value` of an override. Messages about it name the option that gave it.

    >>> override = OptionOverride.of("train.budget", "10m", "--budget 10m")
    >>> override, override.option
    ('train.budget=10m', '--budget 10m')
    """

    option: str  # the option as the user typed it, or the argument in Python

    @classmethod
    def of(cls, key: str, value: object, option: str) -> OptionOverride:
        """Return the override of a key by a value that an option gave."""
        override = cls(f"{key}={value}")
        override.option = option
        return override


def option_of(override: str) -> str:
    """Return the option that gave an override, as the user typed it.

    >>> option_of("train.batch=8")
    '--set train.batch=8'
    """
    return override.option if isinstance(override, OptionOverride) else f"--set {override}"
