"""Import benchmarks from the folder benchmarks/, which only a checkout of ganherd's repository has."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from ganherd.util.errors import UserError
from ganherd.util.version import PACKAGE

FOLDER = PACKAGE.parents[1] / "benchmarks"  # exists if this file is in a checkout
WHERE = "get a checkout of ganherd's repository, and install it with `pip install -e .`"


def has_benchmarks() -> bool:
    """Return whether this ganherd runs from a checkout of its repository."""
    return (FOLDER / "ganherd_benchmarks" / "__init__.py").is_file()


def require_checkout(what: str) -> None:
    """Raise a `UserError` if ganherd does not run from a checkout; `what` names, in the message, what needs it."""
    if not has_benchmarks():
        raise UserError(f"{what} needs code that is not installed with ganherd: {WHERE}.")


def benchmark_module(name: str, what: str) -> ModuleType:
    """Import a module of `ganherd_benchmarks`.

    Args:
        name: The name of the module.
        what: What needs the module, in words, for the error message.

    Raises:
        UserError: ganherd does not run from a checkout.
    """
    require_checkout(what)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # last, so that nothing there shadows an installed package
    return importlib.import_module(f"ganherd_benchmarks.{name}")
