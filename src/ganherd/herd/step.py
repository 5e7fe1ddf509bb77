"""One step of training for a block of members: discriminator updates, then a generator update, all members at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from ganherd.herd import streams
from ganherd.herd.adam import adam_
from ganherd.herd.lower import lower
from ganherd.herd.mutation import drawn_losses, smoothed, wandered
from ganherd.herd.rivals import Rivals
from ganherd.herd.state import Blueprint, State, buffers_of
from ganherd.herd.streams import MemberRandomness, Streams
from ganherd.losses import Game, gradient_penalty

Tensors = dict[str, Tensor]
Batches = Callable[[int], tuple[Tensor, Tensor]]  # which batch of this step -> x [N, B, …] in model units, y [N, B]
SUMS = ("loss_d", "loss_g", "real", "fake")  # what a step adds to its [4, N] sums


@dataclass(frozen=True)
class Rules:
    """What a step does that is the same for every member and every step."""

    game: Game
    batch: int
    latent: int
    prior: str = "normal"
    n_critic: int = 1
    skip_d: int = 0
    order: str = "d-g"
    gp_weight: float = 10.0
    clip: float = 0.01
    clip_what: str = "all"
    grad_clip: float | None = None
    eps: float = 1e-8
    ema: float | None = None
    input_noise: bool = False
    input_noise_steps: int = 0
    precision: str = "float32"
    smoothing: int = 0  # steps after a swap in which the learning rates are smoothed
    wander: str = "off"  # how learning rates mutate before each update: reference, lognormal
    wander_strength: float = 1e-4
    wander_probability: float = 0.5
    drawn_losses: int = 0  # the generator's loss is drawn at each step among so many of the game's, the first ones

    def d_updates(self, step: int) -> int:
        """How often the discriminator learns at this step."""
        return self.n_critic if step % (self.skip_d + 1) == 0 else 0


def member_call(
    blueprint: Blueprint, params: dict[str, Tensor], buffers: dict[str, Tensor], key: Tensor, *inputs: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """One member's module as a pure function: (output, buffers after it)."""
    both = {**params, **{name: value.clone() for name, value in buffers.items()}}  # the call writes into the clones
    with MemberRandomness(key):
        out = functional_call(blueprint.module, both, inputs)
    return out, {name: both[name] for name in buffers}


@dataclass(frozen=True)
class _Now:
    """What the two updates of a step share."""

    step: int | Tensor
    rivals: Rivals | None


class Step:
    """The step as a function of (state, batches, streams): it writes into the state's own storage and keeps nothing.

    `mapped`: all members in one call through `vmap`; otherwise the block holds a single member and its module is called plainly.
    """

    def __init__(self, g: Blueprint, d: Blueprint, rules: Rules, mapped: bool, kernels: bool = False) -> None:
        self.g, self.d, self.rules, self.mapped = g, d, rules, mapped
        self._clippable = d.clipped(rules.clip_what)  # [P]
        twice = rules.game.penalty  # a gradient penalty differentiates the discriminator twice; the kernels know once
        self._lowered = {"g": lower(g.module, kernels), "d": lower(d.module, kernels and not twice)} if mapped else {}

    def __call__(
        self,
        state: State,
        batches: Batches,
        base: np.ndarray | Tensor,
        sums: Tensor,
        step: int,
        at: Tensor | None = None,
        rivals: Rivals | None = None,
    ) -> None:
        """`step` decides what is done; `at`, the same number on the device, keys the draws inside a captured graph.

        `rivals`: whom the members meet instead of their own partner; without, always the partner.
        """
        draws = Streams(base, step if at is None else at)
        now = _Now(step if at is None else at, rivals)
        if self.rules.drawn_losses:
            u = draws.draw((streams.MUTATE_LOSS,), (), "uniform", torch.float64)
            state["set.loss"].copy_(drawn_losses(u, self.rules.drawn_losses))
        noise_scale = self._noise_scale(state, step if at is None else at)
        updates = self.rules.d_updates(step)
        if self.rules.order == "g-d":
            self._generator(state, batches, draws, noise_scale, sums, now)
        for update in range(updates):
            self._discriminator(state, batches(update), draws, update, noise_scale, sums, now)
        if self.rules.order == "d-g":
            self._generator(state, batches, draws, noise_scale, sums, now)

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
    ) -> None:
        rules, choice = self.rules, state["set.loss"]
        x, y = batch
        z = draws.prior((streams.NOISE, update), (rules.batch, rules.latent), rules.prior, state["g.params"].dtype)
        passes = iter(range(8 * (update + 1), 8 * (update + 2)))  # every forward of a step has streams of its own
        with torch.no_grad():
            fake = self._opponent("g", state, now, (z,), y, draws, next(passes), update + 1)
            x = self._noisy(x, noise_scale, draws, update, 0)
            fake = self._noisy(fake, noise_scale, draws, update, 1)
        rows = state["d.params"].detach().requires_grad_()
        views = self.d.views(rows)
        real_logits = self._forward("d", state, views, (x,), y, draws, next(passes))  # [N, B]
        fake_logits = self._forward("d", state, views, (fake,), y, draws, next(passes))
        loss = rules.game.d(choice, real_logits, fake_logits)  # [N]
        if rules.game.penalty:
            at = draws.draw((streams.PENALTY, update), (rules.batch,), "uniform", x.dtype)

            def critic(between: Tensor) -> Tensor:
                return self._forward("d", state, views, (between,), y, draws, next(passes))

            penalty = rules.gp_weight * gradient_penalty(critic, x, fake, at)
            loss = loss + torch.where(rules.game.has("penalty", choice), penalty, torch.zeros_like(penalty))
        (grads,) = torch.autograd.grad(loss.sum(), rows)
        self._update("d", state, grads, draws, update + 1, now)
        if rules.game.clip:
            self._clip(state, choice)
        sums[0] += loss.detach()
        sums[2] += real_logits.detach().mean(1)
        sums[3] += fake_logits.detach().mean(1)

    def _generator(
        self,
        state: State,
        batches: Batches,
        draws: Streams,
        noise_scale: Tensor | None,
        sums: Tensor,
        now: _Now,
    ) -> None:
        rules = self.rules
        last = rules.n_critic  # a number of its own for the draws of this update
        y = batches(rules.n_critic - 1)[1] if self.g.takes_label or self.d.takes_label else None
        z = draws.prior((streams.NOISE, last), (rules.batch, rules.latent), rules.prior, state["g.params"].dtype)
        rows = state["g.params"].detach().requires_grad_()
        fake = self._forward("g", state, self.g.views(rows), (z,), y, draws, 0)
        seen = self._noisy(fake, noise_scale, draws, last, 1)
        logits = self._opponent("d", state, now, (seen,), y, draws, 1, 0)
        loss = rules.game.g(state["set.loss"], logits)
        (grads,) = torch.autograd.grad(loss.sum(), rows)
        self._update("g", state, grads, draws, 0, now)
        if rules.ema is not None:
            state["g.ema"].lerp_(state["g.params"], 1.0 - rules.ema)
        sums[1] += loss.detach()

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
    ) -> Tensor:
        """The nets that are met at this update, on inputs [N, B, …]; only the buffers of living ones move on."""
        blueprint = self.g if kind == "g" else self.d
        if now.rivals is None:
            return self._forward(kind, state, blueprint.views(state[f"{kind}.params"]), inputs, y, draws, call)
        u = draws.draw((streams.OPPONENT, number), (), "uniform", torch.float64)
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
    ) -> Tensor:
        """All members' modules on their own inputs [N, B, …]; their buffers, or those given, move on in place."""
        blueprint = self.g if kind == "g" else self.d
        buffers = buffers_of(state, kind) if buffers is None else buffers
        if blueprint.takes_label:
            assert y is not None
            inputs = (*inputs, y)

        def member_keys() -> Tensor:
            return draws.keys(streams.INSIDE, call)

        with self._autocast(inputs[0].device):
            if self.mapped:
                out, moved = self._all_members(kind, views, buffers, member_keys, inputs)
            else:
                params, own = ({name: value[0] for name, value in part.items()} for part in (views, buffers))
                out, moved = member_call(blueprint, params, own, member_keys()[0], *(value[0] for value in inputs))
                out, moved = out[None], {name: value[None] for name, value in moved.items()}
        with torch.no_grad():
            for name, value in moved.items():
                buffers[name].copy_(value)
        out = out.to(state["g.params"].dtype)
        return out if kind == "g" else out.reshape(out.shape[0], self.rules.batch)

    def _all_members(
        self,
        kind: str,
        views: dict[str, Tensor],
        buffers: dict[str, Tensor],
        keys: Callable[[], Tensor],
        inputs: tuple[Tensor, ...],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Through the lowered graph where the module could be traced, else through `vmap` as a whole."""
        lowered = self._lowered[kind]
        if lowered is not None:
            return lowered(views, buffers, keys, *inputs)
        blueprint = self.g if kind == "g" else self.d
        return vmap(lambda p, b, k, i: member_call(blueprint, p, b, k, *i))(views, buffers, keys(), inputs)

    def _update(self, kind: str, state: State, grads: Tensor, draws: Streams, number: int, now: _Now) -> None:
        """Clips the gradient of each member to its norm and takes one Adam step."""
        if self.rules.grad_clip is not None:
            norm = grads.norm(dim=1, keepdim=True)  # [N, 1]
            grads = grads * (self.rules.grad_clip / norm.clamp(min=self.rules.grad_clip))
        m, v, t = (state[f"{kind}.adam.{part}"] for part in ("m", "v", "t"))
        lr, beta1, beta2 = self._rate(kind, state, draws, number, now), state["set.beta1"], state["set.beta2"]
        adam_(state[f"{kind}.params"], grads, m, v, t, lr, beta1, beta2, self.rules.eps)

    def _rate(self, kind: str, state: State, draws: Streams, number: int, now: _Now) -> Tensor:
        """[N] the learning rate of this update; a mutated one stays with its member."""
        rules, lr = self.rules, state[f"set.lr_{kind}"]
        if rules.wander != "off":
            normal = draws.draw((streams.MUTATE, number, 0), (), "normal", torch.float64)
            u = draws.draw((streams.MUTATE, number, 1), (), "uniform", torch.float64)
            first = state[f"set.lr0_{kind}"]
            p = rules.wander_probability
            lr.copy_(wandered(lr, first, rules.wander, rules.wander_strength, normal, u, p))
        if rules.smoothing:
            since = torch.as_tensor(now.step, device=lr.device) - state["set.met"]
            lr = lr * smoothed(since, rules.smoothing)[kind == "d"]
        return lr

    def _clip(self, state: State, choice: Tensor) -> None:
        params, limit = state["d.params"], self.rules.clip
        if self._clippable.device != params.device:
            self._clippable = self._clippable.to(params.device)
        touched = self._clippable & self.rules.game.has("clip", choice)[:, None]
        params.copy_(torch.where(touched, params.clamp(-limit, limit), params))

    def _noise_scale(self, state: State, step: int | Tensor) -> Tensor | None:
        """[N] standard deviation of the input noise now."""
        if not self.rules.input_noise:
            return None
        scale = state["set.input_noise"]
        if self.rules.input_noise_steps:
            done = torch.as_tensor(step, dtype=torch.float64, device=scale.device) / self.rules.input_noise_steps
            scale = scale * (1.0 - done).clamp(min=0.0)
        return scale.to(state["g.params"].dtype)

    def _noisy(self, x: Tensor, scale: Tensor | None, draws: Streams, *call: int) -> Tensor:
        """What the discriminator sees of x [N, B, …]."""
        if scale is None:
            return x
        noise = draws.draw((streams.INPUT_NOISE, *call), x.shape[1:], "normal", x.dtype)
        return x + scale.reshape(-1, *(1,) * (x.dim() - 1)) * noise

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self.rules.precision == "bf16":
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return nullcontext()
