"""Find the folders of runs, data sets and caches, and write paths as people type them."""

from __future__ import annotations

import os
from pathlib import Path

from ganherd.util.errors import UserError

DEFAULT = "~/.cache/ganherd"
RUNS = Path("runs")  # the folder in which `ganherd train` makes runs


def data_home() -> Path:
    """Return the folder of data sets and score networks: $GANHERD_DATA, or ~/.cache/ganherd."""
    return _home("GANHERD_DATA")


def cache_home() -> Path:
    """Return the folder of measured engines, classifiers and features: $GANHERD_CACHE, or ~/.cache/ganherd."""
    return _home("GANHERD_CACHE")


def from_here(path: Path) -> Path:
    """Return the path as people would type it here: relative if it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def expanded(path: str | Path) -> Path:
    """Return a path with a leading `~` or `~user` replaced by the home folder; `~user` of an unknown user stays.

    >>> expanded("~no-such-user/x").name
    'x'
    """
    return Path(os.path.expanduser(path))


def given_path(what: str, value: object) -> Path:
    """Return a user's argument as a path, or raise a `UserError` if it is neither text nor a path.

    Args:
        what: What the error message calls the argument.

    >>> given_path("the run", 3)
    Traceback (most recent call last):
    ganherd.util.errors.UserError: the run must be a path, not 3.
    """
    if not isinstance(value, str | os.PathLike):
        raise UserError(f"{what} must be a path, not {value!r}.")
    return Path(value)


def shared_cache() -> Path | None:
    """Return the folder of a read-only cache that users share: $GANHERD_SHARED_CACHE; None if that is not set."""
    return _home("GANHERD_SHARED_CACHE") if os.environ.get("GANHERD_SHARED_CACHE") else None


def _home(variable: str) -> Path:
    """Return the folder in an environment variable as an absolute path; ~/.cache/ganherd if it is unset or empty."""
    try:
        return Path(os.environ.get(variable) or DEFAULT).expanduser().absolute()
    except RuntimeError:  # neither $HOME nor an entry in the user database
        raise UserError(f"The home folder is unknown. Set HOME, or set {variable} to a folder.") from None
