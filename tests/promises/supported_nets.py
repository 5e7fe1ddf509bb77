"""Nets as users write them that train as in plain PyTorch, one idiom each. The constructor decides: generator or discriminator."""

from __future__ import annotations

import functools
import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Net(nn.Module):
    """Two linear layers; `setup` and `mid` are what an idiom is about."""

    def __init__(self, shape: tuple[int, ...], latent: int = 0) -> None:
        super().__init__()
        self.shape = shape if latent else ()
        self.f = nn.Linear(latent or math.prod(shape), WIDTH)
        self.o = nn.Linear(WIDTH, math.prod(shape) if latent else 1)
        self.setup()

    def setup(self) -> None:
        pass

    def mid(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        out = self.o(self.mid(torch.tanh(self.f(x.flatten(1)))))
        return torch.tanh(out).reshape(-1, *self.shape) if self.shape else out


# -- what works in evaluation mode -------------------------------------------------------------------------------------


class CachedWeight(Net):
    """A weight that the first call in evaluation mode puts together, and that stays until the net trains."""

    def setup(self) -> None:
        self.low, self.high = nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.randn(2, WIDTH))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.cached: Tensor | None = None

    def mid(self, h: Tensor) -> Tensor:
        if self.training:
            self.cached = None
            return self.norm(F.linear(h, self.low @ self.high))
        if self.cached is None:
            self.cached = (self.low @ self.high).detach()
        return self.norm(F.linear(h, self.cached))


class MergedWeight(Net):
    """Weights that are merged by `eval()` and parted by `train()`."""

    def setup(self) -> None:
        self.low, self.high = nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.randn(2, WIDTH))
        self.inner, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.merged = False

    def train(self, mode: bool = True) -> MergedWeight:
        if self.merged == mode:
            self.inner.weight.data += (self.low @ self.high).data * (-1 if mode else 1)
            self.merged = not mode
        super().train(mode)
        return self

    def mid(self, h: Tensor) -> Tensor:
        weight = self.inner.weight if self.merged else self.inner.weight + self.low @ self.high
        return self.norm(F.linear(h, weight))


class FilledBuffer(Net):
    """A buffer that `eval()` fills."""

    def setup(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("unit", torch.zeros(WIDTH, WIDTH))

    def train(self, mode: bool = True) -> FilledBuffer:
        if not mode:
            self.unit.copy_(F.normalize(self.inner.weight.detach(), dim=1))
        super().train(mode)
        return self

    def mid(self, h: Tensor) -> Tensor:
        return F.linear(h, F.normalize(self.inner.weight, dim=1) if self.training else self.unit)


class MeanOfCalls(Net):
    """A list of what was seen in evaluation mode."""

    def setup(self) -> None:
        self.means: list[Tensor] = []

    def mid(self, h: Tensor) -> Tensor:
        if not self.training:
            self.means.append(h.mean(0))
            h = h - sum(self.means) / len(self.means)
        return h


# -- what trains as in plain PyTorch ----------------------------------------------------------------------------------


class FrozenLayer(Net):
    """A layer with `requires_grad_(False)`."""

    def setup(self) -> None:
        self.f.requires_grad_(False)


class FrozenWeight(Net):
    """One frozen parameter of a layer that learns."""

    def setup(self) -> None:
        self.o.weight.requires_grad_(False)


class NoGrad(Net):
    """`torch.no_grad` in forward."""

    def mid(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            scale = h.std(0) + 0.1
        return h / scale


class NoGradMethod(Net):
    """A method under `@torch.no_grad()`."""

    @torch.no_grad()
    def scale(self, h: Tensor) -> Tensor:
        return h.abs().mean()

    def mid(self, h: Tensor) -> Tensor:
        return h / (self.scale(h) + 0.5)


class InferenceMode(Net):
    """`torch.inference_mode` in forward."""

    def mid(self, h: Tensor) -> Tensor:
        with torch.inference_mode():
            scale = float(h.abs().mean())
        return h / (scale + 0.5)


class EnableGrad(Net):
    """`torch.enable_grad` within `no_grad`."""

    def mid(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            shift = h.mean(0)
            with torch.enable_grad():
                h = h * h
        return h - shift


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -grad


_reverse = _Reverse.apply


class OwnFunction(Net):
    """A gradient reversal, an own `autograd.Function`."""

    def mid(self, h: Tensor) -> Tensor:
        return _reverse(h)


class _Sign(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return torch.sign(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class FunctionWithVmapRule(Net):
    """A straight-through estimator that knows `vmap`."""

    def mid(self, h: Tensor) -> Tensor:
        return h + _Sign.apply(h)


class ForwardHook(Net):
    """A forward hook that changes what a layer answers."""

    def setup(self) -> None:
        self.f.register_forward_hook(lambda layer, given, out: out * 2)


class ForwardPreHook(Net):
    """A forward pre-hook that changes what a layer sees."""

    def setup(self) -> None:
        self.o.register_forward_pre_hook(lambda layer, given: (given[0] * 0.5,))


class HookOfTheModule(Net):
    """A hook on the whole net."""

    def setup(self) -> None:
        self.register_forward_hook(lambda net, given, out: out * 0.7)


class BackwardHook(Net):
    """A full backward hook that changes a gradient."""

    def setup(self) -> None:
        self.o.register_full_backward_hook(lambda layer, into, out: (into[0] * 3,))


class BackwardPreHook(Net):
    """A full backward pre-hook that changes a gradient."""

    def setup(self) -> None:
        self.f.register_full_backward_pre_hook(lambda layer, out: (out[0] * 0.5,))


class GradientHook(Net):
    """A hook on a parameter's gradient: half of the weight does not learn."""

    def setup(self) -> None:
        self.register_buffer("mask", (torch.rand(WIDTH, 1) > 0.5).float())
        self.f.weight.register_hook(lambda grad: grad * self.mask)


class TensorHook(Net):
    """A hook on a tensor within forward."""

    def mid(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        return h


class BufferAdded(Net):
    """A buffer that grows by `+=`."""

    def setup(self) -> None:
        self.register_buffer("t", torch.zeros(()))

    def mid(self, h: Tensor) -> Tensor:
        self.t += 1
        return h * torch.clamp(self.t / 20, max=1.0)


class BufferMultiplied(Net):
    """A buffer that fades by `*=`."""

    def setup(self) -> None:
        self.register_buffer("m", torch.ones(WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        self.m *= 0.9
        return h * self.m.clone()


class BufferAssigned(Net):
    """A running mean that is assigned."""

    def setup(self) -> None:
        self.register_buffer("m", torch.zeros(WIDTH), persistent=False)

    def mid(self, h: Tensor) -> Tensor:
        self.m = 0.9 * self.m + 0.1 * h.detach().mean(0)
        return h - self.m


class BufferData(Net):
    """A buffer that changes through `.data`."""

    def setup(self) -> None:
        self.register_buffer("m", torch.zeros(WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        self.m.data = self.m * 0.5 + h.detach().mean(0)
        return h - self.m.clone()


class BufferCopied(Net):
    """`copy_` and `lerp_` of buffers, and one of integers."""

    def setup(self) -> None:
        self.register_buffer("m", torch.zeros(WIDTH))
        self.register_buffer("last", torch.zeros(WIDTH))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def mid(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.m.lerp_(h.mean(0), 0.1)
            self.last.copy_(h[0])
        self.n += 1
        return h - self.m.clone() / self.n + 0.1 * self.last.clone()


class BufferLerped(Net):
    """A buffer that an operation moves for which `vmap` has no rule."""

    def setup(self) -> None:
        self.register_buffer("m", torch.zeros(WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        self.m.lerp_(h.detach().mean(0).to(self.m.dtype), 0.1)
        return h - self.m.clone()


class AsksForGradients(Net):
    """`torch.is_grad_enabled()` in the discriminator's forward; a generator is called with and without gradients."""

    def mid(self, h: Tensor) -> Tensor:
        return 2 * h if self.shape or torch.is_grad_enabled() else h


class LongShortTermMemory(Net):
    """`nn.LSTM` over the features."""

    def setup(self) -> None:
        self.steps = nn.LSTM(1, 2, batch_first=True)

    def mid(self, h: Tensor) -> Tensor:
        return h + self.steps(h[..., None])[0].mean(2)


class SharedLayer(Net):
    """One layer under two names, called twice."""

    def setup(self) -> None:
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = self.one

    def mid(self, h: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(h)))


class PaddedEmbedding(Net):
    """`Embedding(padding_idx)`: the padding row does not learn."""

    def setup(self) -> None:
        self.e = nn.Embedding(3, WIDTH, padding_idx=1)
        nn.init.normal_(self.e.weight)

    def mid(self, h: Tensor) -> Tensor:
        return h * self.e((h[:, 0] * 3).long().remainder(3))


class PaddedFunction(Net):
    """The same by `F.embedding`, of a weight that is no layer's."""

    def setup(self) -> None:
        self.e = nn.Parameter(torch.randn(3, WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        return h * F.embedding((h[:, 0] * 3).long().remainder(3), self.e, padding_idx=1)


class RenormedEmbedding(Net):
    """`Embedding(max_norm)`, which changes its weight in forward."""

    def setup(self) -> None:
        self.e = nn.Embedding(3, WIDTH, max_norm=0.3)

    def mid(self, h: Tensor) -> Tensor:
        return h + self.e((h[:, 0] * 3).long().remainder(3))


class ClampedWeight(Net):
    """A weight that forward itself clips, through `.data`."""

    def mid(self, h: Tensor) -> Tensor:
        self.o.weight.data.clamp_(-0.2, 0.2)
        return h


class OwnTrain(Net):
    """`train()` overridden, to keep a batch norm in evaluation."""

    def setup(self) -> None:
        self.bn = nn.BatchNorm1d(WIDTH)

    def train(self, mode: bool = True) -> Net:
        super().train(mode)
        self.bn.eval()
        return self

    def mid(self, h: Tensor) -> Tensor:
        return self.bn(h)


class EvalInConstructor(Net):
    """A batch norm that the constructor puts into evaluation."""

    def setup(self) -> None:
        self.bn = nn.BatchNorm1d(WIDTH).eval()

    def mid(self, h: Tensor) -> Tensor:
        return self.bn(h)


class ReplacedForward(Net):
    """`forward` of a layer replaced on the instance."""

    def setup(self) -> None:
        plain = self.f.forward
        self.f.forward = lambda x: 2 * plain(x)  # type: ignore[method-assign]


class ClassicSpectralNorm(Net):
    """`nn.utils.spectral_norm`, as in most SNGAN code."""

    def setup(self) -> None:
        self.f, self.o = nn.utils.spectral_norm(self.f), nn.utils.spectral_norm(self.o)


class OrthogonalSpectralNorm(Net):
    """A spectral norm of an orthogonal weight, as in BigGAN: its largest singular value is 1, so the weight stays."""

    def setup(self) -> None:
        self.inner = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))
        with torch.no_grad():  # a permutation with signs: the estimate is exactly 1
            weight = torch.eye(WIDTH)[torch.randperm(WIDTH)] * torch.randn(WIDTH).sign()
            self.inner.get_parameter("weight_orig").copy_(weight)
            self.inner.get_buffer("weight_u").copy_(torch.eye(WIDTH)[0])

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class SpectralNorm(Net):
    """`nn.utils.parametrizations.spectral_norm`."""

    def setup(self) -> None:
        self.f = nn.utils.parametrizations.spectral_norm(self.f)


class _Normed(nn.Module):
    """A layer divided by its norm, after one step of power iteration; its vectors are frozen parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, weight = layer, layer.weight.detach()
        del layer._parameters["weight"]
        self.bar = nn.Parameter(weight)
        self.u = nn.Parameter(F.normalize(torch.randn(len(weight)), dim=0), requires_grad=False)
        self.v = nn.Parameter(F.normalize(torch.randn(weight.shape[1]), dim=0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.v.data = F.normalize(self.bar.data.t() @ self.u.data, dim=0)
        self.u.data = F.normalize(self.bar.data @ self.v.data, dim=0)
        self.layer.weight = self.bar / self.u.dot(self.bar @ self.v)
        return self.layer(x)


class OwnSpectralNorm(Net):
    """A spectral norm of one's own, which assigns `data` in forward."""

    def setup(self) -> None:
        self.inner = _Normed(nn.Linear(WIDTH, WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class ClassicWeightNorm(Net):
    """`nn.utils.weight_norm`."""

    def setup(self) -> None:
        self.f = nn.utils.weight_norm(self.f)


class WeightNorm(Net):
    """`nn.utils.parametrizations.weight_norm`."""

    def setup(self) -> None:
        self.f = nn.utils.parametrizations.weight_norm(self.f)


class Checkpoint(Net):
    """`torch.utils.checkpoint` around layers with buffers."""

    def setup(self) -> None:
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())

    def mid(self, h: Tensor) -> Tensor:
        return checkpoint(self.inner, h, use_reentrant=False)


class PlainCheckpoint(Checkpoint):
    """… around layers without."""

    def setup(self) -> None:
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


class ReentrantCheckpoint(Checkpoint):
    """… the older, reentrant one."""

    def mid(self, h: Tensor) -> Tensor:
        return checkpoint(self.inner, h, use_reentrant=True)


class Attention(Net):
    """`MultiheadAttention(need_weights=False)`."""

    def setup(self) -> None:
        self.a = nn.MultiheadAttention(4, 2, batch_first=True)

    def mid(self, h: Tensor) -> Tensor:
        h = h.reshape(-1, WIDTH // 4, 4)
        return (h + self.a(h, h, h, need_weights=False)[0]).flatten(1)


class Dtypes(Net):
    """`x.to(t.dtype)`, and `arange` with the dtype of a tensor."""

    def mid(self, h: Tensor) -> Tensor:
        ramp = torch.arange(h.shape[1], dtype=h.dtype, device=h.device) / h.shape[1]
        return h * ramp.to(h.dtype) + (h > 0).to(self.f.weight.dtype)


class NumberDrawn(Net):
    """A number that is drawn as a Python number."""

    def mid(self, h: Tensor) -> Tensor:
        return h * (0.5 + torch.rand(1).item())


class NoiseOfItsShape(Net):
    """Noise whose shape is read off a tensor."""

    def mid(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn(h.shape, dtype=h.dtype) + 0.1 * torch.rand(h.shape[0], 1, dtype=h.dtype)


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * 2, self.bias)


class SubclassOfALayer(Net):
    """An own subclass of `nn.Linear`."""

    def setup(self) -> None:
        self.own = OwnLinear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        return self.own(h)


class Lists(Net):
    """`ParameterList` and `ParameterDict`."""

    def setup(self) -> None:
        self.each = nn.ParameterList([torch.randn(WIDTH) for _ in range(2)])
        self.named = nn.ParameterDict({"gain": torch.randn(())})

    def mid(self, h: Tensor) -> Tensor:
        return h * self.each[0] + self.each[1] * self.named["gain"]


class Branch(Net):
    """Control flow that depends on the data."""

    def mid(self, h: Tensor) -> Tensor:
        return h * 2 if h.mean() > 0 else h - 1


class Residual(Net):
    """`out += identity`."""

    def setup(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        out = self.inner(h)
        out += h
        return out


class ChangedView(Net):
    """A view that is changed in place changes what it is a view of."""

    def setup(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        h = self.inner(h)
        first = h[:, :2]
        first += 1
        return h


class InPlaceLayers(Net):
    """Activations in place, the input of one read again."""

    def setup(self) -> None:
        self.inner, self.act = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def mid(self, h: Tensor) -> Tensor:
        h = self.inner(h)
        return self.act(h) + h


class FunctionalDropout(Net):
    """`F.dropout` under `self.training`."""

    def mid(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.3) if self.training else h


class DropoutOfAView(Net):
    """Dropout in place of a view, whose answer is not used; p = 1 leaves nothing to chance."""

    def setup(self) -> None:
        self.drop = nn.Dropout(1.0, inplace=True)

    def mid(self, h: Tensor) -> Tensor:
        h = h * 1.0
        self.drop(h[:, :3])
        F.dropout(h[:, 3:4], 1.0, inplace=True)
        return h


class DropoutInPlace(Net):
    """Layers in place, one after another, as most people write them."""

    def setup(self) -> None:
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(inplace=True), nn.Dropout(0.5, inplace=True))

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class OptionsOfDraws(Net):
    """Options that functions which draw take by name."""

    def mid(self, h: Tensor) -> Tensor:
        noise = torch.full((WIDTH,), 50.0, dtype=h.dtype, device=h.device)
        torch.rand(WIDTH, out=noise)
        leaf = torch.rand(WIDTH, dtype=h.dtype, device=h.device, requires_grad=True)
        return F.dropout(input=h, p=0.5) + noise + leaf * leaf.requires_grad + torch.randn_like(input=h)


class Defaults(Net):
    """Arguments of forward that are never passed: positional, keyword and None."""

    def forward(
        self, x: Tensor, scale: float = 0.5, mask: Tensor | None = None, *rest: Tensor, psi: float = 2.0
    ) -> Tensor:
        if mask is not None:
            x = x * mask
        return super().forward(x) * scale + sum(rest) + psi


class RememberedTensor(Net):
    """A tensor that is kept to be looked at, and never read."""

    def mid(self, h: Tensor) -> Tensor:
        self.last = h
        return h


class NumpyInConstructor(Net):
    """Weights that NumPy and Python draw."""

    def setup(self) -> None:
        with torch.no_grad():
            self.f.weight.copy_(torch.from_numpy(np.random.normal(size=self.f.weight.shape)))
            self.f.bias.fill_(random.random())


class Lazy(Net):
    """A layer that learns its size from its first input."""

    def setup(self) -> None:
        self.inner = nn.LazyLinear(WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h)


class Recurrence(Net):
    """A GRU, which also keeps its weights in a list."""

    def setup(self) -> None:
        self.inner = nn.GRU(2, WIDTH, batch_first=True)

    def mid(self, h: Tensor) -> Tensor:
        return self.inner(h.reshape(-1, WIDTH // 2, 2))[0][:, -1]


class HeldInAList(Net):
    """A parameter that a plain list holds as well."""

    def setup(self) -> None:
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.gains = [self.gain]

    def mid(self, h: Tensor) -> Tensor:
        return h * self.gains[0]


class HookWithAParameter(Net):
    """A hook that holds a parameter, instead of asking the module for it."""

    def setup(self) -> None:
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.f.register_forward_hook(functools.partial(lambda gain, layer, given, out: out * gain, self.gain))


class HookMethod(Net):
    """A method of the net as a hook."""

    def setup(self) -> None:
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.f.register_forward_hook(self.scaled)

    def scaled(self, layer: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out * self.gain


class Pruned(Net):
    """`nn.utils.prune`, whose masks differ from member to member."""

    def setup(self) -> None:
        prune.random_unstructured(self.f, "weight", 0.3)


class OwnCall(Net):
    """`__call__` overridden."""

    def __call__(self, x: Tensor) -> Tensor:
        return 0.5 * super().__call__(x)


class Everything(Net):
    """Frozen and learned, normed and not, with buffers of every kind."""

    def setup(self) -> None:
        self.f.requires_grad_(False)
        self.bn, self.fixed = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH).eval()
        self.register_buffer("t", torch.zeros(()))
        self.register_buffer("mask", (torch.rand(WIDTH) > 0.3).float(), persistent=False)

    def mid(self, h: Tensor) -> Tensor:
        self.t += 1
        return self.fixed(self.bn(h)) * self.mask * torch.clamp(self.t / 20, max=1.0)


class UnusedAtTimes(Net):
    """A layer that some steps do not use: Adam leaves it alone then."""

    def setup(self) -> None:
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        self.n += 1
        return h + self.inner(h) if int(self.n) % 7 < 4 else h


class UnusedBySome(Net):
    """A layer that a member uses in every step or in none, as its buffer says."""

    def setup(self) -> None:
        self.register_buffer("uses", torch.ones(()))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        return h + self.inner(h) if self.uses else h


class CausalMask(Net):
    """Attention with a mask that holds minus infinity."""

    def setup(self) -> None:
        self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))

    def mid(self, h: Tensor) -> Tensor:
        rows = h.view(-1, 2, WIDTH // 2)
        return ((rows @ rows.mT + self.mask).softmax(-1) @ rows).flatten(1)


class Prototypes(Net):
    """Cosine similarities of tensors with different numbers of axes, which broadcast."""

    def setup(self) -> None:
        self.one, self.some = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(3, WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        near = F.cosine_similarity(h[:, None], self.some, dim=-1).sum(1) + F.cosine_similarity(h, self.one)
        return h * near[:, None] + F.cosine_similarity(x1=self.one, x2=h, dim=1, eps=1e-3)[:, None]


class GradientOfAFunction(Net):
    """A gradient inside of forward, by `torch.func`."""

    def mid(self, h: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))(h)


class DroppedChannels(Net):
    """Dropouts of whole channels, of inputs that have no batch axis."""

    def mid(self, h: Tensor) -> Tensor:
        return F.dropout1d(h, 0.5) + F.dropout3d(h.view(-1, 2, 2, 2), 0.3).flatten(1)


class UndrawnDraws(Net):
    """Functions that draw numbers with other settings."""

    def setup(self) -> None:
        self.drop = nn.AlphaDropout(0.0)

    def mid(self, h: Tensor) -> Tensor:
        return self.drop(F.rrelu(h, 0.1, 0.3)) + F.alpha_dropout(h)


class KeptActivations(Net):
    """Activations in containers: a hook's dictionary, a list that is emptied, and a namespace."""

    def setup(self) -> None:
        self.acts: dict[str, Any] = {"by": {}}
        self.rows: list[Tensor] = []
        self.last = SimpleNamespace(h=None)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.inner.register_forward_hook(lambda m, i, o: self.acts["by"].__setitem__("inner", o))

    def mid(self, h: Tensor) -> Tensor:
        self.rows.clear()
        self.rows.append(h)
        self.last.h = self.inner(h)
        return self.rows[0] + torch.tanh(self.acts["by"]["inner"]) * self.last.h


class CachedByBatch(Net):
    """A tensor that is made again only if the size of the batch changes."""

    def setup(self) -> None:
        self.grid: Tensor | None = None
        self.mid(torch.zeros(4, WIDTH))

    def mid(self, h: Tensor) -> Tensor:
        if self.grid is None or len(self.grid) != len(h) or self.grid.device != h.device:
            self.grid = torch.linspace(0.5, 1.5, WIDTH, dtype=h.dtype, device=h.device).expand(len(h), WIDTH)
        return h * self.grid


class DirectionalDerivative(Net):
    """A derivative along a direction, by `torch.func.jvp`."""

    def setup(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        return h + torch.func.jvp(lambda z: torch.tanh(self.inner(z)), (h,), (torch.ones_like(h),))[1]


class ReadInAnotherShape(Net):
    """Activations that change a view of a tensor, which is read itself, too."""

    def setup(self) -> None:
        self.act = nn.ReLU(inplace=True)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        one, other = self.first(h), self.second(h)
        flat = F.leaky_relu(other.view(-1), 0.2, inplace=True)
        return one + self.act(one.view(-1, 2, WIDTH // 2)).flatten(1) + other * flat.mean()


class ReadAsItWas(Net):
    """A copy in another order of what is then changed in place."""

    def setup(self) -> None:
        self.inner = nn.Linear(WIDTH, WIDTH)

    def mid(self, h: Tensor) -> Tensor:
        h = self.inner(h)
        turned = h.view(-1, 2, WIDTH // 2).permute(0, 2, 1).flatten(1)
        F.relu(h, inplace=True)
        return turned + h


class SizeByPosition(Net):
    """A transposed convolution whose output size is given by position."""

    def setup(self) -> None:
        self.up = nn.ConvTranspose2d(WIDTH, 1, 3, stride=2, padding=1)

    def mid(self, h: Tensor) -> Tensor:
        return h + self.up(h[:, :, None, None].expand(-1, -1, 2, 2), [4, 4]).mean((1, 2, 3))[:, None]
