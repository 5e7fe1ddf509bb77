"""Dropout whose probability is a buffer, not a constant, so that the members of a herd may differ in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ganherd.recipe.net_config import NetConfig


class VariedDropout(nn.Module):
    """Dropout whose probability is the buffer `p`. It draws the same masks as `nn.Dropout` of this probability."""

    p: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.register_buffer("p", torch.tensor(p, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = (torch.rand(x.shape, dtype=torch.float32, device=x.device) >= self.p).to(x.dtype)
        return x * (mask / (1.0 - self.p))


def vary_dropout(module: nn.Module) -> nn.Module:
    """Replace each `nn.Dropout` in a module by a `VariedDropout` of its probability, and return the module.

    >>> vary_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25)))[1].p.item()
    0.25
    """
    for layer in list(module.modules()):
        for name, child in layer.named_children():
            if type(child) is nn.Dropout:
                setattr(layer, name, VariedDropout(child.p).train(child.training))
    return module


def build_with_rates(net: NetConfig, rates: Iterable[float], make: Callable[[NetConfig], nn.Module]) -> nn.Module:
    """Build a net whose dropout layers are `VariedDropout`, so that each member can get its own probability later.

    Args:
        net: The name and the settings of the net.
        rates: The probability of each member; the layers are built with the largest.
        make: Function that builds a net with one probability of dropout.
    """
    return vary_dropout(make(net.model_copy(update={"settings": {**net.settings, "dropout": max(rates)}})))


def rates_of(module: nn.Module) -> dict[str, float]:
    """Return the probability of each `VariedDropout` in a module, by the name of its buffer `p` in the module."""
    layers = {f"{name}.p" if name else "p": layer for name, layer in module.named_modules()}
    return {name: float(layer.p) for name, layer in layers.items() if isinstance(layer, VariedDropout)}
