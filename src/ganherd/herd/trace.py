"""Traces a plain module for one GAN with `torch.fx`, once, and says why where its graph does not tell all that it does."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import fx, nn

from ganherd.herd.names import kept
from ganherd.nets.spectral import Spectral


class NoGraph(Exception):
    """The module's graph is not known; its text says why."""


@dataclass(frozen=True)
class Traced:
    """A module's graph, in the order in which it runs, with the layers that it calls."""

    nodes: list[fx.Node]
    layers: dict[str, nn.Module]
    kept: dict[str, str]  # see `names`

    def layer(self, node: fx.Node) -> nn.Module | None:
        """The layer that an operation calls, if it calls one."""
        return self.layers[str(node.target)] if node.op == "call_module" else None

    def own(self, layer: str) -> dict[str, str]:
        """A layer's parameters and buffers, each once: what it calls them -> what the module keeps them as."""
        return {name: self.kept[f"{layer}.{name}"] for name in kept(self.layers[layer]).values()}


class _Tracer(fx.Tracer):
    """Every module with parameters, buffers or behaviour of its own is a leaf; containers are opened."""

    proxy_buffer_attributes = True  # so that a change of a buffer is seen

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = m.__module__.startswith("torch.nn") or isinstance(m, Spectral)
        return own and not isinstance(m, (nn.Sequential, nn.ModuleList))


def trace(module: nn.Module) -> Traced:
    """The module's graph; `NoGraph` where its flow depends on its inputs, say, or where it changes tensors in place.

    >>> [label(node) for node in trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU())).nodes]
    ['input_1', '0', '1', 'output']
    """
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    try:
        graph = _Tracer().trace(copy.deepcopy(module))  # a copy: what a module keeps while it is traced is not a tensor
    except Exception as error:  # a user's code on stand-ins may raise anything
        raise NoGraph(f"it cannot be traced: {(str(error) or type(error).__name__).splitlines()[0]}") from error
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in known:
            raise NoGraph(f"its tensor {node.target} is neither a parameter nor a buffer")
        if node.op == "call_method" and str(node.target).endswith("_"):  # perhaps of a buffer
            raise NoGraph(f"it changes a tensor in place, with {node.target}")
    return Traced(list(graph.nodes), dict(module.named_modules()), kept(module))


def label(node: fx.Node) -> str:
    """A layer by its place in the module, anything else by its place in the graph."""
    return str(node.target) if node.op == "call_module" else node.name


def only_user(node: fx.Node) -> fx.Node | None:
    """The one operation that sees what this one makes, if it is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None
