"""Train one GAN in plain PyTorch: real module instances, `backward()` and the Adam of `torch.optim`.

This is the reference with which `guard` compares every engine. It shares with the engines only what defines a run: the
initial weights, the member's random streams, the order of the data and the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam  # without torch.optim.Adam, whose first use imports the compiler, which takes seconds

from ganherd.herd import rng
from ganherd.herd.batch_feed import Feed
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.rng import Streams
from ganherd.herd.state import Seat, takes_label
from ganherd.herd.step.rules import StepRules
from ganherd.losses.adversarial import class_loss, gradient_penalty, r1_penalty

# Keys: (`g`, `d` or, for both nets, an empty string; `output`, `gradient` or `value`; name of the tensor)
Snapshot = dict[tuple[str, str, str], Tensor]


# Hyper-parameters of Adam that both sides of a comparison use. The large `eps` keeps the update proportional to the gradient:
# with a small one Adam turns the rounding error of a gradient that should be zero into a whole step. With `beta1` zero the
# first moment is the gradient of the last update.
ADAM = {"lr": 0.1, "beta1": 0.0, "beta2": 0.9, "eps": 1.0}


class PlainGan:
    """A GAN that is trained as a user would train it by hand: its modules are called as they are, with their hooks."""

    def __init__(
        self, nets: Sequence[nn.Module], seat: Seat, rules: StepRules, feed: Feed, separate_backward: bool
    ) -> None:
        """Take a generator and a discriminator.

        Args:
            nets: The generator and the discriminator.
            seat: The identity of the member, which determines its random streams; its slot is its row in the feed.
            separate_backward: Whether to call `backward()` after each forward pass instead of once after all of them.
                This is the only way to train modules whose forward pass changes a tensor in place that an earlier pass
                needs for its gradient, e.g. a buffer that they divide by.
        """
        self.modules = dict(zip("gd", nets, strict=True))
        self._row, self._base = slice(seat.slot, seat.slot + 1), np.array([seat.base_key()])
        self._rules, self._feed, self._separate_backward = rules, feed, separate_backward
        self._moments: dict[
            Tensor, tuple[Tensor, Tensor, Tensor]
        ] = {}  # parameter -> Adam's m, v and number of updates
        self._outputs: dict[str, Tensor] = {}
        self._gradients: dict[tuple[str, str], Tensor] = {}

    def step(self, number: int) -> None:
        """Train for the step with this number: update the discriminator, then the generator, as `Step` does."""
        draws = Streams(self._base, number)
        x, y = (value[0] for value in self._feed.batch_at(self._row, self._base, number))
        game, choice, nothing = self._rules.game, torch.zeros(1, dtype=torch.int64), x.new_zeros(1, len(x))

        self._begin()
        real, classes = self._call("d", x, y, draws, 9)
        self._add_loss(game.d(choice, real[None], nothing)[0], self._rules.class_d, classes, y)
        with torch.no_grad():
            fake, _ = self._call("g", self._noise(draws, 0, x.dtype), y, draws, 8)
        logits, classes = self._call("d", fake, y, draws, 10)
        fake_loss = game.d(choice, nothing, logits[None])[0] - game.d(choice, nothing, nothing)[0]
        self._add_loss(fake_loss, self._rules.class_d, classes, y)
        for penalty in self._penalties(x, fake, y, draws):
            self._add_loss(penalty)
        loss_d = self._update("d")

        self._begin()
        samples, _ = self._call("g", self._noise(draws, 1, x.dtype), y, draws, 0)
        sample_logits, classes = self._call("d", samples, y, draws, 1)
        self._add_loss(game.g(choice, sample_logits[None])[0], self._rules.class_g, classes, y)
        loss_g = self._update("g")
        self._outputs = {"loss_d": loss_d, "loss_g": loss_g, "real": real.mean(), "fake": logits.mean()}

    def snapshot(self) -> Snapshot:
        """Return copies of the outputs and gradients of the last step, and of all present parameters and buffers."""
        out: Snapshot = {("", "output", name): value.detach().clone() for name, value in self._outputs.items()}
        out |= {(kind, "gradient", name): value for (kind, name), value in self._gradients.items()}
        for kind, module in self.modules.items():
            named = (*module.named_parameters(), *module.named_buffers())
            out |= {(kind, "value", name): value.detach().clone() for name, value in named}
        return out

    def _call(self, kind: str, x: Tensor, y: Tensor, draws: Streams, call: int) -> tuple[Tensor, Tensor | None]:
        """Call the generator (`g`) or the discriminator (`d`).

        Args:
            call: The number of the forward pass within the step, for random draws inside the module.

        Returns:
            Samples [B, …] or logits [B], and class logits [B, K] or None.
        """
        module = self.modules[kind]
        with MemberRandomness(draws.keys(rng.INSIDE, call)[0]):
            out = module(x, y) if takes_label(module) else module(x)
        out, classes = out if isinstance(out, tuple) else (out, None)
        return (out if kind == "g" else out.reshape(len(x))), classes

    def _penalties(self, x: Tensor, fake: Tensor, y: Tensor, draws: Streams) -> Iterator[Tensor]:
        """Yield the weighted gradient penalties of the discriminator that the rules require."""
        rules = self._rules

        def critic(call: int) -> Callable[[Tensor], Tensor]:
            return lambda at: self._call("d", at[0], y, draws, call)[0][None]

        if rules.game.penalty:
            mix = draws.draw((rng.PENALTY, 0), (rules.batch,), "uniform", x.dtype)
            yield rules.gp_weight * gradient_penalty(critic(11), x[None], fake[None], mix)[0]
        if rules.r1 > 0:
            yield 0.5 * rules.r1 * r1_penalty(critic(12), x[None])[0]

    def _begin(self) -> None:
        """Begin an update of a net: clear all gradients and the terms of the loss."""
        self._terms: list[Tensor] = []
        for module in self.modules.values():
            module.zero_grad()

    def _add_loss(
        self, term: Tensor, class_weight: float = 0.0, classes: Tensor | None = None, y: Tensor | None = None
    ) -> None:
        """Add a term to the loss of the present update.

        Args:
            class_weight: Weight of the class loss, which is added if there are class logits.
            classes: [B, K] class logits, or None.
            y: [B] labels.
        """
        if classes is not None and y is not None:
            term = term + class_weight * class_loss(classes[None], y[None])[0]
        if self._separate_backward:
            term.backward()
        self._terms.append(term.detach() if self._separate_backward else term)

    def _update(self, kind: str) -> Tensor:
        """Finish an update of one net (`g` or `d`): compute gradients, take an Adam step, and return the loss."""
        loss = torch.stack(self._terms).sum()
        if not self._separate_backward:
            loss.backward()
        for name, parameter in self.modules[kind].named_parameters():
            gradient = parameter.grad
            self._gradients[kind, name] = torch.zeros_like(parameter) if gradient is None else gradient.clone()
            if gradient is not None:
                self._adam_step(parameter, gradient)
        return loss

    @torch.no_grad()
    def _adam_step(self, parameter: Tensor, gradient: Tensor) -> None:
        """Take one Adam step for one parameter, in place."""
        if parameter not in self._moments:
            self._moments[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter), torch.tensor(0.0)
        params, grads, m, v, updates = ([tensor] for tensor in (parameter, gradient, *self._moments[parameter]))
        adam(params, grads, m, v, [], updates, amsgrad=False, maximize=False, weight_decay=0.0, **ADAM)  # type: ignore[arg-type]

    def _noise(self, draws: Streams, update: int, dtype: torch.dtype) -> Tensor:
        """Return the generator's random input [B, Z] for the update with this number."""
        shape = (self._rules.batch, self._rules.latent)
        return draws.prior((rng.NOISE, update), shape, self._rules.prior, dtype)[0]
