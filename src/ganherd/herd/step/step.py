"""One step of training for a block of members: discriminator updates, then a generator update, all members at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.engine.side_streams import SideStreams
from ganherd.herd.lowering.network import MemberNetwork, StackedNetwork
from ganherd.herd.rng import Streams
from ganherd.herd.state import Blueprint, State, buffers_of
from ganherd.herd.step.adam import clip_
from ganherd.herd.step.augmented_inputs import as_seen, input_noise
from ganherd.herd.step.mutation import draw_losses_
from ganherd.herd.step.opponents import FrozenOpponents
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.update import average_, update_
from ganherd.herd.step.weights import Weights
from ganherd.losses.adversarial import class_loss, gradient_penalty, r1_penalty

Batches = Callable[[int], tuple[Tensor, Tensor]]  # which batch of this step -> x [N, B, …] in model units, y [N, B]
SUMS = ("loss_d", "loss_g", "real", "fake")  # what a step adds to its [4, N] sums


@dataclass(frozen=True)
class _Now:
    """What the two updates of a step share."""

    step: int | Tensor
    rivals: FrozenOpponents | None


@dataclass(frozen=True)
class _Samples:
    """A generator's samples, the weights that they come from, and their labels if there are any."""

    weights: Weights
    y: Tensor | None  # [N, B]
    fake: Tensor  # [N, B, …]


class CannotBeFused(RuntimeError):
    """Only one member at a time can run a net; its text says why."""


class Step:
    """The step as a function of (state, batches, streams): it writes into the state's own storage and keeps nothing.

    `mapped`: all members in one call through `vmap`; otherwise the block holds a single member and its module is called plainly.
    """

    def __init__(
        self,
        g: Blueprint,
        d: Blueprint,
        rules: StepRules,
        mapped: bool,
        kernels: bool = False,
        lanes: SideStreams | None = None,
    ) -> None:
        """`lanes`: on a GPU, what does not depend on each other runs side by side."""
        self.g, self.d, self.rules, self._lanes = g, d, rules, lanes
        self._clippable = d.clipped(rules.clip_what)  # [P]
        for net in (g, d) if mapped else ():
            if net.habits.alone:
                raise CannotBeFused(f"{type(net.module).__name__}: {net.habits.alone}")
        self._play: dict[str, StackedNetwork] = {
            kind: StackedNetwork(net, True, kernels, rules.precision) if mapped else MemberNetwork(net, rules.precision)
            for kind, net in (("g", g), ("d", d))
        }
        # nothing is done to samples between the two nets
        self._plain = not (rules.input_noise or rules.augment or rules.game.penalty)
        # a penalty differentiates the discriminator twice; kernels that join their neighbours' work know once
        twice = (rules.game.penalty or rules.r1 > 0) and kernels and mapped
        self._critic = StackedNetwork(d, mapped, kernels, rules.precision, twice=True) if twice else self._play["d"]

    def __call__(
        self,
        state: State,
        batches: Batches,
        base: np.ndarray | Tensor,
        sums: Tensor,
        step: int,
        at: Tensor | None = None,
        rivals: FrozenOpponents | None = None,
    ) -> None:
        """`step` decides what is done; `at`, the same number on the device, keys the draws inside a captured graph.

        `rivals`: whom the members meet instead of their own partner; without, always the partner.
        """
        draws = Streams(base, step if at is None else at)
        now = _Now(step if at is None else at, rivals)
        if self.rules.drawn_losses:
            draw_losses_(state, draws, self.rules.drawn_losses)
        noise_scale = input_noise(self.rules, state, step if at is None else at)
        updates, first = self.rules.d_updates(step), self.rules.order == "g-d"
        shared = self._samples(state, batches, draws) if self.rules.fakes == "shared" else None
        if first:
            self._generator(state, batches, draws, noise_scale, sums, now, shared)
        made = None
        for update in range(updates):
            # the generator does not change meanwhile, so its own samples can be made beside the last update
            ahead = not (first or shared) and update == updates - 1 and self._lanes is not None
            prepare = (lambda: self._samples(state, batches, draws)) if ahead else None
            made = self._discriminator(state, batches(update), draws, update, noise_scale, sums, now, prepare, shared)
        if made is not None:
            self._join(1)
        if not first:
            self._generator(state, batches, draws, noise_scale, sums, now, made or shared)
        for play in self._play.values():
            play.release()

    # -- the two updates ------------------------------------------------------------------------------------------

    def _discriminator(
        self,
        state: State,
        batch: tuple[Tensor, Tensor],
        draws: Streams,
        update: int,
        noise_scale: Tensor | None,
        sums: Tensor,
        now: _Now,
        prepare: Callable[[], _Samples] | None = None,
        shared: _Samples | None = None,
    ) -> _Samples | None:
        """`prepare` is called when the generator is free again; what it answers is passed on. `shared`: samples that are there."""
        rules, choice = self.rules, state["set.loss"]
        x, y = batch
        weights = self._play["d"].weights(state["d.params"], state)
        first = 8 * (update + 1)  # every forward of a step has streams of its own
        with self._beside(0):
            with torch.no_grad():
                x = as_seen(rules, x, noise_scale, draws, update, 0)
            real_logits, real_classes = self._forward("d", state, weights.views(), (x,), y, draws, first + 1)  # [N, B]
        with torch.no_grad():
            if shared is None:
                z = self._noise(state, draws, update)
                fake, _ = self._opponent("g", state, now, (z,), y, draws, first, update + 1)
            else:
                fake = shared.fake.detach()
            fake = as_seen(rules, fake, noise_scale, draws, update, 1)
        made = None
        if prepare is not None:
            with self._beside(1):
                made = prepare()
        self._join(0)
        fake_logits, fake_classes = self._forward("d", state, weights.views(), (fake,), y, draws, first + 2)
        loss = rules.game.d(choice, real_logits, fake_logits)  # [N]
        if real_classes is not None and fake_classes is not None:
            loss = loss + rules.class_d * (class_loss(real_classes, y) + class_loss(fake_classes, y))
        loss = loss + self._penalty(state, weights, x, fake, y, draws, update)
        update_("d", state, self._gradients(weights, loss), rules, draws, update + 1, now.step)
        if rules.game.clip:
            self._clip(state, choice)
        sums[0].add_(loss.detach())
        sums[2].add_(real_logits.detach().mean(1))
        sums[3].add_(fake_logits.detach().mean(1))
        return made

    def _penalty(
        self,
        state: State,
        weights: Weights,
        x: Tensor,
        fake: Tensor,
        y: Tensor | None,
        draws: Streams,
        update: int,
    ) -> Tensor | float:
        """[N] what a steep discriminator pays: between real and made, where the loss says so, and at real ones (R1)."""
        rules, choice = self.rules, state["set.loss"]

        def critic(call: int) -> Callable[[Tensor], Tensor]:
            views = weights.views()
            return lambda at: self._forward("d", state, views, (at,), y, draws, call, play=self._critic)[0]

        found: Tensor | float = 0.0
        if rules.game.penalty:
            at = draws.draw((rng.PENALTY, update), (rules.batch,), "uniform", x.dtype)
            steep = rules.gp_weight * gradient_penalty(critic(8 * (update + 1) + 3), x, fake, at)
            found = found + torch.where(rules.game.has("penalty", choice), steep, torch.zeros_like(steep))
        if rules.r1 > 0:
            found = found + 0.5 * rules.r1 * r1_penalty(critic(8 * (update + 1) + 4), x)
        return found

    def _samples(self, state: State, batches: Batches, draws: Streams) -> _Samples:
        """What the generator is judged by, with the way back to its weights."""
        y = batches(self.rules.n_critic - 1)[1] if self.g.takes_label or self.d.takes_label else None
        z = self._noise(state, draws, self.rules.n_critic)
        weights = self._play["g"].weights(state["g.params"], state)
        return _Samples(weights, y, self._forward("g", state, weights.views(), (z,), y, draws, 0)[0])

    def _generator(
        self,
        state: State,
        batches: Batches,
        draws: Streams,
        noise_scale: Tensor | None,
        sums: Tensor,
        now: _Now,
        made: _Samples | None = None,
    ) -> None:
        rules = self.rules
        last = rules.n_critic  # a number of its own for the draws of this update
        if made is None:
            made = self._samples(state, batches, draws)
        seen = as_seen(rules, made.fake, noise_scale, draws, last, 1)
        logits, classes = self._opponent("d", state, now, (seen,), made.y, draws, 1, 0)
        loss = rules.game.g(state["set.loss"], logits)
        if classes is not None:
            y = made.y if made.y is not None else batches(rules.n_critic - 1)[1]
            loss = loss + rules.class_g * class_loss(classes, y)
        update_("g", state, self._gradients(made.weights, loss), rules, draws, 0, now.step)
        if rules.ema is not None:
            average_(state, rules.ema)
        sums[1].add_(loss.detach())

    def _gradients(self, weights: Weights, loss: Tensor) -> list[Tensor]:
        found = weights.gradients(loss)
        for play in self._play.values():
            play.settle()
        return found

    def _beside(self, lane: int) -> AbstractContextManager[None]:
        return nullcontext() if self._lanes is None else self._lanes.beside(lane)

    def _join(self, lane: int) -> None:
        if self._lanes is not None:
            self._lanes.join(lane)

    # -- what they are made of ------------------------------------------------------------------------------------

    def _opponent(
        self,
        kind: str,
        state: State,
        now: _Now,
        inputs: tuple[Tensor, ...],
        y: Tensor | None,
        draws: Streams,
        call: int,
        number: int,
    ) -> tuple[Tensor, Tensor | None]:
        """The nets that are met at this update, on inputs [N, B, …]; only the buffers of living ones move on."""
        blueprint = self.g if kind == "g" else self.d
        if now.rivals is None:
            return self._forward(kind, state, blueprint.views(state[f"{kind}.params"]), inputs, y, draws, call)
        u = draws.draw((rng.OPPONENT, number), (), "uniform", torch.float64)
        rows, buffers, living = now.rivals.opponent(kind, state, u)
        out = self._forward(kind, state, blueprint.views(rows), inputs, y, draws, call, buffers)
        for name, own in buffers_of(state, kind).items():
            alive = living.view(-1, *(1,) * (own.dim() - 1))
            own.copy_(torch.where(alive, buffers[name], own))
        return out

    def _forward(
        self,
        kind: str,
        state: State,
        views: dict[str, Tensor],
        inputs: tuple[Tensor, ...],
        y: Tensor | None,
        draws: Streams,
        call: int,
        buffers: dict[str, Tensor] | None = None,
        play: StackedNetwork | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """All members' modules on their own inputs [N, B, …]; their buffers, or those given, move on in place.

        (samples, or logits [N, B]; what it says of classes [N, B, K], where it says anything)
        """
        blueprint = self.g if kind == "g" else self.d
        buffers = buffers_of(state, kind) if buffers is None else buffers
        if blueprint.takes_label:
            assert y is not None
            inputs = (*inputs, y)

        def member_keys() -> Tensor:
            return draws.keys(rng.INSIDE, call)

        out, moved = (play or self._play[kind])(views, buffers, member_keys, inputs)
        with torch.no_grad():
            for name, value in moved.items():
                if value is not buffers[name]:  # kernels move them in place
                    buffers[name].copy_(value)
        out, classes = out if isinstance(out, tuple) else (out, None)
        if kind == "g" and self._plain:
            return out, None  # the discriminator computes in the same precision
        dtype = state["g.params"].dtype
        out = out.to(dtype)
        if kind == "g":
            return out, None
        return out.reshape(out.shape[0], self.rules.batch), None if classes is None else classes.to(dtype)

    def _clip(self, state: State, choice: Tensor) -> None:
        params, limit = state["d.params"], self.rules.clip
        if self._clippable.device != params.device:
            self._clippable = self._clippable.to(params.device)
        clip_(params, self._clippable, self.rules.game.has("clip", choice), limit)

    def _noise(self, state: State, draws: Streams, update: int) -> Tensor:
        """[N, B, Z] what an update makes its samples from."""
        shape, dtype = (self.rules.batch, self.rules.latent), state["g.params"].dtype
        return draws.prior((rng.NOISE, update), shape, self.rules.prior, dtype, state.get("set.prior"))
