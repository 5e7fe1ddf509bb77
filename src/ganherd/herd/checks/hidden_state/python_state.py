"""Copy the attributes of a module, except parameters and buffers, in a form that can be compared between calls and modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from ganherd.herd.checks.hidden_state.comparable import OF_PYTORCH, Look

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def copy_attributes(net: nn.Module) -> dict[str, Any]:
    """Return a comparable copy of all attributes of a net and of the state of its hooks, except parameters and buffers."""
    state: dict[str, Any] = {}
    registered = (*net.named_parameters(), *net.named_buffers(), *net.named_modules())
    look = Look({id(value): name for name, value in registered}, opens=lambda kind: True)
    for prefix, layer in net.named_modules():
        own = {name: value for name, value in vars(layer).items() if name not in OF_PYTORCH}
        for hooks in _HOOKS:
            own |= {f"hook {number}": hook for number, hook in enumerate(getattr(layer, hooks).values())}
        own |= {f"{name}.requires_grad": p.requires_grad for name, p in layer._parameters.items() if p is not None}
        state |= {f"{prefix}.{name}".lstrip("."): look.at(value) for name, value in own.items()}
    return state
