"""What is written for one member, run for all of them through `vmap`, with each member's own random draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ganherd.herd.lowering import ops
from ganherd.herd.parameter_names import call_with_tensors
from ganherd.herd.rng import DrawCounter, MemberRandomness

Tensors = dict[str, Tensor]


class Draws:
    """The members' keys for one call of the module, and how many draws it has made: the same as if it ran by itself."""

    def __init__(self, keys: Callable[[], Tensor]) -> None:
        self._make, self.calls = keys, DrawCounter()

    @cached_property
    def keys(self) -> Tensor:
        """[N]; made only if the module draws anything."""
        return self._make()

    def next(self) -> Tensor:
        """[N] keys of the next draw."""
        return ops.refine_keys(self.keys, self.calls.next())


class VmapRandomness(MemberRandomness):
    """A member's randomness under `vmap`, and what else `vmap` would get wrong."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" and getattr(func.__self__, "__name__", "") in ("requires_grad", "grad_fn", "is_leaf"):
            (tensor,) = args[:1]  # under vmap it would know nothing of gradients
            batched = torch._C._functorch.is_batchedtensor(tensor)
            return func(torch._C._functorch.get_unwrapped(tensor) if batched else tensor)
        if name in ("register_hook", "register_post_accumulate_grad_hook", "requires_grad_"):
            raise RuntimeError(f"its forward pass calls {name} of a tensor, which means nothing under vmap")
        if name == "embedding" and func is not torch.embedding:
            return self._embedding(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    @staticmethod
    def _embedding(y: Tensor, weight: Tensor, padding_idx: int | None = None, *rest: Any, **more: Any) -> Tensor:
        """The row `padding_idx` has no gradient, which vmap forgets."""
        if padding_idx is not None:
            weight = ops.without_gradient(weight, padding_idx)
        return F.embedding(y, weight, None, *rest, **more)


def vmap_call(function: Callable[..., Any], args: Any, kwargs: Any, draws: Draws) -> Any:
    """`function` for one member, through vmap: tensors have the member axis first, everything else is shared."""
    others: list[Any] = []  # what it answers beside tensors, such as a dtype or None: the same for all members

    def call(key: Tensor, args: Any, kwargs: Any) -> list[Tensor]:
        with VmapRandomness(key, draws.calls):
            leaves, form = tree_flatten(function(*args, **kwargs))
        others[:] = form, [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    dims = tree_map(lambda value: 0 if isinstance(value, Tensor) else None, (args, kwargs))
    tensors = iter(vmap(call, in_dims=(0, *dims))(draws.keys, args, kwargs))
    form, leaves = others
    return tree_unflatten([next(tensors) if leaf is None else leaf[0] for leaf in leaves], form)


def vmap_layer(
    names: dict[str, str], layer: nn.Module, args: Any, kwargs: Any, params: Tensors, moved: Tensors, draws: Draws
) -> Any:
    """A layer whose parameters and buffers have those names -> names in its module; its buffers in `moved` [N, …] move on."""
    own = {key: params[name] for key, name in names.items() if name in params}
    state = {key: moved[name] for key, name in names.items() if name in moved}

    def call(own: Tensors, state: Tensors, *args: Any, **kwargs: Any) -> tuple[Any, Tensors]:
        both = {**own, **{key: value.clone() for key, value in state.items()}}
        return call_with_tensors(layer, both, args, kwargs), {key: both[key] for key in state}

    out, new = vmap_call(call, (own, state, *args), kwargs, draws)
    moved.update({names[key]: value for key, value in new.items()})
    return out
