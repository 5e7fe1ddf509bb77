"""Call the nets of many members, each on its own inputs, as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from ganherd.herd.checks.source_line import assignment_line
from ganherd.herd.lowering.graph.trace import NotTraceable, TracedGraph, trace
from ganherd.herd.lowering.lower import LoweredModule, graph_may_draw, lower
from ganherd.herd.lowering.vmap import Keys, Tensors, VmapRandomness
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.parameter_names import attribute_paths, call_with_tensors
from ganherd.herd.state import Blueprint, State
from ganherd.herd.step.weights import MemberModule, MemberWeights, Weights
from ganherd.herd.transient_attributes import attributes_restored
from ganherd.util.errors import UserError

Inputs = tuple[Tensor, ...]
# A net's output: a tensor, or (logits [B], class logits [B, K]) of a discriminator that also predicts classes.
Output = Tensor | tuple[Tensor, Tensor]
# Nets whose graph is known, and draws nothing; it assigns nothing either. Every run has several engines, which trace a net once.
_PLAIN: WeakKeyDictionary[Blueprint, bool] = WeakKeyDictionary()
_MAX_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 29}  # numbers that one call without gradients may hold, by kind of device


def member_call(
    blueprint: Blueprint, params: Tensors, buffers: Tensors, key: Tensor, *inputs: Tensor
) -> tuple[Output, Tensors]:
    """Call one member's module as a pure function, possibly under `vmap`. Return its output and the buffers after the call."""
    # A net that cannot be fused may change its parameters in forward. The call writes into clones.
    may_change = {**params, **buffers} if blueprint.traits.why_not_fused else buffers
    tensors = {**params, **{name: value.clone() for name, value in may_change.items()}}
    randomness = VmapRandomness if torch._C._functorch.is_batchedtensor(key) else MemberRandomness
    with randomness(key), attributes_restored(blueprint):
        out = call_with_tensors(blueprint.module, tensors, inputs)
    return out, {name: tensors[name] for name in buffers}


def logits_of(output: Output) -> Tensor:
    """Return the logits of a discriminator's output, without class logits."""
    return output[0] if isinstance(output, tuple) else output


def _modes(net: Blueprint) -> tuple[bool, ...]:
    """Return which layers of a net are in training mode."""
    return tuple(layer.training for layer in net.module.modules())


def _traced(net: Blueprint) -> TracedGraph:
    """Trace a net, once for all that call it with its layers in the same mode."""
    modes = _modes(net)
    if modes not in net.traced:
        net.traced[modes] = trace(net.module)
    graph: TracedGraph = net.traced[modes]
    return graph


def lower_net(net: Blueprint, operations: str, double_backward: bool) -> LoweredModule:
    """Lower a net to one of `OPERATIONS`, once for all that call it with its layers in the same mode.

    Raises:
        NotTraceable: See `lower`.
    """
    key = (operations, double_backward, *_modes(net))
    if key not in net.lowered:
        net.lowered[key] = lower(_traced(net), operations, double_backward)
    lowered: LoweredModule = net.lowered[key]
    return lowered


def may_draw(net: Blueprint) -> bool:
    """Return whether a call of a net may draw random numbers; True if it cannot be traced."""
    try:
        return graph_may_draw(_traced(net))
    except NotTraceable:
        return True


class StackedNetwork:
    """The generators or the discriminators of any number of members, called together."""

    def __init__(
        self,
        net: Blueprint,
        fused: bool,
        operations: str = "plain",
        precision: str = "float32",
        double_backward: bool = False,
        used_once: bool = False,
    ) -> None:
        """Lower the net if it can be traced.

        Args:
            fused: Call all members at once, through the lowered graph or, if the module cannot be traced, through `vmap`.
                Otherwise call the module plainly for one member after another.
            operations: Which operations to use; see `OPERATIONS`.
            double_backward: Use only operations that can be differentiated twice.
            used_once: Whether a loss is differentiated through one forward pass of these nets only.
        """
        self.net, self.fused, self._precision, self._used_once = net, fused, precision, used_once
        self._weights = WeakTensorKeyDictionary()  # by rows, so that steps on the same rows share them
        self._lowered: LoweredModule | None = None
        if fused:
            with suppress(NotTraceable):
                self._lowered = lower_net(net, operations, double_backward)

    def __call__(self, views: Tensors, buffers: Tensors, keys: Keys, inputs: Inputs) -> tuple[Output, Tensors]:
        """Return outputs [N, B, …] and the buffers after the call. No argument is changed, but kernels update buffers in place.

        Args:
            views: Named parameters [N, …].
            keys: Returns the members' keys [N] for draws inside the modules; only called if they draw.
        """
        with self._autocast(inputs[0].device):
            if self._lowered is not None:
                return self._lowered(views, buffers, keys, *inputs)
            if self.fused:
                return vmap(lambda p, b, k, i: member_call(self.net, p, b, k, *i))(views, buffers, keys(), inputs)
            return self._one_by_one(views, buffers, keys(), inputs)

    def _one_by_one(self, views: Tensors, buffers: Tensors, keys: Tensor, inputs: Inputs) -> tuple[Output, Tensors]:
        """Call the module for one member after another."""
        results = []
        for row in range(len(keys)):
            params, own = ({name: value[row] for name, value in group.items()} for group in (views, buffers))
            results.append(member_call(self.net, params, own, keys[row], *(value[row] for value in inputs)))
        out, new_buffers = tree_map(lambda *values: torch.stack(values), *results)
        return out, new_buffers

    @property
    def parameters_used_once(self) -> Collection[str]:
        """Return the parameters that one call uses only once; none if that is not known."""
        return () if self._lowered is None else self._lowered.used_once

    def weights(self, rows: Tensor, state: State) -> Weights:
        """Return the members' rows [N, P] as weights that a loss can be differentiated by."""
        weights: Weights | None = self._weights.get(rows)
        if weights is None:
            weights = self._weights[rows] = self._new_weights(rows, state)
        return weights

    def _new_weights(self, rows: Tensor, state: State) -> Weights:
        """Return the rows [N, P] as weights."""
        return Weights(self.net, rows, self._used_once)

    def commit_buffers(self) -> None:
        """Do nothing after a backward pass; `MemberNetwork` overrides this."""

    def release(self) -> None:
        """Do nothing after training; `MemberNetwork` overrides this."""

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which nets are called."""
        if self._precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()


class MemberNetwork(StackedNetwork):
    """One member in the user's own module, as plain PyTorch would train it.

    From the call to `release` the module holds the member's parameters and buffers, so that activation checkpoints and hooks find
    them in the backward pass too.
    """

    def __init__(self, net: Blueprint, precision: str = "float32") -> None:
        """Remember the module's own parameters and buffers, to restore them after training."""
        super().__init__(net, False, precision=precision)
        self._module = MemberModule(net)
        if net not in _PLAIN:
            _PLAIN[net] = not may_draw(net)
        self._is_plain = _PLAIN[net]
        self._unused: dict[Hashable, set[str]] = {}  # see `MemberWeights`
        self._slots = []  # (a layer's dictionary of buffers, name in it, canonical name)
        for path, canonical in attribute_paths(net.module).items():
            if canonical in net.buffers:
                layer, _, name = path.rpartition(".")
                self._slots.append((net.module.get_submodule(layer)._buffers, name, canonical))
        self._own_buffers = {canonical: layer_buffers[name] for layer_buffers, name, canonical in self._slots}
        self._member_buffers: Tensors = {}  # the state's buffers that those in the module were copied from

    def __call__(self, views: Tensors, buffers: Tensors, keys: Keys, inputs: Inputs) -> tuple[Output, Tensors]:
        """Call the module with the parameters, buffers and inputs [1, …] of one member; see `StackedNetwork`."""
        self._module.load(views)
        self._member_buffers = buffers
        for layer_buffers, name, canonical in self._slots:
            layer_buffers[name] = buffers[canonical].squeeze(0).clone()
        with self._autocast(inputs[0].device), nullcontext() if self._is_plain else MemberRandomness(keys()[0]):
            output = self.net.module(*(value.squeeze(0) for value in inputs))
        if not self._is_plain:
            self._module.write_back()
        stacked = output.unsqueeze(0) if isinstance(output, Tensor) else tree_map(lambda value: value[None], output)
        return stacked, self._buffers()

    def _new_weights(self, rows: Tensor, state: State) -> Weights:
        """Return the row [1, P] of one member as weights that are trained through the module."""
        member = tuple(state[f"set.{name}"].item() for name in ("seed", "slot", "life"))
        return MemberWeights(self._module, rows, self._unused, member)

    def commit_buffers(self) -> None:
        """Write buffers back to the state after a backward pass, in which activation checkpoints run their layers again."""
        for name, value in self._buffers().items():
            if name in self._member_buffers:
                self._member_buffers[name].copy_(value.detach())

    def release(self) -> None:
        """Restore the module's own parameters and buffers after training."""
        self._member_buffers = {}
        for layer_buffers, name, canonical in self._slots:
            layer_buffers[name] = self._own_buffers[canonical]
        self._module.release()

    def _buffers(self) -> Tensors:
        """Return the module's buffers as [1, …]; raise if one has changed its shape or dtype."""
        out: Tensors = {}
        for layer_buffers, name, canonical in self._slots:
            value, (shape, dtype) = layer_buffers[name], self.net.buffers[canonical]
            if value is None or tuple(value.shape) != shape or value.dtype != dtype:
                raise UserError(
                    f"{type(self.net.module).__name__} changes the shape or the type of its buffer {canonical} in "
                    f"forward{assignment_line(self.net.module, canonical)}: "
                    f"keep it {dtype} of shape {shape}."
                )
            out[canonical] = value[None]
        return out


class NetworkCall(StackedNetwork):
    """Call nets without training them: all at once or, after the first such call that fails, one after another.

    For a discriminator that also predicts classes it returns the logits only.
    """

    def __init__(self, net: Blueprint, operations: str = "plain", precision: str = "float32") -> None:
        """Lower the net, unless it is known that only one member at a time can run it."""
        super().__init__(net, not net.traits.why_not_fused, operations, precision)

    def __call__(self, views: Tensors, buffers: Tensors, keys: Keys, inputs: Inputs) -> tuple[Tensor, Tensors]:
        """Return outputs [N, B, …] and the buffers after the call; see `StackedNetwork`."""
        try:
            out, new_buffers = super().__call__(views, buffers, keys, inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError):
            if not self.fused:
                raise
            self.fused, self._lowered = False, None
            out, new_buffers = super().__call__(views, buffers, keys, inputs)
        return logits_of(out), new_buffers

    def max_at_once(self, views: Tensors, buffers: Tensors, samples: int, *inputs: Tensor) -> int:
        """Return how many nets may be called at once, each on `samples` samples.

        The memory of one net is estimated from the outputs of its layers on a few samples.

        Args:
            inputs: [1, few, …].
        """
        numbers_per_sample = [value[0, 0].numel() for value in inputs]

        def measure(module: nn.Module, args: object, output: object) -> None:
            if isinstance(output, Tensor) and len(output):
                numbers_per_sample.append(output.numel() // len(inputs[0][0]))

        leaves = [module for module in self.net.module.modules() if not any(module.children())]
        hooks = [leaf.register_forward_hook(measure) for leaf in leaves]
        device = inputs[0].device
        try:
            with torch.no_grad():
                self._one_by_one(views, buffers, torch.zeros(1, dtype=torch.int64, device=device), inputs)
        finally:
            for hook in hooks:
                hook.remove()
        # The outputs of a few layers are alive at the same time, in addition to the weights.
        return max(1, _MAX_NUMBERS[device.type] // (3 * samples * max(numbers_per_sample) + self.net.num_params))
