"""Nets as users write them that ganherd refuses in one sentence, one idiom each."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from promises.supported_nets import WIDTH, Checkpoint, Net


class PythonRandom(Net):
    """`random.random()` in forward."""

    def mid(self, h: Tensor) -> Tensor:
        return h * random.random()


class NumpyRandom(Net):
    """`np.random` in forward."""

    def mid(self, h: Tensor) -> Tensor:
        return h * np.random.rand()


class NumpyGenerator(Net):
    """A generator of NumPy's that the net keeps."""

    def setup(self) -> None:
        self.rng = np.random.default_rng(0)

    def mid(self, h: Tensor) -> Tensor:
        return h * self.rng.random()


class Complex(Net):
    """A complex parameter."""

    def setup(self) -> None:
        self.c = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))

    def mid(self, h: Tensor) -> Tensor:
        return (h * self.c).real


class Counter(Net):
    """A Python number that forward counts up."""

    def setup(self) -> None:
        self.k = 0

    def mid(self, h: Tensor) -> Tensor:
        self.k += 1
        return h / self.k


class HiddenCounter(Net):
    """… in a module within, without an effect that shows at once."""

    class Inner(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            self.k = getattr(self, "k", 0) + 1
            return h if self.k < 1000 else -h

    def setup(self) -> None:
        self.inner = self.Inner()

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class Recurrent(Net):
    """A tensor that one call leaves for the next."""

    def setup(self) -> None:
        self.h: Tensor | None = None

    def mid(self, h: Tensor) -> Tensor:
        before, self.h = self.h, h.detach()
        return h if before is None else h + before.mean()


class RandomConstant(Net):
    """A tensor that the constructor draws and registers nowhere."""

    def setup(self) -> None:
        self.mask = torch.rand(WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        return h * self.mask


class UnregisteredLayer(Net):
    """A layer in a plain list, which nothing trains."""

    def setup(self) -> None:
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def mid(self, h: Tensor) -> Tensor:
        return self.layers[0].to(h)(h)


_calls = 0


class GlobalCounter(Net):
    """A variable of the file that forward counts up."""

    def mid(self, h: Tensor) -> Tensor:
        global _calls
        _calls += 1
        return h if _calls < 10_000 else -h


class NoParameters(nn.Module):
    """Nothing that could be trained."""

    def __init__(self, shape: tuple[int, ...], latent: int = 0) -> None:
        super().__init__()
        self.shape = shape if latent else ()

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)[:, None, None, None].expand(-1, *self.shape) if self.shape else x.flatten(1).sum(1)


class SparseEmbedding(Net):
    """`Embedding(sparse=True)`, whose gradient `torch.optim.Adam` refuses, too."""

    def setup(self) -> None:
        self.e = nn.Embedding(3, WIDTH, sparse=True)

    def mid(self, h: Tensor) -> Tensor:
        return h + self.e((h[:, 0] > 0).long())


class AllFrozen(Net):
    """Every parameter frozen."""

    def setup(self) -> None:
        self.requires_grad_(False)


class InPlaceMistake(Net):
    """A change in place that autograd rejects."""

    def mid(self, h: Tensor) -> Tensor:
        h = torch.exp(h)
        h += 1
        return h


class SharedMemory(Net):
    """Two parameters that are parts of one tensor."""

    def setup(self) -> None:
        both = torch.randn(2 * WIDTH)
        self.one, self.two = nn.Parameter(both[: WIDTH + 1]), nn.Parameter(both[WIDTH - 1 :])

    def mid(self, h: Tensor) -> Tensor:
        return h * self.one[:WIDTH] + self.two[:WIDTH]


class BufferOfAnotherShape(Net):
    """A buffer that changes its shape."""

    def setup(self) -> None:
        self.register_buffer("m", torch.zeros(WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        self.m = h.detach().mean()
        return h - self.m


class LayerMadeLate(Net):
    """A layer that is made in forward, which no optimiser would know."""

    def mid(self, h: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(WIDTH, WIDTH).to(h)
        return self.late(h)


class FrozenInForward(Net):
    """A weight that forward freezes."""

    def mid(self, h: Tensor) -> Tensor:
        self.f.weight.requires_grad_(False)
        return h


class BufferInAList(Net):
    """A buffer that a plain list holds as well."""

    def setup(self) -> None:
        self.register_buffer("m", torch.zeros(WIDTH))
        self.means = [self.m]

    def mid(self, h: Tensor) -> Tensor:
        self.means[0].add_(h.detach().mean(0))
        return h - self.m.clone()


class ParameterMadeAnew(Net):
    """A parameter that forward puts in the place of another."""

    def mid(self, h: Tensor) -> Tensor:
        self.o.bias = nn.Parameter(self.o.bias.detach() * 0.5)
        return h


class CheckpointedDropout(Checkpoint):
    """Dropout within a checkpoint, which would draw again."""

    def setup(self) -> None:
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))


class AttentionDropout(Net):
    """Dropout inside of attention, whose numbers no member's stream can give."""

    def mid(self, h: Tensor) -> Tensor:
        h = h.reshape(-1, WIDTH // 4, 4)
        return F.scaled_dot_product_attention(h, h, h, dropout_p=0.5).flatten(1)


class OwnGenerator(Net):
    """A generator that the net keeps."""

    def setup(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def mid(self, h: Tensor) -> Tensor:
        return h * torch.rand(WIDTH, generator=self.generator, dtype=h.dtype)


class SeededGenerator(Net):
    """Numbers that are the same in each call."""

    def mid(self, h: Tensor) -> Tensor:
        return h + torch.empty_like(h).normal_(generator=torch.Generator().manual_seed(3))


class CompiledFunction(Net):
    """A function that `torch.compile` compiles."""

    def mid(self, h: Tensor) -> Tensor:
        return _compiled_tanh(h)


_compiled_tanh = torch.compile(lambda h: torch.tanh(h) * 2, backend="eager")


class SeededInForward(Net):
    """A seed within `fork_rng`."""

    def mid(self, h: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return h * torch.rand(WIDTH, dtype=h.dtype)


class StateSetBack(Net):
    """The state of PyTorch's generator, set back."""

    def mid(self, h: Tensor) -> Tensor:
        torch.set_rng_state(torch.get_rng_state())
        return h


class Bernoulli(Net):
    """A function that draws and that no member's stream can answer."""

    def mid(self, h: Tensor) -> Tensor:
        return h * torch.zeros_like(h).bernoulli_(0.7)


class AlphaDropout(Net):
    """A layer that draws and that no member's stream can answer."""

    def setup(self) -> None:
        self.inner = nn.Sequential(nn.AlphaDropout(0.2))

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class Scripted(Net):
    """A layer that TorchScript compiled."""

    def setup(self) -> None:
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class Compiled(Net):
    """A layer that `torch.compile` compiles."""

    def setup(self) -> None:
        self.inner = torch.compile(nn.Linear(WIDTH, WIDTH), backend="eager")

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class AnswersADict(Net):
    """A dictionary instead of a tensor."""

    def forward(self, x: Tensor) -> Any:
        return {"image": super().forward(x)}


class LabelLast(Net):
    """A label that is not the second argument."""

    def forward(self, x: Tensor, scale: float = 1.0, y: Tensor | None = None) -> Tensor:
        return super().forward(x) * scale


class FixedBatch(Net):
    """A batch size that is written down."""

    def mid(self, h: Tensor) -> Tensor:
        return h.view(4, WIDTH)


class CachedNoise(Net):
    """A tensor of the size of the first batch, which stays."""

    def setup(self) -> None:
        self.ones: Tensor | None = None

    def mid(self, h: Tensor) -> Tensor:
        if self.ones is None:
            self.ones = torch.ones_like(h).detach()
        return h * self.ones
