"""Decide which layers of a graph are fused into a neighbour, i.e. computed by the operation of an adjacent layer.

Some fusions also need to know that a layer is the only reader of another layer's output.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

import torch
from torch import fx, nn

from ganherd.herd.lowering.graph.trace import TracedGraph, only_user
from ganherd.herd.lowering.layers import Library
from ganherd.herd.lowering.ops import doubles, halves
from ganherd.nets.common.scaled import ScaledConv2d, ScaledLinear
from ganherd.nets.common.spectral import SpectralConv2d, SpectralLinear

_LINEARS: tuple[type[nn.Module], ...] = (nn.Linear, SpectralLinear, ScaledLinear)
_CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv2d, SpectralConv2d, ScaledConv2d)
_PRODUCTS: tuple[type[nn.Module], ...] = (*_CONVOLUTIONS, nn.ConvTranspose2d, *_LINEARS)
_ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.LeakyReLU)
_NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d)

_PRODUCT: set[object] = {operator.mul, torch.mul}
_SUM: set[object] = {operator.add, torch.add}

Reader = tuple[nn.Module | None, bool]  # a layer that reads an output, and whether an upsampling comes before it


class Neighbours(NamedTuple):
    """What an operation of the graph has to know about the operations before and after it."""

    fused: list[nn.Module]  # layers that the operation computes in addition to its own
    feeds_norm: bool  # only a batch norm with batch statistics reads the output of the operation and its fused layers
    reader: Reader  # for a batch norm of images: the only layer that reads its output, if a kernel runs that layer


class ImageNorm(NamedTuple):
    """The nodes of `norm(x) * gain + shift` for a batch norm without its own weight and bias.

    Class-conditional generators compute gain and shift from the label of each image. One kernel runs all three
    operations.
    """

    norm: fx.Node
    product: fx.Node  # norm * gain
    gain: fx.Node
    shift: fx.Node


class DoubledSum(NamedTuple):
    """The nodes of `other + upsampling(x)` for an upsampling by 2 that nothing else reads; one kernel runs both."""

    other: fx.Node
    upsampling: fx.Node


class FusionPlan:
    """The fusions of one graph, computed once. Libraries of kernels that set `FUSES_EPILOGUES` allow more of them.

    Attributes:
        fused_into: Maps the node of a fused layer to the node of the neighbour that computes it.
        image_norms: Maps the node of the sum at the end of an `ImageNorm`, which computes all of it, to its parts.
        doubled_sums: Maps the node of a sum that also computes an upsampling to its parts.
        neighbours: Maps each node to what its operation has to know about the operations around it.
    """

    def __init__(self, graph: TracedGraph, library: Library) -> None:
        self._graph, self._library = graph, library
        self._parts_of_doubled_sums: set[fx.Node] = set()
        self._fuses_epilogues = bool(getattr(library, "FUSES_EPILOGUES", False))
        self.fused_into = self._pairs() | (self._epilogues() if self._fuses_epilogues else {})
        self.image_norms = dict(self._image_norms()) if hasattr(library, "image_norm") else {}
        self.doubled_sums = dict(self._doubled_sums()) if hasattr(library, "add_doubled") else {}
        self.fused_into |= self._activations_of_image_norms()
        fused: dict[fx.Node, list[nn.Module]] = {node: [] for node in graph.nodes}
        for node, into in self.fused_into.items():
            fused[into].append(graph.layers[str(node.target)])
        self.neighbours = {
            node: Neighbours(fused[node], self._feeds_norm(node), self._reader_of_norm(node)) for node in graph.nodes
        }

    def _layer(self, node: fx.Node | None) -> nn.Module | None:
        """Return the layer that a node calls; None if it calls none, or if it passes more than one argument.

        Layers that are called with several arguments are never fused.
        """
        return None if node is None or node.kwargs or len(node.args) > 1 else self._graph.layer(node)

    def _pairs(self) -> dict[fx.Node, fx.Node]:
        """Return the layers that every library fuses into a neighbour, as a map from their nodes to the neighbours'.

        These are an upsampling before a convolution, an average pooling after a convolution, an activation after a batch norm or
        before a dropout, and a flattening before or an unflattening after a linear layer.
        """
        fused: dict[fx.Node, fx.Node] = {}
        for node in self._graph.nodes:
            user = only_user(node)
            layer, after = self._layer(node), self._layer(user)
            if user is None or layer is None or after is None:
                continue
            if doubles(layer) and type(after) in _CONVOLUTIONS and self._input_is_unchanged(node, user):
                fused[node] = user
            if type(layer) in _CONVOLUTIONS and halves(after):
                fused[user] = node
            if type(layer) in _NORMS and _is_activation(after):
                fused[user] = node
            if node not in fused and self._may_join_dropout(node, user):
                fused[node] = user
            if (
                type(layer) is nn.Flatten
                and _is_whole(layer)
                and type(after) in _LINEARS
                and self._input_is_unchanged(node, user)
            ):
                fused[node] = user
            if type(layer) in _LINEARS and type(after) is nn.Unflatten and after.dim == 1:
                fused[user] = node
        return fused

    def _may_join_dropout(self, node: fx.Node, user: fx.Node) -> bool:
        """Return whether a node is an activation that the dropout after it can compute.

        Args:
            node: The node that may be an activation. If it changes its input in place, no other node may read that
                input.
            user: The only reader of its output.
        """
        layer, after = self._layer(node), self._layer(user)
        if not _is_activation(layer) or type(after) is not nn.Dropout or not _draws(after):
            return False
        changes_for_others = layer.inplace and only_user(node.all_input_nodes[0]) is None
        return not changes_for_others and self._input_is_unchanged(node, user)

    def _epilogues(self) -> dict[fx.Node, fx.Node]:
        """Return activations, dropouts and unflattenings that the product before them can compute, mapped to its node.

        A product is a convolution or linear layer. It can compute these layers if the only reader of their output is
        run by a kernel, which then computes their backward pass. The layers must follow each other directly in the
        graph, so that the order of random draws does not change.
        """
        fused: dict[fx.Node, fx.Node] = {}
        for node in self._graph.nodes:
            layer = self._layer(node)
            if layer is None or type(layer) not in _PRODUCTS or not self._library.supports_epilogue(layer):
                continue
            tail: list[fx.Node] = []
            last = node
            for kinds in (_ACTIVATIONS, (nn.Dropout,), (nn.Unflatten,)):
                after = self._layer(last.next)
                if list(last.users) == [last.next] and type(after) in kinds and _may_end(layer, after):
                    tail, last = [*tail, last.next], last.next
            feeds_norm = _uses_batch_statistics(self._layer(only_user(last)))
            if tail and (feeds_norm or self._reader(last, layer)[0] is not None):
                fused |= dict.fromkeys(tail, node)
        return fused

    def _image_norms(self) -> Iterator[tuple[fx.Node, ImageNorm]]:
        """Yield each `ImageNorm` in the graph, after the node at its end, which adds the shift."""
        for node in self._graph.nodes:
            layer, product = self._layer(node), only_user(node)
            if type(layer) is not nn.BatchNorm2d or layer.affine or not layer.training or product is None:
                continue
            total = only_user(product)
            gain, shift = _other_operand(product, node, _PRODUCT), total and _other_operand(total, product, _SUM)
            if gain is not None and shift is not None and total is not None and self._may_defer(node, total):
                yield total, ImageNorm(node, product, gain, shift)

    def _doubled_sums(self) -> Iterator[tuple[fx.Node, DoubledSum]]:
        """Yield (the node of its sum, the nodes) of each `DoubledSum` in the graph."""
        for node in self._graph.nodes:
            total = only_user(node)
            if total is None or total in self.image_norms or not doubles(self._layer(node)):
                continue
            other = _other_operand(total, node, _SUM)
            if other is not None and other not in self._parts_of_doubled_sums and self._may_defer(node, total):
                self._parts_of_doubled_sums.add(node)
                yield total, DoubledSum(other, node)

    def _may_defer(self, node: fx.Node, until: fx.Node) -> bool:
        """Return whether a layer may run later, together with the node `until`.

        Its input must not change until then, and the layer must be called only once.
        """
        calls = sum(other.op == "call_module" and other.target == node.target for other in self._graph.nodes)
        return calls == 1 and self._input_is_unchanged(node, until)

    def _input_is_unchanged(self, node: fx.Node, until: fx.Node) -> bool:
        """Return whether nothing changes the input of a layer before another node runs."""
        nodes = self._graph.nodes
        between = nodes[nodes.index(node) + 1 : nodes.index(until)]
        return not any(_is_in_place(other, self._graph.layer(other)) for other in between)

    def _activations_of_image_norms(self) -> dict[fx.Node, fx.Node]:
        """Return the activations that follow an `ImageNorm`, mapped to the node of its sum, which computes them."""
        after = {total: only_user(total) for total in self.image_norms}
        return {user: total for total, user in after.items() if user is not None and _is_activation(self._layer(user))}

    def _feeds_norm(self, node: fx.Node) -> bool:
        """Return `Neighbours.feeds_norm`: whether only a batch norm reads the output of a node and its fused layers."""
        last = node
        while (user := only_user(last)) is not None and self.fused_into.get(user) is node:
            last = user
        after = self._layer(user)
        return isinstance(after, _NORMS) and after.training

    def _reader_of_norm(self, node: fx.Node) -> Reader:
        """Return `Neighbours.reader` of a batch norm of images; (None, False) if the node is anything else."""
        layer = self._layer(node)
        if not self._fuses_epilogues or type(layer) is not nn.BatchNorm2d:
            return None, False
        last = next((other for other, into in self.fused_into.items() if into is node), node)
        return self._reader(last, layer)

    def _reader(self, node: fx.Node, producer: nn.Module) -> Reader:
        """Return the only layer that reads the images that `producer` computes, if a kernel runs that layer.

        The images may be flattened before a linear layer, or doubled by an upsampling before a convolution.

        Args:
            node: The node of the last layer that is fused into `producer`, or of `producer` itself.

        Returns:
            (layer, whether an upsampling comes before it), or (None, False) if there is no such layer.
        """
        user = only_user(node)
        between = self._layer(user)
        doubled = doubles(between)
        flat = type(between) is nn.Flatten and _is_whole(between)
        if user is not None and (doubled or flat):
            user = only_user(user)
        layer = self._layer(user)
        if not isinstance(producer, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)):  # no images
            return None, False
        if layer is None or type(layer) not in _PRODUCTS or isinstance(layer, nn.Linear) != flat:
            return None, False
        return (layer, doubled) if self._library.reads_images(layer, doubled) else (None, False)


def _other_operand(node: fx.Node, operand: fx.Node, functions: set[object]) -> fx.Node | None:
    """Return the second operand of a binary operation.

    Args:
        node: The node of the operation.
        operand: One of its two operands.
        functions: The functions that the node may call, e.g. those of a sum.

    Returns:
        The node of the other operand; None if the node calls another function, or if its other operand is no tensor.
    """
    if node.op != "call_function" or node.target not in functions or node.kwargs or len(node.args) != 2:
        return None
    others = [value for value in node.args if value is not operand]
    return others[0] if len(others) == 1 and isinstance(others[0], fx.Node) else None


def _is_in_place(node: fx.Node, layer: nn.Module | None) -> bool:
    """Return whether an operation may change its input in place.

    A layer may do so if its attribute `inplace` is True. A function may do so if its name ends with an underscore, or
    if one of its arguments is True, which may be its flag `inplace`.
    """
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    flagged = bool(node.kwargs.get("inplace")) or any(value is True for value in node.args[1:])
    return bool(getattr(layer, "inplace", False)) or (layer is None and (name.endswith("_") or flagged))


def _may_end(layer: nn.Module, after: nn.Module | None) -> bool:
    """Return whether the kernel of a convolution or linear layer can also compute the layer after it.

    Args:
        layer: The convolution or linear layer.
        after: An activation, a dropout or an unflattening. For other layers the result has no meaning.
    """
    if isinstance(after, nn.Dropout):
        return _draws(after) and after.p < 1.0 and not isinstance(layer, nn.Linear)
    if isinstance(after, _ACTIVATIONS):
        return _is_activation(after)
    return not isinstance(after, nn.Unflatten) or (isinstance(layer, nn.Linear) and after.dim == 1)


def _is_activation(layer: nn.Module | None) -> TypeGuard[nn.ReLU | nn.LeakyReLU]:
    """Return whether a layer is a (leaky) ReLU that a neighbour can compute.

    The slope below 0 must not be negative, because the backward pass infers the sign of the input from that of the
    output.
    """
    return type(layer) in _ACTIVATIONS and getattr(layer, "negative_slope", 0.0) >= 0


def _uses_batch_statistics(layer: nn.Module | None) -> bool:
    """Return whether a layer is a batch norm that uses batch statistics and updates running ones with a fixed momentum."""
    return isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and layer.training and layer.momentum is not None


def _draws(layer: nn.Dropout) -> bool:
    """Return whether a dropout layer draws random numbers."""
    return layer.training and layer.p > 0.0


def _is_whole(layer: nn.Flatten) -> bool:
    """Return whether a flattening joins all axes but the batch axis."""
    return (layer.start_dim, layer.end_dim) == (1, -1)
