"""What stands between the layers of a graph, on `[N, B, …]`: arithmetic, and what asks for a shape or changes it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from ganherd.herd.lowering.vmap import Draws, mapped

_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.mul, torch.tanh,
               torch.relu, torch.sigmoid, F.relu, F.leaky_relu, F.tanh, F.sigmoid, F.softplus}  # fmt: skip
_ASKING = {"size", "dim"}
_PLAIN = ("ndim", "dtype", "device")  # attributes that are no tensors
# Modules whose functions return numbers for numbers; those of other modules may make tensors.
_NUMBERS = ("_operator", "builtins", "math")
_SHAPING = {operator.getitem, torch.flatten, "reshape", "view", "squeeze", "unsqueeze", "flatten"}


def is_known(node: fx.Node) -> bool:
    """Whether an operation that is no layer has one for all members; anything else runs through `vmap`."""
    if node.target in _ARITHMETIC:
        return not any(isinstance(value, fx.Node) for value in node.kwargs.values())
    if node.target in _ASKING:
        return True
    if node.target is F.max_pool1d:
        return _windows(node.args, node.kwargs) is not None
    if node.target is getattr:
        return node.args[1] in ("shape", *_PLAIN)
    if node.target not in _SHAPING or node.kwargs:
        return False
    rest = node.args[1:]
    if node.target is operator.getitem:
        return _indices(rest[0], fx.Node) is not None  # a node: a size, as a rule
    return node.target not in ("squeeze", "unsqueeze") or len(rest) == 1


def run(node: fx.Node, args: Any, kwargs: Any, draws: Draws) -> Any:
    """A function or a method of the graph with its arguments, tensors among them [N, …]."""
    function: Any = node.target if node.op == "call_function" else _method(str(node.target))
    if not _has_tensor((args, kwargs)):
        numbers = node.op == "call_method" or getattr(function, "__module__", "") in _NUMBERS
        return function(*args, **kwargs) if numbers else mapped(function, args, kwargs, draws)
    if function in _ARITHMETIC and not _has_tensor(kwargs):
        return function(*_aligned(args), **kwargs)
    if (asked := _shape_of(node, args, kwargs)) is not None:
        return asked
    if (reshaped := _reshaped(node, args, kwargs)) is not None:
        return reshaped
    if node.target is F.max_pool1d and (size := _windows(args, kwargs)):
        return _largest(args[0], size)
    return mapped(function, args, kwargs, draws)


def _windows(args: Any, kwargs: Any) -> int | None:
    """The size of the windows that `max_pool1d` looks through, where these lie side by side, as a maxout unit has them."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    plain = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    asked = plain | dict(zip(names, args[1:], strict=False)) | kwargs
    size = asked.pop("kernel_size", None)
    own = asked | ({"stride": None} if asked["stride"] == size else {})
    return size if isinstance(size, int) and own == plain else None


def _largest(x: Tensor, size: int) -> Tensor:
    """The largest of every `size` neighbours; those at the end that fill no window are left out."""
    count = x.shape[-1] // size
    return x[..., : count * size].unflatten(-1, (count, size)).max(-1).values


def _has_tensor(values: Any) -> bool:
    if isinstance(values, dict):
        values = tuple(values.values())
    return any(map(_has_tensor, values)) if isinstance(values, (tuple, list)) else isinstance(values, Tensor)


def _aligned(args: Any) -> Any:
    """Tensors of unlike rank as one member would broadcast them: from the last axis on, with the member axis kept first."""
    most = max(value.dim() for value in args if isinstance(value, Tensor))
    return [
        value.reshape(value.shape[0], *(1,) * (most - value.dim()), *value.shape[1:])
        if isinstance(value, Tensor)
        else value
        for value in args
    ]


def _shape_of(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """What a module learns when it asks for a tensor's shape: one member's, without the axis before it."""
    if not args or not isinstance(args[0], Tensor):
        return None
    name = args[1] if node.target is getattr else node.target if node.op == "call_method" else None
    own = args[0].shape[1:]
    if name == "shape":
        return own
    if node.target is getattr and name in _PLAIN:
        return len(own) if name == "ndim" else getattr(args[0], str(name))
    if name == "size":
        asked = (*args[1:], *kwargs.values())
        return own[asked[0]] if asked else own
    return len(own) if name == "dim" else None


def _reshaped(node: fx.Node, args: Any, kwargs: Any) -> Tensor | None:
    """The operations on shapes that modules use most, with the member axis before; None for all others."""
    if not args or not isinstance(args[0], Tensor) or kwargs or _has_tensor(args[1:]):
        return None
    x, rest = args[0], args[1:]
    if node.target is operator.getitem:
        indices = _indices(rest[0])
        return None if indices is None else x[(slice(None), *indices)]
    if node.target in ("reshape", "view"):
        sizes = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest
        return x.reshape(x.shape[0], *sizes)
    if node.target in ("squeeze", "unsqueeze") and len(rest) == 1 and isinstance(rest[0], int):
        dim = rest[0] + 1 if rest[0] >= 0 else rest[0]
        return x.squeeze(dim) if node.target == "squeeze" else x.unsqueeze(dim)
    if node.target in ("flatten", torch.flatten):
        ends = (*rest, *(0, -1)[len(rest) :])
        return x.flatten(*(d + 1 if d >= 0 else d for d in ends))
    return None


def _indices(given: Any, *also: type) -> tuple[Any, ...] | None:
    """What stands in brackets, where it means the same with the member axis before."""
    indices = given if isinstance(given, tuple) else (given,)
    plain = all(isinstance(i, (slice, int, *also)) or i is None or i is Ellipsis for i in indices)
    return indices if plain else None


def _method(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return call
