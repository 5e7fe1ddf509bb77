"""What a module keeps besides parameters and buffers, in a form that can be compared between calls and between modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from ganherd.herd.checks.hidden_state.comparable import OF_PYTORCH, Look

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def kept_by(net: nn.Module) -> dict[str, Any]:
    """Return all that a net keeps besides parameters and buffers, by name: attributes, and what hooks hold."""
    found: dict[str, Any] = {}
    parts = (*net.named_parameters(), *net.named_buffers(), *net.named_modules())
    look = Look({id(part): name for name, part in parts}, opens=lambda kind: True)
    for prefix, layer in net.named_modules():
        own = {name: value for name, value in vars(layer).items() if name not in OF_PYTORCH}
        for hooks in _HOOKS:
            own |= {f"hook {number}": hook for number, hook in enumerate(getattr(layer, hooks).values())}
        own |= {f"{name}.requires_grad": p.requires_grad for name, p in layer._parameters.items() if p is not None}
        found |= {f"{prefix}.{name}".lstrip("."): look.at(value) for name, value in own.items()}
    return found
