"""Lower a plain module, written for one GAN, to operations on all N members (GANs) of a herd at once.

The module is traced once to a graph. Supported layers (linear, convolution, batch norm, …) run as one operation on
tensors `[N, B, …]` (B samples); everything else in the graph runs through `torch.func.vmap`. A module that cannot be
traced runs through `vmap` as a whole. This module builds such a lowered module, runs it, and explains how each layer
runs. A fused layer is one that the operation of a neighbouring layer computes along with its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ganherd.herd.lowering import functions, layers, ops, ops_cpu, ops_onednn
from ganherd.herd.lowering.graph.function_layers import with_layers
from ganherd.herd.lowering.graph.fusion import FusionPlan
from ganherd.herd.lowering.graph.trace import TracedGraph, node_label, trace
from ganherd.herd.lowering.layers import Layer, Library, find_operation, image_norm
from ganherd.herd.lowering.shape_rules import aligned
from ganherd.herd.lowering.vmap import Draws, Keys, Tensors, vmap_layer

# The ways in which an operation can run, as they are shown to users.
KERNEL, ALL_AT_ONCE, ONE_BY_ONE = "kernel", "PyTorch on all members", "PyTorch member by member"
VMAP, FUSED = "vmap", "with its neighbour"

# Libraries of operations by name; "triton" (imported on demand) needs a GPU. A run records which library it uses,
# because they round differently.
_LIBRARIES: dict[str, Library] = {"plain": ops, "cpu": ops_cpu, "cpu-onednn": ops_onednn}
OPERATIONS = (*_LIBRARIES, "triton")

Values = dict[Any, Any]  # outputs of the nodes that have run, by node
# (outputs so far, parameters, buffers to update, random draws) -> output of the node
Run = Callable[[Values, Tensors, Tensors, Draws], Any]


class LoweredOperation(NamedTuple):
    """The explanation, for users, of how one operation of a module runs for all members."""

    layer: str  # the name of the layer in the module, or of the function's node in the graph
    operation: str  # the class of the layer, or the name of the function
    method: str  # KERNEL, ALL_AT_ONCE, ONE_BY_ONE, VMAP or FUSED
    reason: str = ""  # why there is no faster method, or which operation computes a fused one
    node: str = ""  # the name of the operation in the graph of the module


def _tensors_read(graph: TracedGraph, node: fx.Node) -> list[str]:
    """Return the names of the parameters and buffers that a node reads; a tensor that it reads twice appears twice.

    A tensor that layers share appears under its canonical name, the first of its names in the module.
    """
    if node.op == "get_attr":
        return [str(node.target)]
    layer = graph.layer(node)
    if layer is None:
        return []
    names = [name for name, _ in (*layer.named_parameters(remove_duplicate=False), *layer.named_buffers())]
    return [graph.canonical_names.get(f"{node.target}.{name}", f"{node.target}.{name}") for name in names]


class LoweredModule:
    """A module's graph as a pure function of (parameters, buffers, random keys, inputs) of a block of members.

    Attributes:
        used_once: Canonical names of the parameters that one call uses exactly once.
    """

    def __init__(self, graph: TracedGraph, library: Library) -> None:
        """Plan which layers are fused, and prepare a function for each node.

        Args:
            library: The module whose functions run the operations; see `Library`.
        """
        self._graph, self._library, self._fusion = graph, library, FusionPlan(graph, library)
        self._deferred = _deferred(self._fusion)
        last_read = _last_read(graph.nodes)
        self._plan = [(node, self._runner(node), last_read.get(node, ())) for node in graph.nodes]
        uses = Counter(name for node in graph.nodes for name in _tensors_read(graph, node))
        self.used_once = frozenset(name for name, number in uses.items() if number == 1)

    def __call__(self, params: Tensors, buffers: Tensors, keys: Keys, *inputs: Tensor) -> tuple[Any, Tensors]:
        """Run the module for all members. Return its output, one or several tensors [N, …], and the buffers after it.

        Args:
            params: Parameters [N, …] by canonical name.
            buffers: Buffers [N, …] by canonical name; the dictionary is not changed.
            keys: Returns the members' keys [N] for random draws; only called if the module draws.
            inputs: [N, B, …] the arguments of the module.
        """
        new_buffers, draws, remaining = dict(buffers), Draws(keys), iter(inputs)
        values: Values = {}
        for node, run, last_read in self._plan:
            values[node] = out = next(remaining) if run is None else run(values, params, new_buffers, draws)
            for other in last_read:
                del values[other]
        return out, new_buffers

    def _runner(self, node: fx.Node) -> Run | None:
        """Return a function that runs a node of the graph; None for a node that stands for an input of the module.

        Everything that is the same in each call is looked up here, only once.
        """
        if node.op == "placeholder":
            return None
        name, layer = str(node.target), self._graph.layer(node)
        if node.op == "get_attr":
            return lambda values, params, buffers, draws: params[name] if name in params else buffers[name]
        if node.op == "output":
            return lambda values, *_: fx.node.map_arg(node.args[0], values.__getitem__)
        if node in self._fusion.image_norms:
            return self._image_norm_runner(node)
        if node in self._fusion.doubled_sums:
            return self._doubled_sum_runner(node)
        if node in self._deferred:
            return self._deferred[node]
        if layer is None:
            function = functions.prepare(node, self._library)
            return lambda values, params, buffers, draws: function(*_arguments(node, values), draws)
        if node in self._fusion.fused_into:
            return lambda values, *_: values[node.args[0]]  # pass the input on: the neighbour computes this layer
        operation = find_operation(layer)
        if operation is None or node.kwargs or len(node.args) > 1:
            names = self._graph.tensor_names(name)
            return lambda values, *around: vmap_layer(names, layer, *_arguments(node, values), *around)
        return self._layer_runner(node, operation, lambda values: (values[node.args[0]],))

    def _layer_runner(
        self, node: fx.Node, operation: Callable[..., Any], inputs: Callable[[Values], tuple[Any, ...]],
        fused: Sequence[nn.Module] | None = None,
    ) -> Run:  # fmt: skip
        """Return a function that runs an operation with the parameters and buffers of a node's layer.

        Args:
            operation: Runs a layer for all members: (layer, *inputs) -> output.
            inputs: Picks the operation's inputs from the outputs of earlier nodes.
            fused: The layers that the operation computes in addition to its own; None: those that are fused into the
                node.
        """
        name, layer, neighbours = str(node.target), self._graph.layer(node), self._fusion.neighbours[node]
        assert layer is not None
        if fused is not None:
            neighbours = neighbours._replace(fused=list(fused))
        names = self._graph.tensor_names(name)
        own = [key for key, _ in layer.named_parameters(remove_duplicate=False)]
        full_names = {key: self._graph.canonical_names[f"{name}.{key}"] for key in own}

        def run(values: Values, params: Tensors, buffers: Tensors, draws: Draws) -> Any:
            own_params = {key: params[full] for key, full in full_names.items()}
            own_buffers = {key: buffers[full] for key, full in names.items() if full in buffers}
            out = operation(Layer(layer, own_params, own_buffers, draws, self._library, *neighbours), *inputs(values))
            buffers.update({names[key]: value for key, value in own_buffers.items()})
            return out

        return run

    def _image_norm_runner(self, total: fx.Node) -> Run:
        """Return a function that runs all operations of an `ImageNorm` (batch norm · gain + shift) at once.

        Args:
            total: The node of the sum, the last of these operations. The nodes before only pass their inputs on.
        """
        norm = self._fusion.image_norms[total]

        def inputs(values: Values) -> tuple[Any, ...]:
            return (*values[norm.product], values[norm.shift])  # the node of the product passed on (x, gain)

        return self._layer_runner(norm.norm, image_norm, inputs, self._fusion.neighbours[total].fused)

    def _doubled_sum_runner(self, total: fx.Node) -> Run:
        """Return a function that upsamples images by 2 and adds them to others, in one kernel if there is one.

        Args:
            total: The node of the sum. The node of the upsampling only passes its input on.
        """
        other, upsampling = self._fusion.doubled_sums[total]
        layer = self._graph.layers[str(upsampling.target)]

        def run(values: Values, *_: Any) -> Any:
            result = self._library.add_doubled(values[other], values[upsampling])
            if result is not None:
                return result
            left, right = aligned((values[other], ops.apply_to_images(layer, values[upsampling])))
            return left + right

        return run

    # -- explanations ---------------------------------------------------------------------------------------------

    def explain(self, batch: int = 1, dtype: torch.dtype = torch.float32) -> list[LoweredOperation]:
        """Return how each operation of the module runs, in the order of the graph.

        Args:
            batch: Samples in a batch.
            dtype: The dtype of the computation.
        """
        return [
            LoweredOperation(node_label(node), self._operation(node), *self._method(node, batch, dtype), node.name)
            for node in self._graph.nodes
            if node.op.startswith("call")
        ]

    def _operation(self, node: fx.Node) -> str:
        """Return the class of a layer, or the name of a function or method."""
        layer = self._graph.layer(node)
        if layer is not None:
            return type(layer).__name__
        return node.target if isinstance(node.target, str) else node.target.__name__

    def _method(self, node: fx.Node, batch: int, dtype: torch.dtype) -> tuple[str, str]:
        """Return the method by which a node runs, e.g. KERNEL, and the reason if there is a faster one or ""."""
        layer, unknown = self._graph.layer(node), f"{self._operation(node)} has no operation for all members"
        if node in self._fusion.image_norms or node in self._fusion.doubled_sums:
            return KERNEL, ""
        if node in self._deferred:
            return FUSED, "computed by the sum after it"
        if layer is None:
            return (ALL_AT_ONCE, "") if functions.is_supported(node) else (VMAP, unknown)
        if node in self._fusion.fused_into:
            return FUSED, f"a part of {node_label(self._fusion.fused_into[node])}"
        if find_operation(layer) is None or node.kwargs or len(node.args) > 1:
            return VMAP, "it is called with more than its input" if find_operation(layer) else unknown
        kernels = self._library not in _LIBRARIES.values()
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            if kernels and self._library.has_conv_kernel(layer):
                return KERNEL, ""
            if layer.groups > 1:
                if kernels and self._library.has_group_kernel(layer):
                    return KERNEL, "each of its groups as a member"
                return ALL_AT_ONCE, "as a product or a sum, or as groups of one convolution"
            return ONE_BY_ONE, "no kernel for its size, stride, padding or groups" if kernels else ""
        if not kernels:
            return ALL_AT_ONCE, ""
        if ops.doubles(layer) or ops.doubles(layer, "bilinear") or ops.halves(layer):
            return KERNEL, ""
        if isinstance(layer, nn.Linear):
            return self._linear_method(node, layer, batch, dtype)
        if isinstance(layer, nn.Dropout):
            return (KERNEL, "") if layer.training and 0.0 < layer.p < 1.0 else (ALL_AT_ONCE, "it draws nothing")
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            return self._norm_method(layer)
        return ALL_AT_ONCE, ""

    def _linear_method(self, node: fx.Node, layer: nn.Linear, batch: int, dtype: torch.dtype) -> tuple[str, str]:
        """Return (method, reason) for a linear layer, as `_method` does; only called if the library has kernels."""
        makes_images = any(
            isinstance(other, nn.Flatten) or (isinstance(other, nn.Unflatten) and len(other.unflattened_size) == 3)
            for other in self._fusion.neighbours[node].fused
        )
        if makes_images or not self._library.is_aligned(dtype, batch, layer.in_features, layer.out_features):
            return KERNEL, ""
        why = "its sizes suit PyTorch's batched product"
        return ALL_AT_ONCE, why if layer.bias is None else f"{why}; a kernel adds the biases"

    def _norm_method(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[str, str]:
        """Return (method, reason) for a batch norm, as `_method` does; only called if the library has kernels."""
        if self._library.batch_norm is ops.batch_norm:
            return ALL_AT_ONCE, "its kernel can be differentiated once"
        if layer.track_running_stats and layer.momentum is None:
            return ALL_AT_ONCE, "no kernel for a plain average over all batches"
        return KERNEL, ""


def _deferred(fusion: FusionPlan) -> dict[fx.Node, Run]:
    """Return functions for the nodes inside of an `ImageNorm` or a `DoubledSum`, which only pass their inputs on.

    The sum at the end of such a group of operations computes all of them.
    """
    runs: dict[fx.Node, Run] = {}
    for norm in fusion.image_norms.values():
        runs[norm.norm] = lambda values, *_, source=norm.norm.args[0]: values[source]
        runs[norm.product] = lambda values, *_, norm=norm: (values[norm.norm], values[norm.gain])
    for _, upsampling in fusion.doubled_sums.values():
        runs[upsampling] = lambda values, *_, source=upsampling.args[0]: values[source]
    return runs


def _arguments(node: fx.Node, values: Values) -> tuple[Any, Any]:
    """Return the arguments of a node with the values of other nodes filled in: (args, kwargs)."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return args, kwargs


def _last_read(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Return, for each node, the nodes whose outputs it is the last to read.

    These outputs can be freed directly after the node, so that their memory is reused while it is still in the
    processor's cache.
    """
    last = {source: node for node in nodes for source in node.all_input_nodes}
    sources: dict[fx.Node, list[fx.Node]] = {}
    for source, reader in last.items():
        sources.setdefault(reader, []).append(source)
    return sources


def lower(module: nn.Module | TracedGraph, operations: str = "plain", double_backward: bool = False) -> LoweredModule:
    """Return a module as operations on all members at once.

    Args:
        module: The module, or its traced graph, which several lowered modules can share.
        operations: The library of operations, one of `OPERATIONS`.
        double_backward: Use only operations that can be differentiated twice, as a gradient penalty requires.

    Raises:
        NotTraceable: If the module cannot be traced, e.g. because its control flow depends on its inputs.
    """
    graph = module if isinstance(module, TracedGraph) else trace(module)
    if operations == "triton":
        name = "ops_triton_double_backward" if double_backward else "ops_triton"
        return LoweredModule(with_layers(graph), import_module(f"ganherd.herd.lowering.{name}"))
    return LoweredModule(graph, _LIBRARIES[operations])


def graph_may_draw(graph: TracedGraph) -> bool:
    """Return whether a call of a module with this graph may draw random numbers.

    >>> graph_may_draw(trace(nn.Linear(2, 3))), graph_may_draw(trace(nn.Sequential(nn.Linear(2, 3), nn.Dropout())))
    (False, True)
    """
    calls = (node for node in graph.nodes if node.op.startswith("call"))
    return any(layers.may_draw(layer) if (layer := graph.layer(node)) else functions.may_draw(node) for node in calls)
