"""Find and import objects that a user names as `package.module:Name`, in installed packages and the user's folders."""

from __future__ import annotations

import filecmp
import importlib
import inspect
import operator
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import PathFinder
from typing import Any

from ganherd.util.errors import UserError
from ganherd.util.version import PACKAGE

_NO_FILES = ("", "__main__", "memory")  # names of modules that are in no folder; for "memory" see `memory_objects`
_FOLDERS: ContextVar[tuple[str, ...]] = ContextVar("folders", default=())  # searched before the current folder


@contextmanager
def importable_from(folders: Iterable[str]) -> Iterator[None]:
    """Let `import_name` also search these folders inside the block.

    The folders of an enclosing block are searched first, so that a run folder in an inner block cannot replace user
    modules.
    """
    before = _FOLDERS.set((*_FOLDERS.get(), *folders))
    try:
        yield
    finally:
        _FOLDERS.reset(before)


def folders_with(names: Iterable[str], places: Sequence[str]) -> list[str]:
    """Return the folders that contain the modules of these names, without importing anything.

    Args:
        names: Names of the form `package.module:Name`. For each, the first folder that contains its top-level package
            counts.
        places: The folders to search. If a module is in none of them and not installed, all are returned, so that the
            later error about it can list them.
    """
    result: list[str] = []
    for top in {_top(name): None for name in names if _top(name) not in _NO_FILES}:
        holding = [place for place in places if PathFinder.find_spec(top, [place])]
        result += holding[:1] if holding or PathFinder.find_spec(top) else places
    return list(dict.fromkeys(result))


def import_name(name: str) -> Any:
    """Import and return the object `package.module:Name`.

    Searched are installed packages, the folders of `importable_from`, and the current folder, in this order.

    Raises:
        ImportError: The module is in none of these places, or another module of its name is imported already.
    """
    module, _, inner = name.partition(":")
    if module == "__main__":
        return operator.attrgetter(inner)(importlib.import_module(module))
    folders = [*_FOLDERS.get(), os.getcwd()]
    sys.path += folders  # at the end, so that their modules shadow no installed package
    if module not in sys.modules:
        importlib.invalidate_caches()  # the module may have been written a moment ago
    try:
        _refuse_another(_top(name), folders)
        return operator.attrgetter(inner)(importlib.import_module(module))  # also finds nested names, e.g. Outer.Inner
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            places = " and ".join(dict.fromkeys(folders))
            raise ModuleNotFoundError(f"{error}; it is neither installed nor in {places}") from error
        raise
    finally:
        for folder in folders:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]  # the last occurrence is the one added above


def load_own(name: str, what: str, trust_code: bool) -> Any:
    """Import and return a user's object `package.module:name`; for a name `memory:…`, return the object in memory.

    Args:
        what: What error messages call the object, e.g. "generator".
        trust_code: Whether the user trusts the code; if not, a `UserError` is raised and nothing is imported.

    Raises:
        UserError: The code is not trusted, or cannot be imported.
    """
    if _top(name) == "memory":
        from ganherd.util.objects import memory_objects

        return memory_objects.find_trusted(name, what, trust_code)
    if not trust_code:
        raise UserError(
            f"the {what} {name} is code that is not ganherd's: give --trust-code (trust_code=True in Python) if you trust it."
        )
    try:
        return import_name(name)
    except UserError:
        raise
    except Exception as error:  # whatever the user's module raises while it is imported
        module, _, own = name.partition(":")
        if module == "__main__":
            raise UserError(
                f"the {what} {own} was defined in the script or notebook that trained it, and is not in this one: "
                "define it here too, or move it into another module and train again."
            ) from None
        if module.endswith(".py"):
            file = os.path.basename(module)
            raise UserError(
                f"the {what} {name} names a file: write {file.removesuffix('.py')}:{own or 'Class'}, "
                f"with {file} in the current folder or the recipe's."
            ) from None
        reason = " ".join(str(error).split()) or "no reason given"
        raise UserError(f"the {what} {name} could not be imported: {type(error).__name__}: {reason}") from error


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python, to an installed package or to ganherd."""
    return file.startswith(installed_folders())


def installed_folders() -> tuple[str, ...]:
    """Return the folders of Python, of installed packages and of ganherd. Each path ends with a separator."""
    paths = sysconfig.get_paths()  # others of these include the root of a virtual environment, which may be a project
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [*site.getsitepackages(), site.getusersitepackages(), str(PACKAGE)]
    return tuple(os.path.join(folder, "") for folder in installed)


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _refuse_another(top: str, folders: list[str]) -> None:
    """Raise an ImportError if another module of this name is imported already; Python would silently use that one."""
    used, wanted = getattr(sys.modules.get(top), "__file__", None), PathFinder.find_spec(top)
    if not (used and wanted and wanted.origin and any(wanted.origin.startswith(place + os.sep) for place in folders)):
        return
    with suppress(OSError):
        if filecmp.cmp(used, wanted.origin, shallow=False):  # they are the same file, or equal copies
            return
    if os.path.realpath(used) != os.path.realpath(wanted.origin):
        raise ImportError(
            f"this process has imported {used} under the same name; rename {wanted.origin}, or start another process"
        )


def must_take(what: str, function: Any, *arguments: str) -> None:
    """Raise a `UserError` if a user's function cannot be called with the given positional arguments.

    Args:
        what: What error messages call the function.
        arguments: The names of the arguments that ganherd passes.

    >>> must_take("the metric sharpness", lambda x: x, "real", "generated")
    Traceback (most recent call last):
    ganherd.util.errors.UserError: the metric sharpness must take (real, generated), and its arguments are (x).
    """
    if not callable(function):
        raise UserError(
            f"{what} must be a function of ({', '.join(arguments)}), and it is a {type(function).__name__} object."
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        own = ", ".join(map(str, signature.parameters))
        raise UserError(f"{what} must take ({', '.join(arguments)}), and its arguments are ({own}).") from None
