"""What is written for one member, run for all of them through `vmap`, with each member's own random draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from ganherd.herd import ops
from ganherd.herd.names import called
from ganherd.herd.streams import Calls, MemberRandomness

Tensors = dict[str, Tensor]


class Draws:
    """The members' keys for one call of the module, and how many draws it has made: the same as if it ran by itself."""

    def __init__(self, keys: Callable[[], Tensor]) -> None:
        self._make, self.calls = keys, Calls()

    @cached_property
    def keys(self) -> Tensor:
        """[N]; made only if the module draws anything."""
        return self._make()

    def next(self) -> Tensor:
        """[N] keys of the next draw."""
        return ops.refine(self.keys, self.calls.next())


def mapped(function: Callable[..., Any], args: Any, kwargs: Any, draws: Draws) -> Any:
    """`function` for one member, through vmap: tensors have the member axis first, everything else is shared."""

    def call(key: Tensor, args: Any, kwargs: Any) -> Any:
        with MemberRandomness(key, draws.calls):
            return function(*args, **kwargs)

    dims = torch.utils._pytree.tree_map(lambda value: 0 if isinstance(value, Tensor) else None, (args, kwargs))
    return vmap(call, in_dims=(0, *dims))(draws.keys, args, kwargs)


def mapped_layer(
    names: dict[str, str], layer: nn.Module, args: Any, kwargs: Any, params: Tensors, moved: Tensors, draws: Draws
) -> Any:
    """A layer whose parameters and buffers have those names -> names in its module; its buffers in `moved` [N, …] move on."""
    own = {key: params[name] for key, name in names.items() if name in params}
    state = {key: moved[name] for key, name in names.items() if name in moved}

    def call(own: Tensors, state: Tensors, *args: Any, **kwargs: Any) -> tuple[Any, Tensors]:
        both = {**own, **{key: value.clone() for key, value in state.items()}}
        return called(layer, both, args, kwargs), {key: both[key] for key in state}

    out, new = mapped(call, (own, state, *args), kwargs, draws)
    moved.update({names[key]: value for key, value in new.items()})
    return out
