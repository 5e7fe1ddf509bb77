"""Inspect and copy users' modules: find hooks, replaced methods and other behaviour that a trace or `vmap` would miss.

To trace a module means to record its operations as a graph; to fuse it, to run it for all members (GANs) at once. There
are also functions that find the line of a user's code for error messages.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _global_hooks  # has dictionaries of hooks that every module runs

from ganherd.herd.lowering.spectral_norms import find_spectral_norm
from ganherd.util.errors import first_line
from ganherd.util.version import PACKAGE

_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", *_BACKWARD)  # dictionaries of hooks that every module has
_PLAIN = (bool, int, float, str, types.NoneType)  # attributes that hold no tensors
_LIBRARIES = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, str(PACKAGE) + os.sep)
_PYTHON = os.path.dirname(os.__file__)  # the folder of the standard library


def why_not_traced(module: nn.Module) -> str:
    """Return why a traced graph would not show everything that this module does; empty if it would.

    >>> net = nn.Sequential(nn.Linear(2, 2))
    >>> handle = net[0].register_forward_hook(lambda layer, args, out: out * 2)
    >>> why_not_traced(net)
    'its layer 0 (Linear) has a hook'
    """
    if any(getattr(_global_hooks, f"_global{hooks}") for hooks in HOOKS):
        return "a hook is registered for all modules"
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks) for hooks in HOOKS) and find_spectral_norm(layer) is None:
            return f"{_describe(name, layer)} has a hook"
        if replaced := _replaced(layer):
            return f"{replaced} of {_describe(name, layer)} is replaced"
    return ""


def why_not_fused(module: nn.Module) -> str:
    """Return why this module can run for only one member at a time; empty if it can run for all members at once."""
    if any(getattr(_global_hooks, f"_global{hooks}") for hooks in _BACKWARD):
        return "a backward hook is registered for all modules"
    for name, layer in module.named_modules():
        if any(getattr(layer, hooks) for hooks in _BACKWARD):
            return f"{_describe(name, layer)} has a backward hook"
    if where := find_second_reference(module, module.parameters()):
        return f"{where} holds a parameter of it"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"its parameter {name} has a gradient hook"
        if type(parameter) is not nn.Parameter:
            return f"its parameter {name} is of the class {type(parameter).__name__}"
    return ""


def find_second_reference(module: nn.Module, tensors: Iterable[Tensor]) -> str:
    """Return which attribute or hook of a module holds a second reference to one of these tensors; empty if none does.

    >>> net = nn.Linear(2, 2)
    >>> net.all = [net.weight, net.bias]
    >>> find_second_reference(net, net.parameters())
    'all of the module itself'
    """
    wanted = {id(tensor) for tensor in tensors}
    for name, layer in module.named_modules():
        for attribute, value in _other_attributes(layer).items():
            if any(id(tensor) in wanted for tensor in _tensors(value)):
                return f"{attribute} of {_describe(name, layer)}"
    return ""


def _other_attributes(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes of a layer by name, except parameters, buffers and layers; all its hooks are one entry."""
    registered = ("_parameters", "_buffers", "_modules", *HOOKS)
    others = {name: value for name, value in vars(layer).items() if name not in registered}
    return others | {"a hook": [list(getattr(layer, kind).values()) for kind in HOOKS]}


def _describe(name: str, layer: nn.Module) -> str:
    """Return a phrase for a layer in messages, e.g. "its layer 0 (Linear)"."""
    return f"its layer {name} ({type(layer).__name__})" if name else "the module itself"


def _replaced(layer: nn.Module) -> str:
    """Return the name of a method that is replaced in this layer or in its class of PyTorch; empty if none is."""
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
    """Return the line of the user's code that raised an error, e.g. "nets.py, line 12"; empty if there is none."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    return f"{os.path.basename(lines[-1].filename)}, line {lines[-1].lineno}" if lines else ""


def short_message(error: BaseException) -> str:
    """Return the first sentence of an error's message, and the line of the user's code that raised it."""
    why = first_line(error).split(". ")[0]
    where = line_of(error)
    return f"{why}; {where}" if where else why


def calling_line() -> str:
    """Return the line of the user's code that is running now, e.g. " (nets.py, line 12)"; empty if there is none."""
    for frame in _frames():
        name = frame.f_code.co_filename
        if is_user_file(name) and os.path.dirname(name) != _PYTHON:
            return at_line(name, frame.f_lineno)
    return ""


def at_line(file: str, number: int) -> str:
    """Return a phrase for a line of a file in messages, e.g. " (nets.py, line 12)"."""
    return f" ({os.path.basename(file)}, line {number})"


def calling_net() -> str:
    """Return the class name of the outermost module that is running; "the net" if its lowered graph runs instead."""
    modules = [frame.f_locals.get("self") for frame in _frames()]
    return next((type(module).__name__ for module in reversed(modules) if isinstance(module, nn.Module)), "the net")


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames of the call stack, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_user_file(filename: str) -> bool:
    """Return whether a file is the user's, i.e. belongs neither to PyTorch nor to ganherd."""
    return not filename.startswith("<") and not is_library_file(filename)


def is_library_file(filename: str) -> bool:
    """Return whether a file belongs to PyTorch or ganherd. False for code without a file, e.g. from a notebook or `exec`."""
    return filename.startswith(_LIBRARIES)


def copy_module(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module with its hooks, whose closures then refer to the copy instead of the module.

    `copy.deepcopy` alone would fail on tensors that a forward pass assigned to attributes, and would share hooks with
    the original.
    """
    memo: dict[int, Any] = {}
    for layer in module.modules():
        for attribute in vars(layer).values():
            kind = type(attribute)
            if kind in _PLAIN or (kind is dict and not attribute):
                continue
            if kind is OrderedDict and not attribute:  # a layer has ten, which `deepcopy` copies slowly
                memo[id(attribute)] = OrderedDict()
                continue
            for value in _tensors(attribute):
                if value.grad_fn is not None:
                    memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(module, memo)
    for layer in copied.modules():
        for hooks in HOOKS:
            registered = getattr(layer, hooks)
            for key, hook in registered.items():
                registered[key] = _rebound(hook, memo)
    for original, copied_parameter in zip(module.parameters(), copied.parameters(), strict=True):
        for hook in (original._backward_hooks or {}).values():
            copied_parameter.register_hook(_rebound(hook, memo))
    return copied


def _tensors(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield the tensors in a value: itself, or those in containers, closures, partial functions and plain objects.

    Args:
        seen: Ids of the objects around the value, which are not visited again.
    """
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen:
        for item in _held_by(value):
            yield from _tensors(item, seen | {id(value)})


def _held_by(value: Any) -> Iterable[Any]:
    """Return the objects that a value refers to directly."""
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
    return list(vars(value).values())


def _rebound(hook: Callable[..., Any], memo: dict[int, Any]) -> Callable[..., Any]:
    """Return a copy of a hook whose closure refers to copied objects instead of the originals.

    Args:
        memo: Maps the ids of originals to copies, as filled by `copy.deepcopy`.
    """
    if not isinstance(hook, types.FunctionType) or not hook.__closure__:
        return hook
    cells = tuple(types.CellType(memo.get(id(cell.cell_contents), cell.cell_contents)) for cell in hook.__closure__)
    rebound = types.FunctionType(hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, cells)
    rebound.__kwdefaults__ = hook.__kwdefaults__
    return rebound
