"""Decide whether plug-ins may be imported: the user's own recipes and `--trust-code` permit it, a run folder does not.

The permission holds inside a `with` block. Outside, a registry imports only plug-ins that the user named
(`Registry.vouch`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Packages = Mapping[tuple[str, str], str]  # the package of each plug-in, by its (kind, name), as run.json records it

_TRUSTING: ContextVar[bool] = ContextVar("trusting", default=False)
_VOUCHING: ContextVar[bool] = ContextVar("vouching", default=False)
_RECORDED: ContextVar[Callable[[], Packages]] = ContextVar("recorded", default=dict)
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)


@contextmanager
def trusting_plugins() -> Iterator[None]:
    """Permit the import of any plug-in inside the block, because the user gave `--trust-code`."""
    before = _TRUSTING.set(True)
    try:
        yield
    finally:
        _TRUSTING.reset(before)


def is_trusting() -> bool:
    """Return whether any plug-in may be imported here, because the user gave `--trust-code`."""
    return _TRUSTING.get()


@contextmanager
def reading_recipe(is_own: bool, recorded: Callable[[], Packages] = dict) -> Iterator[None]:
    """Mark a block as the one that reads a recipe, and declare who wrote the recipe.

    Args:
        is_own: Whether the recipe is the user's own; then the plug-ins that it names may be imported.
        recorded: Returns the packages of the plug-ins, as recorded by the run that the recipe belongs to.
    """
    vouching, before = _VOUCHING.set(is_own), _RECORDED.set(recorded)
    try:
        yield
    finally:
        _VOUCHING.reset(vouching)
        _RECORDED.reset(before)


def vouches() -> bool:
    """Return whether the recipe that is being read is the user's own, so that its plug-ins may be imported."""
    return _VOUCHING.get()


def recorded_package(kind: str, name: str) -> str | None:
    """Return the package that the run being read records for a plug-in.

    Args:
        kind: The kind of plug-in, e.g. "loss".

    Returns:
        The name of the package; "" if the recorded name is no valid one; None if the run does not record the plug-in.
    """
    package = _RECORDED.get()().get((kind, name))
    return package if package is None or _PACKAGE.fullmatch(package) else ""
