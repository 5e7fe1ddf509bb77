"""Layers whose weights are drawn from N(0, 1) and scaled by their fan-in when they are applied (Karras et al., 2018).

All weights then have the same size, so one learning rate of Adam moves all layers at the same relative speed.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Scaled:
    """Base class of the layers below: `forward` multiplies the weight by `scale` and the bias by `rate`."""

    weight: Any
    bias: Any

    def __init__(self, *args: Any, gain: float = math.sqrt(2.0), rate: float = 1.0, **settings: Any) -> None:
        """Create the layer with a weight from N(0, 1/rate²) and a bias of 0.

        Args:
            args: Arguments of the layer of PyTorch.
            gain: The standard deviation of outputs for inputs of variance 1: √2 if a ReLU follows, otherwise 1.
            rate: Factor by which the layer learns faster or slower than others.
            settings: Further arguments of the layer of PyTorch.
        """
        super().__init__(*args, **settings)
        self.scale, self.rate = gain * rate / math.sqrt(self.weight[0].numel()), rate
        nn.init.normal_(self.weight, 0.0, 1.0 / rate)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def scaled_bias(self) -> Tensor | None:
        """Return the bias that the layer applies; None if it has none."""
        return None if self.bias is None else self.bias * self.rate


class ScaledConv2d(Scaled, nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._conv_forward(x, self.weight * self.scale, self.scaled_bias())
        return result


class ScaledLinear(Scaled, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale, self.scaled_bias())
