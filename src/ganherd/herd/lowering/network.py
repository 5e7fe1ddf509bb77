"""Call the nets of N members (GANs), each on its own inputs and with its own weights, as one pure function.

A blueprint is the user's module for one GAN, with the layout of its parameters in a member's row. A lowered net is its
traced graph as operations on all members at once; see `herd.lowering.lower`.
"""

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
# Whether a net could be traced and draws no random numbers; a traced net assigns no attributes either. This is cached
# here, because every run has several engines.
_PLAIN: WeakKeyDictionary[Blueprint, bool] = WeakKeyDictionary()
_MAX_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 29}  # numbers that one call without gradients may hold, by kind of device


def member_call(
    blueprint: Blueprint, params: Tensors, buffers: Tensors, key: Tensor, *inputs: Tensor
) -> tuple[Output, Tensors]:
    """Call the module of one member as a pure function, possibly under `vmap`.

    Args:
        params: The member's parameters by canonical name, without a member axis.
        buffers: The member's buffers; the dictionary and its tensors are not changed.
        key: The key of the member's random draws in this call, a scalar tensor.

    Returns:
        The output, and the buffers after the call.
    """
    # The call may change buffers in place, and a net that cannot be fused its parameters, too: give it clones.
    may_change = {**params, **buffers} if blueprint.traits.why_not_fused else buffers
    tensors = {**params, **{name: value.clone() for name, value in may_change.items()}}
    randomness = VmapRandomness if torch._C._functorch.is_batchedtensor(key) else MemberRandomness
    with randomness(key), attributes_restored(blueprint):
        out = call_with_tensors(blueprint.module, tensors, inputs)
    return out, {name: tensors[name] for name in buffers}


def logits_of(output: Output) -> Tensor:
    """Return the logits of a discriminator's output; class logits, if there are any, are dropped."""
    return output[0] if isinstance(output, tuple) else output


def _modes(net: Blueprint) -> tuple[bool, ...]:
    """Return, for each layer of a net, whether it is in training mode."""
    return tuple(layer.training for layer in net.module.modules())


def _traced(net: Blueprint) -> TracedGraph:
    """Return the traced graph of a net with its layers in their present modes (training or evaluation), cached."""
    modes = _modes(net)
    if modes not in net.traced:
        net.traced[modes] = trace(net.module)
    graph: TracedGraph = net.traced[modes]
    return graph


def lower_net(net: Blueprint, operations: str, double_backward: bool) -> LoweredModule:
    """Return a net lowered with its layers in their present modes (training or evaluation). The result is cached.

    Args:
        operations: The library of operations, one of `OPERATIONS`.
        double_backward: Use only operations that can be differentiated twice.

    Raises:
        NotTraceable: If the module cannot be traced.
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
            precision: `bf16` to call the nets under autocast; otherwise they compute in the dtype of their weights.
            used_once: Whether each loss is differentiated through only one forward pass of these nets.
        """
        self.net, self.fused, self._precision, self._used_once = net, fused, precision, used_once
        self._weights = WeakTensorKeyDictionary()  # rows [N, P] -> `Weights`, which all steps on these rows share
        self._lowered: LoweredModule | None = None
        if fused:
            with suppress(NotTraceable):
                self._lowered = lower_net(net, operations, double_backward)

    def __call__(self, views: Tensors, buffers: Tensors, keys: Keys, inputs: Inputs) -> tuple[Output, Tensors]:
        """Return the outputs [N, B, …] of all members' nets, and the buffers after the call.

        Args:
            views: Parameters [N, …] by canonical name.
            buffers: Buffers [N, …] by canonical name. Kernels update some of them in place.
            keys: Returns the members' keys [N] for draws inside the modules; only called if they draw.
            inputs: [N, B, …] the arguments of the module.
        """
        with self._autocast(inputs[0].device):
            if self._lowered is not None:
                return self._lowered(views, buffers, keys, *inputs)
            if self.fused:
                return vmap(lambda p, b, k, i: member_call(self.net, p, b, k, *i))(views, buffers, keys(), inputs)
            return self._one_by_one(views, buffers, keys(), inputs)

    def _one_by_one(self, views: Tensors, buffers: Tensors, keys: Tensor, inputs: Inputs) -> tuple[Output, Tensors]:
        """Call the module for one member after another, and return the stacked outputs and buffers."""
        results = []
        for row in range(len(keys)):
            params, own = ({name: value[row] for name, value in group.items()} for group in (views, buffers))
            results.append(member_call(self.net, params, own, keys[row], *(value[row] for value in inputs)))
        out, new_buffers = tree_map(lambda *values: torch.stack(values), *results)
        return out, new_buffers

    @property
    def parameters_used_once(self) -> Collection[str]:
        """Return the canonical names of the parameters that one call uses exactly once; empty if that is not known."""
        return () if self._lowered is None else self._lowered.used_once

    def weights(self, rows: Tensor, state: State) -> Weights:
        """Return the members' rows of parameters [N, P] as weights by which a loss can be differentiated.

        Args:
            state: The state of the same members; see `herd.state`.
        """
        weights: Weights | None = self._weights.get(rows)
        if weights is None:
            weights = self._weights[rows] = self._new_weights(rows, state)
        return weights

    def _new_weights(self, rows: Tensor, state: State) -> Weights:
        """Return a new `Weights` object for the rows [N, P]."""
        return Weights(self.net, rows, self._used_once)

    def commit_buffers(self) -> None:
        """Do nothing after a backward pass; `MemberNetwork` overrides this."""

    def release(self) -> None:
        """Do nothing after training; `MemberNetwork` overrides this."""

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context for calls of nets: autocast to bfloat16 if the precision is `bf16`, otherwise none."""
        if self._precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()


class MemberNetwork(StackedNetwork):
    """Call the net of one member in the user's own module, as plain PyTorch would train it.

    After a call the module still holds the member's parameters and buffers, until the next call or `release`. So
    activation checkpoints and hooks find them in the backward pass, too.
    """

    def __init__(self, net: Blueprint, precision: str = "float32") -> None:
        """Remember the module's own parameters and buffers, to restore them after training."""
        super().__init__(net, False, precision=precision)
        self._module = MemberModule(net)
        if net not in _PLAIN:
            _PLAIN[net] = not may_draw(net)
        self._is_plain = _PLAIN[net]
        self._unused: dict[Hashable, set[str]] = {}  # see `MemberWeights`
        self._slots = []  # for each buffer: (the layer's dictionary of buffers, its name there, its canonical name)
        for path, canonical in attribute_paths(net.module).items():
            if canonical in net.buffers:
                layer, _, name = path.rpartition(".")
                self._slots.append((net.module.get_submodule(layer)._buffers, name, canonical))
        self._own_buffers = {canonical: layer_buffers[name] for layer_buffers, name, canonical in self._slots}
        self._member_buffers: Tensors = {}  # the buffers [1, …] of the state from which those in the module were copied

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
        """Copy the module's buffers to the state after a backward pass.

        In the backward pass, activation checkpoints run their layers again, which may change buffers.
        """
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
        """Return the module's buffers [1, …] by canonical name; raise `UserError` if one changed its shape or dtype."""
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
    """Call nets without training them: all members at once or, once such a call has failed, one member after another.

    For a discriminator that also predicts classes, only the logits are returned.
    """

    def __init__(self, net: Blueprint, operations: str = "plain", precision: str = "float32") -> None:
        """Lower the net, unless it is known that it can only run for one member at a time."""
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
        """Return how many members' nets may be called at once without using too much memory.

        The memory of one net is estimated by calling it and measuring the outputs of its layers.

        Args:
            views, buffers: Parameters and buffers [1, …] of one member.
            samples: The number of samples on which each net will be called.
            inputs: Arguments of the net for a few samples, [1, few, …].
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
