"""What plain modules of a user may do that neither a traced graph nor `vmap` would show: hooks, replaced methods, and the like."""

from __future__ import annotations

import copy
import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _of_all  # its dictionaries of hooks that every module runs

from ganherd.util.errors import first_line
from ganherd.util.version import PACKAGE

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_EVERYWHERE = ("_global_forward_hooks", "_global_forward_pre_hooks")
_EVERYWHERE_BACK = ("_global_backward_hooks", "_global_backward_pre_hooks")
_LIBRARIES = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, str(PACKAGE) + os.sep)
_PYTHON = os.path.dirname(os.__file__)  # the folder of the standard library


def why_not_traced(module: nn.Module) -> str:
    """Return why a graph of this module would leave something out; empty if it would not.

    >>> net = nn.Sequential(nn.Linear(2, 2))
    >>> handle = net[0].register_forward_hook(lambda layer, given, out: out * 2)
    >>> why_not_traced(net)
    'its layer 0 (Linear) has a hook'
    """
    if any(getattr(_of_all, hooks) for hooks in (*_EVERYWHERE, *_EVERYWHERE_BACK)):
        return "a hook is registered for all modules"
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks) for hooks in (*_FORWARD, *_BACKWARD)):
            return f"{_called(name, layer)} has a hook"
        if replaced := _replaced(layer):
            return f"{replaced} of {_called(name, layer)} is replaced"
    return ""


def why_not_fused(module: nn.Module) -> str:
    """Return why only one member at a time can run this module; empty if all can at once."""
    if any(getattr(_of_all, hooks) for hooks in _EVERYWHERE_BACK):
        return "a backward hook is registered for all modules"
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks) for hooks in _BACKWARD):
            return f"{_called(name, layer)} has a backward hook"
    if where := held(module, module.parameters()):
        return f"{where} holds a parameter of it"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"its parameter {name} has a gradient hook"
        if type(parameter) is not nn.Parameter:
            return f"its parameter {name} is of the class {type(parameter).__name__}"
    return ""


def held(module: nn.Module, tensors: Iterable[Tensor]) -> str:
    """Return which attribute or hook of a module holds one of its own tensors besides; empty if none does.

    >>> net = nn.Linear(2, 2)
    >>> net.all = [net.weight, net.bias]
    >>> held(net, net.parameters())
    'all of the module itself'
    """
    own = {id(tensor) for tensor in tensors}
    for name, layer in module.named_modules():
        for attribute, value in _besides(layer).items():
            if any(id(tensor) in own for tensor in _tensors(value)):
                return f"{attribute} of {_called(name, layer)}"
    return ""


def _besides(layer: nn.Module) -> dict[str, Any]:
    """Return what a layer holds apart from its parameters, buffers and layers, by name; what its hooks hold, too."""
    found = {name: value for name, value in vars(layer).items() if name not in ("_parameters", "_buffers", "_modules")}
    hooks = [list(getattr(layer, kind).values()) for kind in (*_FORWARD, *_BACKWARD)]
    found = {name: value for name, value in found.items() if name not in (*_FORWARD, *_BACKWARD)}
    return found | {"a hook": hooks}


def _called(name: str, layer: nn.Module) -> str:
    return f"its layer {name} ({type(layer).__name__})" if name else "the module itself"


def _replaced(layer: nn.Module) -> str:
    """Return the name of a method that an instance, or a change of a class of PyTorch, has replaced."""
    kind = type(layer)
    for name, value in vars(layer).items():
        if callable(value) and callable(getattr(kind, name, None)) and not isinstance(value, nn.Module):
            return name
    if kind.__call__ is not nn.Module.__call__ and not kind.__module__.startswith("torch.nn"):
        return "__call__"
    forward: Any = kind.forward
    changed = kind.__module__.startswith("torch.nn.modules") and not forward.__module__.startswith("torch.nn")
    return "forward" if changed else ""


def line_of(error: BaseException) -> str:
    """Return the line of the user's own code that raised an error, e.g. "nets.py, line 12"; empty if there is none."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    return f"{os.path.basename(lines[-1].filename)}, line {lines[-1].lineno}" if lines else ""


def short_message(error: BaseException) -> str:
    """Return the first sentence of an error, and the line of the user's code that raised it."""
    why = first_line(error).split(". ")[0]
    where = line_of(error)
    return f"{why}; {where}" if where else why


def calling_line() -> str:
    """Return the line of the user's code that is running, in brackets; empty if there is none."""
    lines = ((frame.f_code.co_filename, frame.f_lineno) for frame in _frames())
    own = ((name, line) for name, line in lines if is_own(name) and os.path.dirname(name) != _PYTHON)
    return next((f" ({os.path.basename(name)}, line {line})" for name, line in own), "")


def calling_net() -> str:
    """Return the class of the net that is running, the outermost module; "the net" if a graph runs in its place."""
    modules = [frame.f_locals.get("self") for frame in _frames()]
    return next((type(module).__name__ for module in reversed(modules) if isinstance(module, nn.Module)), "the net")


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames that are running, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_own(filename: str) -> bool:
    """Return whether a file is the user's: neither PyTorch nor ganherd."""
    return not filename.startswith("<") and not is_library(filename)


def is_library(filename: str) -> bool:
    """Return whether code is PyTorch's or ganherd's; that of a notebook or of `exec` is neither, and has no file."""
    return filename.startswith(_LIBRARIES)


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy whose hooks belong to it: those that hold the module in a closure hold the copy.

    `copy.deepcopy` refuses tensors that a forward pass left in the module, and shares functions.
    """
    memo: dict[int, Any] = {}
    for layer in module.modules():
        for value in _tensors(list(vars(layer).values())):
            if value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(module, memo)
    for layer in copied.modules():
        for hooks in (*_FORWARD, *_BACKWARD):
            own = getattr(layer, hooks)
            for key, hook in own.items():
                own[key] = _moved(hook, memo)
    for before, after in zip(module.parameters(), copied.parameters(), strict=True):
        for hook in (before._backward_hooks or {}).values():
            after.register_hook(_moved(hook, memo))
    return copied


def _tensors(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield the tensors that a value holds: in containers, closures, partial functions and plain objects."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen:
        for each in _held_by(value):
            yield from _tensors(each, seen | {id(value)})


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or ()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, (nn.Module, type, types.ModuleType)) or not hasattr(value, "__dict__"):
        return ()
    return vars(value).values()


def _moved(hook: Callable[..., Any], memo: dict[int, Any]) -> Callable[..., Any]:
    """Return a hook with what its closure holds of the module replaced by the copy's."""
    if not isinstance(hook, types.FunctionType) or not hook.__closure__:
        return hook
    cells = tuple(types.CellType(memo.get(id(cell.cell_contents), cell.cell_contents)) for cell in hook.__closure__)
    moved = types.FunctionType(hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, cells)
    moved.__kwdefaults__ = hook.__kwdefaults__
    return moved
