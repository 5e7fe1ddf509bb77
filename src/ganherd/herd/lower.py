"""Lowers a plain module for one GAN to operations on all members at once.

The module is traced once with `torch.fx`. What is known (linear, convolution, batch norm, …) runs as one operation on
`[N, B, …]`; anything else in the graph runs through `vmap`, and a module that cannot be traced runs through `vmap` as a whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from ganherd.herd import ops
from ganherd.herd.streams import Calls, MemberRandomness

Tensors = dict[str, Tensor]

_ELEMENTWISE = (nn.LeakyReLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Softplus, nn.Identity)
_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.mul, torch.tanh,
               torch.relu, torch.sigmoid, F.relu, F.leaky_relu, F.tanh, F.sigmoid, F.softplus}  # fmt: skip


class _Tracer(fx.Tracer):
    """Every module with parameters, buffers or behaviour of its own is a leaf; containers are opened."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("torch.nn") and not isinstance(m, (nn.Sequential, nn.ModuleList))


class Lowered:
    """A module's graph, run for a block of members: a pure function of (parameters, buffers, keys, inputs)."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self._module, self._graph = module, graph
        self._children = dict(module.named_modules())

    def explain(self) -> list[tuple[str, str]]:
        """(layer, how it runs) for every operation of the module."""
        return [(str(node.target), self._how(node)) for node in self._graph.nodes if node.op.startswith("call")]

    def __call__(self, params: Tensors, buffers: Tensors, keys: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensors]:
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

    def _how(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return "all members at once" if type(self._children[str(node.target)]) in _MODULES else "vmap"
        return "all members at once" if node.op == "call_function" and node.target in _ARITHMETIC else "vmap"

    def _run(self, node: fx.Node, args: Any, kwargs: Any, params: Tensors, moved: Tensors, draws: Draws) -> Any:
        if node.op == "call_module":
            name = str(node.target)
            child = self._children[name]
            own = {key: params[f"{name}.{key}"] for key, _ in child.named_parameters(recurse=False)}
            known = _MODULES.get(type(child))
            if known is not None and not kwargs:
                return known(child, own, _Buffers(moved, name), args[0], draws)
            return self._mapped_module(name, child, args, kwargs, params, moved, draws)
        function: Any = node.target if node.op == "call_function" else _method(str(node.target))
        if function in _ARITHMETIC or not _has_tensor((args, kwargs)):
            return function(*args, **kwargs)
        if (asked := _shape_of(node, args)) is not None:
            return asked
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


def lower(module: nn.Module) -> Lowered | None:
    """The module's graph, or None where it cannot be traced (its flow depends on its inputs, say)."""
    try:
        return Lowered(module, _Tracer().trace(module))
    except Exception:  # tracing runs the user's code on stand-ins: whatever it raises means that it cannot be traced
        return None


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


def _method(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return call


class Draws:
    """The members' keys for one call of the module, and how many draws it has made: the same as if it ran by itself."""

    def __init__(self, keys: Tensor) -> None:
        self.keys, self.calls = keys, Calls()

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


# -- the operations that are known: (module, its parameters, its buffers, x [N, B, …], draws) -> [N, B, …] ------


def _linear(m: nn.Linear, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    return ops.linear(x, own["weight"], own.get("bias"))


def _elementwise(m: nn.Module, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    out: Tensor = m(x)
    return out


def _dropout(m: nn.Dropout, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    if not m.training or m.p == 0.0:
        return x
    return ops.dropout(x, m.p, draws.next())


def _flatten(m: nn.Flatten, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    ends = [d + 1 if d >= 0 else d for d in (m.start_dim, m.end_dim)]  # the member axis stands before
    return x.flatten(*ends)


def _unflatten(m: nn.Unflatten, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    dim = int(m.dim)
    return x.unflatten(dim + 1 if dim >= 0 else dim, m.unflattened_size)


def _batch_norm(m: nn.BatchNorm1d | nn.BatchNorm2d, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    mean, var = buffers.get("running_mean"), buffers.get("running_var")
    if not m.training and mean is not None and var is not None:
        return ops.normalise(x, mean, var, own.get("weight"), own.get("bias"), m.eps)
    out, batch_mean, batch_var = ops.batch_norm(x, own.get("weight"), own.get("bias"), m.eps)
    if m.training and mean is not None and var is not None:
        with torch.no_grad():
            count = buffers.get("num_batches_tracked")
            assert count is not None
            buffers.set("num_batches_tracked", count + 1)
            samples = x.numel() // (x.shape[0] * x.shape[2])
            share: Any = m.momentum if m.momentum is not None else (1.0 / (count + 1).to(mean.dtype))[:, None]
            unbiased = batch_var * (samples / max(samples - 1, 1))
            buffers.set("running_mean", mean * (1 - share) + batch_mean.to(mean.dtype) * share)
            buffers.set("running_var", var * (1 - share) + unbiased.to(var.dtype) * share)
    return out


def _conv(m: nn.Conv2d, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    return ops.conv2d(x, own["weight"], own.get("bias"), m)


def _conv_transpose(m: nn.ConvTranspose2d, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    return ops.conv_transpose2d(x, own["weight"], own.get("bias"), m)


def _upsample(m: nn.Upsample, own: Tensors, buffers: _Buffers, x: Tensor, draws: Draws) -> Tensor:
    out: Tensor = m(x.flatten(0, 1))
    return out.unflatten(0, x.shape[:2])


_MODULES: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Dropout: _dropout,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Conv2d: _conv,
    nn.ConvTranspose2d: _conv_transpose,
    nn.Upsample: _upsample,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
}
