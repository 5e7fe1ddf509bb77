"""Trace a plain module with `torch.fx`, and refuse modules whose graph would not show everything that they do.

Tracing calls `forward` with stand-ins (proxies) in place of tensors. Each operation on a stand-in becomes a node of the
graph. Whatever `forward` does without a stand-in, e.g. changing an attribute or drawing a number, happens only once,
while tracing, and would be missing in the graph.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ganherd.herd.checks.module_copies import copy_module, is_library_file, line_of, why_not_traced
from ganherd.herd.member_randomness import DRAWS, DROPOUTS
from ganherd.herd.parameter_names import canonical_names
from ganherd.nets.common.scaled import Scaled
from ganherd.nets.common.spectral import Spectral
from ganherd.nets.common.varied_dropout import VariedDropout
from ganherd.util.errors import first_line

_IN_PLACE = "in place"  # the key that marks nodes of in-place operators
# Operators that change their left operand in place, by the name of their method.
_OPERATORS = {
    f"__{name}__": getattr(operator, name.removeprefix("i"))
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul")
}
# Layers and functions that return a new tensor, which shares no memory with others.
_FRESH_LAYERS = (
    nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.Embedding,
)  # fmt: skip
_RESIZING_LAYERS = (
    nn.Upsample, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)  # fmt: skip
_FRESH_FUNCTIONS = {operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.neg}
_SIZES = {"size", "dim", "numel"}
_COMPARISONS = (min, max)
# Functions that make tensors from sizes.
CREATES = (torch.randn, torch.rand, torch.zeros, torch.ones, torch.full, torch.arange, torch.linspace, torch.eye)


class NotTraceable(Exception):
    """Raised if a module cannot be traced; the message gives the reason."""


@dataclass(frozen=True)
class TracedGraph:
    """The nodes of a module's graph in the order in which they run, and the layers that they call."""

    nodes: list[fx.Node]
    layers: dict[str, nn.Module]
    canonical_names: dict[str, str]  # see `herd.parameter_names`

    def layer(self, node: fx.Node) -> nn.Module | None:
        """Return the layer that a node calls, or None if it calls none."""
        return self.layers[str(node.target)] if node.op == "call_module" else None

    def tensor_names(self, layer: str) -> dict[str, str]:
        """Map a layer's names of its parameters and buffers, each once, to the module's canonical names."""
        return {name: self.canonical_names[f"{layer}.{name}"] for name in canonical_names(self.layers[layer]).values()}


class _Proxy(fx.Proxy):
    """A stand-in for a tensor that notices in-place changes.

    The stand-ins of `torch.fx` would trace `x += 1` as `x = x + 1`, and ignore `x.data = y`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("tracer", "node", "root", "attr", "_node"):
            raise NotTraceable(f"it assigns to .{name} of a tensor")
        super().__setattr__(name, value)

    def __getattr__(self, k: str) -> Any:
        return _Attribute(self, k)


class _Attribute(fx.proxy.Attribute, _Proxy):
    """A stand-in for an attribute of a tensor, e.g. `x.T`."""


def _in_place(function: Any) -> Any:
    """Return a method for an in-place operator of `_Proxy`: it records `function` as a node and marks it as in place.

    Args:
        function: The function of the operator, e.g. `operator.add` for `+=`.
    """

    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        changed = self.tracer.create_proxy("call_function", function, (self, other), {})
        changed.node.meta[_IN_PLACE] = True
        return changed

    return method


for _name, _function in _OPERATORS.items():
    setattr(_Proxy, _name, _in_place(_function))


class _Tracer(fx.Tracer):
    """A tracer that records layers of PyTorch, and some of ganherd, as single nodes, and traces into other modules."""

    proxy_buffer_attributes = True  # so that changes of buffers are noticed

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module becomes one node."""
        is_layer = m.__module__.startswith("torch.nn") or isinstance(m, (Spectral, Scaled, VariedDropout))
        return is_layer and not isinstance(m, (nn.Sequential, nn.ModuleList))

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Create stand-ins for the inputs x and y only; other arguments of `forward` keep their defaults."""
        return super().create_args_for_root(_of_inputs(root_fn), is_module, concrete_args)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a stand-in for the output of a node."""
        return _Proxy(node, self)

    def create_node(self, kind: str, target: Any, *rest: Any, **more: Any) -> fx.Node:
        """Create a node; raise `NotTraceable` if it runs in a context that the graph would not show, e.g. `no_grad`."""
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise NotTraceable("it switches gradients off (no_grad or inference_mode)")
        if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
            raise NotTraceable("it switches autocast on")
        if torch._C._autograd._top_saved_tensors_default_hooks(True) and self._has_buffers(kind, str(target)):
            raise NotTraceable("it runs layers with buffers under a checkpoint, which moves them twice")
        return super().create_node(kind, target, *rest, **more)

    def _has_buffers(self, kind: str, target: str) -> bool:
        """Return whether a node reads or updates buffers."""
        if kind == "get_attr":
            return target in dict(self.root.named_buffers())
        return kind == "call_module" and any(True for _ in self.root.get_submodule(target).buffers())


def _of_inputs(forward: Any) -> Any:
    """Return `forward` as a function of its input x and, if it has an argument `y`, of labels y.

    All other arguments keep their defaults.
    """
    parameters = inspect.signature(forward).parameters
    conditional = "y" in parameters
    if len(parameters) <= 2 + conditional:  # itself, x and perhaps y
        return forward
    return (lambda self, x, y: forward(self, x, y)) if conditional else (lambda self, x: forward(self, x))


class _Calls(TorchFunctionMode):
    """Raise `NotTraceable` for calls that would be made once, while tracing, instead of in every forward pass.

    These are random draws that depend on no input, and computations with the module's own tensors that are not read as
    attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = (*args, *(kwargs or {}).values())
        name = getattr(func, "__name__", "")
        if name in DRAWS and not any(isinstance(value, fx.Proxy) for value in values):
            raise NotTraceable(f"it draws numbers ({name}) that do not depend on its input")
        if any(isinstance(value, Tensor) and id(value) in self._own for value in values):
            raise NotTraceable(f"it computes with its parameters or buffers by another way than their names ({name})")
        return func(*args, **(kwargs or {}))


@contextmanager
def _unseen_calls_refused() -> Iterator[None]:
    """Raise `NotTraceable` for calls that would leave no node in the graph, made by a user's code inside this context.

    These are calls of a user's `autograd.Function` and of `torch.is_grad_enabled`.
    """
    is_grad_enabled = torch.is_grad_enabled

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise NotTraceable(f"it calls {cls.__name__}, an autograd.Function")

    def refuse_users() -> bool:
        if not is_library_file(sys._getframe(1).f_code.co_filename):
            raise NotTraceable("it asks whether gradients are enabled, which changes from call to call")
        return is_grad_enabled()

    _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]
    torch.is_grad_enabled = refuse_users
    try:
        yield
    finally:
        torch.is_grad_enabled = is_grad_enabled
        del _SingleLevelFunction.apply  # type: ignore[attr-defined]


def _recorded(function: Any) -> Any:
    """Return a version of a function that records a node if one of its arguments is a stand-in.

    The function itself, e.g. `min` or `torch.zeros`, would treat a stand-in for a size as a number.
    """

    def record(*args: Any, **kwargs: Any) -> Any:
        stand_in = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, fx.Proxy)), None)
        if stand_in is None or (function in _COMPARISONS and len(args) < 2):
            return function(*args, **kwargs)
        if kwargs.get("out") is not None or kwargs.get("requires_grad"):
            raise NotTraceable(f"it calls {function.__name__} with out or requires_grad")
        return stand_in.tracer.create_proxy("call_function", function, args, kwargs)

    return record


@contextmanager
def _calls_recorded() -> Iterator[None]:
    """Record `min` and `max` of sizes, and functions that create tensors whose size depends on the inputs, as nodes.

    They are replaced in their modules inside this context; see `_recorded`.
    """
    plain: list[tuple[Any, str, Any]] = [(builtins, name, getattr(builtins, name)) for name in ("min", "max")]
    plain += [(torch, function.__name__, function) for function in CREATES]
    for module, name, function in plain:
        setattr(module, name, _recorded(function))
    try:
        yield
    finally:
        for module, name, function in plain:
            setattr(module, name, function)


def trace(module: nn.Module) -> TracedGraph:
    """Return a module's graph.

    Raises:
        NotTraceable: If the graph would not show everything that the module does, e.g. because its control flow depends on
            its inputs, or because it changes tensors in place.

    >>> [node_label(node) for node in trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU())).nodes]
    ['input_1', '0', '1', 'output']
    """
    if why := why_not_traced(module):
        raise NotTraceable(why)
    known = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    try:
        copied = copy_module(module)  # because attributes that are assigned while tracing become stand-ins
        before = _attributes(copied)
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            _unseen_calls_refused(),
            _Calls(copied),
            _calls_recorded(),
        ):
            graph = _Tracer().trace(copied)
    except NotTraceable as why_not:
        where = line_of(why_not)
        raise NotTraceable(f"{why_not}" + (f" ({where})" if where else "")) from why_not
    except Exception as error:  # a user's code on stand-ins may raise anything
        raise NotTraceable(f"it cannot be traced: {first_line(error)}") from error
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in known:
            raise NotTraceable(f"its tensor {node.target} is neither a parameter nor a buffer")
        if node.op == "call_method" and _changes(str(node.target)):
            raise NotTraceable(f"it changes a tensor in place, with {node.target}")
        if (_IN_PLACE in node.meta or _drops_in_place(node, copied)) and not _is_unseen(node, copied):
            raise NotTraceable("it changes a tensor in place that something else may read")
        if _activates_in_place(node, copied) and _has_alias(node, copied):
            raise NotTraceable("it changes a tensor in place that something else reads in another shape")
    after = _attributes(copied)
    for name in sorted(before.keys() | after.keys()):
        value = after.get(name)
        if before.get(name) is not value and (name in known or not isinstance(value, fx.Proxy)):
            raise NotTraceable(f"its forward assigns to {name}")
    return TracedGraph(list(graph.nodes), dict(module.named_modules()), canonical_names(module))


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return all values that `forward` may assign, by dotted name: attributes, parameters, buffers and layers."""
    values: dict[str, Any] = {}
    for prefix, layer in module.named_modules(remove_duplicate=False):
        for attributes in (layer._parameters, layer._buffers, layer._modules, vars(layer)):
            values |= {f"{prefix}.{name}".lstrip("."): value for name, value in attributes.items()}
    return values


def _changes(method: str) -> bool:
    """Return whether a method of tensors, by name, changes its tensor or how its gradient is computed."""
    in_place = method.endswith("_") and not method.endswith("__")
    return in_place or method in ("register_hook", "retain_grad", "backward")


def _is_unseen(node: fx.Node, module: nn.Module) -> bool:
    """Return whether `x += y` may run as `x = x + y`, because x is a number or a new tensor that nothing else reads."""
    changed = node.args[0]
    if not isinstance(changed, fx.Node):
        return True
    if changed.op == "call_module":
        layer = module.get_submodule(str(changed.target))
        fresh = isinstance(layer, _FRESH_LAYERS) or _returns_new(changed, layer, module)
    elif changed.op == "call_method":
        fresh = changed.target in _SIZES
    else:
        fresh = changed.op == "call_function" and changed.target in _FRESH_FUNCTIONS
    return fresh and len(changed.users) == 1


def _returns_new(node: fx.Node, layer: nn.Module, module: nn.Module) -> bool:
    """Return whether an activation or a dropout returns a tensor that no other node can read under another name."""
    if not hasattr(layer, "inplace"):
        return False
    may_return_input = layer.inplace or isinstance(layer, nn.modules.dropout._DropoutNd)
    return not may_return_input or (isinstance(node.args[0], fx.Node) and _is_unseen(node, module))


def _drops_in_place(node: fx.Node, module: nn.Module) -> bool:
    """Return whether a node is a dropout that changes its input in place."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return isinstance(layer, nn.modules.dropout._DropoutNd) and layer.inplace
    is_dropout = node.op == "call_function" and getattr(node.target, "__name__", "") in DROPOUTS
    return is_dropout and bool(node.kwargs.get("inplace") or node.args[3:4] == (True,))


def _activates_in_place(node: fx.Node, module: nn.Module) -> bool:
    """Return whether a node is an activation that changes its input in place."""
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(str(node.target)), "inplace", False))
    flagged = node.kwargs.get("inplace") or any(value is True for value in node.args[1:])
    return node.op == "call_function" and bool(flagged)


def _has_alias(node: fx.Node, module: nn.Module) -> bool:
    """Return whether another node may read a view of the tensor that an activation changes in place.

    Such a graph is refused: operations on all members may copy if PyTorch makes a view, and vice versa, so that the
    other node would see the change in one case only.
    """
    before = set(itertools.takewhile(lambda other: other is not node, node.graph.nodes))
    changed, reader = node.all_input_nodes[0], node
    while True:
        others = changed.users.keys() - {reader}
        if any(other in before and not _is_new(other, module) for other in others) or (others and reader is not node):
            return True
        if _is_new(changed, module) or not changed.all_input_nodes:
            return False
        changed, reader = changed.all_input_nodes[0], changed


def _is_new(node: fx.Node, module: nn.Module) -> bool:
    """Return whether a node returns a tensor that shares no memory with its inputs."""
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), (*_FRESH_LAYERS, *_RESIZING_LAYERS))
    if node.op not in ("call_function", "call_method") or _activates_in_place(node, module):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.target in _FRESH_FUNCTIONS or name == "interpolate" or _always_copies(name)


@cache
def _always_copies(name: str) -> bool:
    """Return whether a function or method of PyTorch never returns its input or a view of it, as its schemas declare.

    >>> [_always_copies(name) for name in ("relu", "view", "flatten", "contiguous", "unknown")]
    [True, False, False, False, False]
    """
    returned = [value for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}") for value in schema.returns]
    views = any(value.alias_info is not None and not value.alias_info.is_write for value in returned)
    return bool(returned) and not views and name not in DROPOUTS  # a dropout that drops nothing returns its input


def node_label(node: fx.Node) -> str:
    """Return the name of a node for users: that of the layer in the module if it calls one, otherwise its own."""
    return str(node.target) if node.op == "call_module" else node.name


def only_user(node: fx.Node) -> fx.Node | None:
    """Return the only node that reads the output of a node; None if no node or several nodes read it."""
    return next(iter(node.users)) if len(node.users) == 1 else None
