"""Tries a user's net out, alone, before it is stacked: what no herd can do right is refused in one sentence.

Members share one module and take turns in it, so nothing but parameters and buffers may pass from one call to the next, and every
random number must come from the member's own stream.
"""

from __future__ import annotations

import math
import os
import random
import re
import sys
import types
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ganherd.errors import UserError
from ganherd.herd.custom import held, is_own, line_of
from ganherd.herd.names import refuse_other_numbers
from ganherd.herd.state import Habits, seeded
from ganherd.herd.streams import MemberRandomness

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_PYTORCH = {*vars(nn.Module()), "_is_full_backward_hook", "_is_hf_initialized"}


def try_out(make: Callable[[], nn.Module], given: Callable[[int], tuple[Tensor, ...]], dtype: torch.dtype) -> Habits:
    """Call a net that `make` builds and differentiate it, with two inputs `given(0)` and `given(1)`.

    Raises:
        UserError: it draws random numbers of its own, remembers something from call to call, or cannot be differentiated.
    """
    net, fresh, other = seeded(make, 1), seeded(make, 1), seeded(make, 2)
    kind = type(net).__name__
    refuse_other_numbers(net)
    _refuse_shared_memory(net)
    if where := held(net, net.buffers()):
        raise UserError(f"{kind} keeps a buffer under a second name, {where}: use the buffer itself.")
    for module in (net, fresh, other):
        module.to(dtype)
    numbers, before, of_other = _numbers(net), _kept_by(net), _kept_by(other)
    parameters = [id(parameter) for parameter in net.parameters()]
    _call(net, given(0), 1)
    after = _numbers(net)
    _refuse_other_parameters(kind, numbers, after)
    if [id(p) for p in net.parameters()] != parameters:
        raise UserError(
            f"{kind} replaces a parameter in forward, which no optimiser can know: change its numbers instead."
        )
    changed = [name for name, _ in net.named_parameters() if not _equal(numbers[name], after[name])]
    left = _different(before, _kept_by(net))
    for name in sorted(name for name in left if name.endswith(".requires_grad")):
        raise UserError(f"{kind} changes {name} in forward, when members take turns: freeze in its constructor.")
    _refuse_constants(kind, _different(before, _kept_by(fresh)), _different(before, of_other) - left)
    # the next member's numbers, of which nothing that the first call left behind may know
    numbers |= {name: value.detach().clone() for name, value in other.named_parameters()}
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        value.data = numbers[name].clone()  # as members take turns in a module …
    with torch.no_grad():
        for name, value in (*fresh.named_parameters(), *fresh.named_buffers()):
            value.copy_(numbers[name])  # … and as a module of its own is filled
    answers = [_call(module, given(1), 2) for module in (net, fresh)]
    _refuse_memory(kind, left, _different(_kept_by(net), _kept_by(fresh)), _equal(*answers))
    alone = f"its forward changes its parameter {changed[0]}" if changed else ""
    return Habits(tuple((layer, name) for layer, _, name in (one.rpartition(".") for one in sorted(left))), alone)


# -- one call ---------------------------------------------------------------------------------------------------------


def _call(net: nn.Module, given: tuple[Tensor, ...], key: int) -> list[Any]:
    """Return the answer of one call, the gradients of all parameters, and all parameters and buffers after it."""
    kind, before = type(net).__name__, _generators()
    try:
        net.zero_grad()
        with MemberRandomness(torch.tensor(key)), _Draws(kind):
            answer = net(*given)
        with _Backward(kind):
            _loss(answer).backward()
    except UserError:
        raise
    except Exception as error:
        raise UserError(_mistake(net, given, key, error)) from error
    for name, one, after in zip(("random", "numpy.random"), before, _generators(), strict=True):
        if not _equal(one, after):
            where = _line_that_draws(net, given)
            raise UserError(
                f"{kind} draws random numbers with {name} in forward{where}, which no member's stream controls: "
                "use torch.rand or torch.randn instead."
            )
    gradients = [parameter.grad for parameter in net.parameters()]
    return [tree_leaves(answer), gradients, _numbers(net)]


def _line_that_draws(net: nn.Module, given: tuple[Tensor, ...]) -> str:
    """Return the line of the user's code that draws from Python or NumPy, in brackets; empty if it is not found."""
    found: list[str] = []
    before, line, around = _generators(), "", sys.gettrace()

    def trace(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal before, line
        if not is_own(frame.f_code.co_filename):
            return None
        if not _equal(before, now := _generators()):
            found.append(line)
            before = now
        line = f" ({os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno})"
        return trace

    sys.settrace(trace)
    try:
        net(*given)
    finally:
        sys.settrace(around)
    return found[0] if found else ""


def _loss(answer: Any) -> Tensor:
    """Return a number that depends on all that a net answers."""
    leaves = [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor)]
    return torch.stack([leaf.double().square().mean() for leaf in leaves]).sum()


def _mistake(net: nn.Module, given: tuple[Tensor, ...], key: int, error: Exception) -> str:
    """Return one sentence about an error, with the line of the user's code: that of the forward pass for a backward pass."""
    what = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".:")
    where = line_of(error)
    if not where:
        where = _line_of_forward(net, given, key)
    if "modified by an inplace operation" in what:
        what, out = (
            "it changes a tensor in place that its gradient needs",
            "write x = x + 1 instead of x += 1, for example",
        )
    else:
        what, out = f"{type(error).__name__}: {what}", "try it with PyTorch alone"
    return f"{type(net).__name__} cannot be trained ({what}{f'; {where}' if where else ''}): {out}."


def _line_of_forward(net: nn.Module, given: tuple[Tensor, ...], key: int) -> str:
    """Return the line whose gradient failed; PyTorch's anomaly mode prints it in a warning."""
    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True, check_nan=False):
        warnings.simplefilter("always")
        try:
            with MemberRandomness(torch.tensor(key)):
                answer = net(*given)
            _loss(answer).backward()
        except Exception:
            pass
    own = type(net).__module__.rpartition(".")[2] + ".py"
    found = [re.findall(rf'File ".*?({re.escape(own)})", line (\d+)', str(warning.message)) for warning in said]
    lines = [match for matches in found for match in matches]
    return f"{lines[-1][0]}, line {lines[-1][1]}" if lines else ""


def _generators() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


class _Draws(TorchFunctionMode):
    """Refuses a function that draws from PyTorch's own generator."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.random.get_rng_state()
        out = func(*args, **(kwargs or {}))
        drew = not torch.equal(before, torch.random.get_rng_state())
        if drew and getattr(func, "__module__", "") != "torch.nn.init":  # of a layer that is made in forward
            self._refuse(getattr(func, "__name__", "a function"))
        return out

    def _refuse(self, name: str) -> None:
        raise UserError(
            f"{self._kind} draws random numbers in {name}{_caller()}, where no member's stream can give them: "
            "use torch.rand, torch.randn or nn.Dropout instead."
        )


class _Backward(TorchDispatchMode):
    """Refuses a backward pass that draws random numbers, as a checkpoint does when it runs its layers again."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UserError(
                f"{self._kind} draws random numbers within torch.utils.checkpoint, which would draw others when it runs again in "
                "the backward pass: draw them outside of it."
            )
        return func(*args, **(kwargs or {}))


def _caller() -> str:
    """Return the line of the user's code that is running, in brackets; empty if there is none."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return f" ({os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno})" if frame is not None else ""


# -- what a net is made of ----------------------------------------------------------------------------------------------


def _numbers(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in (*net.named_parameters(), *net.named_buffers())}


def _kept_by(net: nn.Module) -> dict[str, Any]:
    """Return all that a net keeps besides parameters and buffers, by name: attributes, what hooks hold, variables of its file."""
    found: dict[str, Any] = {}
    names = {id(tensor): name for name, tensor in (*net.named_parameters(), *net.named_buffers())}
    for prefix, layer in net.named_modules():
        own = {name: value for name, value in vars(layer).items() if name not in _OF_PYTORCH}
        for hooks in _HOOKS:
            own |= {f"hook {number}": hook for number, hook in enumerate(getattr(layer, hooks).values())}
        own |= {f"{name}.requires_grad": p.requires_grad for name, p in layer._parameters.items() if p is not None}
        found |= {f"{prefix}.{name}".lstrip("."): _value(value, set(), names) for name, value in own.items()}
        found |= {
            f"{prefix}.{name}".lstrip("."): _value(value, set(), names)
            for name, value in _variables(type(layer)).items()
        }
    return found


def _variables(kind: type) -> dict[str, Any]:
    """Return what a class and the functions of its file may change: class attributes, and variables that its methods name."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith(("torch", "builtins", "ganherd.")):
            continue
        for name, value in vars(base).items():
            if isinstance(value, types.FunctionType):
                named = {other: value.__globals__.get(other) for other in value.__code__.co_names}
                found |= {other: one for other, one in named.items() if isinstance(one, (int, float, list, dict))}
            elif not name.startswith("__") and isinstance(value, (int, float, list, dict, Tensor)):
                found[name] = value
    return found


def _value(value: Any, seen: set[int], names: dict[int, str]) -> Any:
    """Return a value that can be compared with the one of another call, or of another module that was built alike."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return names.get(id(value), value.detach().clone())
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else repr(value)
    if id(value) in seen:
        return "…"
    seen = {*seen, id(value)}
    if isinstance(value, np.random.Generator):
        return _value(value.bit_generator.state, seen, names)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [type(value).__name__, *(_value(each, seen, names) for each in value)]
    if isinstance(value, dict):
        return [type(value).__name__, *((str(key), _value(each, seen, names)) for key, each in value.items())]
    if isinstance(value, types.FunctionType):
        return [value.__qualname__, *(_value(cell.cell_contents, seen, names) for cell in value.__closure__ or ())]
    if isinstance(value, (nn.Module, type, types.ModuleType, types.MethodType, types.BuiltinFunctionType)):
        return getattr(value, "__name__", "")
    if hasattr(value, "__dict__"):
        return [type(value).__name__, _value(vars(value), seen, names)]
    return _ADDRESS.sub("", repr(value))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (Tensor, np.ndarray)) or isinstance(other, (Tensor, np.ndarray)):
        if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        near = 1e-9 if one.dtype == torch.float64 else 1e-5 if one.is_floating_point() else 0.0
        return torch.allclose(one, other, rtol=near, atol=near, equal_nan=True)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


def _different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    missing = object()
    names = one.keys() | other.keys()
    return {name for name in names if not _equal(one.get(name, missing), other.get(name, missing))}


# -- refusals -----------------------------------------------------------------------------------------------------------


def _refuse_shared_memory(net: nn.Module) -> None:
    """Parameters that overlap change each other in PyTorch; in members' rows they would not."""
    places: list[tuple[int, int, int, str]] = []
    for name, value in (*net.named_parameters(), *net.named_buffers()):
        if value.numel():
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            start = value.data_ptr()
            places.append((start, start + (last + 1) * value.element_size(), len(places), name))
    places.sort()
    for (_, end, _, name), (start, _, _, after) in pairwise(places):
        if start < end:
            one, two = sorted((name, after))
            raise UserError(
                f"{one} and {two} of {type(net).__name__} share memory, which members' rows cannot: give each its own, "
                "or use one parameter in both places."
            )


def _refuse_constants(kind: str, each_time: set[str], each_member: set[str]) -> None:
    if each_time:
        raise UserError(
            f"{kind} is built with another {min(each_time)} each time: let it depend on the constructor's arguments alone."
        )
    if each_member:
        raise UserError(
            f"{kind} has a {min(each_member)} that differs from member to member, and members share all but parameters and "
            "buffers: make it a buffer, with register_buffer."
        )


def _refuse_other_parameters(kind: str, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    for name in sorted(before.keys() ^ after.keys()):
        raise UserError(
            f"{kind} makes or removes {name} in forward, when no optimiser can know it: do so in its constructor."
        )
    for name, value in before.items():
        if value.shape != after[name].shape or value.dtype != after[name].dtype:
            raise UserError(
                f"{kind} changes the shape or the type of its buffer {name} in forward: keep it {value.dtype} of shape "
                f"{tuple(value.shape)}."
            )


def _refuse_memory(kind: str, left: set[str], different: set[str], same: bool) -> None:
    if different or not same:
        names = ", ".join(sorted(different or left)) or "something outside of it"
        raise UserError(
            f"{kind} remembers {names} from one call of forward to the next, and members take turns in one module: "
            "make it a tensor, with register_buffer."
        )
