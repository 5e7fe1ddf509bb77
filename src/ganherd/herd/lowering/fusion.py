"""Which layers of a graph run as a part of their neighbours, and what a kernel may know of the one layer that reads it."""

from __future__ import annotations

from torch import fx, nn

from ganherd.herd.lowering.layers import Library
from ganherd.herd.lowering.trace import TracedGraph, only_user
from ganherd.nets.common.spectral import SpectralConv2d, SpectralLinear

_LINEAR: tuple[type[nn.Module], ...] = (nn.Linear, SpectralLinear)
_CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv2d, SpectralConv2d)
_PRODUCTS: tuple[type[nn.Module], ...] = (*_CONVOLUTIONS, nn.ConvTranspose2d, *_LINEAR)
_LEAKY: tuple[type[nn.Module], ...] = (nn.ReLU, nn.LeakyReLU)
_NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d)

Reader = tuple[nn.Module | None, bool]  # a layer, and whether an upsampling goes before it


class FusionPlan:
    """The joins of one graph, found once; a library whose kernels can do more of their neighbours' work says `JOINS`."""

    def __init__(self, graph: TracedGraph, library: Library) -> None:
        self._graph, self._library = graph, library
        self._more = bool(getattr(library, "JOINS", False))
        self.fused_into = self._pairs() | (
            self._ends() if self._more else {}
        )  # an operation -> the neighbour that does it
        self._beside: dict[fx.Node, list[nn.Module]] = {}
        for node, into in self.fused_into.items():
            self._beside.setdefault(into, []).append(graph.layers[str(node.target)])
        self._normed = {node for node in graph.nodes if self._is_normed(node)}
        self._readers = {node: self._read_by(node) for node in graph.nodes}

    def fused_layers(self, node: fx.Node) -> list[nn.Module]:
        """The layers whose work this operation does beside its own."""
        return self._beside.get(node, [])

    def feeds_norm(self, node: fx.Node) -> bool:
        """Whether a batch norm with batch statistics is all that sees this operation, and how it ends."""
        return node in self._normed

    def reader(self, node: fx.Node) -> Reader:
        """Of a batch norm: the layer whose kernel alone reads the images that it makes, with its activation."""
        return self._readers[node]

    def _layer(self, node: fx.Node | None) -> nn.Module | None:
        """A layer that is called with nothing but its input; others join nobody."""
        return None if node is None or node.kwargs else self._graph.layer(node)

    def _pairs(self) -> dict[fx.Node, fx.Node]:
        """An upsampling in the convolution after it, an average pooling in the one before it, an activation in the batch norm
        before it or the dropout after it, a change of shape in the linear layer beside it."""
        found: dict[fx.Node, fx.Node] = {}
        for node in self._graph.nodes:
            user = only_user(node)
            layer, after = self._layer(node), self._layer(user)
            if user is None or layer is None or after is None:
                continue
            if _doubles(layer) and type(after) in _CONVOLUTIONS:
                found[node] = user
            if type(layer) in _CONVOLUTIONS and _halves(after):
                found[user] = node
            if type(layer) in _NORMS and type(after) in _LEAKY:
                found[user] = node
            if type(layer) in _LEAKY and node not in found and type(after) is nn.Dropout and _draws(after):
                found[node] = user
            if type(layer) is nn.Flatten and _is_whole(layer) and type(after) in _LINEAR:
                found[node] = user
            if type(layer) in _LINEAR and type(after) is nn.Unflatten and after.dim == 1:
                found[user] = node
        return found

    def _ends(self) -> dict[fx.Node, fx.Node]:
        """Activations and dropouts that a convolution or a linear layer ends with: a kernel alone reads what comes out.

        They follow at once, so that the draws of the module keep their order.
        """
        found: dict[fx.Node, fx.Node] = {}
        for node in self._graph.nodes:
            layer = self._layer(node)
            if layer is None or type(layer) not in _PRODUCTS or not self._library.ends(layer):
                continue
            tail: list[fx.Node] = []
            last = node
            for kinds in (_LEAKY, (nn.Dropout,), (nn.Unflatten,)):
                after = self._layer(last.next)
                if list(last.users) == [last.next] and type(after) in kinds and _may_end(layer, after):
                    tail, last = [*tail, last.next], last.next
            normed = _takes_statistics(self._layer(only_user(last)))
            if tail and (normed or self._reader(last, layer)[0] is not None):
                found |= dict.fromkeys(tail, node)
        return found

    def _is_normed(self, node: fx.Node) -> bool:
        last = node
        while (user := only_user(last)) is not None and self.fused_into.get(user) is node:
            last = user
        after = self._layer(user)
        return isinstance(after, _NORMS) and after.training

    def _read_by(self, node: fx.Node) -> Reader:
        layer = self._layer(node)
        if not self._more or type(layer) is not nn.BatchNorm2d:
            return None, False
        last = next((other for other, into in self.fused_into.items() if into is node), node)
        return self._reader(last, layer)

    def _reader(self, node: fx.Node, made: nn.Module) -> Reader:
        """The layer whose kernel alone reads the images that `made` makes and `node` passes on."""
        user = only_user(node)
        between = self._layer(user)
        doubled = _doubles(between)
        flat = type(between) is nn.Flatten and _is_whole(between)
        if user is not None and (doubled or flat):
            user = only_user(user)
        layer = self._layer(user)
        if not isinstance(made, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)):  # no images
            return None, False
        if layer is None or type(layer) not in _PRODUCTS or isinstance(layer, nn.Linear) != flat:
            return None, False
        return (layer, doubled) if self._library.reads(layer, doubled) else (None, False)


def _may_end(layer: nn.Module, after: nn.Module | None) -> bool:
    if isinstance(after, nn.Dropout):
        return _draws(after) and after.p < 1.0 and not isinstance(layer, nn.Linear)
    return not isinstance(after, nn.Unflatten) or (isinstance(layer, nn.Linear) and after.dim == 1)


def _takes_statistics(layer: nn.Module | None) -> bool:
    """A batch norm that normalises by its batch, and whose running statistics move by a fixed share."""
    return isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and layer.training and layer.momentum is not None


def _draws(layer: nn.Dropout) -> bool:
    return layer.training and layer.p > 0.0


def _is_whole(layer: nn.Flatten) -> bool:
    return (layer.start_dim, layer.end_dim) == (1, -1)


def _doubles(layer: nn.Module | None) -> bool:
    """Nearest upsampling by exactly 2."""
    return (
        type(layer) is nn.Upsample
        and layer.mode == "nearest"
        and layer.size is None
        and layer.scale_factor in (2, 2.0, (2, 2), (2.0, 2.0))
    )


def _halves(layer: nn.Module | None) -> bool:
    """The average of every 2×2 pixels."""
    return (
        type(layer) is nn.AvgPool2d
        and (layer.kernel_size, layer.stride, layer.padding) in ((2, 2, 0), ((2, 2), (2, 2), (0, 0)))
        and layer.divisor_override is None
    )
