"""Name objects that live in memory, such as classes of a notebook and arrays, by a fingerprint of their content.

A recipe names such an object as `memory:NAME_FINGERPRINT`. Looking up the name returns the object if it, or an object
with the same fingerprint, was given to ganherd in this process. The object itself is never written to a file.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from ganherd.util.errors import UserError
from ganherd.util.user_code import is_installed

MEMORY = "memory"  # takes the place of the module in `module:name`
_STRANGE = r"\W"  # characters that a name cannot have
_DIGITS = 12  # number of digits of the fingerprint in a name
# Attributes of a class that do not influence what it does.
_SILENT = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__"})


class MemoryObject:
    """A user's object `value` and its name in recipes. `find` returns it as long as this `MemoryObject` is alive.

    Args:
        label: What a person calls the object, e.g. the name of its class.
        digest: The `fingerprint` of the value.
    """

    def __init__(self, value: Any, label: str, digest: str) -> None:
        self.value, self.label, self.digest = value, label, digest
        self.name = f"{MEMORY}:{re.sub(_STRANGE, '_', label)}_{digest[:_DIGITS]}"
        _KNOWN[id(self)] = self


# All living MemoryObjects by their id, because several may have the same name. The newest comes last.
_KNOWN: WeakValueDictionary[int, MemoryObject] = WeakValueDictionary()


def is_in_memory(name: str) -> bool:
    """Return whether a name of a recipe has the form `memory:…`, which names an object in memory.

    >>> is_in_memory("memory:MyGenerator_0123456789ab"), is_in_memory("my_nets:MyGenerator")
    (True, False)
    """
    return name.startswith(f"{MEMORY}:")


def label_of(name: str) -> str:
    """Return what a person calls the object that `memory:…` names; return any other name unchanged.

    >>> label_of("memory:MyGenerator_0123456789ab"), label_of("my_nets:MyGenerator")
    ('MyGenerator', 'my_nets:MyGenerator')
    """
    return (name.partition(":")[2].rpartition("_")[0] or name) if is_in_memory(name) else name


def find(name: str) -> MemoryObject:
    """Return the newest object of this process that has the name.

    Raises:
        UserError: This process has no object of this name.
    """
    known = list(_KNOWN.values())
    for held in reversed(known):
        if held.name == name:
            return held
    label = label_of(name)
    if any(label_of(held.name) == label for held in known):
        raise UserError(
            f"{label} in this process is not the one that was trained, because its code or content differs: give the same "
            "one, or start a new run."
        )
    raise UserError(
        f"{label} is an object of the Python process that trained it: give it again in Python, with nets= or data= of "
        "ganherd.Run."
    )


def find_trusted(name: str, what: str, trust_code: bool) -> Any:
    """Return the user's object that `name` names, or raise a `UserError`.

    Args:
        what: What error messages call the object, e.g. "generator".
        trust_code: Whether the user gave the objects of the run in this process; if not, none is returned.
    """
    if not trust_code:
        raise UserError(
            f"the {what} {label_of(name)} is an object of the Python process that trained it: give it again in Python, with nets= "
            "of ganherd.load or ganherd.Run."
        )
    try:
        return find(name).value
    except UserError as error:
        raise UserError(f"the {what} {error}") from None


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value in hexadecimal: of the content of data, or of the code of a class or function.

    The code includes everything it refers to, such as constants, base classes and variables of its module. Classes and
    functions of installed packages count by their names only. Two processes with the same version of Python get the
    same result.

    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1), fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
    (True, False)
    """
    digest = hashlib.sha256()
    _Walk(digest.update).visit(value)
    return digest.hexdigest()


class _Walk:
    """Feed a value and everything that it refers to into a hash, each object once."""

    def __init__(self, feed: Callable[[bytes | memoryview], object]) -> None:
        self._feed = feed
        # the number of each object by its id, and the object itself, so that no id is reused
        self._seen: dict[int, tuple[int, Any]] = {}

    def visit(self, value: Any) -> None:
        """Feed a value into the hash; if the object was visited before, feed only its number."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | type(...)):
            self._text(type(value).__name__, repr(value))
        elif id(value) in self._seen:
            self._text("again", str(self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = len(self._seen), value
            self._text(type(value).__name__)
            if hasattr(value, "__array__") and hasattr(value, "dtype") and not isinstance(value, type):
                self._text(str(value.dtype), str(tuple(value.shape)))
                self._feed(content_bytes(value))
            else:
                for part in self._parts(value):
                    self.visit(part)
            self._text("end")

    def _text(self, *words: str) -> None:
        self._feed("\0".join((*words, "\n")).encode())

    def _parts(self, value: Any) -> Iterator[Any]:
        """Yield the values that determine what an object is or does, e.g. the items of a list or a function's code."""
        match value:
            case list() | tuple():
                yield from value
            case dict():
                for item in value.items():
                    yield from item
            case set() | frozenset():
                yield from sorted(fingerprint(item) for item in value)
            case types.CodeType():
                yield from (value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_flags)
                yield value.co_consts
            case types.ModuleType():
                yield value.__name__
            case staticmethod() | classmethod() | types.MethodType():
                yield value.__func__
            case property():
                yield from (value.fget, value.fset, value.fdel)
            case functools.partial():
                yield from (value.func, value.args, value.keywords)
            case type() | types.FunctionType() | types.BuiltinFunctionType() if not _is_users(value):
                yield f"{value.__module__}:{value.__qualname__}"
            case type():
                yield from (value.__qualname__, value.__bases__)
                yield {key: each for key, each in sorted(vars(value).items()) if key not in _SILENT}
            case types.FunctionType():
                yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
                yield dict(sorted(_outside_variables(value).items()))
            case _ if _is_users(type(value)) or hasattr(value, "state_dict"):
                yield type(value)
                yield dict(sorted(getattr(value, "__dict__", {}).items()))
            case _:
                yield type(value)  # an object of a package may refer to the whole process


def _outside_variables(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables outside of a function that its code reads: those of its module and of its closure."""
    variables = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            variables[name] = cell.cell_contents
    return variables


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of module variables that code reads, inner functions included."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


def _is_users(value: Any) -> bool:
    """Return whether a class or function is the user's: defined outside of installed packages, or inside a function."""
    name = value.__module__
    if name == "__main__" or "<" in value.__qualname__ or (name and name not in sys.modules):
        return True
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return isinstance(file, str) and not is_installed(file)


def content_bytes(array: Any) -> memoryview:
    """Return the bytes of an array or of a tensor on any device.

    They are copied only if they are not contiguous on the CPU.
    """
    import numpy as np

    if hasattr(array, "detach"):
        import torch

        array = array.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
