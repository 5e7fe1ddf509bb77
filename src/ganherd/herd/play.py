"""A stack of nets as one pure function: every net on its own inputs, in one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from ganherd.herd.lower import lower
from ganherd.herd.names import called
from ganherd.herd.state import Blueprint
from ganherd.herd.streams import MemberRandomness

Tensors = dict[str, Tensor]
# what a net answers: a tensor, or (logits [B], logits of each class [B, K]) of a discriminator that also tells classes
Answer = Tensor | tuple[Tensor, Tensor]
_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 29}  # numbers that one call without gradients may hold


def member_call(
    blueprint: Blueprint, params: Tensors, buffers: Tensors, key: Tensor, *inputs: Tensor
) -> tuple[Answer, Tensors]:
    """One member's module as a pure function: (output, buffers after it)."""
    both = {**params, **{name: value.clone() for name, value in buffers.items()}}  # the call writes into the clones
    with MemberRandomness(key):
        out = called(blueprint.module, both, inputs)
    return out, {name: both[name] for name in buffers}


def logits_of(answer: Answer) -> Tensor:
    """Without what it says of classes."""
    return answer[0] if isinstance(answer, tuple) else answer


class Play:
    """One kind of net, played by any number of rows.

    `mapped`: all at once, through the lowered graph where the module could be traced, else through `vmap` as a whole;
    otherwise one after another, each module called plainly. `kernels`: by Triton; `twice`: by those that can be differentiated
    twice.
    """

    def __init__(
        self, net: Blueprint, mapped: bool, kernels: bool = False, precision: str = "float32", twice: bool = False
    ) -> None:
        self.net, self.mapped, self._precision = net, mapped, precision
        self._lowered = lower(net.module, kernels, twice) if mapped else None

    def __call__(
        self, views: Tensors, buffers: Tensors, keys: Callable[[], Tensor], inputs: tuple[Tensor, ...]
    ) -> tuple[Answer, Tensors]:
        """(outputs [N, B, …], buffers after them) for parameters, buffers and inputs [N, …]; nothing is written.

        `keys` answers [N], from which what is drawn inside of a module comes.
        """
        with self._autocast(inputs[0].device):
            if self._lowered is not None:
                return self._lowered(views, buffers, keys, *inputs)
            if self.mapped:
                return vmap(lambda p, b, k, i: member_call(self.net, p, b, k, *i))(views, buffers, keys(), inputs)
            return self._one_by_one(views, buffers, keys(), inputs)

    def _one_by_one(
        self, views: Tensors, buffers: Tensors, keys: Tensor, inputs: tuple[Tensor, ...]
    ) -> tuple[Answer, Tensors]:
        if len(keys) == 1:  # an engine's block: without a copy, there and back
            params, own = ({name: value.squeeze(0) for name, value in part.items()} for part in (views, buffers))
            answer = member_call(self.net, params, own, keys[0], *(value.squeeze(0) for value in inputs))
            out, after = tree_map(lambda value: value[None], answer)
            return out, after
        each = []
        for row in range(len(keys)):
            params, own = ({name: value[row] for name, value in part.items()} for part in (views, buffers))
            each.append(member_call(self.net, params, own, keys[row], *(value[row] for value in inputs)))
        out, moved = tree_map(lambda *values: torch.stack(values), *each)
        return out, moved

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self._precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()


class EitherWay(Play):
    """All at once, or one after another from the first time on that a net turns out to be callable only like that.

    Of a discriminator that also tells classes it answers the logits alone.
    """

    def __init__(self, net: Blueprint, kernels: bool = False, precision: str = "float32") -> None:
        super().__init__(net, True, kernels, precision)

    def __call__(
        self, views: Tensors, buffers: Tensors, keys: Callable[[], Tensor], inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensors]:
        try:
            out, moved = super().__call__(views, buffers, keys, inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError):
            if not self.mapped:
                raise
            self.mapped, self._lowered = False, None
            out, moved = super().__call__(views, buffers, keys, inputs)
        return logits_of(out), moved

    def most(self, views: Tensors, buffers: Tensors, samples: int, *inputs: Tensor) -> int:
        """How many nets may be called at once, each on so many samples: found by one net with a few of them."""
        found = [value[0, 0].numel() for value in inputs]

        def look(module: nn.Module, given: object, output: object) -> None:
            if isinstance(output, Tensor) and len(output):
                found.append(output.numel() // len(inputs[0][0]))

        leaves = [module for module in self.net.module.modules() if not any(module.children())]
        hooks = [leaf.register_forward_hook(look) for leaf in leaves]
        device = inputs[0].device
        try:
            with torch.no_grad():
                self._one_by_one(views, buffers, torch.zeros(1, dtype=torch.int64, device=device), inputs)
        finally:
            for hook in hooks:
                hook.remove()
        # a few layers' outputs are alive at once, beside the weights
        return max(1, _AT_ONCE[device.type] // (3 * samples * max(found) + self.net.size))
