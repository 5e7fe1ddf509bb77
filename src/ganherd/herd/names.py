"""What a module's parameters and buffers are called: one that layers share has several names, and is kept under the first."""

from __future__ import annotations

from torch import nn

from ganherd.errors import UserError


def kept(module: nn.Module) -> dict[str, str]:
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


def refuse_shared_buffers(module: nn.Module) -> None:
    """Layers may share parameters; PyTorch parts the buffers that they share as soon as a module is moved or cast."""
    owners: dict[int, str] = {}
    for prefix, layer in module.named_modules():
        for name, buffer in layer.named_buffers(prefix, recurse=False):
            if (other := owners.setdefault(id(buffer), name)) != name:
                raise UserError(
                    f"{other} and {name} of {type(module).__name__} are one buffer, which PyTorch parts when a module is "
                    "moved: give each layer its own, or share the whole layer."
                )
