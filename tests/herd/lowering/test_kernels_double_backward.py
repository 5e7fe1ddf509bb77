"""Kernels for gradient penalties can be differentiated twice: values and both gradients equal plain PyTorch."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from ganherd.herd import rng
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.member_conv import MemberConv
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.herd.lowering.lower import lower
from ganherd.herd.state import Blueprint
from ganherd.losses.adversarial import gradient_penalty, r1_penalty
from ganherd.nets.residual import ResidualDiscriminator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 2e-5) -> None:
    gap = (ours.detach().double() - theirs.detach().double()).norm() / theirs.detach().double().norm().clamp(min=1e-9)
    assert gap < tolerance, float(gap)


# channels in, channels out, taps, stride, padding, transposed
CONVOLUTIONS = {
    "stride 1": (17, 8, 3, 1, 1, False),
    "few channels out": (2, 3, 3, 1, 1, False),
    "stride 2": (2, 17, 4, 2, 2, False),
    "transposed": (17, 8, 5, 2, 1, True),
}


@pytest.mark.further(but=["stride 1", "few channels out"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_second_gradient_of_convolution_kernel_equals_plain_pytorch(name):
    ci, co, k, stride, pad, transposed = CONVOLUTIONS[name]
    n, b, h, w = 2, 2, 5, 3
    generator = torch.Generator().manual_seed(k)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    x = normal(n, b, ci, h, w)
    weight = (normal(n, ci, co, k, k) if transposed else normal(n, co, ci, k, k)) / k
    bias = normal(n, co)

    def theirs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        run = F.conv_transpose2d if transposed else F.conv2d
        return torch.stack([run(*one, stride=stride, padding=pad) for one in zip(x, weight, bias, strict=True)])

    def ours(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        how = ConvSpec(
            tuple(theirs(x, weight, bias).shape[-2:]),
            WeightLayout(k, in_first=transposed),
            stride,
            pad,
            transposed,
            False,
        )
        out, _ = MemberConv.apply(x.permute(0, 1, 3, 4, 2).contiguous(), weight, bias, how)
        return out.permute(0, 1, 4, 2, 3)

    results = []
    for run, dtype in ((theirs, torch.float64), (ours, torch.float32)):
        args = [value.to(dtype).requires_grad_() for value in (x, weight, bias)]
        first = torch.autograd.grad(run(*args).square().sum(), args, create_graph=True)
        second = torch.autograd.grad(sum(one.pow(3).sum() for one in first), args)
        results.append([*first, *second])
    for one, other in zip(results[1], results[0], strict=True):
        close(one, other)


class WithoutLayers(nn.Module):
    """A critic that calls functions for everything but its products, as R3GAN's and StyleGAN2's do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = nn.Conv2d(1, 32, 1, bias=False), nn.Parameter(torch.rand(32))
        self.groups = nn.Conv2d(32, 32, 3, padding=1, groups=2, bias=False)
        self.basis, self.score = nn.Conv2d(32, 32, (3, 4), groups=32, bias=False), nn.Linear(32, 1)

    def forward(self, x):
        x = F.leaky_relu(self.first(x) + self.bias.view(1, -1, 1, 1), 0.2)
        x = F.interpolate(self.groups(x), scale_factor=2, mode="bilinear", align_corners=False)
        x = F.avg_pool2d(F.interpolate(x, scale_factor=0.5, mode="bilinear"), 2)
        return self.score(self.basis(x).flatten(1)).view(x.shape[0])


class WithAttention(nn.Module):
    """A critic with attention between pixels, for which PyTorch has kernels that cannot be differentiated twice."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(1, 4, 1) for _ in range(3))
        self.score = nn.Linear(4 * 20, 1)

    def forward(self, x):
        query, key, value = (part(x).flatten(2).mT for part in (self.query, self.key, self.value))
        return self.score(F.scaled_dot_product_attention(query, key, value).flatten(1)).flatten()


def critic_of(penalty: str) -> nn.Module:
    if penalty == "r1, attention":
        return WithAttention()
    if penalty == "r1, residual":  # spectral norm, and convolutions that are pooled
        return ResidualDiscriminator((1, 6, 8), width=3)
    if penalty == "r1, functions":
        return WithoutLayers()
    norm = nn.BatchNorm2d(3, track_running_stats=False) if penalty == "r1" else nn.Dropout(0.25)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, 2, 1), nn.LeakyReLU(0.2), norm, nn.Conv2d(3, 8, 3, 1, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(48, 1), nn.Flatten(0),
    )  # fmt: skip


@pytest.mark.further("r1, residual")
@pytest.mark.parametrize("penalty", ["gradient", "r1", "r1, residual", "r1, functions", "r1, attention"])
def test_gradient_penalty_by_kernels_equals_plain_pytorch(penalty, monkeypatch):
    monkeypatch.setattr(rng, "draw", rng._hashed)  # the CPU draws otherwise than a GPU; here both the same
    torch.manual_seed(0)
    modules = [critic_of(penalty) for _ in range(2)]
    net = Blueprint(modules[0])
    rows = torch.stack([net.flatten_parameters(module) for module in modules])
    rows += 0.1 * torch.randn(rows.shape)
    shape = (6, 8) if penalty in ("r1, residual", "r1, functions") else (5, 4)
    real, fake = (torch.randn(2, 3, 1, *shape) for _ in range(2))
    kinds = {key: torch.stack([dict(one.named_buffers())[key] for one in modules]) for key in net.buffers}
    at = torch.rand(2, 3)
    keys = torch.from_numpy(rng.keys(rng.np.arange(2), 3)).to(DEVICE)
    results = []
    for operations, dtype in (("plain", torch.float64), ("triton", torch.float32)):
        lowered = lower(modules[0], operations, double_backward=True)
        own, x, made, between = (value.to(DEVICE, dtype) for value in (rows, real, fake, at))
        own.requires_grad_()

        def critic(x: torch.Tensor, run=lowered, own=own) -> torch.Tensor:
            buffers = {key: value.to(DEVICE, own.dtype) for key, value in kinds.items()}
            return run(net.views(own), buffers, lambda: keys, x)[0]

        paid = gradient_penalty(critic, x, made, between) if penalty == "gradient" else r1_penalty(critic, x)
        results.append([paid, *torch.autograd.grad(paid.sum(), own)])
    for one, other in zip(results[1], results[0], strict=True):
        close(one, other)
