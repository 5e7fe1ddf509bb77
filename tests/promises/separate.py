"""One GAN trained alone, in the plainest PyTorch: modules, `torch.optim.Adam`, a loop. The reference of promise 1.

It shares with ganherd only what defines a run: the initial weights, the numbers that are drawn, and the order of the data.
"""

from __future__ import annotations

from itertools import count

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy, logsigmoid

from ganherd.augment import augment, numbers
from ganherd.herd import rng
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.rng import Streams
from ganherd.herd.state import build_seeded, takes_label
from ganherd.training.setup.assemble import PreparedHerd, makers


class SeparateGan:
    """Member `member` of an assembly, taken out of the herd before its first step."""

    def __init__(self, assembly: PreparedHerd, member: int) -> None:
        herd = assembly.herd
        self.rules, self.recipe, self.feed, self.member = herd.rules, assembly.recipe, herd.feed, member
        self.g, self.d = (self._module(assembly, kind, member) for kind in ("g", "d"))
        get = {
            name.removeprefix("set."): value[member].item()
            for name, value in herd.state.items()
            if name.startswith("set.")
        }
        betas = (get["beta1"], get["beta2"])
        decay = {"eps": self.rules.eps, "weight_decay": get.get("weight_decay", 0.0)}
        self.adam_g = torch.optim.AdamW(self.g.parameters(), lr=get["lr_g"], betas=betas, **decay)
        self.adam_d = torch.optim.AdamW(self.d.parameters(), lr=get["lr_d"], betas=betas, **decay)
        self.own = {"gp_weight": self.rules.gp_weight, "r1": self.rules.r1, **get}
        for name in ("augment_probability", "r2", "lecam", "consistency", "consistency_fake"):
            self.own.setdefault(name, getattr(self.rules, name))
        self.base = np.array([rng.key(get["seed"], get["slot"], get["life"])])
        self.prior = ("normal", "uniform")[int(get["prior"])] if "prior" in get else self.rules.prior
        self.sigma, self.loss = get["input_noise"], self.rules.game.names[int(get["loss"])]
        self.ema = self._module(assembly, "g", member) if self.rules.ema is not None else self.g
        self.takes_label: dict[nn.Module, bool] = {}
        self.draws: dict[nn.Module, bool] = {}  # whether the first call of a module drew numbers
        self.averaged = 0
        self.packing = self.recipe.nets.discriminator.settings.get("packing", 1)
        self.losses: list[tuple[float, float]] = []
        self.shared: Tensor | None = None  # samples that the last discriminator update and the generator's see

    @staticmethod
    def _module(assembly: PreparedHerd, kind: str, member: int) -> nn.Module:
        """A module that is built as the user's script would build it, with its hooks, and with the member's weights."""
        herd, blueprint, shape = assembly.herd, getattr(assembly.herd, kind), assembly.dataset.shape
        slot = int(herd.state["set.slot"][member])
        make = makers(assembly.recipe, shape, len(assembly.dataset.labels), True, slot)[kind == "d"]
        module = build_seeded(make, 0).to(herd.state[f"{kind}.params"].dtype)
        weights = blueprint.views(herd.state[f"{kind}.params"])
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(weights[name][member])
            for name, buffer in module.named_buffers():
                buffer.copy_(herd.state[f"{kind}.buffers.{name}"][member])
        return module

    def train(self, steps: int, first: int = 0) -> None:
        for step in range(first, first + steps):
            draws = Streams(self.base, step)
            for kind, adam in (("g", self.adam_g), ("d", self.adam_d)) if self.rules.schedules else ():
                (group,) = adam.param_groups
                group["lr"] = self._at(step, f"lr_{kind}")
                group["betas"] = (self._at(step, "beta1"), self._at(step, "beta2"))
            self.shared = None
            if self.rules.order == "g-d":
                self._share(draws, step)
                self._generator_update(draws, step)
            if step % (self.rules.skip_d + 1) == 0:
                for update in range(self.rules.n_critic):
                    if self.rules.order == "d-g" and update == self.rules.n_critic - 1:
                        self._share(draws, step)
                    self._discriminator_update(draws, step, update)
            if self.rules.order == "d-g":
                self._generator_update(draws, step)

    # -- plain GAN training ---------------------------------------------------------------------------------------

    def _discriminator_update(self, draws: Streams, step: int, update: int) -> None:
        batch = step * self.rules.n_critic + update
        x = self._batch(batch)
        calls = iter(range(8 * (update + 1), 8 * (update + 2)))
        own = next(calls)
        is_last = update == self.rules.n_critic - 1
        if is_last and self.shared is not None:
            fake = self.shared.detach()
        else:
            fake = self._call(self.g, self._noise(draws, update), draws, own).detach()
        x, fake = self._shown(x, draws, step, update, 0), self._shown(fake, draws, step, update, 1)
        real_logit, real_classes = self._judge(x, draws, next(calls))
        fake_logit, fake_classes = self._judge(fake, draws, next(calls))
        one, zero = torch.ones_like(real_logit), torch.zeros_like(real_logit)
        loss = {
            "minimax": lambda: bce(real_logit, one) + bce(fake_logit, zero),
            "non-saturating": lambda: bce(real_logit, one) + bce(fake_logit, zero),
            "least-squares": lambda: ((real_logit - 1) ** 2).mean() / 2 + (fake_logit**2).mean() / 2,
            "least-squares-sigmoid": lambda: (
                ((real_logit.sigmoid() - 1) ** 2).mean() + (fake_logit.sigmoid() ** 2).mean()
            ),
            "wasserstein": lambda: fake_logit.mean() - real_logit.mean(),
            "wasserstein-gp": lambda: fake_logit.mean() - real_logit.mean(),
            "hinge": lambda: torch.relu(1 - real_logit).mean() + torch.relu(1 + fake_logit).mean(),
            "relativistic-pairing": lambda: -logsigmoid(real_logit - fake_logit).mean(),
            "relativistic": lambda: -logsigmoid(real_logit - fake_logit - 0.5).mean(),  # of the example of plug-ins
        }[self.loss]()
        if real_classes is not None:
            loss = loss + self.rules.class_d * cross_entropy(real_classes, self.y)
            loss = loss + self.rules.class_d * cross_entropy(fake_classes, self.y)
        if self.loss == "wasserstein-gp":
            at = draws.draw((rng.PENALTY, update), (self.rules.batch // self.packing,), "uniform", x.dtype)[0]
            at = at.repeat_interleave(self.packing).reshape(-1, *(1,) * (x.dim() - 1))
            slope = self._slope(x + at * (fake - x), draws, next(calls))
            penalty = ((slope.flatten(1).pow(2).sum(1) + 1e-12).sqrt() - 1).pow(2).mean()
            loss = loss + self._at(step, "gp_weight") * penalty
        every = self.rules.r1_every
        if self.own["r1"] and not self.rules.slope_noise and self._uses_r1_or_r2(step):
            slope = self._slope(x, draws, 8 * (update + 1) + 4)
            loss = loss + every * self._at(step, "r1") / 2 * slope.pow(2).flatten(1).sum(1).mean()
        if self.own["r2"] and not self.rules.slope_noise and self._uses_r1_or_r2(step):
            slope = self._slope(fake, draws, 8 * (update + 1) + 5)
            loss = loss + every * self._at(step, "r2") / 2 * slope.pow(2).flatten(1).sum(1).mean()
        loss = loss + self._regularisers(draws, step, update, (x, fake), (real_logit, fake_logit))
        self.adam_d.zero_grad()
        loss.backward()
        self._limit(self.d)
        self.adam_d.step()
        if self.loss == "wasserstein":
            self._clip()
        if self.rules.lecam:
            for name, logit in (("real", real_logit), ("fake", fake_logit)):
                self.own[f"lecam_{name}"] = 0.99 * self.own[f"lecam_{name}"] + 0.01 * logit.detach().mean().item()
        if self.rules.augment_target is not None:
            surer = np.sign(real_logit.detach().sign().mean().item() - self.rules.augment_target)
            moved = self.own["augment_probability"] + surer * self.rules.batch / self.rules.augment_images
            self.own["augment_probability"] = min(max(moved, 0.0), 1.0)

    def _uses_r1_or_r2(self, step: int) -> bool:
        """Whether R1 and R2 act at a step: at each K-th of those that train the discriminator."""
        number, rest = divmod(step, self.rules.skip_d + 1)
        return rest == 0 and number % self.rules.r1_every == 0

    def _slope(self, x: Tensor, draws: Streams, call: int) -> Tensor:
        """The gradient of the logit of each pack by the samples in it, a row for a pack."""
        x = x.detach().clone().requires_grad_()
        logits = self._judge(x, draws, call)[0].reshape(-1, self.packing)
        assert all(torch.equal(column, logits[:, 0]) for column in logits.T)  # samples of a pack are judged together
        return torch.autograd.grad(logits.mean(1).sum(), x, create_graph=True)[0].reshape(len(logits), -1)

    def _regularisers(self, draws: Streams, step: int, update: int, images, logits) -> Tensor | float:
        """What is added to the discriminator's loss without second derivatives."""
        term: Tensor | float = 0.0
        call = 8 * (update + 1)
        for fake, (x, logit) in enumerate(zip(images, logits, strict=True)):
            gamma, sigma = self._at(step, ("r1", "r2")[fake]), self.rules.slope_noise
            if self.own[("r1", "r2")[fake]] and sigma and self._uses_r1_or_r2(step):
                noise = draws.draw((rng.PENALTY, update, 1 + fake), x.shape, "normal", x.dtype)[0]
                near = self._judge(x + sigma * noise, draws, call + 4 + fake)[0]
                term = term + self.rules.r1_every * gamma / 2 * ((near - logit) ** 2).mean() / sigma**2
            if self.own[("consistency", "consistency_fake")[fake]]:
                policy = self.rules.consistency_augment
                u = draws.draw(
                    (rng.AUGMENT, update, 5 + fake), (self.rules.batch, numbers(policy)), "uniform", torch.float32
                )
                same = self._judge(augment(x, u[0], policy), draws, call + 6 + fake)[0]
                weight = self._at(step, ("consistency", "consistency_fake")[fake])
                term = term + weight * ((same - logit) ** 2).mean()
        if self.rules.lecam and step >= self.rules.lecam_start:
            beyond = torch.relu(logits[0] - self.own["lecam_fake"]).pow(2).mean()
            below = torch.relu(self.own["lecam_real"] - logits[1]).pow(2).mean()
            term = term + self._at(step, "lecam") * (beyond + below)
        return term

    def _share(self, draws: Streams, step: int) -> None:
        """Make the samples that the last discriminator update and the generator's share, if the rules say so."""
        self.shared = self._made(draws, step) if self.rules.fakes == "shared" else None

    def _made(self, draws: Streams, step: int) -> Tensor:
        """The samples that the generator is judged by."""
        self._batch((step + 1) * self.rules.n_critic - 1)  # for its labels
        return self._call(self.g, self._noise(draws, self.rules.n_critic), draws, 0)

    def _generator_update(self, draws: Streams, step: int) -> None:
        fake = self._made(draws, step) if self.shared is None else self.shared
        logit, classes = self._judge(self._shown(fake, draws, step, self.rules.n_critic, 1), draws, 1)
        real_logit = logit
        if self.loss.startswith("relativistic"):
            x = self._batch((step + 1) * self.rules.n_critic - 1)
            with torch.no_grad():
                real_logit, _ = self._judge(self._shown(x, draws, step, self.rules.n_critic, 0), draws, 2)
        loss = {
            "minimax": lambda: -bce(logit, torch.zeros_like(logit)),
            "non-saturating": lambda: bce(logit, torch.ones_like(logit)),
            "least-squares": lambda: ((logit - 1) ** 2).mean() / 2,
            "least-squares-sigmoid": lambda: ((logit.sigmoid() - 1) ** 2).mean(),
            "wasserstein": lambda: -logit.mean(),
            "wasserstein-gp": lambda: -logit.mean(),
            "hinge": lambda: -logit.mean(),
            "relativistic-pairing": lambda: -logsigmoid(logit - real_logit).mean(),
            "relativistic": lambda: -logsigmoid(logit - real_logit - 0.5).mean(),
        }[self.loss]()
        if classes is not None:
            loss = loss + self.rules.class_g * cross_entropy(classes, self.y)
        self.adam_g.zero_grad()
        loss.backward()
        self._limit(self.g)
        self.adam_g.step()
        if self.rules.ema is not None:
            with torch.no_grad():
                self.averaged += 1
                part = max(
                    1 - self.own.get("ema_decay", self.rules.ema), 9 / (9 + self.averaged)
                )  # a young average moves faster
                for average, parameter in zip(self.ema.parameters(), self.g.parameters(), strict=True):
                    average.mul_(1 - part).add_(parameter, alpha=part)

    def _at(self, step: int, name: str) -> float:
        """A setting at a step, by the recipe's schedules."""
        value = self.own[name]
        for one in self.rules.schedules:
            if name not in one.settings:
                continue
            done = min(max((step - one.start) / one.over, 0), 1) if one.shape != "step" else float(step >= one.start)
            way = (1 - np.cos(np.pi * done)) / 2 if one.shape == "cosine" else done
            factor = (1 - way) * one.first + way * one.last
            if one.shape == "inverse":
                factor = one.first / (1 + (one.first / one.last - 1) * done)
            value = 1 - (1 - value) * factor if name.startswith("beta") else value * factor
        return value

    # -- what a run defines ---------------------------------------------------------------------------------------

    def _call(self, module: nn.Module, x: Tensor, draws: Streams, call: int) -> Tensor:
        if module not in self.takes_label:  # as after a swap
            self.takes_label[module] = takes_label(module)
        inputs, numbered = (x, self.y) if self.takes_label[module] else (x,), count(1)
        if not self.draws.get(module, True):
            return module(*inputs)
        with MemberRandomness(draws.keys(rng.INSIDE, call)[0], numbered):  # dropout from the member's stream
            out = module(*inputs)
        self.draws.setdefault(module, next(numbered) > 1)
        return out

    def _judge(self, x: Tensor, draws: Streams, call: int) -> tuple[Tensor, Tensor | None]:
        """The discriminator's logits, and what it says of classes where it says anything."""
        out = self._call(self.d, x, draws, call)
        return out if isinstance(out, tuple) else (out, None)

    def _batch(self, number: int) -> Tensor:
        x, y = self.feed.batch_at(slice(self.member, self.member + 1), self.base, number)
        self.y = y[0]
        return x[0]

    def _noise(self, draws: Streams, call: int) -> Tensor:
        dtype = next(self.g.parameters()).dtype
        return draws.prior((rng.NOISE, call), (self.rules.batch, self.rules.latent), self.prior, dtype)[0]

    def _shown(self, x: Tensor, draws: Streams, step: int, update: int, made: int) -> Tensor:
        """What the discriminator is shown of real (0) or made (1) images."""
        if self.rules.flip and not made:
            u = draws.draw((rng.AUGMENT, update, 2), (self.rules.batch, 1), "uniform", torch.float32)[0, :, 0]
            x = torch.stack([one.flip(-1) if float(v) < 0.5 else one for one, v in zip(x, u, strict=True)])
        x = self._blur(x, draws, step, update, made)
        if self.rules.augment:
            shape = (self.rules.batch, numbers(self.rules.augment))
            u = draws.draw((rng.AUGMENT, update, made), shape, "uniform", torch.float32)[0]
            changed = augment(x, u, self.rules.augment)
            probability = self._at(step, "augment_probability")
            if probability < 1:
                u = draws.draw((rng.AUGMENT, update, 3 + made), (self.rules.batch,), "uniform", torch.float32)[0]
                changed = torch.stack(
                    [a if float(v) < probability else b for a, b, v in zip(changed, x, u, strict=True)]
                )
            x = changed
        return x

    def _blur(self, x: Tensor, draws: Streams, step: int, update: int, which: int) -> Tensor:
        if not self.rules.input_noise or (which == 1 and self.rules.input_noise_on == "real"):
            return x
        done = step / self.rules.input_noise_steps if self.rules.input_noise_steps else 0.0
        left = max(0.0, 1 - done)
        if self.rules.input_noise_decay == "steps":
            left = 1.0 if done < 0.5 else 1 / 3 if done < 1 else 0.0
        return x + self.sigma * left * draws.draw((rng.INPUT_NOISE, update, which), x.shape, "normal", x.dtype)[0]

    def _limit(self, module: nn.Module) -> None:
        if self.rules.grad_clip is not None:
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            norm = torch.sqrt(sum(g.pow(2).sum() for g in gradients))
            for gradient in gradients:
                gradient.mul_(self.rules.grad_clip / max(float(norm), self.rules.grad_clip))
        if l2_weight := self.own.get("l2_weight", 0.0):
            for parameter in (p for p in module.parameters() if p.grad is not None):
                parameter.grad = parameter.grad + l2_weight * parameter.detach()

    def _clip(self) -> None:
        for module in self.d.modules():
            is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and (self.rules.clip_what == "all" or not is_norm):
                    parameter.data.clamp_(-self.rules.clip, self.rules.clip)

    # -- what is compared -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes, under the names of ganherd's state."""
        out: dict[str, Tensor] = {}
        for kind, module, adam in (("g", self.g, self.adam_g), ("d", self.d, self.adam_d)):
            parameters = list(module.parameters())
            out[f"{kind}.params"] = _row(p.detach() for p in parameters)
            for ours, theirs in (("m", "exp_avg"), ("v", "exp_avg_sq")):  # nothing of what was never trained
                moments = (adam.state[p][theirs] if p in adam.state else torch.zeros_like(p) for p in parameters)
                out[f"{kind}.adam.{ours}"] = _row(moments)
            for name, buffer in module.named_buffers():
                out[f"{kind}.buffers.{name}"] = buffer
        if self.rules.ema is not None:
            out["g.ema"] = _row(p.detach() for p in self.ema.parameters())
        return out


def _row(parts) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])
