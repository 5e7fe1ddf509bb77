"""What a module's parameters and buffers are called: one that layers share has several names, and is kept under the first."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ganherd.herd.checks.source_line import where
from ganherd.util.errors import UserError

_PLACES: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer -> the one that it is kept under.

    >>> twice = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> twice[1].weight = twice[0].weight
    >>> kept(twice)
    {'0.weight': '0.weight', '0.bias': '0.bias', '1.weight': '0.weight', '1.bias': '1.bias'}
    """
    found: dict[str, str] = {}
    for named in (module.named_parameters, module.named_buffers):
        first = {id(tensor): name for name, tensor in named()}
        found |= {name: first[id(tensor)] for name, tensor in named(remove_duplicate=False)}
    return found


def attribute_paths(module: nn.Module) -> dict[str, str]:
    """Where parameters and buffers lie, each layer once -> the name that is kept; looked up once."""
    found = _PLACES.get(module)
    if found is None:
        found = _PLACES[module] = _attribute_paths(module)
    return found


def call_with_tensors(module: nn.Module, tensors: dict[str, Tensor], args: Any, kwargs: Any = None) -> Any:
    """What the module answers with these parameters and buffers, by the names that they are kept under; buffers that it puts in
    the place of others are in `tensors` after it.

    Every place is filled once. PyTorch, left to find shared parameters by itself, fills that of a layer which has two names
    twice, and leaves the caller's tensors in it.
    """
    own = attribute_paths(module)
    given = {place: tensors[name] for place, name in own.items()}
    out = functional_call(module, given, args, kwargs, tie_weights=False)
    tensors.update({name: given[place] for place, name in own.items()})
    return out


def _attribute_paths(module: nn.Module) -> dict[str, str]:
    """Where parameters and buffers lie, each layer once -> the name that is kept."""
    names, found = canonical_names(module), list[str]()
    for prefix, layer in module.named_modules():
        for named in (layer.named_parameters, layer.named_buffers):
            found += [place for place, _ in named(prefix, recurse=False, remove_duplicate=False)]
    return {place: names[place] for place in found}


def refuse_shared_buffers(module: nn.Module) -> None:
    """Layers may share parameters; PyTorch parts the buffers that they share as soon as a module is moved or cast."""
    owners: dict[int, str] = {}
    for prefix, layer in module.named_modules():
        for name, buffer in layer.named_buffers(prefix, recurse=False, remove_duplicate=False):
            if (other := owners.setdefault(id(buffer), name)) != name:
                raise UserError(
                    f"{other} and {name} of {type(module).__name__} are one buffer, which PyTorch parts when a module is "
                    "moved: give each layer its own, or share the whole layer."
                )


def _refuse_compiled(module: nn.Module) -> None:
    """Members take turns in one module, which code that was compiled for its own weights cannot follow."""
    for name, layer in module.named_modules():
        what = f"its layer {name}" if name else "it"
        compiled = type(layer).__name__ == "OptimizedModule" or getattr(layer, "_compiled_call_impl", None) is not None
        if isinstance(layer, torch.jit.ScriptModule) or compiled:
            call = "torch.compile" if compiled else "torch.jit"
            raise UserError(
                f"{type(module).__name__}{where(module)} cannot be stacked, since {what} is compiled with {call}: "
                f"leave {call} out."
            )


def refuse_other_numbers(module: nn.Module) -> None:
    """Members' rows hold real numbers of one type; a parameter of another kind would lose a part of it."""
    _refuse_compiled(module)
    kind = type(module).__name__
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_complex():
            raise UserError(
                f"{name} of {kind}{where(module, name)} is complex, which members' rows cannot hold: "
                "keep its real and imaginary part as two tensors."
            )
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point():
            raise UserError(
                f"parameter {name} of {kind}{where(module, name)} is not a float tensor, so it cannot be trained: make it a buffer."
            )
