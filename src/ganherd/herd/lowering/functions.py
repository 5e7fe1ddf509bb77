"""Run the functions and methods between the layers of a graph on `[N, B, …]`: arithmetic, shape queries and reshaping."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from ganherd.herd.lowering.vmap import Draws, vmap_call

_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.mul, torch.tanh,
               torch.relu, torch.sigmoid, F.relu, F.leaky_relu, F.tanh, F.sigmoid, F.softplus}  # fmt: skip
_SHAPE_QUERIES = {"size", "dim"}
_PLAIN_ATTRIBUTES = ("ndim", "dtype", "device")  # attributes of tensors that are not tensors
# Functions of these modules return numbers if they are given numbers; functions of others may create tensors.
_NUMBER_MODULES = ("_operator", "builtins", "math")
_RESHAPING = {operator.getitem, torch.flatten, "reshape", "view", "squeeze", "unsqueeze", "flatten"}


def is_supported(node: fx.Node) -> bool:
    """Return whether a function or method can run on all members at once; anything else runs through `vmap`."""
    if node.target in _ARITHMETIC:
        return not any(isinstance(value, fx.Node) for value in node.kwargs.values())
    if node.target in _SHAPE_QUERIES:
        return True
    if node.target is F.max_pool1d:
        return _pool_width(node.args, node.kwargs) is not None
    if node.target is getattr:
        return node.args[1] in ("shape", *_PLAIN_ATTRIBUTES)
    if node.target not in _RESHAPING or node.kwargs:
        return False
    rest = node.args[1:]
    if node.target is operator.getitem:
        return _indices(rest[0], fx.Node) is not None  # an index that is a node is usually a size
    return node.target not in ("squeeze", "unsqueeze") or len(rest) == 1


def run(node: fx.Node, args: Any, kwargs: Any, draws: Draws) -> Any:
    """Run a function or method of the graph; tensors among its arguments are [N, …]."""

    def method(x: Any, *rest: Any, **named: Any) -> Any:
        return getattr(x, str(node.target))(*rest, **named)

    function: Any = node.target if node.op == "call_function" else method
    if not _has_tensor((args, kwargs)):
        returns_number = node.op == "call_method" or getattr(function, "__module__", "") in _NUMBER_MODULES
        return function(*args, **kwargs) if returns_number else vmap_call(function, args, kwargs, draws)
    if function in _ARITHMETIC and not _has_tensor(kwargs):
        return function(*_aligned(args), **kwargs)
    if (shape := _shape_of(node, args, kwargs)) is not None:
        return shape
    if (reshaped := _reshaped(node, args, kwargs)) is not None:
        return reshaped
    if node.target is F.max_pool1d and (width := _pool_width(args, kwargs)):
        return _max_pool(args[0], width)
    return vmap_call(function, args, kwargs, draws)


def _pool_width(args: Any, kwargs: Any) -> int | None:
    """Return the window width of a `max_pool1d` whose windows lie side by side, as in a maxout unit; None for any other."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    options = defaults | dict(zip(names, args[1:], strict=False)) | kwargs
    width = options.pop("kernel_size", None)
    if options["stride"] == width:
        options["stride"] = None
    return width if isinstance(width, int) and options == defaults else None


def _max_pool(x: Tensor, width: int) -> Tensor:
    """Return the largest of every `width` neighbours; numbers at the end that do not fill a window are dropped."""
    count = x.shape[-1] // width
    return x[..., : count * width].reshape(*x.shape[:-1], count, width).max(-1).values


def _has_tensor(values: Any) -> bool:
    """Return whether a value is a tensor, or a nested container with one."""
    if isinstance(values, dict):
        values = tuple(values.values())
    return any(map(_has_tensor, values)) if isinstance(values, (tuple, list)) else isinstance(values, Tensor)


def _aligned(args: Any) -> Any:
    """Insert axes of length 1 after the member axis, so that tensors broadcast as they would for one member."""
    most = max(value.dim() for value in args if isinstance(value, Tensor))
    return [
        value.reshape(value.shape[0], *(1,) * (most - value.dim()), *value.shape[1:])
        if isinstance(value, Tensor)
        else value
        for value in args
    ]


def _shape_of(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Return the result of a shape query as one member sees it, without the member axis; None for other operations."""
    if not args or not isinstance(args[0], Tensor):
        return None
    name = args[1] if node.target is getattr else node.target if node.op == "call_method" else None
    member_shape = args[0].shape[1:]
    if name == "shape":
        return member_shape
    if node.target is getattr and name in _PLAIN_ATTRIBUTES:
        return len(member_shape) if name == "ndim" else getattr(args[0], str(name))
    if name == "size":
        dims = (*args[1:], *kwargs.values())
        return member_shape[dims[0]] if dims else member_shape
    return len(member_shape) if name == "dim" else None


def _reshaped(node: fx.Node, args: Any, kwargs: Any) -> Tensor | None:
    """Run an operation that reshapes or indexes a tensor, with the member axis kept; return None for all others."""
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


def _indices(index: Any, *also: type) -> tuple[Any, ...] | None:
    """Return an index as a tuple if it means the same after a leading member axis, otherwise None."""
    indices = index if isinstance(index, tuple) else (index,)
    is_basic = all(isinstance(i, (slice, int, *also)) or i is None or i is Ellipsis for i in indices)
    return indices if is_basic else None
