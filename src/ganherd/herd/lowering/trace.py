"""Traces a plain module for one GAN with `torch.fx`, once, and says why where its graph does not tell all that it does."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode

from ganherd.herd.checks.module_copies import is_library, line_of, twin, why_not_traced
from ganherd.herd.parameter_names import kept
from ganherd.herd.rng import DRAWS, DROPOUTS
from ganherd.nets.common.spectral import Spectral
from ganherd.util.errors import first_line

_IN_PLACE = "in place"  # marks a node of the graph
# an operator that changes its left side in place, by the name of its method
_OPERATORS = {
    f"__{name}__": getattr(operator, name.removeprefix("i"))
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul")
}
# layers and functions that write a tensor of their own, which nothing else can see
_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
_FUNCTIONS = {operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.neg}
_SIZES = {"size", "dim", "numel"}


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


class _Proxy(fx.Proxy):
    """Stands for a tensor. A plain one takes `x += 1` for `x = x + 1` and forgets `x.data = y`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("tracer", "node", "root", "attr", "_node"):
            raise NoGraph(f"it assigns to .{name} of a tensor")
        super().__setattr__(name, value)

    def __getattr__(self, k: str) -> Any:
        return _Attribute(self, k)


class _Attribute(fx.proxy.Attribute, _Proxy):
    """An attribute of what a proxy stands for, `x.T` for example."""


def _in_place(function: Any) -> Any:
    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        changed = self.tracer.create_proxy("call_function", function, (self, other), {})
        changed.node.meta[_IN_PLACE] = True
        return changed

    return method


for _name, _function in _OPERATORS.items():
    setattr(_Proxy, _name, _in_place(_function))


class _Tracer(fx.Tracer):
    """Every module with parameters, buffers or behaviour of its own is a leaf; containers are opened."""

    proxy_buffer_attributes = True  # so that a change of a buffer is seen

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = m.__module__.startswith("torch.nn") or isinstance(m, Spectral)
        return own and not isinstance(m, (nn.Sequential, nn.ModuleList))

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        return super().create_args_for_root(_of_inputs(root_fn), is_module, concrete_args)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, kind: str, target: Any, *rest: Any, **more: Any) -> fx.Node:
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise NoGraph("it switches gradients off (no_grad or inference_mode)")
        if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
            raise NoGraph("it switches autocast on")
        if torch._C._autograd._top_saved_tensors_default_hooks(True) and self._has_buffers(kind, str(target)):
            raise NoGraph("it runs layers with buffers under a checkpoint, which moves them twice")
        return super().create_node(kind, target, *rest, **more)

    def _has_buffers(self, kind: str, target: str) -> bool:
        if kind == "get_attr":
            return target in dict(self.root.named_buffers())
        return kind == "call_module" and any(True for _ in self.root.get_submodule(target).buffers())


def _of_inputs(forward: Any) -> Any:
    """Return `forward` as a function of the inputs alone, so that all other arguments have their defaults."""
    parameters = inspect.signature(forward).parameters
    conditional = "y" in parameters
    if len(parameters) <= 2 + conditional:  # itself, x and perhaps y
        return forward
    return (lambda self, x, y: forward(self, x, y)) if conditional else (lambda self, x: forward(self, x))


class _Calls(TorchFunctionMode):
    """Ends the trace when numbers would be computed now, once, instead of in every pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        name = getattr(func, "__name__", "")
        if name in DRAWS and not any(isinstance(value, fx.Proxy) for value in given):
            raise NoGraph(f"it draws numbers ({name}) that do not depend on its input")
        if any(isinstance(value, Tensor) and id(value) in self._own for value in given):
            raise NoGraph(f"it computes with its parameters or buffers by another way than their names ({name})")
        return func(*args, **(kwargs or {}))


@contextmanager
def _unseen_calls_refused() -> Iterator[None]:
    """End the trace at calls that leave no node in it: of an own `autograd.Function`, and of `torch.is_grad_enabled`."""
    is_grad_enabled = torch.is_grad_enabled

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise NoGraph(f"it calls {cls.__name__}, an autograd.Function")

    def asked() -> bool:
        if not is_library(sys._getframe(1).f_code.co_filename):
            raise NoGraph("it asks whether gradients are enabled, which changes from call to call")
        return is_grad_enabled()

    _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]
    torch.is_grad_enabled = asked
    try:
        yield
    finally:
        torch.is_grad_enabled = is_grad_enabled
        del _SingleLevelFunction.apply  # type: ignore[attr-defined]


def trace(module: nn.Module) -> Traced:
    """The module's graph; `NoGraph` where its flow depends on its inputs, say, or where it changes tensors in place.

    >>> [label(node) for node in trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU())).nodes]
    ['input_1', '0', '1', 'output']
    """
    if why := why_not_traced(module):
        raise NoGraph(why)
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    try:
        copied = twin(module)  # a copy: what a module keeps while it is traced is not a tensor
        before = _attributes(copied)
        with torch.inference_mode(False), torch.enable_grad(), _unseen_calls_refused(), _Calls(copied):
            graph = _Tracer().trace(copied)
    except NoGraph as why_not:
        where = line_of(why_not)
        raise NoGraph(f"{why_not}" + (f" ({where})" if where else "")) from why_not
    except Exception as error:  # a user's code on stand-ins may raise anything
        raise NoGraph(f"it cannot be traced: {first_line(error)}") from error
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in known:
            raise NoGraph(f"its tensor {node.target} is neither a parameter nor a buffer")
        if node.op == "call_method" and _changes(str(node.target)):
            raise NoGraph(f"it changes a tensor in place, with {node.target}")
        if (_IN_PLACE in node.meta or _drops_in_place(node, copied)) and not _unseen(node, copied):
            raise NoGraph("it changes a tensor in place that something else may read")
    after = _attributes(copied)
    for name in sorted(before.keys() | after.keys()):
        left = after.get(name)
        if before.get(name) is not left and (name in known or not isinstance(left, fx.Proxy)):
            raise NoGraph(f"its forward assigns to {name}")
    return Traced(list(graph.nodes), dict(module.named_modules()), kept(module))


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return all that forward may assign: attributes, parameters and buffers, by name."""
    found: dict[str, Any] = {}
    for prefix, layer in module.named_modules(remove_duplicate=False):
        parts = (layer._parameters, layer._buffers, layer._modules, vars(layer))
        found |= {f"{prefix}.{name}".lstrip("."): value for part in parts for name, value in part.items()}
    return found


def _changes(method: str) -> bool:
    """Return whether a method changes its tensor, or what is done to its gradient."""
    return (method.endswith("_") and not method.endswith("__")) or method in (
        "register_hook",
        "retain_grad",
        "backward",
    )


def _unseen(node: fx.Node, module: nn.Module) -> bool:
    """Return whether `x += y` may run as `x = x + y`: x is a new tensor that is read nowhere else, or a number."""
    changed = node.args[0]
    if not isinstance(changed, fx.Node):
        return True
    if changed.op == "call_module":
        layer = module.get_submodule(str(changed.target))
        fresh = isinstance(layer, _LAYERS) or _makes_anew(changed, layer, module)
    elif changed.op == "call_method":
        fresh = changed.target in _SIZES
    else:
        fresh = changed.op == "call_function" and changed.target in _FUNCTIONS
    return fresh and len(changed.users) == 1


def _makes_anew(node: fx.Node, layer: nn.Module, module: nn.Module) -> bool:
    """Return whether an activation or a dropout answers a tensor that nothing else can see."""
    if not hasattr(layer, "inplace"):
        return False
    passes = layer.inplace or isinstance(layer, nn.modules.dropout._DropoutNd)
    return not passes or (isinstance(node.args[0], fx.Node) and _unseen(node, module))


def _drops_in_place(node: fx.Node, module: nn.Module) -> bool:
    """Return whether an operation is a dropout that changes its input."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return isinstance(layer, nn.modules.dropout._DropoutNd) and layer.inplace
    named = node.op == "call_function" and getattr(node.target, "__name__", "") in DROPOUTS
    return named and bool(node.kwargs.get("inplace") or node.args[3:4] == (True,))


def label(node: fx.Node) -> str:
    """A layer by its place in the module, anything else by its place in the graph."""
    return str(node.target) if node.op == "call_module" else node.name


def only_user(node: fx.Node) -> fx.Node | None:
    """The one operation that sees what this one makes, if it is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None
