"""Replace functions in a traced graph by layers that compute the same, e.g. `F.relu(x)` by `nn.ReLU`.

Kernels and fusions then have to recognise only layers.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from ganherd.herd.lowering.graph.trace import TracedGraph, only_user

_SUMS: set[object] = {operator.add, torch.add}
_PER_CHANNEL = (1, -1, 1, 1)  # to this shape a parameter [C] is reshaped to be added to images [B, C, H, W]


def with_layers(graph: TracedGraph) -> TracedGraph:
    """Return a graph that calls layers where this one calls functions that do the same.

    `F.relu(x)`, `x.relu()`, `F.leaky_relu`, `F.avg_pool2d`, `F.interpolate` and `x.flatten(1)` become layers, and a parameter that
    is added to the output of a convolution without a bias becomes its bias.

    >>> from ganherd.herd.lowering.graph.trace import trace
    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv, self.shift = nn.Conv2d(3, 4, 1, bias=False), nn.Parameter(torch.zeros(4))
    ...     def forward(self, x):
    ...         return F.relu(self.conv(x) + self.shift.view(1, -1, 1, 1))
    >>> new = with_layers(trace(Block()))
    >>> [type(layer).__name__ for node in new.nodes if (layer := new.layer(node))]
    ['Conv2d', 'ReLU']
    """
    return _LayerRewriter(graph).result()


class _LayerRewriter:
    """Copy a graph, with layers in place of functions; see `with_layers`."""

    def __init__(self, graph: TracedGraph) -> None:
        self._old, self._new = graph, fx.Graph()
        self._layers, self._names = dict(graph.layers), dict(graph.canonical_names)
        self._copies: dict[fx.Node, fx.Node] = {}  # nodes of the new graph by those of the old one
        self._skipped: set[fx.Node] = set()  # nodes of the old graph that a convolution with an added bias replaces

    def result(self) -> TracedGraph:
        """Copy all nodes, and return the new graph."""
        biased = {node: bias for node in self._old.nodes if (bias := self._added_bias(node))}
        for conv, nodes in biased.values():
            self._skipped |= {conv, *nodes}
        for node in self._old.nodes:
            if node in biased:
                conv, (parameter, *_) = biased[node]
                self._call(node, self._with_bias(conv, str(parameter.target)), conv.args[0])
            elif node not in self._skipped:
                layer = _layer_of(node)
                if layer is None:
                    self._copies[node] = self._new.node_copy(node, self._copies.__getitem__)
                else:
                    self._call(node, self._added(node.name, layer), node.args[0] if node.args else node.kwargs["input"])
        return TracedGraph(list(self._new.nodes), self._layers, self._names)

    def _call(self, node: fx.Node, layer: str, x: Any) -> None:
        """Add a call of a layer to the new graph, in place of `node` of the old one.

        Args:
            layer: The name of the layer.
            x: The node of the old graph whose copy is the layer's input.
        """
        self._copies[node] = self._new.create_node("call_module", layer, (self._copies[x],), {}, node.name)

    def _added(self, name: str, layer: nn.Module) -> str:
        """Add a layer to the graph's layers, and return its name, with underscores at the end if `name` is taken."""
        while name in self._layers:
            name += "_"
        self._layers[name] = layer
        return name

    def _added_bias(self, total: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
        """Return the parts of a sum of a convolution without a bias and a parameter [C], which acts as its bias.

        Args:
            total: The node that may be such a sum. No other node may read its parts.

        Returns:
            The node of the convolution, which runs directly before the sum, and the nodes that read and reshape the
            parameter; None if the node is anything else.
        """
        if total.op != "call_function" or total.target not in _SUMS or total.kwargs or len(total.args) != 2:
            return None
        for conv, shape in (total.args, total.args[::-1]):
            if not isinstance(conv, fx.Node) or not isinstance(shape, fx.Node) or only_user(conv) is not total:
                continue
            layer, nodes = self._old.layer(conv), _parameter_of_channels(shape, total)
            if not nodes or type(layer) is not nn.Conv2d or layer.bias is not None or conv.kwargs:
                continue
            value = dict(self._old.layers[""].named_parameters(remove_duplicate=False)).get(str(nodes[0].target))
            before = next(
                node for node in reversed(self._old.nodes[: self._old.nodes.index(total)]) if node not in nodes
            )
            if before is conv and value is not None and value.shape == (layer.out_channels,):
                return conv, nodes
        return None

    def _with_bias(self, conv: fx.Node, parameter: str) -> str:
        """Add a copy of a convolution whose bias is a parameter of the traced module, and return the name of the copy.

        Args:
            conv: The node of the convolution.
            parameter: The name of the parameter.
        """
        old = str(conv.target)
        layer: Any = copy.copy(self._old.layers[old])
        layer._parameters = {**layer._parameters, "bias": self._old.layers[""].get_parameter(parameter)}
        layer.has_added_bias = True
        name = self._added(old + "_with_bias", layer)
        for own, _ in (*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)):
            self._names[f"{name}.{own}"] = self._names[parameter if own == "bias" else f"{old}.{own}"]
        return name


def _parameter_of_channels(shape: fx.Node, total: fx.Node) -> list[fx.Node]:
    """Return the nodes that read a parameter [C] and reshape it to [1, C, 1, 1]; empty if `shape` is anything else.

    Args:
        shape: The node that may be the reshaping.
        total: The only node that may read its result.
    """
    is_shape = shape.op == "call_method" and shape.target in ("view", "reshape") and not shape.kwargs
    if not is_shape or shape.args[1:] not in (_PER_CHANNEL, (_PER_CHANNEL,), (list(_PER_CHANNEL),)):
        return []
    parameter = shape.args[0]
    if not isinstance(parameter, fx.Node) or parameter.op != "get_attr":
        return []
    return [parameter, shape] if only_user(parameter) is shape and only_user(shape) is total else []


# -- functions that are layers ----------------------------------------------------------------------------------------


def _upsample(size: Any = None, scale_factor: Any = None, mode: str = "nearest", **options: Any) -> nn.Module | None:
    corners = options.pop("align_corners", None)
    scale_factor = tuple(scale_factor) if isinstance(scale_factor, list) else scale_factor
    if size is not None or scale_factor is None or any(options.values()):
        return None
    if mode == "bilinear" and not corners and scale_factor in (0.5, (0.5, 0.5)):
        return nn.AvgPool2d(2)  # each pixel of the result is the mean of 2 × 2
    return nn.Upsample(scale_factor=scale_factor, mode=mode, align_corners=corners)


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module | None:
    return nn.Flatten() if (start_dim, end_dim) == (1, -1) else None


# Function or method -> the names of its arguments after the input, and the function that builds a layer from them.
_FUNCTIONS: dict[str, tuple[tuple[str, ...], Callable[..., nn.Module | None]]] = {
    "relu": (("inplace",), nn.ReLU),
    "leaky_relu": (("negative_slope", "inplace"), nn.LeakyReLU),
    "flatten": (("start_dim", "end_dim"), _flatten),
    "interpolate": (
        ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"), _upsample,
    ),
    "avg_pool2d": (
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"), nn.AvgPool2d,
    ),
}  # fmt: skip


def _layer_of(node: fx.Node) -> nn.Module | None:
    """Return a layer that computes the same as a function or method with these arguments; None if there is none."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op not in ("call_function", "call_method") or name not in _FUNCTIONS:
        return None
    if node.op == "call_function" and not any(getattr(library, name, None) is node.target for library in (torch, F)):
        return None
    names, make = _FUNCTIONS[name]
    named = dict(node.kwargs)
    tensor, *rest = node.args or (named.pop("input", None),)
    options = dict(zip(names, rest, strict=False)) | named
    known = isinstance(tensor, fx.Node) and len(rest) <= len(names) and options.keys() <= set(names)
    return make(**options) if known and node.all_input_nodes == [tensor] else None  # no size may depend on the input
