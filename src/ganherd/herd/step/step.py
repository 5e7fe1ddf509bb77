"""Train a block of N members (GANs) for one step: discriminator updates and a generator update, all members at once.

A block is a range of members that are trained together. Every random draw belongs to a member, a step and a numbered
purpose, so that it does not depend on which members are in the block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.draws_ahead import DrawsAhead
from ganherd.herd.engine.side_streams import SideStreams
from ganherd.herd.lowering.kernels.gradient_stream import GradientStream
from ganherd.herd.lowering.network import MemberNetwork, StackedNetwork
from ganherd.herd.rng import Streams
from ganherd.herd.state import Blueprint, State, buffers_of
from ganherd.herd.step.augmented_inputs import augment_inputs, input_noise_scale
from ganherd.herd.step.discriminator_terms import DiscriminatorUpdate, penalties, regularisers
from ganherd.herd.step.mutation import draw_losses_
from ganherd.herd.step.opponents import FrozenOpponents, choose_members
from ganherd.herd.step.optimizer import clip_, update_, update_ema_
from ganherd.herd.step.partial_terms import only_for
from ganherd.herd.step.regularisers import track_logits_
from ganherd.herd.step.rules import StepRules
from ganherd.herd.step.weights import Weights
from ganherd.losses.adversarial import class_loss

# (`g` or `d`, gradients of a block, cut into pieces [N, …]) -> the gradients that Adam takes instead
GradientHook = Callable[[str, list[Tensor]], list[Tensor]]
Batches = Callable[[int], tuple[Tensor, Tensor]]  # number of a batch within the step -> x [N, B, …], y [N, B]
SUMS = ("loss_d", "loss_g", "real", "fake")  # what a step adds to its sums [4, N]

# Numbers of the side streams of a GPU. On the first the discriminators process real images while fakes are generated;
# on the second the samples of the next generator update are generated.
_REAL, _AHEAD = 0, 1


@dataclass(frozen=True)
class _StepContext:
    """The inputs and settings that all updates of one step share; see `Step.__call__`."""

    state: State
    batches: Batches
    draws: Streams  # the members' random numbers at this step
    step: int | Tensor  # a tensor inside a captured graph
    uses_r1_or_r2: bool  # whether R1 and R2 act at this step
    noise_scale: Tensor | None  # [N] standard deviation of the input noise; None: no noise
    sums: tuple[Tensor, ...]  # [N] each, one for each name in `SUMS`
    opponents: FrozenOpponents | None  # None: each member trains against its own partner
    gradient_hook: GradientHook | None


@dataclass(frozen=True)
class _Samples:
    """Samples of the generators, with the autograd graph back to their weights."""

    weights: Weights  # of the generators
    y: Tensor | None  # [N, B] the labels of the samples; None: no net takes labels
    fake: Tensor  # [N, B, …] the samples


class CannotBeFused(RuntimeError):
    """Raised if a net can be run for only one member at a time; the message gives the reason."""


class Step:
    """One training step of a block of members as a function of (state, batches, random streams).

    It updates the state in place. Nothing else is carried from one call to the next that would change results.
    """

    def __init__(
        self,
        g: Blueprint,
        d: Blueprint,
        rules: StepRules,
        fused: bool,
        operations: str = "plain",
        streams: SideStreams | None = None,
    ) -> None:
        """Prepare both nets.

        Args:
            g, d: Blueprints of the generator and the discriminator.
            fused: Run all members of a block in one call; otherwise each block has one member, whose module is called
                plainly.
            operations: The library of operations of a fused step, one of `OPERATIONS`.
            streams: CUDA streams on which independent work of a step runs in parallel; None: run everything in
                sequence.

        Raises:
            CannotBeFused: If `fused` and a net can only be run for one member at a time.
        """
        self.g, self.d, self.rules, self._streams = g, d, rules, streams
        self._gradient_stream = None if streams is None else GradientStream(streams.device)
        self._ahead = DrawsAhead()
        self._clip_mask = d.clip_mask(rules.clip_what)  # bool [P], True for parameters that weight clipping changes
        # bool [P] for each kind of net, True for parameters that weight decay and L2 act on; None: they act on all.
        self._shrinkable = {
            kind: None if all(net.trainable.values()) or not (rules.weight_decay or rules.l2) else net.clip_mask("all")
            for kind, net in (("g", g), ("d", d))
        }
        for net in (g, d) if fused else ():
            if net.traits.why_not_fused:
                raise CannotBeFused(f"{type(net.module).__name__}: {net.traits.why_not_fused}")
        self._networks: dict[str, StackedNetwork] = {
            kind: StackedNetwork(net, True, operations, rules.precision, used_once=kind == "g")
            if fused
            else MemberNetwork(net, rules.precision)
            for kind, net in (("g", g), ("d", d))
        }
        # If nothing changes samples between the two nets, they stay in the precision in which the generator computes.
        self._keeps_precision = not (rules.input_noise or rules.augment or rules.game.penalty)
        # A penalty differentiates the discriminator twice; kernels that are fused with their neighbours allow it only once.
        penalised = rules.game.penalty or (rules.uses_r1_or_r2 and not rules.slope_noise)
        double = penalised and operations == "triton" and fused
        self._critic = self._networks["d"]
        if double:
            self._critic = StackedNetwork(d, fused, operations, rules.precision, double_backward=True)

    def __call__(
        self,
        state: State,
        batches: Batches,
        base: np.ndarray | Tensor,
        sums: Tensor,
        step: int,
        at: Tensor | None = None,
        opponents: FrozenOpponents | None = None,
        gradient_hook: GradientHook | None = None,
    ) -> None:
        """Train all members of the block for one step, in place.

        Args:
            state: The stacked state of the block; see `herd.state`.
            batches: Returns the batches of this step by their number.
            base: [N] the members' base keys, from which all of their random draws are derived.
            sums: [4, N]; the step adds its losses and mean logits, see `SUMS`.
            step: The number of the step, which decides which nets are updated.
            at: The same number as a tensor, from which draws are derived inside a captured graph.
            opponents: The nets that members train against; None: each trains against its own partner.
            gradient_hook: Replaces the gradients of the block before Adam takes them.
        """
        now = step if at is None else at
        draws = Streams(base, now, self._ahead)
        if self.rules.drawn_losses:
            draw_losses_(state, draws, self.rules.drawn_losses)
        scale = input_noise_scale(self.rules, state, now)
        uses_r1_or_r2 = self.rules.uses_r1_or_r2_at(step)
        ctx = _StepContext(state, batches, draws, now, uses_r1_or_r2, scale, sums.unbind(), opponents, gradient_hook)
        updates, generator_first = self.rules.d_updates(step), self.rules.order == "g-d"
        shares, shared, samples = self.rules.fakes == "shared", None, None
        if generator_first:
            shared = self._samples(ctx) if shares else None
            self._update_generator(ctx, shared)
        for update in range(updates):
            is_last = update == updates - 1
            if is_last and shares and not generator_first:
                shared = self._samples(ctx)
            # The generator does not change during the last discriminator update, so its samples can be drawn in parallel.
            ahead = is_last and not (generator_first or shares) and self._streams is not None
            samples = self._update_discriminator(ctx, update, shared if is_last else None, ahead)
        if samples is not None:
            self._join(_AHEAD)
        if not generator_first:
            self._update_generator(ctx, samples or shared)

    def release(self) -> None:
        """Restore the weights that users' modules held before the first step, and drop random numbers drawn ahead."""
        self._ahead.clear()
        for network in self._networks.values():
            network.release()

    # -- the two updates ------------------------------------------------------------------------------------------

    def _update_discriminator(
        self, ctx: _StepContext, update: int, shared: _Samples | None, ahead: bool
    ) -> _Samples | None:
        """Make one discriminator update: forward passes of real and generated images, loss, gradients and Adam.

        Args:
            update: The number of the update within the step.
            shared: Samples to train on; None: generate new ones.
            ahead: Whether to also generate the samples of the next generator update, in parallel.

        Returns:
            The samples of the next generator update if `ahead`, otherwise None.
        """
        rules, state, draws = self.rules, ctx.state, ctx.draws
        weights = self._networks["d"].weights(state["d.params"], state)
        call = 8 * (update + 1)  # forward passes have numbers, by which they draw differently: 8 for each update
        # Generators without labels need not wait for the batch. The side stream reads it until the join; if it were released
        # earlier, its memory could be overwritten.
        with nullcontext() if self.g.takes_label else self._fork(_REAL):
            batch, y = ctx.batches(update)
        with self._fork(_REAL):
            with torch.no_grad():
                x = augment_inputs(rules, batch, ctx.state, ctx.noise_scale, draws, update, 0, ctx.step)
            real_logits, real_classes = self._forward("d", ctx, weights.views(), x, y, call + 1)  # [N, B]
        with torch.no_grad():
            if shared is None:
                z = self._noise(ctx, update)
                fake, _ = self._opponent("g", ctx, z, y, call, update + 1)
            else:
                fake = shared.fake.detach()
            fake = augment_inputs(rules, fake, ctx.state, ctx.noise_scale, draws, update, 1, ctx.step)
        samples = None
        if ahead:
            with self._fork(_AHEAD):
                samples = self._samples(ctx)
        self._join(_REAL)
        fake_logits, fake_classes = self._forward("d", ctx, weights.views(), fake, y, call + 2)
        loss = rules.game.d(state["set.loss"], real_logits, fake_logits)  # [N]
        if real_classes is not None and fake_classes is not None:
            loss = loss + rules.class_d * (class_loss(real_classes, y) + class_loss(fake_classes, y))

        def critic(images: Tensor, number: int, twice: bool) -> Tensor:
            return self._forward("d", ctx, weights.views(), images, y, call + number, twice)[0]

        images, logits = (x, fake), (real_logits, fake_logits)
        this_update = DiscriminatorUpdate(
            rules, state, draws, ctx.step, update, ctx.uses_r1_or_r2, images, logits, critic, self._lacks_term
        )
        for terms in (list(penalties(this_update)), list(regularisers(this_update))):
            loss = loss + sum(terms[1:], terms[0]) if terms else loss
        gradients = self._gradients("d", ctx, weights, loss)
        update_("d", state, gradients, rules, draws, update + 1, ctx.step, self._shrinkable_of("d", state))
        if rules.game.clip:
            self._clip_weights(state)
        track_logits_(rules, state, real_logits, fake_logits)
        ctx.sums[0].add_(loss.detach())
        ctx.sums[2].add_(real_logits.detach().mean(1))
        ctx.sums[3].add_(fake_logits.detach().mean(1))
        return samples

    def _samples(self, ctx: _StepContext) -> _Samples:
        """Generate the samples of the generator update, with the autograd graph back to the generators' weights."""
        y = ctx.batches(self.rules.n_critic - 1)[1] if self.g.takes_label or self.d.takes_label else None
        z = self._noise(ctx, self.rules.n_critic)
        weights = self._networks["g"].weights(ctx.state["g.params"], ctx.state)
        views, stream = weights.views(), self._gradient_stream
        once = [views[name] for name in self._networks["g"].parameters_used_once if name in views]
        with nullcontext() if stream is None else stream.active(once):
            return _Samples(weights, y, self._forward("g", ctx, views, z, y, 0)[0])

    def _update_generator(self, ctx: _StepContext, samples: _Samples | None = None) -> None:
        """Make the generator update on these samples, or on new ones if `samples` is None."""
        rules, state = self.rules, ctx.state
        last = rules.n_critic  # numbers the draws of this update; those of the discriminator have 0, …, n_critic - 1
        if samples is None:
            samples = self._samples(ctx)
        fake = augment_inputs(rules, samples.fake, ctx.state, ctx.noise_scale, ctx.draws, last, 1, ctx.step)
        logits, classes = self._opponent("d", ctx, fake, samples.y, 1, 0)
        real_logits = self._real_logits(ctx, logits) if rules.game.g_sees_real else None
        loss = rules.game.g(state["set.loss"], logits, real_logits)
        if classes is not None:
            y = samples.y if samples.y is not None else ctx.batches(rules.n_critic - 1)[1]
            loss = loss + rules.class_g * class_loss(classes, y)
        gradients = self._gradients("g", ctx, samples.weights, loss)
        update_("g", state, gradients, rules, ctx.draws, 0, ctx.step, self._shrinkable_of("g", state))
        if rules.ema is not None:
            update_ema_(state, rules.ema)
        ctx.sums[1].add_(loss.detach())

    @torch.no_grad()
    def _real_logits(self, ctx: _StepContext, unused: Tensor) -> Tensor:
        """Return the opponents' logits of real images [N, B], for losses that compare generated images with real ones.

        Args:
            unused: Logits to return for a member that is alone in its block and has another loss.
        """
        last, members = self.rules.n_critic, self.rules.game.sees_real(ctx.state["set.loss"])
        if self._lacks_term(members):
            return unused
        batch, y = ctx.batches(last - 1)
        x = augment_inputs(self.rules, batch, ctx.state, ctx.noise_scale, ctx.draws, last, 0, ctx.step)
        with only_for(members, buffers_of(ctx.state, "d")):
            return self._opponent("d", ctx, x, y, 2, 0)[0]

    def _lacks_term(self, members: Tensor | None) -> bool:
        """Return whether a term is not measured, because the only member of the block, in its own module, lacks it.

        Args:
            members: Which members have the term, bool [N]; None: all.
        """
        return members is not None and isinstance(self._networks["d"], MemberNetwork) and not bool(members.any())

    def _gradients(self, kind: str, ctx: _StepContext, weights: Weights, loss: Tensor) -> list[Tensor]:
        """Return the gradients of the losses [N] by the weights of generators (`g`) or discriminators (`d`), in pieces.

        The backward pass may update buffers of the nets; these are then written to the state.
        """
        stream = self._gradient_stream
        gradients = weights.gradients(loss, stream.join if stream is not None and kind == "g" else None)
        for network in self._networks.values():
            network.commit_buffers()
        return gradients if ctx.gradient_hook is None else ctx.gradient_hook(kind, gradients)

    def _fork(self, stream: int) -> AbstractContextManager[None]:
        """Return a context whose body runs on a side stream, or on the current stream if there are no side streams."""
        return nullcontext() if self._streams is None else self._streams.fork(stream)

    def _join(self, stream: int) -> None:
        """Make the current stream wait for a side stream; do nothing if there are no side streams."""
        if self._streams is not None:
            self._streams.join(stream)

    # -- building blocks ------------------------------------------------------------------------------------------

    def _opponent(
        self, kind: str, ctx: _StepContext, x: Tensor, y: Tensor | None, call: int, number: int
    ) -> tuple[Tensor, Tensor | None]:
        """Call the opponents' nets on inputs x [N, B, …], and return their outputs; see `_forward`.

        Without frozen opponents each member's own partner is called. Buffers are updated only for members that meet
        their own partner, not in frozen copies.

        Args:
            kind: `g` to call generators, `d` to call discriminators.
            y: [N, B] labels, for nets that take them.
            call: The number of this forward pass within the step, for random draws inside the nets.
            number: The number of the update within the step, for the random choice of the opponents.
        """
        if ctx.opponents is None:
            living = self._networks[kind].weights(ctx.state[f"{kind}.params"], ctx.state)
            return self._forward(kind, ctx, living.constants, x, y, call)
        u = ctx.draws.draw((rng.OPPONENT, number), (), "uniform", torch.float64)
        picked, is_living = ctx.opponents.pick(kind, ctx.state, u)
        against = replace(ctx, state=ctx.state | picked)
        views = (self.g if kind == "g" else self.d).views(picked[f"{kind}.params"])
        out = self._forward(kind, against, views, x, y, call)
        own = buffers_of(ctx.state, kind)
        for name, value in choose_members(is_living, buffers_of(against.state, kind), own).items():
            own[name].copy_(value)
        return out

    def _forward(
        self, kind: str, ctx: _StepContext, views: State, x: Tensor, y: Tensor | None, call: int, twice: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Run all members' nets of a kind on their inputs x [N, B, …], and update the buffers of the state.

        Args:
            kind: `g` for generators, `d` for discriminators.
            views: Parameters [N, …] by canonical name.
            y: [N, B] labels, for nets that take them.
            call: The number of this forward pass within the step, for random draws inside the nets.
            twice: Whether the output will be differentiated twice.

        Returns:
            Samples [N, B, …] or logits [N, B], and class logits [N, B, K] if the discriminator predicts classes, or
            None.
        """
        network = self._critic if twice else self._networks[kind]
        buffers = buffers_of(ctx.state, kind) if network.net.buffers else {}
        inputs: tuple[Tensor, ...] = (x,)
        if network.net.takes_label:
            assert y is not None
            inputs = (x, y)
        out, new_buffers = network(views, buffers, partial(ctx.draws.keys, rng.INSIDE, call), inputs)
        for name, value in new_buffers.items():
            if value is not buffers[name]:  # kernels update them in place
                buffers[name].copy_(value.detach())
        out, classes = out if isinstance(out, tuple) else (out, None)
        dtype = ctx.state["g.params"].dtype
        if kind == "g":
            return (out if self._keeps_precision else out.to(dtype)), None
        shape = (len(out), self.rules.batch)
        logits = out.to(dtype) if out.shape == shape else out.to(dtype).reshape(shape)
        return logits, None if classes is None else classes.to(dtype)

    def _shrinkable_of(self, kind: str, state: State) -> Tensor | None:
        """Return which parameters weight decay and L2 act on, bool [P] on the state's device; None: all of them."""
        mask, device = self._shrinkable[kind], state[f"{kind}.params"].device
        if mask is not None and mask.device != device:
            mask = self._shrinkable[kind] = mask.to(device)
        return mask

    def _clip_weights(self, state: State) -> None:
        """Clip the discriminators' weights, for members whose loss requires it."""
        params = state["d.params"]
        if self._clip_mask.device != params.device:
            self._clip_mask = self._clip_mask.to(params.device)
        clip_(params, self._clip_mask, self.rules.game.has_clip(state["set.loss"]), self.rules.clip)

    def _noise(self, ctx: _StepContext, update: int) -> Tensor:
        """Draw the generators' input noise [N, B, Z] for the update with this number."""
        shape, dtype = (self.rules.batch, self.rules.latent), ctx.state["g.params"].dtype
        return ctx.draws.prior((rng.NOISE, update), shape, self.rules.prior, dtype, ctx.state.get("set.prior"))
