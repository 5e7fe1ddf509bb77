"""Train one GAN in plain PyTorch: real module instances, `backward()` and the Adam of `torch.optim`.

This is the reference that `guard` holds every engine to. It shares with the engines only what defines a run: the initial
weights, the member's random streams, the order of the data and the losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam  # without torch.optim.Adam, whose first use imports the compiler, which takes seconds

from ganherd.data.feed import Feed
from ganherd.herd import streams
from ganherd.herd.rules import Rules
from ganherd.herd.state import takes_label
from ganherd.herd.streams import MemberRandomness, Streams
from ganherd.losses import class_loss, gradient_penalty, r1_penalty

Snapshot = dict[tuple[str, str, str], Tensor]  # (`g`, `d` or `` for both; `output`, `gradient` or `value`; name)


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of Adam that both sides of a comparison use.

    The large `eps` keeps the update proportional to the gradient: with a small one Adam turns the rounding error of a gradient
    that should be zero into a whole step. With `beta1` zero the first moment is the gradient of the last update.
    """

    lr: float = 0.1
    beta1: float = 0.0
    beta2: float = 0.9
    eps: float = 1.0


class PlainGan:
    """One member as a user would train it by hand; its modules are called as they are, with their hooks."""

    def __init__(
        self, g: nn.Module, d: nn.Module, row: int, base: np.ndarray, rules: Rules, feed: Feed, settings: Settings
    ) -> None:
        """`row`: the member's row in the feed. `base` [1]: the key of its random streams."""
        self.modules: Mapping[str, nn.Module] = {"g": g, "d": d}
        self._row, self._base, self._rules, self._feed = slice(row, row + 1), base, rules, feed
        self._settings = settings
        self._moments: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {}  # Adam's m, v and number of updates
        self._outputs: dict[str, Tensor] = {}
        self._gradients: dict[tuple[str, str], Tensor] = {}

    def step(self, number: int) -> None:
        """Update the discriminator, then the generator, in the order of calls that a step has."""
        draws = Streams(self._base, number)
        x, y = (part[0] for part in self._feed.batch_at(self._row, self._base, number))
        real, real_classes = self._call("d", x, y, draws, 9)
        with torch.no_grad():
            fake, _ = self._call("g", self._noise(draws, 0, x.dtype), y, draws, 8)
        logits, classes = self._call("d", fake, y, draws, 10)
        loss = self._rules.game.d(torch.zeros(1, dtype=torch.int64), real[None], logits[None])[0]
        if real_classes is not None and classes is not None:
            loss = loss + self._rules.class_d * (_class_loss(real_classes, y) + _class_loss(classes, y))
        loss_d = loss + self._penalty(x, fake, y, draws)
        self._update("d", loss_d)

        made, _ = self._call("g", self._noise(draws, 1, x.dtype), y, draws, 0)
        judged, classes = self._call("d", made, y, draws, 1)
        loss_g = self._rules.game.g(torch.zeros(1, dtype=torch.int64), judged[None])[0]
        if classes is not None:
            loss_g = loss_g + self._rules.class_g * _class_loss(classes, y)
        self._update("g", loss_g)
        self._outputs = {"loss_d": loss_d, "loss_g": loss_g, "real": real.mean(), "fake": logits.mean()}

    def snapshot(self) -> Snapshot:
        """Copy the outputs and gradients of the last step, and all parameters and buffers as they are now."""
        out: Snapshot = {("", "output", name): value.detach().clone() for name, value in self._outputs.items()}
        out |= {(kind, "gradient", name): value for (kind, name), value in self._gradients.items()}
        for kind, module in self.modules.items():
            named = (*module.named_parameters(), *module.named_buffers())
            out |= {(kind, "value", name): value.detach().clone() for name, value in named}
        return out

    def _call(self, kind: str, x: Tensor, y: Tensor, draws: Streams, call: int) -> tuple[Tensor, Tensor | None]:
        """(samples, or logits [B]; logits of each class [B, K] if the module returns any)"""
        module = self.modules[kind]
        with MemberRandomness(draws.keys(streams.INSIDE, call)[0]):
            out = module(x, y) if takes_label(module) else module(x)
        out, classes = out if isinstance(out, tuple) else (out, None)
        return (out if kind == "g" else out.reshape(len(x))), classes

    def _penalty(self, x: Tensor, fake: Tensor, y: Tensor, draws: Streams) -> Tensor | float:
        rules = self._rules
        total: Tensor | float = 0.0
        if rules.game.penalty:
            at = draws.draw((streams.PENALTY, 0), (rules.batch,), "uniform", x.dtype)
            steep = gradient_penalty(lambda at: self._call("d", at[0], y, draws, 11)[0][None], x[None], fake[None], at)
            total = total + rules.gp_weight * steep[0]
        if rules.r1 > 0:
            steep = r1_penalty(lambda at: self._call("d", at[0], y, draws, 12)[0][None], x[None])
            total = total + 0.5 * rules.r1 * steep[0]
        return total

    def _update(self, kind: str, loss: Tensor) -> None:
        for module in self.modules.values():
            module.zero_grad()
        loss.backward()
        for name, parameter in self.modules[kind].named_parameters():
            gradient = parameter.grad
            self._gradients[kind, name] = torch.zeros_like(parameter) if gradient is None else gradient.clone()
            if gradient is not None:
                self._descend(parameter, gradient)

    @torch.no_grad()
    def _descend(self, parameter: Tensor, gradient: Tensor) -> None:
        if parameter not in self._moments:
            self._moments[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter), torch.tensor(0.0)
        m, v, updates = self._moments[parameter]
        own = self._settings
        adam(
            [parameter], [gradient], [m], [v], [], [updates], amsgrad=False, maximize=False,
            lr=own.lr, beta1=own.beta1, beta2=own.beta2, eps=own.eps, weight_decay=0.0,
        )  # fmt: skip

    def _noise(self, draws: Streams, update: int, dtype: torch.dtype) -> Tensor:
        shape = (self._rules.batch, self._rules.latent)
        return draws.prior((streams.NOISE, update), shape, self._rules.prior, dtype)[0]


def _class_loss(classes: Tensor, y: Tensor) -> Tensor:
    return class_loss(classes[None], y[None])[0]
