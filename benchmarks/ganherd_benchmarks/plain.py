"""One GAN in plain PyTorch: two modules, two Adams, one step. ganherd is compared with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ganherd.bench.cases import Case
from ganherd.herd.engine.device import DTYPES
from ganherd.losses.adversarial import Loss, gradient_penalty, r1_penalty
from ganherd.nets import build_discriminator, build_generator
from ganherd.recipe.schema import Recipe
from ganherd.util.registry import LOSSES


@dataclass(frozen=True)
class RivalWork:
    """What all ways share: the nets, the data on the device, and the rules of a step."""

    make_g: Callable[[], nn.Module]
    make_d: Callable[[], nn.Module]
    data: Tensor  # [n, C, H, W] uint8
    recipe: Recipe
    device: torch.device

    @classmethod
    def of(cls, case: Case, recipe: Recipe, data: Tensor, device: torch.device) -> RivalWork:
        def make_g() -> nn.Module:
            return build_generator(recipe.nets.generator, case.shape, case.latent)

        def make_d() -> nn.Module:
            return build_discriminator(recipe.nets.discriminator, case.shape)

        return cls(make_g, make_d, data.to(device), recipe, device)

    @property
    def loss(self) -> Loss:
        assert isinstance(self.recipe.loss.name, str)
        return LOSSES[self.recipe.loss.name].build(self.recipe.loss.settings)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.recipe.train.precision]

    def real(self, *lead: int) -> Tensor:
        """Draw images [*lead, C, H, W] in [-1, 1] on the device, as a CUDA graph needs it."""
        rows = torch.randint(len(self.data), (math.prod(lead),), device=self.device)
        x = self.data.index_select(0, rows).to(self.dtype).sub_(127.5).div_(127.5)
        result: Tensor = x.unflatten(0, lead)
        return result

    def noise(self, *lead: int) -> Tensor:
        """Draw noise [*lead, Z]."""
        return torch.randn(*lead, self.recipe.nets.latent, device=self.device, dtype=self.dtype)

    def precisely(self) -> AbstractContextManager[object]:
        """Return a context with the precision of the recipe; a new one for each update, so that casts are not cached."""
        if self.recipe.train.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def adam(self, params: Sequence[Tensor], lr: object) -> torch.optim.Adam:
        """Return the fused Adam of PyTorch, capturable on a GPU."""
        assert isinstance(lr, float)
        optim = self.recipe.optim
        betas = (optim.beta1, optim.beta2)
        graph = self.device.type == "cuda"
        return torch.optim.Adam(list(params), lr, betas, optim.eps, fused=True, capturable=graph)  # type: ignore[arg-type]

    @property
    def penalised(self) -> bool:
        """Whether the discriminator's loss has a gradient penalty."""
        return self.loss.penalty is not None or self.recipe.loss.r1_weight != 0.0

    def penalty(self, critic: Callable[[Tensor], Tensor], x: Tensor, fake: Tensor) -> Tensor:
        """Return the gradient penalties [N] for x and fake [N, B, …], for critics that return [N, B]."""
        total = torch.zeros(len(x), device=self.device, dtype=self.dtype)
        weight, r1_weight = self.recipe.loss.gp_weight, self.recipe.loss.r1_weight
        assert isinstance(weight, float) and isinstance(r1_weight, float)
        if self.loss.penalty:
            total = total + weight * gradient_penalty(critic, x, fake, torch.rand(x.shape[:2], device=self.device))
        return total + 0.5 * r1_weight * r1_penalty(critic, x) if r1_weight else total


def update(optimiser: torch.optim.Optimizer, params: list[Tensor], loss: Tensor, clip: float | None = None) -> None:
    """Make one step of the optimiser on these parameters, then clip them if `clip` is given."""
    for p, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
        # the fused kernel wants gradients that lie as their parameter does
        p.grad = grad if grad.stride() == p.stride() else torch.empty_like(p).copy_(grad)
    optimiser.step()
    if clip is not None:
        with torch.no_grad():
            torch._foreach_clamp_min_(params, -clip)
            torch._foreach_clamp_max_(params, clip)


class PlainGanPair:
    """One GAN. A step updates the discriminator and the generator, each with new fakes."""

    def __init__(self, work: RivalWork, channels_last: bool = False, compiled: bool = False) -> None:
        self._work = work
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        optim = work.recipe.optim
        g, d = (make().to(work.device, work.dtype) for make in (work.make_g, work.make_d))
        if channels_last:
            g, d = (net.to(memory_format=torch.channels_last) for net in (g, d))  # type: ignore[call-overload]
        self.g, self.d = g, d
        self._run_g: Callable[[Tensor], Tensor] = torch.compile(g, dynamic=False) if compiled else g
        self._run_d: Callable[[Tensor], Tensor] = torch.compile(d, dynamic=False) if compiled else d
        self._g_params: list[Tensor] = list(g.parameters())
        self._d_params: list[Tensor] = list(d.parameters())
        self._adam_g = work.adam(self._g_params, optim.lr_g)
        self._adam_d = work.adam(self._d_params, optim.lr_d)

    def step(self) -> None:
        work, batch = self._work, self._work.recipe.train.batch
        with work.precisely():
            with torch.no_grad():
                fake = self._run_g(work.noise(batch))
                real = work.real(batch).contiguous(memory_format=self._format)
            loss = work.loss.d(self._judge(real), self._judge(fake))
            if work.penalised:
                fake = fake.to(real.dtype)
                loss = loss + work.penalty(lambda x: self._judge(x[0])[None], real[None], fake[None])[0]
        update(self._adam_d, self._d_params, loss, work.recipe.loss.clip if work.loss.clip else None)
        with work.precisely():
            loss = work.loss.g(self._judge(self._run_g(work.noise(batch))))
        update(self._adam_g, self._g_params, loss)

    def _judge(self, x: Tensor) -> Tensor:
        """Return logits [B]."""
        return self._run_d(x).flatten().to(self._work.dtype)
