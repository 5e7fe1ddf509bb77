"""Functions and layers of users' nets run for all members at once, without `vmap`, and equal each member alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ganherd.herd.lowering import functions, lower, vmap
from ganherd.herd.lowering.lower import VMAP
from ganherd.herd.member_randomness import MemberRandomness
from ganherd.herd.state import Blueprint

MEMBERS = BATCH = 4  # equal, so that axes that are mixed up go unnoticed by shapes alone


class Calls(nn.Module):
    """Apply a function to an image, with a few parameters at hand."""

    def __init__(self, call: Callable[[Calls, Tensor], Tensor]) -> None:
        super().__init__()
        self.call = (call,)  # in a tuple, so that it is not a method
        self.gain, self.row = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(4))
        self.matrix, self.table = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 4))
        self.kernel = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.image = nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.call[0](self, x)  # x [B, 4, 6, 6]


def minibatch_deviation(net: Calls, x: Tensor) -> Tensor:
    """StyleGAN2's: the mean deviation of groups of samples, as one more channel."""
    batch, channels, height, width = x.shape
    group = min(batch, 2)
    y = x.view(group, -1, 1, channels, height, width)
    y = torch.sqrt(y.var(0, unbiased=False) + 1e-8)
    y = y.mean([2, 3, 4], keepdim=True).squeeze(2)
    return torch.cat([x, y.repeat(group, 1, height, width)], 1)


def modulated(net: Calls, x: Tensor, transposed: bool = False) -> Tensor:
    """StyleGAN2's: a weight for each sample, run as a convolution with one group for each."""
    b, c, h, w = x.shape
    style = x.mean((2, 3)) + 1
    weight = net.kernel[None] * style[:, None, :, None, None]
    weight = weight * torch.rsqrt(weight.square().sum([2, 3, 4], keepdim=True) + 1e-8)
    if transposed:
        weight = weight.transpose(1, 2).reshape(b * c, 4, 3, 3)
        out = F.conv_transpose2d(x.reshape(1, b * c, h, w), weight, stride=2, padding=1, output_padding=1, groups=b)
    else:
        out = F.conv2d(x.reshape(1, -1, h, w), weight.view(b * 4, c, 3, 3), padding=1, groups=b)
    return out.view(b, 4, out.size(2), out.size(3))


def attention(net: Calls, x: Tensor) -> Tensor:
    """Attention with two heads, by chunks and PyTorch's function."""
    b, c, h, w = x.shape
    q, k, v = torch.cat([x, x * net.gain, x + net.row.view(1, -1, 1, 1)], dim=1).chunk(3, dim=1)
    q, k, v = (value.reshape(b, 2, c // 2, h * w).transpose(-1, -2) for value in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w)


CALLS: dict[str, Callable[[Calls, Tensor], Tensor]] = {
    "minibatch_deviation": minibatch_deviation,
    "modulated": modulated,
    "modulated_transposed": lambda net, x: modulated(net, x, transposed=True),
    "attention": attention,
    "attention_without_heads": lambda net, x: F.scaled_dot_product_attention(
        x.flatten(2), x.flatten(2) * net.gain, x.flatten(2), attn_mask=net.matrix
    ),
    "softmax": lambda net, x: F.softmax(x, dim=1) + torch.softmax(x, 3) + x.softmax(-1) + F.log_softmax(x, 2),
    "silu_gelu": lambda net, x: F.silu(x) + F.gelu(x, approximate="tanh") + F.mish(x) + F.elu(x) + F.softplus(x),
    "clamp_where": lambda net, x: torch.where(x > 0, x, net.row.view(-1, 1, 1) * x).clamp(-1, 1).abs(),
    "gain_of_a_tensor": lambda net, x: torch.lerp(x, net.gain * x, 0.3) + net.image + net.row[:, None, None],
    "means": lambda net, x: x.mean() + x.mean((2, 3)) + x.mean(dim=1).std((1, 2), unbiased=False)[:, None],
    "sums": lambda net, x: x.sum() * x.sum(0).sum(-1) + x.var(dim=(0, 2, 3), keepdim=True)[0] + x.norm() + x.std(),
    "norms": lambda net, x: (
        x / x.norm(dim=1, keepdim=True) + F.normalize(x) + F.normalize(x, dim=-1) + torch.norm(x, 2, 1).mean()
    ),
    "integers": lambda net, x: ((x > 0).to(torch.uint8) * 9 + 5 * (x > 0).sum()).to(x.dtype) * x,
    "maxima": lambda net, x: (
        x.max() + x.amax((2, 3)) + x.max(dim=1).values.amin((1, 2))[:, None] + torch.min(x, -x)[:, 0, 0, :4]
    ),
    "chunks": lambda net, x: (
        torch.cat(x.chunk(2, 1)[::-1], 1) + torch.cat(torch.split(x, [1, 3], dim=1), dim=-3) + x.split(2)[0].sum()
    ),
    "stacks": lambda net, x: torch.stack([x, 2 * x]).sum(0) + torch.stack([x, 2 * x], dim=1)[:, 1] + x.unbind()[2],
    "transposes": lambda net, x: (
        x.transpose(2, 3) + x.transpose(-1, -2) + x.permute(0, 1, 3, 2) + x.movedim(2, 3) + x.mT
    ),
    "flips": lambda net, x: x.flip(3) + torch.flip(x, [2, -1]) + x.roll(1, 2),
    "shapes": lambda net, x: (
        x.flatten().view_as(x)
        + x.unsqueeze(0).squeeze(0)
        + x.unflatten(1, (2, 2)).flatten(1, 2)
        + x[:, :1].squeeze()[:, None]
    ),
    "expands": lambda net, x: (
        net.row.view(1, -1, 1, 1).expand(x.size(0), -1, 6, 6)
        + net.gain.expand_as(x)
        + net.row.repeat(6, 6, 1).permute(2, 0, 1) * x
    ),
    "products": lambda net, x: (
        net.matrix @ x.flatten(2) @ net.image[0].repeat(6, 6) + torch.bmm(x.flatten(2), x.flatten(2).mT) @ x.flatten(2)
    ),
    "vectors": lambda net, x: (
        x.mean((2, 3)) @ net.row + net.row @ net.matrix @ net.row + net.matrix.T.mv(net.row).dot(net.row)
    ),
    "einsum": lambda net, x: (
        torch.einsum("bchw,dc->bdhw", x, net.matrix) + torch.einsum("b c h w, c -> b h w", x, net.row)[:, None]
    ),
    "linear": lambda net, x: F.linear(x.movedim(1, -1), net.matrix * 0.5, net.row).movedim(-1, 1),
    "convolution": lambda net, x: F.conv2d(x, net.kernel * net.gain, net.row, stride=2, padding=1),
    "depthwise": lambda net, x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), net.kernel[:, :1], groups=4),
    "transposed_convolution": lambda net, x: F.conv_transpose2d(x, net.kernel, net.row, 2, 1, output_padding=1),
    "grouped": lambda net, x: F.conv2d(x, net.kernel[:, :2], net.row, groups=2, padding=1),
    "pooling": lambda net, x: (
        F.avg_pool2d(x, 2) + F.max_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 3) + F.adaptive_avg_pool2d(x, 1)
    ),
    "bilinear": lambda net, x: (
        F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)[..., ::2, ::2]
        + F.interpolate(x, size=(6, 6))
    ),
    "shuffles": lambda net, x: F.pixel_shuffle(x, 2) + F.pixel_unshuffle(x, 2).sum(),
    "padding": lambda net, x: F.pad(x, (0, 1, 2, 0)) + F.pad(x, (0, 1, 1, 1), mode="replicate"),
    "unfold": lambda net, x: F.unfold(x, 3, padding=1).view(x.shape[0], 4, 9, 6, 6).sum(2),
    "functional_norms": lambda net, x: (
        F.group_norm(x, 2, net.row, net.row)
        + F.layer_norm(x, (4, 6, 6), net.image)
        + F.instance_norm(x, weight=net.row, bias=net.row)
    ),
    "creations": lambda net, x: (
        x * torch.arange(x.shape[3], dtype=x.dtype)
        + torch.zeros(x.shape[0], 4, 1, 1, dtype=x.dtype)
        + x.new_ones(x.shape)
        + torch.ones_like(x)
    ),
    "embedding": lambda net, x: x + F.embedding((x[:, 0, 0, 0] > 0).long(), net.table, padding_idx=1)[:, :, None, None],
    "draws": lambda net, x: (
        x + net.gain * torch.randn(x.shape[0], 1, x.shape[2], 6, dtype=x.dtype, device=x.device) + torch.rand_like(x)
    ),
    "dropout": lambda net, x: F.dropout(x, 0.3) + F.dropout2d(x, 0.5),
    "by_name": lambda net, x: (
        torch.mean(input=x, dim=1, keepdim=True)
        + torch.cat(tensors=[x, x], dim=2)[:, :, :6]
        + torch.add(input=x, other=net.gain)
    ),
    "dtypes": lambda net, x: (
        x.to(torch.float32).double()
        + (x > 0).to(x.dtype)
        + x.contiguous(memory_format=torch.channels_last)
        + x.detach()
    ),
}

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GroupNorm": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(inplace=True), nn.GroupNorm(1, 4, affine=False)),
    "LayerNorm": lambda: nn.Sequential(nn.LayerNorm((4, 6, 6)), nn.GELU(), nn.LayerNorm(6, bias=False)),
    "RMSNorm": lambda: nn.RMSNorm((6, 6)),
    "InstanceNorm": lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.Mish(), nn.InstanceNorm2d(4)),
    "Softmax": lambda: nn.Sequential(nn.Softmax(dim=1), nn.GLU(dim=1), nn.LogSoftmax(-1)),
    "PReLU": lambda: nn.Sequential(nn.PReLU(), nn.PReLU(4)),
    "PixelShuffle": lambda: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(3)),
    "Pooling": lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.ReflectionPad2d(1), nn.AvgPool2d(2)),
    "Bilinear": lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveMaxPool2d(3)),
    "Dropout2d": lambda: nn.Dropout2d(0.4),
    "Grouped": lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.ConvTranspose2d(8, 4, 2, 2, groups=4)),
    "SpectralNorm": lambda: nn.Sequential(
        nn.utils.spectral_norm(nn.Conv2d(4, 3, 3, padding=1)), nn.LeakyReLU(0.2),
        nn.utils.spectral_norm(nn.ConvTranspose2d(3, 2, 3), n_power_iterations=2), nn.Flatten(),
        nn.utils.spectral_norm(nn.Linear(128, 2)),
    ),
    "ParametrizedSpectralNorm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 3, 3, padding=1)), nn.Flatten(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(108, 2)),
    ),
}  # fmt: skip


def check(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch, twice: bool) -> None:
    """Compare outputs, gradients and buffers of all members at once with those of each alone, without `vmap`."""

    def refuse(*args: object) -> None:
        raise AssertionError("it runs through vmap")

    monkeypatch.setattr(functions, "vmap_call", refuse)
    monkeypatch.setattr(lower, "vmap_layer", refuse)
    torch.manual_seed(0)
    modules = [make().double() for _ in range(MEMBERS)]
    blueprint = Blueprint(modules[0])
    rows = torch.stack([blueprint.flatten_parameters(module) for module in modules])
    rows.requires_grad_(bool(rows.numel()))
    buffers = {name: torch.stack([dict(m.named_buffers())[name] for m in modules]) for name in blueprint.buffers}
    x = torch.randn(MEMBERS, BATCH, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    lowered = lower.lower(modules[0])
    assert VMAP not in {operation.method for operation in lowered.explain()}
    keys = torch.arange(MEMBERS)
    for _ in range(2):  # the second call reads the buffers of the first
        out, buffers = lowered(blueprint.views(rows), buffers, lambda: keys, x)
        outs = []
        for i, module in enumerate(modules):
            own = {name: value[i] for name, value in blueprint.views(rows).items()}
            named = {**own, **dict(module.named_buffers())}
            with MemberRandomness(keys[i]):
                outs.append(functional_call(module, named, (x[i],)))
            for name in buffers:
                assert torch.allclose(buffers[name][i], dict(module.named_buffers())[name], atol=1e-12), name
        alone = torch.stack(outs)
        assert out.shape == alone.shape and out.dtype == alone.dtype
        assert torch.allclose(out, alone, atol=1e-11)
    leaves = [x, rows] if rows.numel() else [x]
    for first, second in zip(_gradients(out, leaves, twice), _gradients(alone, leaves, twice), strict=True):
        assert torch.allclose(first, second, atol=1e-9 * (1 + float(second.detach().abs().max())))


def _gradients(out: Tensor, leaves: list[Tensor], twice: bool) -> list[Tensor]:
    """Return the gradients of a loss and, if `twice`, of the penalty on the gradient of the inputs."""
    options = {"allow_unused": True, "materialize_grads": True}
    loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).cos().sum()
    first = torch.autograd.grad(loss, leaves, create_graph=twice, **options)
    if not twice:
        return list(first)
    return [*first, *torch.autograd.grad(first[0].square().sum(), leaves, **options)]


# PyTorch's own attention can be differentiated once only.
ONCE = {"attention", "attention_without_heads"}


@pytest.mark.parametrize("name", CALLS)
def test_functions_run_for_all_members_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(lambda: Calls(CALLS[name]), monkeypatch, twice=name not in ONCE)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_run_for_all_members_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(LAYERS[name], monkeypatch, twice=True)


def test_a_spectral_norm_in_evaluation_mode_uses_its_vectors_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    check(lambda: LAYERS["SpectralNorm"]().eval(), monkeypatch, twice=True)
    check(lambda: LAYERS["ParametrizedSpectralNorm"]().eval(), monkeypatch, twice=True)


def test_a_function_without_a_rule_runs_through_vmap() -> None:
    module = Calls(lambda net, x: torch.kron(net.matrix, net.matrix).sum() * x).double()
    lowered = lower.lower(module)
    assert VMAP in {operation.method for operation in lowered.explain()}
    views = {name: value[None].expand(2, *value.shape) for name, value in module.named_parameters()}
    x = torch.randn(2, 3, 4, 6, 6, dtype=torch.float64)
    out, _ = lowered(views, {}, lambda: torch.arange(2), x)
    assert torch.allclose(out[1], module(x[1]))
    assert math.isfinite(out.sum().item()) and vmap.vmap_call is functions.vmap_call
