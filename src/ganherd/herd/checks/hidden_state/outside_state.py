"""Find the variables outside of a net that its code may change: of files, helpers, classes and closures.

The search starts at the code of the net's classes and hooks. It looks up the names in this code, which leads to
functions, classes and objects of the user, and continues with their code. It never runs users' code, and ignores code
of installed packages.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from ganherd.herd.checks.hidden_state.comparable import OF_PYTORCH, Copier, attributes
from ganherd.herd.checks.module_copies import HOOKS, at_line
from ganherd.util.user_code import is_installed

_MAX_VARIABLES = 1_000
_MAX_OBJECTS = 10_000  # most functions, classes and objects that the search visits
_FIRST = 100  # most items of a container that the search visits
_HEAP_TYPE = 1 << 9  # flag of classes that were created by a class statement
_GLOBAL = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "STORE_NAME")
_CHANGES_IT = ("STORE_GLOBAL", "STORE_DEREF")
_CHANGES_INSIDE = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR")
_LEAVES = (int, float, complex, str, bytes, type(None), Tensor, types.ModuleType, types.BuiltinFunctionType)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, staticmethod, classmethod, property, type)


class OutsideState:
    """Comparable copies of the variables outside of a net, taken when this object is created.

    Args:
        alike: Other nets of the same class. If a variable, e.g. a list of all instances, holds their tensors or layers,
            these count as parts of the net, not as outside variables.

    Attributes:
        values: Comparable copies of the variables' values (see `Copier`), by names such as `tracker.count`.
    """

    def __init__(self, net: nn.Module, alike: Sequence[nn.Module] = ()) -> None:
        self._package = _top(type(net).__module__)
        nets = (net, *alike)
        self._of_nets = {id(one) for each in nets for one in (*each.modules(), *each.parameters(), *each.buffers())}
        self._variables: dict[str, Any] = {}
        self._holders: dict[str, int] = {}  # name -> id of the object that holds the variable
        self._code: dict[str, list[types.CodeType]] = {}  # name -> code that may change it
        self._all_code: list[types.CodeType] = []
        self._seen: set[int] = set()
        self._queue: deque[tuple[str, Any]] = deque()
        for layer in net.modules():
            self._start(layer)
        while self._queue and len(self._seen) < _MAX_OBJECTS:
            self._follow(*self._queue.popleft())
        copier = Copier(dict.fromkeys(self._of_nets, "a part of the net"), self._is_own)
        self.values = {name: copier.copy(value) for name, value in self._variables.items()}

    def describe(self, names: Sequence[str]) -> str:
        """Return the names of variables for a message, with the line of code that changes the first one.

        If no such line is found, a line that reads the variable is given.
        """
        path, code = names[0], list(self._code.get(names[0], ()))
        while "." in path:
            path = path.rpartition(".")[0]
            code += self._code.get(path, ())
        plain = list(dict.fromkeys(name.partition("#")[0] for name in names))
        return ", ".join(plain) + _line_that_changes(plain[0], [*code, *self._all_code])

    # -- the search -----------------------------------------------------------------------------------------------------

    def _start(self, layer: nn.Module) -> None:
        """Queue the class, the hooks and other functions of a layer as starting points of the search.

        The attributes of the layer themselves are not outside variables.
        """
        held = [value for name, value in vars(layer).items() if name not in OF_PYTORCH]
        for owner in (layer, *layer.parameters(recurse=False)):
            for hooks in HOOKS:
                held += (getattr(owner, hooks, None) or {}).values()
        self._queue += [("", each) for value in (type(layer), *held) for each in _code_of(value)]

    def _follow(self, name: str, value: Any) -> None:
        """Add the variables that a value contains or that its code names, and queue their values for the search.

        Args:
            name: The name of the variable that has this value.
        """
        kind = type(value)
        if id(value) in self._seen or id(value) in self._of_nets or issubclass(kind, _LEAVES):
            return
        self._seen.add(id(value))
        if issubclass(kind, types.FunctionType):
            self._follow_function(value)
        elif issubclass(kind, type):
            self._follow_class(value)
        elif issubclass(kind, types.MethodType):
            self._queue += [(name, value.__func__), (name, value.__self__)]
        elif issubclass(kind, (staticmethod, classmethod, functools._lru_cache_wrapper)):
            self._queue.append((name, value.__wrapped__))
        elif issubclass(kind, (property, functools.cached_property)):
            self._queue += [(name, getattr(value, each, None)) for each in ("fget", "fset", "func")]
        elif issubclass(kind, functools.partial):
            self._queue += [(name, each) for each in (value.func, *value.args, *value.keywords.values())]
        else:
            self._queue += [(name, each) for each in _first(value, kind)]
            if self._is_own(kind):
                self._queue.append((name, kind))
                for attribute, each in attributes(value).items():
                    self._add(f"{name}.{attribute}", each, value, _methods(kind))

    def _add(self, name: str, value: Any, holder: Any, code: Iterable[types.CodeType]) -> None:
        """Add a variable to the result, and queue its value for the search.

        Args:
            holder: The object that holds the variable, to distinguish variables of the same name.
            code: Code that may change the variable.
        """
        plain, number = name, 1
        while self._holders.setdefault(name, id(holder)) != id(holder):  # other variables have the same name
            number += 1
            name = f"{plain}#{number}"
        self._code.setdefault(name, []).extend(code)
        if not issubclass(type(value), _CODE) and len(self._variables) < _MAX_VARIABLES:
            self._variables[name] = value
        self._queue.append((name, value))

    def _follow_function(self, function: types.FunctionType) -> None:
        """Add the variables of a function: argument defaults, closure, attributes, and global variables in its code."""
        name, code = function.__qualname__.rpartition("<locals>.")[2], function.__code__
        arguments = code.co_varnames[: code.co_argcount][::-1]
        defaults = dict(zip(arguments, (function.__defaults__ or ())[::-1], strict=False))
        for each, value in (defaults | (function.__kwdefaults__ or {})).items():
            self._add(each, value, function, [code])
        for each, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                self._add(each, cell.cell_contents, cell, [code])
        for each, value in function.__dict__.items():
            self._add(f"{name}.{each}", value, function, [code])
        if self._is_users(function.__globals__.get("__name__", "")):
            for inner in _nested(code):
                self._all_code.append(inner)
                self._follow_names(inner, function.__globals__)

    def _follow_names(self, code: types.CodeType, variables: Mapping[str, Any]) -> None:
        """Add the global variables whose names occur in code, and attributes of modules that the code uses.

        Of modules of installed packages, only attributes that the code assigns are added.

        Args:
            variables: The global variables by name.
        """
        for name in sorted(_global_names(code) & variables.keys()):
            value = variables[name]
            self._add(name, value, variables, [code])
            if issubclass(type(value), types.ModuleType):
                of_module = vars(value)
                named = code.co_names if self._is_users(value.__name__) else _assigned_attributes(code)
                for each in sorted(of_module.keys() & set(named)):
                    self._add(f"{name}.{each}", of_module[each], of_module, [code])

    def _follow_class(self, kind: type) -> None:
        """Add the class attributes of a user's class and of its bases, and queue their methods for the search."""
        for base in filter(self._is_own, kind.__mro__):
            for name, value in vars(base).items():
                if issubclass(type(value), _CODE):
                    self._queue.append((name, value))
                elif not name.startswith("__") and not inspect.isdatadescriptor(value):
                    self._add(f"{base.__name__}.{name}", value, base, _methods(base))

    # -- ownership of code -----------------------------------------------------------------------------------------------

    def _is_own(self, kind: type) -> bool:
        """Return whether a class was defined by the user. If `exec` defined it, its module may be `builtins`."""
        if kind.__module__ == "builtins":
            return bool(kind.__flags__ & _HEAP_TYPE)
        return self._is_users(kind.__module__)

    def _is_users(self, module: str) -> bool:
        """Return whether a module, by name, is the user's: part of the net's package, or of no installed package."""
        top = _top(module)
        return top not in ("torch", "ganherd") and (top == self._package or _is_users_file(module, top))


@functools.cache
def _is_users_file(module: str, top: str) -> bool:
    """Return whether a module belongs to no installed package. True for modules without a file, e.g. of notebooks.

    Args:
        module: The name of the module.
        top: The name of its top-level package.
    """
    if top in sys.stdlib_module_names:
        return False
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, top)]
    return not any(is_installed(file) for file in files if isinstance(file, str))


def _top(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


def _methods(kind: type) -> list[types.CodeType]:
    """Return the code of all methods of a class and its bases."""
    functions = [each for base in kind.__mro__ for each in vars(base).values()]
    return [each.__code__ for each in functions if issubclass(type(each), types.FunctionType)]


def _code_of(value: Any) -> list[Any]:
    """Return the functions and classes in the value of a layer's attribute, or the classes of the objects in it."""
    kind = type(value)
    if issubclass(kind, _LEAVES):
        return []
    if issubclass(kind, (*_CODE, types.MethodType, functools.partial, functools._lru_cache_wrapper)):
        return [value]
    return [kind, *(each if issubclass(type(each), _CODE) else type(each) for each in _first(value, kind))]


def _first(value: Any, kind: type) -> list[Any]:
    """Return the first items of a container; an empty list for other values."""
    for known in (list, tuple, deque, set, frozenset):
        if issubclass(kind, known):
            return list(itertools.islice(known.__iter__(value), _FIRST))
    return list(itertools.islice(dict.values(value), _FIRST)) if issubclass(kind, dict) else []


# -- bytecode ----------------------------------------------------------------------------------------------------------


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of all functions and classes within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


@functools.lru_cache(4096)
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names of global variables that a function reads or assigns.

    >>> sorted(_global_names((lambda x: len(x) + x.size + total).__code__))
    ['len', 'total']
    """
    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL)


@functools.lru_cache(4096)
def _assigned_attributes(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes that a function assigns, of any object."""
    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")


def _line_that_changes(name: str, codes: Iterable[types.CodeType]) -> str:
    """Return the first line that changes a variable; if there is none, one that reads it, or one that reads its owner.

    Args:
        name: The name of a variable, e.g. `count`, or of an attribute, e.g. `tracker.count`.
        codes: The code to search, the most likely first.

    Returns:
        The line in brackets, e.g. " (nets.py, line 12)"; empty if there is no such line.
    """
    holder, _, last = name.rpartition(".")
    first = holder.partition(".")[0]
    lines: dict[int, str] = {}  # by rank: 0 fits best
    for code in codes:
        steps = [(step, step.positions.lineno) for step in dis.get_instructions(code) if step.positions]
        inside = {line for step, line in steps if step.opname in _CHANGES_INSIDE}
        for step, line in steps:
            if step.argval not in (last, first) or line is None:
                continue
            if step.argval != last:
                rank = 3
            elif step.opname in (("STORE_ATTR",) if holder else _CHANGES_IT) and code.co_name != "__init__":
                rank = 0
            else:
                rank = 1 if line in inside and not holder else 2
            lines.setdefault(rank, at_line(code.co_filename, line))
    return lines[min(lines)] if lines else ""
