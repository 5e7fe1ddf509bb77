"""Decide whether plug-ins may be imported: a recipe of the user's own and `--trust-code` give leave, a run folder does not.

Leave is limited to a block of code. Outside of it, a registry imports only plug-ins that the user has named (`Registry.vouch`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Packages = Mapping[tuple[str, str], str]  # the package of each (kind, name) that a run records

_TRUSTING: ContextVar[bool] = ContextVar("trusting", default=False)
_VOUCHING: ContextVar[bool] = ContextVar("vouching", default=False)
_RECORDED: ContextVar[Callable[[], Packages]] = ContextVar("recorded", default=dict)
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)


@contextmanager
def trusting_plugins() -> Iterator[None]:
    """Give leave to import any plug-in inside of this block: the user gave `--trust-code`."""
    before = _TRUSTING.set(True)
    try:
        yield
    finally:
        _TRUSTING.reset(before)


def is_trusting() -> bool:
    """Return whether the user gave `--trust-code`."""
    return _TRUSTING.get()


@contextmanager
def reading_recipe(is_own: bool, recorded: Callable[[], Packages] = dict) -> Iterator[None]:
    """Read a recipe inside of this block.

    Args:
        is_own: The recipe is the user's own, so the user vouches for the plug-ins that it names.
        recorded: Returns the packages that the run of this recipe records.
    """
    vouching, before = _VOUCHING.set(is_own), _RECORDED.set(recorded)
    try:
        yield
    finally:
        _VOUCHING.reset(vouching)
        _RECORDED.reset(before)


def vouches() -> bool:
    """Return whether the recipe that is being read is the user's own."""
    return _VOUCHING.get()


def recorded_package(kind: str, name: str) -> str | None:
    """Return the package that the run being read records for a plug-in, "" if it has none; None if it does not record it."""
    package = _RECORDED.get()().get((kind, name))
    return package if package is None or _PACKAGE.fullmatch(package) else ""
