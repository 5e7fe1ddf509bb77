"""Rules that run functions which index, reshape, join or reduce tensors for all N members (GANs) at once.

The code of a net is written for one member. A rule runs one of its functions on tensors `[N, …]` whose first axis is
the member, and so has to shift the axes that the code names. A rule returns `NotImplemented` for arguments that it does
not support.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganherd.herd.lowering.vmap import Draws


class Call(NamedTuple):
    """A function or method of PyTorch that a rule runs, and what rules may need in addition to its arguments."""

    function: Callable[..., Any]
    draws: Draws  # keys for random draws
    library: Any  # see `herd.lowering.layers.Library`


Rule = Callable[..., Any]  # (call, *arguments of the function, **arguments by name) -> result, or NotImplemented
_AXIS_NAMES = ("dim", "dims", "axis")


def shifted(dims: Any) -> Any:
    """Return axes of one member's tensor as axes of a tensor [N, …]. Negative axes count from the end and stay.

    >>> shifted((0, 2, -1))
    (1, 3, -1)
    """
    if isinstance(dims, (tuple, list)):
        return tuple(map(shifted, dims))
    return dims + 1 if dims >= 0 else dims


def along(position: int, default: int | None = None, reduces: bool = False) -> Rule:
    """Return the rule of a function that has one argument for an axis or axes, e.g. `sum(x, dim)`.

    Args:
        position: The position of this argument.
        default: The axis that the function uses if none is given; None: it has no default axis.
        reduces: Whether the function reduces over all axes of a member if no axis is given.
    """

    def rule(call: Call, *args: Any, **kwargs: Any) -> Any:
        name = next((name for name in _AXIS_NAMES if name in kwargs), None)
        dims = kwargs[name] if name else args[position] if len(args) > position else default
        if isinstance(dims, (bool, str)):  # e.g. `x.var(False)`
            return NotImplemented
        if dims is None:
            return _reduce_all(call, position, name, *args, **kwargs) if reduces else NotImplemented
        if name or len(args) <= position:
            return call.function(*args, **{**kwargs, name or "dim": shifted(dims)})
        return call.function(*args[:position], shifted(dims), *args[position + 1 :], **kwargs)

    return rule


def _reduce_all(call: Call, position: int, name: str | None, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Reduce x [N, …] over all axes but the first, by a function that is called without an axis; return [N].

    Args:
        position: The position of the axis among the function's arguments.
        name: The name under which the axis was given as None; None if it was not given by name.
    """
    if kwargs.get("keepdim") or kwargs.get("keepdims") or True in args[position:]:
        return NotImplemented
    rows, rest = x.reshape(len(x), -1), list(args)
    if name is None and len(args) >= position:
        rest[position - 1] = 1
        return call.function(rows, *rest, **kwargs)
    return call.function(rows, *rest, **{**kwargs, name or "dim": 1})


def maximum_of(largest: bool) -> Rule:
    """Return the rule of `max` (`largest`) or `min`, which reduce all axes or one axis, or compare two tensors."""
    reduce, compare = (torch.amax, torch.maximum) if largest else (torch.amin, torch.minimum)

    def rule(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs:
            return reduce(x.reshape(len(x), -1), 1)
        if isinstance(other := args[0] if args else kwargs.get("other"), Tensor):
            return compare(*aligned((x, other)))
        return along(1)(call, x, *args, **kwargs)

    return rule


def aligned(values: Sequence[Any]) -> list[Any]:
    """Return the values with tensors [N, …] reshaped to equally many axes, so that they broadcast as for one member.

    Axes of length 1 are inserted after the member axis. A tensor [N] is one number for each member, i.e. a 0-dim tensor
    for one member. It is cast to the dtype that PyTorch would cast the 0-dim tensor to; see `_result_dtype`.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    most = max(value.dim() for value in tensors)
    larger = {value.dtype for value in tensors if value.dim() > 1}
    dtype = functools.reduce(torch.promote_types, larger) if larger else None

    def align(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == most:
            return value
        if dtype is not None and value.dim() == 1 and value.dtype != dtype:
            value = value.to(_result_dtype(dtype, value.dtype))
        return value.reshape(value.shape[0], *(1,) * (most - value.dim()), *value.shape[1:])

    return [align(value) for value in values]


@functools.cache
def _result_dtype(around: torch.dtype, number: torch.dtype) -> torch.dtype:
    """Return the dtype that a 0-dim tensor gets in an operation with tensors that have axes.

    PyTorch lets the dtype of a 0-dim tensor count only if it is of a higher category (bool, integer, floating point,
    complex) than that of the others. If it is of a lower category, its own dtype is returned.

    Args:
        around: The dtype of the tensors with axes.
        number: The dtype of the 0-dim tensor.

    >>> _result_dtype(torch.uint8, torch.int64), _result_dtype(torch.float32, torch.complex128)
    (torch.uint8, torch.complex64)
    >>> _result_dtype(torch.float32, torch.int64), _result_dtype(torch.float32, torch.bool)
    (torch.int64, torch.bool)
    """
    result = torch.result_type(torch.empty(1, dtype=around), torch.empty((), dtype=number))
    return result if _category(result) == _category(number) else number


def _category(dtype: torch.dtype) -> tuple[bool, bool, bool]:
    """Return a value that is equal for dtypes of one category: bool, integer, floating point or complex."""
    return dtype == torch.bool, dtype.is_floating_point, dtype.is_complex


def elementwise(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Run a function that treats each number separately, e.g. `add`; tensors [N, …] broadcast as for one member."""
    values = aligned((*args, *kwargs.values()))
    return call.function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))


# -- shapes -----------------------------------------------------------------------------------------------------------


def _flat(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return sizes or axes as one tuple, whether they are given one by one or as one sequence."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else tuple(values)


def _reshape(call: Call, x: Tensor, *sizes: Any) -> Any:
    flat = _flat(sizes)
    return x.reshape(len(x), *flat) if all(isinstance(size, int) for size in flat) else NotImplemented


def _reshape_as(call: Call, x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(other.shape)


def _with_axes(x: Tensor, count: int) -> Tensor:
    """Return x [N, …] with axes of length 1 inserted after the first axis, so that `count` axes follow the first."""
    return x.reshape(len(x), *(1,) * (count + 1 - x.dim()), *x.shape[1:])


def _expand(call: Call, x: Tensor, *sizes: Any) -> Tensor:
    flat = _flat(sizes)
    return _with_axes(x, len(flat)).expand(len(x), *flat)


def _expand_as(call: Call, x: Tensor, other: Tensor) -> Tensor:
    return _with_axes(x, other.dim() - 1).expand_as(other)


def _repeat(call: Call, x: Tensor, *sizes: Any) -> Tensor:
    flat = _flat(sizes)
    return _with_axes(x, len(flat)).repeat(1, *(1,) * (x.dim() - 1 - len(flat)), *flat)


def _flatten(call: Call, x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return x.flatten(shifted(start_dim), shifted(end_dim)) if x.dim() > 1 else x[:, None]


def _squeeze(call: Call, x: Tensor, *dims: Any, **kwargs: Any) -> Any:
    if dims or kwargs:
        return along(1)(call, x, *dims, **kwargs)
    return x.reshape(len(x), *(size for size in x.shape[1:] if size != 1))


def _permute(call: Call, x: Tensor, *dims: Any, **kwargs: Any) -> Tensor:
    return x.permute(0, *shifted(_flat(dims or tuple(kwargs.values()))))


def _flip(call: Call, x: Tensor, *dims: Any, **kwargs: Any) -> Tensor:
    return x.flip(shifted(_flat(dims or tuple(kwargs.values()))))


def _all_shifted(call: Call, x: Tensor, *dims: Any, **kwargs: Any) -> Any:
    """Run a function whose arguments are all axes, such as `transpose`."""
    return call.function(x, *map(shifted, dims), **{name: shifted(dim) for name, dim in kwargs.items()})


def _transpose_matrix(call: Call, x: Tensor) -> Tensor:
    return x.transpose(1, 2) if x.dim() == 3 else x


def _index(call: Call, x: Any, index: Any) -> Any:
    if not isinstance(x, Tensor):  # an element of a tuple of tensors
        return call.function(x, index)
    indices = basic_indices(index)
    return NotImplemented if indices is None else x[(slice(None), *indices)]


def basic_indices(index: Any, *also: type) -> tuple[Any, ...] | None:
    """Return an index as a tuple if it means the same after a leading member axis, otherwise None.

    Args:
        also: Further types of indices that are allowed.
    """
    indices = index if isinstance(index, tuple) else (index,)
    is_basic = all(isinstance(i, (slice, int, *also)) or i is None or i is Ellipsis for i in indices)
    return indices if is_basic else None


def _size(call: Call, x: Tensor, dim: int | None = None) -> Any:
    return x.shape[1:] if dim is None else x.shape[1:][dim]


def _number_of_axes(call: Call, x: Tensor) -> int:
    return x.dim() - 1


def _count(call: Call, x: Tensor) -> int:
    return math.prod(x.shape[1:])


def _new(call: Call, x: Tensor, *sizes: Any, **kwargs: Any) -> Any:
    """Run `new_zeros` or `new_ones`, with the member axis in front of the given sizes."""
    return call.function(x, (len(x), *_flat(sizes or (kwargs.pop("size"),))), **kwargs)


def _new_full(call: Call, x: Tensor, size: Sequence[int], fill_value: Any, **kwargs: Any) -> Any:
    return NotImplemented if isinstance(fill_value, Tensor) else x.new_full((len(x), *size), fill_value, **kwargs)


_REDUCTIONS = ("sum", "mean", "prod", "var", "std", "var_mean", "std_mean", "amax", "amin", "all", "any")
_ALONG_AN_AXIS = (
    "softmax", "log_softmax", "softmin", "logsumexp", "cumsum", "cumprod", "select", "narrow", "unflatten", "unsqueeze",
)  # fmt: skip
RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, along(1, reduces=True)),
    **dict.fromkeys(_ALONG_AN_AXIS, along(1)),
    **dict.fromkeys(("norm", "linalg_vector_norm"), along(2, reduces=True)),
    **dict.fromkeys(("chunk", "split", "tensor_split"), along(2, 0)),
    **dict.fromkeys(("cat", "concat", "stack", "unbind"), along(1, 0)),
    "normalize": along(2, 1),
    "glu": along(1, -1),
    "roll": along(2),
    "max": maximum_of(True),
    "min": maximum_of(False),
    **dict.fromkeys(("reshape", "view"), _reshape),
    **dict.fromkeys(("reshape_as", "view_as"), _reshape_as),
    "expand": _expand,
    "expand_as": _expand_as,
    **dict.fromkeys(("repeat", "tile"), _repeat),
    "flatten": _flatten,
    "squeeze": _squeeze,
    "permute": _permute,
    "flip": _flip,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "movedim"), _all_shifted),
    "t": _transpose_matrix,
    "getitem": _index,
    "size": _size,
    "dim": _number_of_axes,
    "numel": _count,
    **dict.fromkeys(("new_zeros", "new_ones"), _new),
    "new_full": _new_full,
}
