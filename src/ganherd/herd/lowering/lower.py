"""Lowers a plain module for one GAN to operations on all members at once, runs them, and says how each of them runs.

The module is traced once. What is known (linear, convolution, batch norm, …) runs as one operation on `[N, B, …]`; anything else
in the graph runs through `vmap`, and a module that cannot be traced runs through `vmap` as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ganherd.herd.lowering import functions, ops
from ganherd.herd.lowering.fusion import FusionPlan
from ganherd.herd.lowering.layers import Buffers, Layer, Library, find_operation
from ganherd.herd.lowering.trace import NotTraceable, TracedGraph, node_label, trace
from ganherd.herd.lowering.vmap import Draws, Tensors, vmap_layer

# how an operation runs
KERNEL, ALL_AT_ONCE, ONE_BY_ONE = "kernel", "PyTorch on all members", "PyTorch member by member"
VMAP, FUSED = "vmap", "with its neighbour"

Values = dict[Any, Any]  # by node
Run = Callable[[Values, Tensors, Tensors, Draws], Any]  # what is known so far, parameters, buffers that move on, draws


class LoweredOperation(NamedTuple):
    """One operation of a module, and how it runs for all members."""

    layer: str
    what: str
    how: str  # one of the words above
    why: str = ""


class LoweredModule:
    """A module's graph, run for a block of members: a pure function of (parameters, buffers, keys, inputs)."""

    def __init__(self, graph: TracedGraph, library: Library) -> None:
        self._graph, self._library, self._joins = graph, library, FusionPlan(graph, library)
        spent = _spent(graph.nodes)
        self._plan = [(node, self._runner(node), spent.get(node, ())) for node in graph.nodes]

    def __call__(
        self, params: Tensors, buffers: Tensors, keys: Callable[[], Tensor], *inputs: Tensor
    ) -> tuple[Any, Tensors]:
        """(what the module answers, a tensor or several, [N, …]; buffers after it)"""
        moved, draws, given = dict(buffers), Draws(keys), iter(inputs)
        values: Values = {}
        for node, run, spent in self._plan:
            values[node] = out = next(given) if run is None else run(values, params, moved, draws)
            for other in spent:
                del values[other]
        return out, moved

    def _runner(self, node: fx.Node) -> Run | None:
        """How a node of the graph runs, with all that does not change from call to call looked up; None: it is an input."""
        if node.op == "placeholder":
            return None
        name, layer = str(node.target), self._graph.layer(node)
        if node.op == "get_attr":
            return lambda values, params, moved, draws: params[name] if name in params else moved[name]
        if node.op == "output":
            return lambda values, *_: fx.node.map_arg(node.args[0], values.__getitem__)
        if layer is None:
            return lambda values, params, moved, draws: functions.run(node, *_arguments(node, values), draws)
        if node in self._joins.fused_into:
            return lambda values, *_: values[node.args[0]]  # its neighbour does it
        operation, names = find_operation(layer), self._graph.tensor_names(name)
        if operation is None or node.kwargs:
            return lambda values, *around: vmap_layer(names, layer, *_arguments(node, values), *around)
        keys = [
            (key, self._graph.canonical_names[f"{name}.{key}"])
            for key, _ in layer.named_parameters(recurse=False, remove_duplicate=False)
        ]
        joins, source = self._joins, node.args[0]
        neighbours = joins.fused_layers(node), joins.feeds_norm(node), joins.reader(node)

        def run(values: Values, params: Tensors, moved: Tensors, draws: Draws) -> Any:
            own = {key: params[full] for key, full in keys}
            return operation(
                Layer(layer, own, Buffers(moved, names), draws, self._library, *neighbours), values[source]
            )

        return run

    # -- how it runs ----------------------------------------------------------------------------------------------

    def explain(self, batch: int = 1, dtype: torch.dtype = torch.float32) -> list[LoweredOperation]:
        """How every operation of the module runs, in the order of its graph, for batches of that size."""
        calls = [node for node in self._graph.nodes if node.op.startswith("call")]
        return [LoweredOperation(node_label(node), self._what(node), *self._how(node, batch, dtype)) for node in calls]

    def _what(self, node: fx.Node) -> str:
        layer = self._graph.layer(node)
        if layer is not None:
            return type(layer).__name__
        return node.target if isinstance(node.target, str) else node.target.__name__

    def _how(self, node: fx.Node, batch: int, dtype: torch.dtype) -> tuple[str, str]:
        """(how, why)"""
        layer, unknown = self._graph.layer(node), f"{self._what(node)} has no operation for all members"
        if layer is None:
            return (ALL_AT_ONCE, "") if functions.is_supported(node) else (VMAP, unknown)
        if node in self._joins.fused_into:
            return FUSED, f"a part of {node_label(self._joins.fused_into[node])}"
        if find_operation(layer) is None or node.kwargs:
            return VMAP, "it is called with arguments by name" if find_operation(layer) else unknown
        kernels = self._library is not ops
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            if kernels and self._library.fits(layer):
                return KERNEL, ""
            return ONE_BY_ONE, "no kernel for its size, stride, padding or groups" if kernels else ""
        if not kernels:
            return ALL_AT_ONCE, ""
        if isinstance(layer, nn.Linear):
            return self._product(node, layer, batch, dtype)
        if isinstance(layer, nn.Dropout):
            return (KERNEL, "") if layer.training and 0.0 < layer.p < 1.0 else (ALL_AT_ONCE, "it draws nothing")
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            return self._norm(layer)
        return ALL_AT_ONCE, ""

    def _product(self, node: fx.Node, layer: nn.Linear, batch: int, dtype: torch.dtype) -> tuple[str, str]:
        around = [other for other in self._joins.fused_layers(node) if isinstance(other, (nn.Flatten, nn.Unflatten))]
        if any(isinstance(other, nn.Unflatten) and len(other.unflattened_size) != 3 for other in around):
            return ALL_AT_ONCE, "no kernel makes anything but rows or images"
        if around or not self._library.is_aligned(dtype, batch, layer.in_features, layer.out_features):
            return KERNEL, ""
        why = "its sizes suit PyTorch's batched product"
        return ALL_AT_ONCE, why if layer.bias is None else f"{why}; a kernel adds the biases"

    def _norm(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[str, str]:
        if self._library.batch_norm is ops.batch_norm:
            return ALL_AT_ONCE, "its kernel can be differentiated once"
        if layer.track_running_stats and layer.momentum is None:
            return ALL_AT_ONCE, "no kernel for a plain average over all batches"
        return KERNEL, ""


def _arguments(node: fx.Node, values: Values) -> tuple[Any, Any]:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return args, kwargs


def _spent(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """What each node is the last to read: its memory, still in the cache, is the next one's."""
    last = {source: node for node in nodes for source in node.all_input_nodes}
    found: dict[fx.Node, list[fx.Node]] = {}
    for source, reader in last.items():
        found.setdefault(reader, []).append(source)
    return found


def lower(module: nn.Module, kernels: bool = False, twice: bool = False) -> LoweredModule | None:
    """The module's graph, or None where it is not known (its flow depends on its inputs, say).

    `kernels`: by Triton on a GPU. `twice`: its gradient is differentiated itself, as a penalty does; then a kernel does only what
    can be.
    """
    library: Any = ops
    if kernels and twice:
        from ganherd.herd.lowering import ops_triton_twice as library
    elif kernels:
        from ganherd.herd.lowering import ops_triton as library
    try:
        return LoweredModule(trace(module), library)
    except NotTraceable:
        return None
