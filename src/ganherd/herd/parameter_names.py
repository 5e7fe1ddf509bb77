"""Name a module's parameters and buffers, and refuse modules whose tensors cannot be stacked for many members (GANs).

A tensor that layers share has several names. The first of them is its canonical name.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ganherd.herd.checks.source_line import assignment_line
from ganherd.util.errors import UserError

_PATHS: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return the canonical name of each parameter and buffer by each of its names.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> net[1].weight = net[0].weight
    >>> canonical_names(net)
    {'0.weight': '0.weight', '0.bias': '0.bias', '1.weight': '0.weight', '1.bias': '1.bias'}
    """
    names: dict[str, str] = {}
    for named in (module.named_parameters, module.named_buffers):
        first = {id(tensor): name for name, tensor in named()}
        names |= {name: first[id(tensor)] for name, tensor in named(remove_duplicate=False)}
    return names


def attribute_paths(module: nn.Module) -> dict[str, str]:
    """Return the canonical name of each parameter and buffer by its path (name of the layer and attribute), cached.

    A layer that has several names appears under the first one only. A tensor that several layers share has a path in
    each of them.
    """
    if module not in _PATHS:
        names, paths = canonical_names(module), list[str]()
        for prefix, layer in module.named_modules():
            for named in (layer.named_parameters, layer.named_buffers):
                paths += [path for path, _ in named(prefix, recurse=False, remove_duplicate=False)]
        _PATHS[module] = {path: names[path] for path in paths}
    return _PATHS[module]


def call_with_tensors(module: nn.Module, tensors: dict[str, Tensor], args: Any, kwargs: Any = None) -> Any:
    """Call a module with other parameters and buffers than its own, and return its output.

    The paths of shared tensors are looked up here instead of by the option `tie_weights` of `functional_call`: for a
    layer with two names, that option would set its tensors twice, and leave the caller's tensors in the module
    afterwards.

    Args:
        tensors: Parameters and buffers by canonical name. If the call replaces a buffer, the new one is put into this
            dictionary.
        args, kwargs: Arguments of the module.
    """
    paths = attribute_paths(module)
    by_path = {path: tensors[name] for path, name in paths.items()}
    out = functional_call(module, by_path, args, kwargs, tie_weights=False)
    tensors.update({name: by_path[path] for path, name in paths.items()})
    return out


def refuse_shared_buffers(module: nn.Module) -> None:
    """Raise `UserError` if layers share a buffer, of which PyTorch makes copies when the module is moved or cast."""
    owners: dict[int, str] = {}
    for prefix, layer in module.named_modules():
        for name, buffer in layer.named_buffers(prefix, recurse=False, remove_duplicate=False):
            if (other := owners.setdefault(id(buffer), name)) != name:
                raise UserError(
                    f"{other} and {name} of {type(module).__name__} are one buffer, which PyTorch splits into copies when a "
                    "module is moved. Give each layer its own buffer, or share the whole layer."
                )


def _refuse_compiled(module: nn.Module) -> None:
    """Raise `UserError` if a layer is compiled by `torch.compile` or `torch.jit`.

    Members take turns in one module with other weights, but compiled code is bound to the weights that it was compiled
    with.
    """
    for name, layer in module.named_modules():
        subject = f"its layer {name}" if name else "it"
        compiled = type(layer).__name__ == "OptimizedModule" or getattr(layer, "_compiled_call_impl", None) is not None
        if isinstance(layer, torch.jit.ScriptModule) or compiled:
            call = "torch.compile" if compiled else "torch.jit"
            raise UserError(
                f"{type(module).__name__}{assignment_line(module)} cannot be stacked, because {subject} is compiled with {call}: "
                f"leave {call} out."
            )


def refuse_unsupported_tensors(module: nn.Module) -> None:
    """Raise `UserError` if the module is compiled, or if it has tensors that cannot be stacked.

    The parameters of a member are one row of real floating-point numbers of one dtype; so complex or integer parameters
    cannot be stacked, nor complex buffers.
    """
    _refuse_compiled(module)
    kind = type(module).__name__
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_complex():
            raise UserError(
                f"{name} of {kind}{assignment_line(module, name)} is complex, which members' rows cannot hold: "
                "keep its real and imaginary part as two tensors."
            )
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point():
            raise UserError(
                f"parameter {name} of {kind}{assignment_line(module, name)} is not a float tensor, so it cannot be trained: "
                "make it a buffer."
            )
