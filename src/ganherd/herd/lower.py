"""Lowers a plain module for one GAN to operations on all members at once.

The module is traced once with `torch.fx`. What is known (linear, convolution, batch norm, …) runs as one operation on
`[N, B, …]`; anything else in the graph runs through `vmap`, and a module that cannot be traced runs through `vmap` as a whole.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from ganherd.herd import ops
from ganherd.herd.streams import Calls, MemberRandomness
from ganherd.nets.spectral import Spectral, SpectralConv2d, SpectralLinear, divide

Tensors = dict[str, Tensor]
Library = Any  # `ops`, or `fast` with the same functions by kernels

_ELEMENTWISE = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Identity)
_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.mul, torch.tanh,
               torch.relu, torch.sigmoid, F.relu, F.leaky_relu, F.tanh, F.sigmoid, F.softplus}  # fmt: skip


_SHAPES = {
    operator.getitem,
    getattr,
    torch.flatten,
    "reshape",
    "view",
    "squeeze",
    "unsqueeze",
    "flatten",
    "size",
    "dim",
}


# how an operation runs
KERNEL, ALL, EACH = "kernel", "PyTorch on all members", "PyTorch member by member"
VMAP, JOINED = "vmap", "with its neighbour"


_PRODUCTS: tuple[type[nn.Module], ...] = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


class How(NamedTuple):
    """One operation of a module, and how it runs for all members."""

    layer: str
    what: str
    how: str  # one of the words above
    why: str = ""


class _Tracer(fx.Tracer):
    """Every module with parameters, buffers or behaviour of its own is a leaf; containers are opened."""

    proxy_buffer_attributes = True  # so that a change of a buffer is seen

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = m.__module__.startswith("torch.nn") or isinstance(m, Spectral)
        return own and not isinstance(m, (nn.Sequential, nn.ModuleList))


class Lowered:
    """A module's graph, run for a block of members: a pure function of (parameters, buffers, keys, inputs)."""

    def __init__(self, module: nn.Module, graph: fx.Graph, library: Library) -> None:
        self._graph, self._library = graph, library
        self._children = dict(module.named_modules())
        self._absorbed = self._absorb()
        if getattr(library, "JOINS", False):
            self._absorbed |= self._ends()
        self._normed = {node for node in graph.nodes if self._is_normed(node)}

    def _absorb(self) -> dict[fx.Node, fx.Node]:
        """Operations that run as part of their neighbour: an upsampling in the convolution after it, an activation in the
        batch norm before it or the dropout after it."""
        absorbed: dict[fx.Node, fx.Node] = {}
        for node in self._graph.nodes:
            child = self._child(node)
            user = next(iter(node.users)) if len(node.users) == 1 else None
            after = self._child(user) if user is not None else None
            if _doubles(child) and type(after) is nn.Conv2d:
                assert user is not None
                absorbed[node] = user
            if type(child) in (nn.BatchNorm1d, nn.BatchNorm2d) and type(after) in (nn.ReLU, nn.LeakyReLU):
                assert user is not None
                absorbed[user] = node
            if type(child) in (nn.ReLU, nn.LeakyReLU) and node not in absorbed and type(after) is nn.Dropout:
                assert user is not None
                if after.training and after.p > 0.0:
                    absorbed[node] = user
            if type(child) is nn.Flatten and _is_whole(child) and type(after) is nn.Linear:
                assert user is not None
                absorbed[node] = user
            if type(child) is nn.Linear and type(after) is nn.Unflatten and after.dim == 1:
                assert user is not None
                absorbed[user] = node
        return absorbed

    def _ends(self) -> dict[fx.Node, fx.Node]:
        """Activations and dropouts that a convolution or a linear layer ends with: a kernel alone reads what comes out.

        They follow at once, so that the draws of the module keep their order.
        """
        found: dict[fx.Node, fx.Node] = {}
        for node in self._graph.nodes:
            child = self._child(node)
            if type(child) not in _PRODUCTS or node.kwargs or not self._library.ends(child):
                continue
            tail: list[fx.Node] = []
            wanted: list[tuple[type[nn.Module], ...]] = [(nn.ReLU, nn.LeakyReLU), (nn.Dropout,), (nn.Unflatten,)]
            last = node
            for kinds in wanted:
                after = self._child(last.next)
                if list(last.users) == [last.next] and type(after) in kinds and self._may_end(child, after):
                    tail, last = [*tail, last.next], last.next
            user = next(iter(last.users)) if len(last.users) == 1 else None
            normed = user is not None and not user.kwargs and _takes_statistics(self._child(user))
            if tail and (normed or self._reader(last, child)[0] is not None):
                found |= dict.fromkeys(tail, node)
        return found

    @staticmethod
    def _may_end(child: nn.Module | None, after: nn.Module | None) -> bool:
        if isinstance(after, nn.Dropout):
            return after.training and 0.0 < after.p < 1.0 and not isinstance(child, nn.Linear)
        return not isinstance(after, nn.Unflatten) or (isinstance(child, nn.Linear) and after.dim == 1)

    def _reader(self, node: fx.Node, made: nn.Module | None) -> tuple[nn.Module | None, bool]:
        """The layer whose kernel alone reads the images that `made` makes, and whether an upsampling goes before it."""
        user = next(iter(node.users)) if len(node.users) == 1 else None
        between = self._child(user) if user is not None else None
        doubled = _doubles(between)
        flat = type(between) is nn.Flatten and _is_whole(between)
        if user is not None and (doubled or flat):
            user = next(iter(user.users)) if len(user.users) == 1 else None
        layer = self._child(user) if user is not None else None
        images = isinstance(made, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d))
        if (
            user is None
            or user.kwargs
            or not images
            or type(layer) not in _PRODUCTS
            or isinstance(layer, nn.Linear) != flat
        ):
            return None, False
        return (layer, doubled) if self._library.reads(layer, doubled) else (None, False)

    def _read_by(self, node: fx.Node) -> tuple[nn.Module | None, bool]:
        """`_reader` of a batch norm, with its activation."""
        child = self._child(node)
        if not getattr(self._library, "JOINS", False) or type(child) is not nn.BatchNorm2d:
            return None, False
        last = next((other for other, into in self._absorbed.items() if into is node), node)
        return self._reader(last, child)

    def _is_normed(self, node: fx.Node) -> bool:
        """Whether a batch norm with batch statistics is all that sees this operation, and how it ends."""
        own = node
        while len(node.users) == 1 and self._absorbed.get(user := next(iter(node.users))) is own:
            node = user
        after = [self._child(user) for user in node.users]
        return len(after) == 1 and isinstance(after[0], (nn.BatchNorm1d, nn.BatchNorm2d)) and after[0].training

    def _child(self, node: fx.Node) -> nn.Module | None:
        return self._children[str(node.target)] if node.op == "call_module" else None

    def explain(self) -> list[How]:
        """How every operation of the module runs, in the order of its graph."""
        calls = [node for node in self._graph.nodes if node.op.startswith("call")]
        return [How(_label(node), self._what(node), *self._how(node)) for node in calls]

    def __call__(
        self, params: Tensors, buffers: Tensors, keys: Callable[[], Tensor], *inputs: Tensor
    ) -> tuple[Any, Tensors]:
        """(what the module answers, a tensor or several, [N, …]; buffers after it)"""
        moved = dict(buffers)
        values: dict[fx.Node, Any] = {}
        given = iter(inputs)
        draws = Draws(keys)
        for node in self._graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = params[node.target] if node.target in params else moved[node.target]
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__), moved
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = self._run(node, args, kwargs, params, moved, draws)
        raise RuntimeError("a graph ends with its output")

    # -- one operation --------------------------------------------------------------------------------------------

    def _what(self, node: fx.Node) -> str:
        child = self._child(node)
        if child is not None:
            return type(child).__name__
        return node.target if isinstance(node.target, str) else node.target.__name__

    def _how(self, node: fx.Node) -> tuple[str, str]:
        """(how, why)"""
        child, kernels = self._child(node), self._library is not ops
        if child is None:
            known = node.target in _ARITHMETIC or node.target in _SHAPES
            return (ALL, "") if known else (VMAP, f"{self._what(node)} has no operation for all members")
        if node in self._absorbed:
            return JOINED, f"a part of {_label(self._absorbed[node])}"
        if type(child) not in _MODULES or node.kwargs:
            return VMAP, f"{type(child).__name__} has no operation for all members"
        if isinstance(child, (nn.Conv2d, nn.ConvTranspose2d)):
            if not kernels:
                return EACH, ""
            return (
                (KERNEL, "")
                if self._library.fits(child)
                else (EACH, "no kernel for its size, stride, padding or groups")
            )
        if isinstance(child, (nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout)):
            plain_average = getattr(child, "track_running_stats", False) and getattr(child, "momentum", 0.0) is None
            if kernels and not plain_average:
                return KERNEL, ""
            return ALL, "no kernel for a plain average over all batches" if kernels else ""
        return ALL, ""

    def _run(self, node: fx.Node, args: Any, kwargs: Any, params: Tensors, moved: Tensors, draws: Draws) -> Any:
        if node.op == "call_module":
            name = str(node.target)
            child = self._children[name]
            if node in self._absorbed:
                return args[0]  # its neighbour does it
            own = {key: params[f"{name}.{key}"] for key, _ in child.named_parameters(recurse=False)}
            known = _MODULES.get(type(child))
            if known is not None and not kwargs:
                neighbours = [other for other, into in self._absorbed.items() if into is node]
                beside = [self._child(other) for other in neighbours]
                return known(
                    Layer(
                        child,
                        own,
                        _Buffers(moved, name),
                        draws,
                        self._library,
                        beside,
                        node in self._normed,
                        self._read_by(node),
                    ),
                    args[0],
                )
            return self._mapped_module(name, child, args, kwargs, params, moved, draws)
        function: Any = node.target if node.op == "call_function" else _method(str(node.target))
        if not _has_tensor((args, kwargs)):
            return function(*args, **kwargs)
        if function in _ARITHMETIC:
            return function(*_aligned(args), **kwargs)
        if (asked := _shape_of(node, args)) is not None:
            return asked
        if (reshaped := _reshaped(node, args, kwargs)) is not None:
            return reshaped
        return _mapped(function, args, kwargs, draws)

    def _mapped_module(
        self, name: str, child: nn.Module, args: Any, kwargs: Any, params: Tensors, moved: Tensors, draws: Draws
    ) -> Any:
        prefix = f"{name}."
        own = {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}
        state = {k.removeprefix(prefix): v for k, v in moved.items() if k.startswith(prefix)}

        def call(own: Tensors, state: Tensors, *args: Any, **kwargs: Any) -> tuple[Any, Tensors]:
            both = {**own, **{key: value.clone() for key, value in state.items()}}
            return functional_call(child, both, args, kwargs), {key: both[key] for key in state}

        out, new = _mapped(call, (own, state, *args), kwargs, draws)
        moved.update({f"{prefix}{key}": value for key, value in new.items()})
        return out


def lower(module: nn.Module, kernels: bool = False, twice: bool = False) -> Lowered | None:
    """The module's graph, or None where it cannot be traced (its flow depends on its inputs, say).

    `kernels`: by Triton on a GPU. `twice`: its gradient is differentiated itself, as a penalty does; then no layer joins
    another.
    """
    library: Any = ops
    if kernels and twice:
        from ganherd.herd import fast_twice as library
    elif kernels:
        from ganherd.herd import fast as library
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    try:
        graph = _Tracer().trace(copy.deepcopy(module))  # a copy: what a module keeps while it is traced is not a tensor
        for node in graph.nodes:
            if node.op == "get_attr" and node.target not in known:
                return None  # a tensor that no state holds
            if node.op == "call_method" and str(node.target).endswith("_"):
                return None  # it changes a tensor in place, perhaps a buffer
        return Lowered(module, graph, library)
    except Exception:  # tracing runs the user's code on stand-ins: whatever it raises means that it cannot be traced
        return None


def _label(node: fx.Node) -> str:
    """A layer by its place in the module, anything else by its place in the graph."""
    return str(node.target) if node.op == "call_module" else node.name


class _Buffers:
    """The buffers of one child module, by its own names."""

    def __init__(self, moved: Tensors, name: str) -> None:
        self._moved, self._prefix = moved, f"{name}."

    def get(self, key: str) -> Tensor | None:
        return self._moved.get(self._prefix + key)

    def set(self, key: str, value: Tensor) -> None:
        self._moved[self._prefix + key] = value


def _has_tensor(values: Any) -> bool:
    return any(isinstance(value, Tensor) for value in torch.utils._pytree.tree_leaves(values))


def _aligned(args: Any) -> Any:
    """Tensors of unlike rank as one member would broadcast them: from the last axis on, with the member axis kept first."""
    most = max(value.dim() for value in args if isinstance(value, Tensor))
    return [
        value.reshape(value.shape[0], *(1,) * (most - value.dim()), *value.shape[1:])
        if isinstance(value, Tensor)
        else value
        for value in args
    ]


def _shape_of(node: fx.Node, args: Any) -> Any:
    """What a module learns when it asks for a tensor's shape: one member's, without the axis before it."""
    if not isinstance(args[0], Tensor):
        return None
    name = args[1] if node.target is getattr else node.target if node.op == "call_method" else None
    own = args[0].shape[1:]
    if name == "shape":
        return own
    if name == "size":
        return own[args[1]] if len(args) > 1 else own
    return len(own) if name == "dim" else None


def _reshaped(node: fx.Node, args: Any, kwargs: Any) -> Tensor | None:
    """The operations on shapes that modules use most, with the member axis before; None for all others."""
    x, rest = args[0], args[1:]
    if not isinstance(x, Tensor) or kwargs or _has_tensor(rest):
        return None
    if node.target is operator.getitem:
        index = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
        return x[(slice(None), *index)] if all(isinstance(i, (slice, int)) for i in index) else None
    if node.target in ("reshape", "view"):
        sizes = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest
        return x.reshape(x.shape[0], *sizes)
    if node.target in ("squeeze", "unsqueeze") and len(rest) == 1 and isinstance(rest[0], int):
        dim = rest[0] + 1 if rest[0] >= 0 else rest[0]
        return x.squeeze(dim) if node.target == "squeeze" else x.unsqueeze(dim)
    if node.target in ("flatten", torch.flatten):
        ends = (*rest, *(0, -1)[len(rest) :])
        return x.flatten(*(d + 1 if d >= 0 else d for d in ends))
    return None


def _method(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return call


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


def _mapped(function: Callable[..., Any], args: Any, kwargs: Any, draws: Draws) -> Any:
    """`function` for one member, through vmap: tensors have the member axis first, everything else is shared."""

    def call(key: Tensor, args: Any, kwargs: Any) -> Any:
        with MemberRandomness(key, draws.calls):
            return function(*args, **kwargs)

    dims = torch.utils._pytree.tree_map(lambda value: 0 if isinstance(value, Tensor) else None, (args, kwargs))
    return vmap(call, in_dims=(0, *dims))(draws.keys, args, kwargs)


def _takes_statistics(m: nn.Module | None) -> bool:
    """A batch norm that normalises by its batch, and whose running statistics move by a fixed share."""
    return isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)) and m.training and m.momentum is not None


def _is_whole(m: nn.Flatten) -> bool:
    return (m.start_dim, m.end_dim) == (1, -1)


def _doubles(m: nn.Module | None) -> bool:
    """Nearest upsampling by exactly 2."""
    return (
        type(m) is nn.Upsample
        and m.mode == "nearest"
        and m.size is None
        and m.scale_factor in (2, 2.0, (2, 2), (2.0, 2.0))
    )


# -- the operations that are known: a layer and x [N, B, …] -> [N, B, …] ------------------------------------------------


@dataclass
class Layer:
    """One layer of the module for all members: its parameters [N, …], its buffers, and what it absorbed."""

    module: Any
    own: Tensors
    buffers: _Buffers
    draws: Draws
    library: Library
    # the activation after a batch norm or before a dropout, the upsampling before a convolution, the change of shape around
    # a linear layer, the activation and dropout that a product ends with
    beside: list[Any]
    normed: bool  # a batch norm follows
    reader: tuple[nn.Module | None, bool]  # of a batch norm: see `Lowered._reader`

    @property
    def after(self) -> ops.After | None:
        """How a convolution or a linear layer ends."""
        activation = [other for other in self.beside if isinstance(other, (nn.ReLU, nn.LeakyReLU))]
        dropout = next((other for other in self.beside if isinstance(other, nn.Dropout)), None)
        if dropout is not None:
            return ops.After(_slope(activation), dropout.p, self.draws.keys, self.draws.calls.next())
        return ops.After(_slope(activation)) if activation else None


def _linear(layer: Layer, x: Tensor) -> Tensor:
    flatten = any(isinstance(other, nn.Flatten) for other in layer.beside)
    shape = next((tuple(other.unflattened_size) for other in layer.beside if isinstance(other, nn.Unflatten)), ())
    weight, bias = layer.own["weight"], layer.own.get("bias")
    return layer.library.linear(x, weight, bias, flatten, shape, layer.normed, layer.after)


def _elementwise(layer: Layer, x: Tensor) -> Tensor:
    out: Tensor = layer.module(x)
    return out


def _dropout(layer: Layer, x: Tensor) -> Tensor:
    if not layer.module.training or layer.module.p == 0.0:
        return x
    return layer.library.dropout(x, layer.module.p, layer.draws.next(), _slope(layer.beside))


def _flatten(layer: Layer, x: Tensor) -> Tensor:
    ends = (layer.module.start_dim, layer.module.end_dim)
    return x.flatten(*(d + 1 if d >= 0 else d for d in ends))  # the member axis stands before


def _unflatten(layer: Layer, x: Tensor) -> Tensor:
    dim = int(layer.module.dim)
    return x.unflatten(dim + 1 if dim >= 0 else dim, layer.module.unflattened_size)


def _slope(activations: list[Any]) -> float:
    """Below zero: of none, a ReLU or a leaky one."""
    return float(getattr(activations[0], "negative_slope", 0.0)) if activations else 1.0


def _batch_norm(layer: Layer, x: Tensor) -> Tensor:
    m, buffers = layer.module, layer.buffers
    weight, bias = layer.own.get("weight"), layer.own.get("bias")
    slope = _slope(layer.beside)
    mean, var, count = (buffers.get(name) for name in ("running_mean", "running_var", "num_batches_tracked"))
    running = None
    if mean is not None and var is not None and count is not None:
        if not m.training:
            out = ops.normalise(x, mean, var, weight, bias, m.eps)
            return out if slope == 1.0 else F.leaky_relu(out, slope)
        running = ops.Running(mean, var, count, m.momentum)
    out, moved = layer.library.batch_norm(x, weight, bias, m.eps, slope, running, *layer.reader)
    if moved is not None:
        for name, value in (
            ("running_mean", moved.mean),
            ("running_var", moved.var),
            ("num_batches_tracked", moved.count),
        ):
            buffers.set(name, value)
    return out


def _conv(layer: Layer, x: Tensor) -> Tensor:
    weight, bias = layer.own["weight"], layer.own.get("bias")
    doubled = any(isinstance(other, nn.Upsample) for other in layer.beside)
    return layer.library.conv2d(x, weight, bias, layer.module, doubled, layer.normed, layer.after)


def _spectral(layer: Layer, x: Tensor) -> Tensor:
    u = layer.buffers.get("u")
    assert u is not None
    weight, moved = divide(layer.own["weight"], u, layer.module.training)
    layer.buffers.set("u", moved)
    plain = _conv if isinstance(layer.module, nn.Conv2d) else _linear
    return plain(replace(layer, own={**layer.own, "weight": weight}), x)


def _conv_transpose(layer: Layer, x: Tensor) -> Tensor:
    weight, bias = layer.own["weight"], layer.own.get("bias")
    return layer.library.conv_transpose2d(x, weight, bias, layer.module, layer.normed, layer.after)


def _each_image(layer: Layer, x: Tensor) -> Tensor:
    out: Tensor = layer.module(x.flatten(0, 1))
    return out.unflatten(0, x.shape[:2])


_MODULES: dict[type[nn.Module], Callable[[Layer, Tensor], Tensor]] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Conv2d: _conv,
    nn.ConvTranspose2d: _conv_transpose,
    nn.Upsample: _each_image,
    nn.AvgPool2d: _each_image,
    nn.MaxPool2d: _each_image,
    SpectralConv2d: _spectral,
    SpectralLinear: _spectral,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
}
