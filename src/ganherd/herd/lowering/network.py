"""A stack of nets as one pure function: every net on its own inputs, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from ganherd.herd.checks.source_line import where
from ganherd.herd.lowering.lower import lower
from ganherd.herd.lowering.vmap import VmappedModule
from ganherd.herd.parameter_names import called, places
from ganherd.herd.rng import MemberRandomness
from ganherd.herd.state import Blueprint, State, bases
from ganherd.herd.step.weights import OwnWeights, Weights, fill, write_back
from ganherd.util.errors import UserError

Tensors = dict[str, Tensor]
# what a net answers: a tensor, or (logits [B], logits of each class [B, K]) of a discriminator that also tells classes
Answer = Tensor | tuple[Tensor, Tensor]
_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 29}  # numbers that one call without gradients may hold


def member_call(
    blueprint: Blueprint, params: Tensors, buffers: Tensors, key: Tensor, *inputs: Tensor
) -> tuple[Answer, Tensors]:
    """One member's module as a pure function, also under `vmap`: (output, buffers after it)."""
    # A net that runs alone may change its parameters.
    changing = {**params, **buffers} if blueprint.habits.alone else buffers
    both = {**params, **{name: value.clone() for name, value in changing.items()}}  # the call writes into the clones
    randomness = VmappedModule if torch._C._functorch.is_batchedtensor(key) else MemberRandomness
    with randomness(key), _tidied(blueprint):
        out = called(blueprint.module, both, inputs)
    return out, {name: both[name] for name in buffers}


@contextmanager
def _tidied(net: Blueprint) -> Iterator[None]:
    """Put attributes that a forward pass sets back, also if it fails: under `vmap` they hold tensors that nobody can read."""
    layers = [(vars(net.module.get_submodule(layer)), name) for layer, name in net.habits.left_behind]
    before = [(own, name, own[name]) for own, name in layers if name in own]
    try:
        yield
    finally:
        for own, name in layers:
            own.pop(name, None)
        for own, name, value in before:
            own[name] = value


def logits_of(answer: Answer) -> Tensor:
    """Without what it says of classes."""
    return answer[0] if isinstance(answer, tuple) else answer


class StackedNetwork:
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

    def weights(self, rows: Tensor, state: State) -> Weights:
        """Return the rows [N, P] of these members to differentiate by."""
        return Weights(self.net, rows)

    def settle(self) -> None:
        """After a backward pass; see `MemberNetwork`."""

    def release(self) -> None:
        """After a step; see `MemberNetwork`."""

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self._precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()


class MemberNetwork(StackedNetwork):
    """One member in the user's own module, as it would train alone.

    The module's parameters and buffers are the member's until `release`, so that whatever runs in the backward pass, such as a
    checkpoint or a hook, finds them too.
    """

    def __init__(self, net: Blueprint, precision: str = "float32") -> None:
        super().__init__(net, False, precision=precision)
        self._unused: dict[int, set[str]] = {}  # see `OwnWeights`
        self._own = {name: parameter.data for name, parameter in net.module.named_parameters()}
        layers = ((*place.rpartition("."), name) for place, name in places(net.module).items() if name in net.buffers)
        self._places = [(net.module.get_submodule(layer)._buffers, own, name) for layer, _, own, name in layers]
        self._before = {name: buffers[own] for buffers, own, name in self._places}
        self._given: Tensors = {}  # the buffers that those of the module stand for

    def __call__(
        self, views: Tensors, buffers: Tensors, keys: Callable[[], Tensor], inputs: tuple[Tensor, ...]
    ) -> tuple[Answer, Tensors]:
        fill(self.net, views)
        self._given = buffers
        for own, name, full in self._places:
            own[name] = buffers[full].squeeze(0).clone()
        with self._autocast(inputs[0].device), MemberRandomness(keys()[0]):
            answer = self.net.module(*(value.squeeze(0) for value in inputs))
        write_back(self.net, views)
        out: Answer = tree_map(lambda value: value[None], answer)
        return out, self._buffers()

    def weights(self, rows: Tensor, state: State) -> Weights:
        """Return the row [1, P] of one member to differentiate by, in the module's own parameters."""
        return OwnWeights(self.net, rows, self._unused, int(bases(state)[0]))

    def settle(self) -> None:
        """Writes down what the backward pass did to buffers: a checkpoint runs its layers again there."""
        with torch.no_grad():
            for name, value in self._buffers().items():
                if name in self._given:
                    self._given[name].copy_(value)

    def release(self) -> None:
        """Gives the module its own parameters and buffers back."""
        self._given = {}
        for own, name, full in self._places:
            own[name] = self._before[full]
        for name, parameter in self.net.module.named_parameters():
            parameter.data = self._own[name]
            parameter.requires_grad_(self.net.learns[name])

    def _buffers(self) -> Tensors:
        found: Tensors = {}
        for own, name, full in self._places:
            value, (shape, dtype) = own[name], self.net.buffers[full]
            if value is None or tuple(value.shape) != shape or value.dtype != dtype:
                raise UserError(
                    f"{type(self.net.module).__name__} changes the shape or the type of its buffer {full} in "
                    f"forward{where(self.net.module, full)}: "
                    f"keep it {dtype} of shape {shape}."
                )
            found[full] = value[None]
        return found


class NetworkCall(StackedNetwork):
    """All at once, or one after another from the first time on that a net turns out to be callable only like that.

    Of a discriminator that also tells classes it answers the logits alone.
    """

    def __init__(self, net: Blueprint, kernels: bool = False, precision: str = "float32") -> None:
        super().__init__(net, not net.habits.alone, kernels, precision)

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
