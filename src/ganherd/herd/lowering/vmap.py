"""Run functions and layers that are written for one member (GAN) for all N members through `torch.func.vmap`.

Random draws inside of them come from each member's own stream, by a key [N] of each member.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ganherd.herd.lowering import ops
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.parameter_names import call_with_tensors

Tensors = dict[str, Tensor]
Keys = Callable[[], Tensor]  # returns the keys [N] of all members, from which random numbers are drawn

_WARNING = "There is a performance drop because we have not yet implemented the batching rule for"


class Draws:
    """The members' keys for random draws in one call of a module. Draws are numbered 1, 2, … in the order of the call.

    `MemberRandomness` numbers them in the same way when the module is called for one member.
    """

    def __init__(self, keys: Keys) -> None:
        self._compute, self.calls = keys, count(1)

    @cached_property
    def keys(self) -> Tensor:
        """Return the members' keys [N] for this call of the module. They are only computed if the module draws."""
        return self._compute()

    @property
    def members(self) -> int:
        """Return the number of members."""
        return len(self.keys)

    def next(self) -> Tensor:
        """Return the keys [N] of the next draw."""
        return ops.refine_keys(self.keys, next(self.calls))


class VmapRandomness(MemberRandomness):
    """Draw from each member's stream under `vmap`, and correct or refuse operations that `vmap` computes wrongly."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" and getattr(func.__self__, "__name__", "") in ("requires_grad", "grad_fn", "is_leaf"):
            (tensor,) = args[:1]  # a batched tensor does not know these attributes
            batched = torch._C._functorch.is_batchedtensor(tensor)
            return func(torch._C._functorch.get_unwrapped(tensor) if batched else tensor)
        if name in ("register_hook", "register_post_accumulate_grad_hook", "requires_grad_"):
            raise RuntimeError(f"its forward pass calls {name} of a tensor, which has no meaning under vmap")
        if name == "embedding" and func is not torch.embedding:
            return self._embedding(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    @staticmethod
    def _embedding(y: Tensor, weight: Tensor, padding_idx: int | None = None, *rest: Any, **more: Any) -> Tensor:
        """Run `F.embedding` such that the row `padding_idx` gets no gradient, which `vmap` would ignore."""
        if padding_idx is not None:
            weight = ops.without_gradient(weight, padding_idx)
        return F.embedding(y, weight, None, *rest, **more)


def vmap_call(function: Callable[..., Any], args: Any, kwargs: Any, draws: Draws) -> Any:
    """Call a function that is written for one member for all members, and return its results [N, …].

    Args:
        args, kwargs: The arguments; tensors in them are [N, …], all other values are the same for all members.
        draws: The members' keys for random draws.
    """
    # vmap returns tensors only. Other results, such as a dtype or None, are the same for all members and are kept here.
    structure: list[Any] = []

    def call(key: Tensor, args: Any, kwargs: Any) -> list[Tensor]:
        with VmapRandomness(key, draws.calls):
            leaves, tree = tree_flatten(function(*args, **kwargs))
        structure[:] = tree, [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    dims = tree_map(lambda value: 0 if isinstance(value, Tensor) else None, (args, kwargs))
    tensors = iter(vmap(call, in_dims=(0, *dims))(draws.keys, args, kwargs))
    tree, leaves = structure
    return tree_unflatten([next(tensors) if leaf is None else leaf[0] for leaf in leaves], tree)


def vmap_layer(
    names: dict[str, str], layer: nn.Module, args: Any, kwargs: Any, params: Tensors, buffers: Tensors, draws: Draws
) -> Any:
    """Call a layer of a module for all members, and return its output [N, …].

    Args:
        names: Maps the names of parameters and buffers in the layer to their canonical names in the module.
        args, kwargs: Arguments of the layer; tensors in them are [N, …].
        params: The parameters [N, …] of the module.
        buffers: The buffers [N, …] of the module. Those of the layer are replaced in this dictionary by their new
            values.
    """
    own_params = {key: params[name] for key, name in names.items() if name in params}
    own_buffers = {key: buffers[name] for key, name in names.items() if name in buffers}

    def call(own_params: Tensors, own_buffers: Tensors, *args: Any, **kwargs: Any) -> tuple[Any, Tensors]:
        tensors = {**own_params, **{key: value.clone() for key, value in own_buffers.items()}}
        return call_with_tensors(layer, tensors, args, kwargs), {key: tensors[key] for key in own_buffers}

    out, new_buffers = vmap_call(call, (own_params, own_buffers, *args), kwargs, draws)
    buffers.update({names[key]: value for key, value in new_buffers.items()})
    return out


def mute_slow_operations() -> None:
    """Suppress warnings about operations that `vmap` runs member by member; `slow_operations` still collects their names."""
    warnings.filterwarnings("ignore", message=_WARNING)


@contextmanager
def slow_operations() -> Iterator[set[str]]:
    """Yield a set that, at the end of the context, gets the names of the operations that `vmap` ran member by member.

    PyTorch reports them in warnings, which are caught here; other warnings are passed on.
    """
    names: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield names
    for warning in caught:
        if match := re.search(rf"{_WARNING} aten::(\w+)", str(warning.message)):
            names.add(match[1])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
