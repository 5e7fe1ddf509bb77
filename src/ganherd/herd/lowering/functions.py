"""Run the functions and methods of a traced graph, e.g. `x + y` or `x.reshape(…)`, for all N members (GANs) at once.

Tensors of all members are `[N, …]`, while the traced code is written for one member without the first axis. A rule
(`function_rules`, `shape_rules`) runs a function on all members directly; functions without a rule run through `vmap`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from ganherd.herd.lowering.function_rules import find_rule, tensor_first
from ganherd.herd.lowering.graph.trace import CREATES
from ganherd.herd.lowering.shape_rules import Call, basic_indices
from ganherd.herd.lowering.vmap import Draws, vmap_call
from ganherd.herd.member_randomness import DRAWS

# Functions of these modules, called without a tensor, return numbers; functions of other modules may create tensors.
_NUMBER_MODULES = ("_operator", "builtins", "math")
# Attributes that need no conversion to those of one member; `values` and `indices` are results of `max` and the like.
_PLAIN_ATTRIBUTES = ("dtype", "device", "is_cuda", "mT", "values", "indices")
_ATTRIBUTES: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda x: x.shape[1:],
    "ndim": lambda x: x.dim() - 1,
    "T": lambda x: x.permute(0, *range(x.dim() - 1, 0, -1)),
}


def is_supported(node: fx.Node) -> bool:
    """Return whether a function or method can run on all members at once; anything else runs through `vmap`."""
    if node.target is getattr:
        return node.args[1] in (*_ATTRIBUTES, *_PLAIN_ATTRIBUTES)
    if node.target is operator.getitem:
        return basic_indices(node.args[1], fx.Node) is not None  # an index that is a node is usually a size
    return getattr(node.target, "__module__", "") in ("builtins", "math") or find_rule(node) is not None


def may_draw(node: fx.Node) -> bool:
    """Return whether a function or method may draw random numbers; True for those that are not known."""
    name = node.target if isinstance(node.target, str) else node.target.__name__
    return name in DRAWS or not is_supported(node)


def prepare(node: fx.Node, library: Any) -> Callable[[Any, Any, Draws], Any]:
    """Return a function (args, kwargs, draws) -> result that runs a function or method of the graph for all members.

    Args:
        node: The node that calls the function or method.
        library: The library of operations, for rules that need one.
    """

    def method(x: Any, *rest: Any, **named: Any) -> Any:
        return getattr(x, str(node.target))(*rest, **named)

    function: Any = node.target if node.op == "call_function" else method
    rule, creates = find_rule(node), node.op == "call_function" and node.target in CREATES
    returns_number = node.op == "call_method" or getattr(function, "__module__", "") in _NUMBER_MODULES

    def run(args: Any, kwargs: Any, draws: Draws) -> Any:
        if function is getattr and is_supported(node):
            return _ATTRIBUTES[args[1]](args[0]) if args[1] in _ATTRIBUTES else getattr(*args)
        if not creates and not _has_tensor((args, kwargs)):
            return function(*args, **kwargs) if returns_number else vmap_call(function, args, kwargs, draws)
        if rule is not None:
            first, rest = tensor_first(args, kwargs)
            result = rule(Call(function, draws, library), *first, **rest)
            if result is not NotImplemented:
                return result
        return vmap_call(function, args, kwargs, draws)

    return run


def _has_tensor(values: Any) -> bool:
    """Return whether a value is a tensor, or a nested container with one."""
    if isinstance(values, dict):
        values = tuple(values.values())
    return any(map(_has_tensor, values)) if isinstance(values, (tuple, list)) else isinstance(values, Tensor)
