"""Copy the state of a module in a form that can be compared between calls and modules."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ganherd.herd.checks.hidden_state.comparable import OF_PYTORCH, Copier
from ganherd.herd.checks.module_copies import HOOKS


def copy_numbers(net: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers of a net by name."""
    return {name: value.detach().clone() for name, value in (*net.named_parameters(), *net.named_buffers())}


def copy_attributes(net: nn.Module) -> dict[str, Any]:
    """Return comparable copies (see `Copier`) of all attributes and hooks of a net's layers, by dotted name.

    Parameters and buffers are left out, but not their flags `requires_grad`.
    """
    state: dict[str, Any] = {}
    registered = (*net.named_parameters(), *net.named_buffers(), *net.named_modules())
    copier = Copier({id(value): name for name, value in registered}, opens=lambda kind: True)
    for prefix, layer in net.named_modules():
        own = {name: value for name, value in vars(layer).items() if name not in OF_PYTORCH}
        for hooks in HOOKS:
            own |= {f"hook {number}": hook for number, hook in enumerate(getattr(layer, hooks).values())}
        own |= {f"{name}.requires_grad": p.requires_grad for name, p in layer._parameters.items() if p is not None}
        state |= {f"{prefix}.{name}".lstrip("."): copier.copy(value) for name, value in own.items()}
    return state
