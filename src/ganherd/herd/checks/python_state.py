"""What a module keeps besides parameters and buffers, in a form that can be compared between calls and between modules."""

from __future__ import annotations

import math
import random
import re
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_PYTORCH = {*vars(nn.Module()), "_is_full_backward_hook", "_is_hf_initialized"}


def kept_by(net: nn.Module) -> dict[str, Any]:
    """Return all that a net keeps besides parameters and buffers, by name: attributes, what hooks hold, variables of its file."""
    found: dict[str, Any] = {}
    parts = (*net.named_parameters(), *net.named_buffers(), *net.named_modules())
    names = {id(part): name for name, part in parts}
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
    if id(value) in names:
        return names[id(value)]
    if isinstance(value, Tensor):
        return value.detach().clone()
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
    if isinstance(value, (type, types.ModuleType, types.MethodType, types.BuiltinFunctionType)):
        return getattr(value, "__name__", "")
    if hasattr(value, "__dict__"):
        return [type(value).__name__, _value(vars(value), seen, names)]
    return _ADDRESS.sub("", repr(value))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, (Tensor, np.ndarray)) or isinstance(other, (Tensor, np.ndarray)):
        if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        near = 1e-9 if one.dtype == torch.float64 else 1e-5 if one.is_floating_point() else 0.0
        return torch.allclose(one, other, rtol=near, atol=near, equal_nan=True)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


def different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    missing = object()
    names = one.keys() | other.keys()
    return {name for name in names if not equal(one.get(name, missing), other.get(name, missing))}
