"""The Triton kernels equal plain PyTorch, values and gradients, on shapes of every kind; on a CPU by Triton's interpreter."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from ganherd.herd import rng
from ganherd.herd.lowering import ops, ops_triton
from ganherd.herd.lowering.kernels import norm, weight_cache
from ganherd.herd.lowering.kernels.adam_kernel import adam_triton_, clip_triton_
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.member_conv import MemberConv
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.herd.lowering.kernels.image_norm import MemberImageNorm
from ganherd.herd.lowering.kernels.norm import MemberNorm
from ganherd.herd.lowering.kernels.random_bits import MemberDropout, fill, mix
from ganherd.herd.lowering.kernels.resize import AddDoubled, Double, Halve, UpsampleBilinear
from ganherd.herd.step.optimizer import adam_reference_

HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # the interpreter has no products in bfloat16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    gap = (ours.detach().double() - theirs.detach().double()).norm() / theirs.detach().double().norm().clamp(min=1e-12)
    assert gap < tolerance, float(gap)


def nhwc(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 1, 3, 4, 2).contiguous()


# members, samples, height, width, channels in and out, taps, stride, padding, transposed, dtype, whether a batch norm follows
CONVOLUTIONS = {
    "few channels": (2, 2, 5, 6, 3, 3, 3, 1, 1, False, torch.float32, True),
    "one channel out of many": (2, 1, 6, 5, 20, 1, 5, 1, 2, False, HALF, False),
    "many channels out of few, several tiles": (1, 1, 24, 23, 3, 17, 3, 1, 1, False, torch.float32, True),
    "many channels": (2, 2, 5, 7, 17, 20, 4, 1, 1, False, HALF, False),
    "stride 2, many channels out of one": (3, 1, 8, 9, 1, 17, 5, 2, 0, False, HALF, True),
    "stride 2, deeper than a tile": (1, 2, 7, 6, 40, 20, 3, 2, 1, False, torch.float32, False),
    "stride 2, one channel": (2, 3, 6, 6, 3, 1, 4, 2, 2, False, torch.float32, True),
    "transposed, few channels": (3, 1, 6, 8, 1, 3, 4, 2, 2, True, torch.float32, True),
    "transposed, many channels": (1, 2, 6, 9, 20, 17, 4, 2, 0, True, torch.float32, True),
    "transposed, odd": (2, 1, 5, 4, 16, 3, 5, 2, 1, True, HALF, False),
    "transposed, odd, deeper than a tile": (2, 2, 4, 5, 70, 20, 5, 2, 2, True, torch.float32, True),
    "transposed, one tap": (1, 2, 3, 4, 17, 5, 1, 2, 0, True, torch.float32, False),
    "transposed, small": (2, 2, 5, 6, 3, 32, 3, 2, 1, True, HALF, False),
    "one tap, wider than a tile": (1, 1, 6, 11, 40, 130, 1, 1, 0, False, torch.float32, False),
    "boxes, stride 1": (2, 2, 8, 8, 64, 64, 3, 1, 1, False, HALF, False),
    "boxes, stride 2": (1, 4, 8, 8, 64, 64, 4, 2, 1, False, HALF, True),
    "boxes, transposed": (2, 2, 8, 8, 64, 64, 4, 2, 1, True, HALF, True),
}


@pytest.mark.further("transposed, odd, deeper than a tile")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_kernel_equals_plain_pytorch(name):
    n, b, h, w, ci, co, k, stride, pad, transposed, dtype, normed = CONVOLUTIONS[name]
    generator = torch.Generator().manual_seed(n * 1000 + h * 100 + w * 10 + k)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    x = random(n, b, ci, h, w).to(dtype)
    weight = (random(n, ci, co, k, k) if transposed else random(n, co, ci, k, k)).to(dtype) / k
    bias = random(n, co)
    x64, w64, b64 = (t.double().requires_grad_() for t in (x, weight, bias))
    run = F.conv_transpose2d if transposed else F.conv2d
    theirs = torch.stack([run(x64[i], w64[i], b64[i], stride=stride, padding=pad) for i in range(n)])
    ours_x = nhwc(x).requires_grad_()
    rows = random(n, 7 + weight[0].numel())  # a member's weight lies within its row of parameters
    ours_w = rows[:, 7:].view(weight.shape).copy_(weight.float()).requires_grad_()
    ours_b = bias.clone().requires_grad_()
    size = tuple(theirs.shape[-2:])
    turn = WeightLayout(k, in_first=transposed)
    how = ConvSpec(size, turn, stride, pad, transposed, False)
    ours, stats = MemberConv.apply(ours_x, ours_w, ours_b, how, normed)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    close(ours, nhwc(theirs), tolerance)
    grad = random(*theirs.shape)
    theirs.backward(grad.double())
    ours.backward(nhwc(grad).to(dtype))
    close(ours_x.grad, nhwc(x64.grad), tolerance)
    close(ours_w.grad, w64.grad, tolerance)
    if not normed:
        return close(ours_b.grad, b64.grad, tolerance)
    assert not ours_b.grad.any()  # a batch norm would take the bias away again
    if stats is not None:
        count, mean, squares = stats.double()
        over = nhwc(theirs).flatten(1, 3)
        assert (count.sum(1) == over.shape[1]).all()
        close((count * mean).sum(1) / over.shape[1], over.mean(1), tolerance)
        within = squares.sum(1) + (count * (mean - over.mean(1)[:, None]) ** 2).sum(1)
        close(within / over.shape[1], over.var(1, correction=0), tolerance)


@pytest.mark.parametrize(("channels", "size"), [((3, 5), (4, 5)), ((20, 17), (3, 3))])
def test_fused_upsampling_and_convolution_equals_both_modules(channels, size):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(*channels, 3, padding=1)
    x = torch.randn(2, 2, channels[0], *size)
    weight, bias = (torch.stack([p.detach(), -0.5 * p.detach()]) for p in (layer.weight, layer.bias))
    results = []
    for library, dtype in ((ops, torch.float64), (ops_triton, torch.float32)):
        given = [t.to(DEVICE, dtype).requires_grad_() for t in (x, weight, bias)]
        out = library.conv2d(*given, layer, ops.Fusions(upsample=True))
        out.square().sum().backward()
        results.append([out, *(t.grad for t in given)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("more", [(0, 0), (1, 1), (0, 1)])
def test_transposed_convolution_with_output_padding_equals_its_module(more):
    """Output padding makes a transposed convolution of stride 2 double exactly; if the edges differ, there is no kernel."""
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(3, 2, 5, 2, 2, output_padding=more).to(DEVICE)
    assert ops_triton.has_conv_kernel(layer) == (more[0] == more[1])
    x = torch.randn(1, 2, 3, 4, 4, device=DEVICE)
    ours = ops_triton.conv_transpose2d(x, layer.weight[None], layer.bias[None], layer)
    close(ours[0], layer(x[0]), 1e-5)


def check_norm(ours, theirs, ours_in, theirs_in, running, moved, generator):
    """Compare the output of a norm's kernel, its running statistics (mean, variance, batches) and its gradients with plain ones."""
    assert running[2].tolist() == [4, 10]
    close(ours, theirs, 1e-5)
    close(running[0], moved.mean, 1e-6)
    close(running[1], moved.var, 1e-5)
    grad = torch.randn(ours.shape, generator=generator).to(DEVICE)
    theirs.backward(grad.double())
    ours.backward(grad)
    for one, other in zip(ours_in, theirs_in, strict=True):
        close(one.grad, other.grad, 1e-4)


@pytest.mark.parametrize(
    ("m", "c", "slope", "parts"), [(5, 3, 0.2, 128), (1100, 20, 0.0, 128), (1100, 3, 0.2, 8), (64, 70, 1.0, 128)]
)
def test_batch_norm_kernel_with_activation_equals_plain_pytorch(m, c, slope, parts, monkeypatch):
    """Also where there are more rows than parts of one tile, which then are added by another kernel."""
    monkeypatch.setattr(norm, "_MAX_PARTIALS", parts)
    monkeypatch.setattr(norm, "_FEW_PARTIALS", parts // 2)
    generator = torch.Generator().manual_seed(m)
    x = (torch.randn(2, m, c, generator=generator) * 3 + 5).to(DEVICE)
    weight, bias = (torch.randn(2, c, generator=generator).to(DEVICE) for _ in range(2))
    theirs_in = [t.double().requires_grad_() for t in (x, weight, bias)]
    before = [torch.rand(2, c, generator=generator).to(DEVICE) for _ in range(2)]
    count = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    running = ops.RunningStats(before[0].double(), before[1].double(), count, 0.1)
    theirs, moved = ops.batch_norm(*theirs_in, 1e-5, slope, running)
    ours_in = [t.clone().requires_grad_() for t in (x, weight, bias)]
    batches = torch.tensor([3, 9], device=DEVICE)
    ours = MemberNorm.apply(*ours_in, 1e-5, slope, (*before, batches), 0.1)
    check_norm(ours, theirs, ours_in, theirs_in, (*before, batches), moved, generator)


@pytest.mark.parametrize(("b", "p", "c", "slope"), [(3, 16, 5, 0.0), (2, 100, 70, 0.2), (5, 1, 3, 1.0)])
def test_image_norm_kernel_equals_plain_pytorch(b, p, c, slope):
    generator = torch.Generator().manual_seed(p)
    x = (torch.randn(2, b, p, c, generator=generator) * 3 + 5).to(DEVICE)
    gain, shift = (torch.randn(2, b, c, generator=generator).to(DEVICE) for _ in range(2))
    before = [torch.rand(2, c, generator=generator).to(DEVICE) for _ in range(2)]
    theirs_in = [t.double().requires_grad_() for t in (x, gain, shift)]
    running = ops.RunningStats(
        before[0].double(), before[1].double(), torch.zeros(2, dtype=torch.int64, device=DEVICE), 0.1
    )
    images = theirs_in[0].transpose(2, 3)[..., None]  # [N, B, C, P, 1]
    normed, moved = ops.batch_norm(images, None, None, 1e-5, 1.0, running)
    per_image = (value[..., None, None] for value in theirs_in[1:])
    theirs = F.leaky_relu(normed * next(per_image) + next(per_image), slope)[..., 0].transpose(2, 3)
    ours_in = [t.clone().requires_grad_() for t in (x, gain, shift)]
    batches = torch.tensor([3, 9], device=DEVICE)
    ours = MemberImageNorm.apply(*ours_in, 1e-5, slope, (*before, batches), 0.1)
    check_norm(ours, theirs, ours_in, theirs_in, (*before, batches), moved, generator)


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (2, 6, 2, 130)])
def test_halving_and_doubling_equal_plain_pytorch_also_in_their_gradients(shape):
    x = torch.randn(shape, device=DEVICE)
    images = x.permute(0, 3, 1, 2)
    close(Halve.apply(x, 0.25), F.avg_pool2d(images, 2).permute(0, 2, 3, 1), 1e-6)
    close(Double.apply(x, 1.0), F.interpolate(images, scale_factor=2).permute(0, 2, 3, 1), 1e-7)
    other = torch.randn(shape[0], 2 * shape[1], 2 * shape[2], shape[3], device=DEVICE)
    close(AddDoubled.apply(other, x), other + F.interpolate(images, scale_factor=2).permute(0, 2, 3, 1), 1e-6)
    results = []
    for halve, double in (
        (lambda v: Halve.apply(v, 0.25), lambda v: AddDoubled.apply(other, v)),
        (
            lambda v: F.avg_pool2d(v.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1),
            lambda v: other + F.interpolate(v.permute(0, 3, 1, 2), scale_factor=2).permute(0, 2, 3, 1),
        ),
    ):
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(halve(double(given.square())).pow(3).sum(), given, create_graph=True)
        slope.square().sum().backward()  # the gradient of a gradient
        results += [slope, given.grad]
    close(results[0], results[2], 1e-5)
    close(results[1], results[3], 1e-5)


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (2, 1, 3, 130), (1, 5, 1, 2)])
def test_bilinear_doubling_equals_plain_pytorch_also_in_its_gradients(shape):
    x = torch.randn(shape, device=DEVICE)
    results = []
    for double, dtype in (
        (UpsampleBilinear.apply, torch.float32),
        (lambda v: F.interpolate(v.movedim(3, 1), scale_factor=2, mode="bilinear").movedim(1, 3), torch.float64),
    ):
        given = x.to(dtype, copy=True).requires_grad_()
        out = double(given)
        (slope,) = torch.autograd.grad(out.pow(3).sum(), given, create_graph=True)
        slope.square().sum().backward()  # the gradient of a gradient
        results.append([out, slope, given.grad])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("sides", [(6, 4), (5, 4)])
@pytest.mark.parametrize("fusions", [ops.Fusions(upsample=True), ops.Fusions(pool=torch.nn.AvgPool2d(2))])
def test_a_1x1_convolution_changes_places_with_what_resizes_its_images(sides, fusions):
    torch.manual_seed(0)
    like = torch.nn.Conv2d(3, 4, 1)
    values = torch.randn(2, 3, 3, *sides), torch.randn(2, 4, 3, 1, 1), torch.randn(2, 4)
    results = []
    for library in (ops_triton, ops):
        leaves = [value.to(DEVICE).requires_grad_() for value in values]
        out = library.conv2d(*leaves, like, fusions)
        results.append([out, *torch.autograd.grad(out.pow(3).sum(), leaves)])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, 1e-3 if DEVICE == "cuda" else 1e-5)


@pytest.mark.parametrize(
    ("like", "sides"),
    [
        (torch.nn.Conv2d(6, 6, 4, groups=6), (4, 4)),  # a weight for each number of a channel
        (torch.nn.Conv2d(6, 4, 1, groups=2), (4, 3)),
        (torch.nn.Conv2d(6, 6, 3, padding=1, groups=3), (4, 3)),
    ],
    ids=["whole images", "1x1", "narrow groups"],
)
def test_convolutions_with_narrow_groups_equal_plain_pytorch_also_in_their_gradients(like, sides):
    torch.manual_seed(0)
    values = torch.randn(2, 3, 6, *sides), torch.randn(2, *like.weight.shape), torch.randn(2, like.out_channels)
    results = []
    for library in (ops_triton, ops):
        leaves = [value.to(DEVICE).requires_grad_() for value in values]
        out = library.conv2d(*leaves, like)
        slopes = torch.autograd.grad(out.pow(3).sum(), leaves, create_graph=True)
        seconds = torch.autograd.grad(sum(slope.square().sum() for slope in slopes), leaves)
        results.append([out, *slopes, *seconds])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, 1e-3 if DEVICE == "cuda" else 1e-5)


def test_rows_by_kernel_equal_an_embedding():
    weight = torch.randn(2, 5, 70, device=DEVICE, requires_grad=True)
    y = torch.randint(5, (2, 131), device=DEVICE)
    rows = ops_triton.rows_of(weight, y)
    assert torch.equal(rows, torch.stack([weight[0][y[0]], weight[1][y[1]]]))
    grad = torch.randn(rows.shape, device=DEVICE)
    (ours,) = torch.autograd.grad(rows, weight, grad)
    (theirs,) = torch.autograd.grad(ops.rows_of(weight.double(), y), weight, grad.double())
    close(ours, theirs, 1e-6)


@pytest.mark.parametrize("slope", [1.0, 0.2])
def test_dropout_kernel_draws_the_masks_of_the_streams(slope):
    x = torch.randn(3, 2, 5, 4, 3).to(DEVICE)  # [N, B, C, H, W]
    keys = torch.from_numpy(rng.keys(rng.np.arange(3), 7)).to(DEVICE)
    u = rng._hashed(keys, (2, 5, 4, 3), "uniform", torch.float32)
    expected = torch.where(u >= 0.25, F.leaky_relu(x, slope) / 0.75, torch.zeros_like(x))
    rows = x.permute(0, 1, 3, 4, 2).reshape(3, 2, 12, 5).contiguous().requires_grad_()
    ours = MemberDropout.apply(rows, keys, 0.25, slope)
    back = ours.reshape(3, 2, 4, 3, 5).permute(0, 1, 4, 2, 3)
    assert torch.allclose(back, expected, rtol=1e-6)
    ours.square().sum().backward()  # the function is linear on either side of zero
    assert torch.allclose(rows.grad * rows, 2 * ours.square(), atol=1e-6)


@pytest.mark.parametrize("width", [1500, 1517])
def test_adam_kernel_equals_plain_pytorch(width):
    """Also where the rows lie apart, as those of a breed that is not the widest: what lies between is not touched."""
    generator = torch.Generator().manual_seed(0)
    params, grads, m = (torch.randn(3, 1500, generator=generator).to(DEVICE) for _ in range(3))
    v = torch.rand(3, 1500, generator=generator).to(DEVICE)
    t = torch.tensor([1, 5, 900], device=DEVICE)
    lr, beta1, beta2 = (
        torch.tensor(x, dtype=torch.float64, device=DEVICE)
        for x in ([1e-3, 2e-3, 1.0], [0.0, 0.5, 0.9], [0.9, 0.99, 0.999])
    )
    theirs = [x.double() for x in (params, grads, m, v)]
    adam_reference_(*theirs, t, lr, beta1, beta2, 1e-8)
    wide = [torch.full((3, width), 7.0, device=DEVICE) for _ in range(4)]
    ours = [rows[:, :1500].copy_(x) for rows, x in zip(wide, (params, grads, m, v), strict=True)]
    adam_triton_(ours[0], [ours[1][:, :16], ours[1][:, 16:]], *ours[2:], t, lr, beta1, beta2, 1e-8)
    for one, other, rows in zip(ours, theirs, wide, strict=True):
        close(one, other, 1e-6)
        assert (rows[:, 1500:] == 7.0).all()


def test_clipping_kernel_equals_plain_pytorch_and_keeps_nan():
    rows = torch.randn(3, 1600, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    rows[0, 4] = float("nan")
    which = (torch.arange(1500) % 3 > 0).to(DEVICE)
    whose = torch.tensor([True, False, True], device=DEVICE)
    theirs = torch.where(which & whose[:, None], rows[:, :1500].clamp(-0.3, 0.3), rows[:, :1500])
    before = rows.clone()
    clip_triton_(rows[:, :1500], which, whose, 0.3)
    assert torch.equal(rows[:, :1500].nan_to_num(7.0), theirs.nan_to_num(7.0)) and rows[0, 4].isnan()
    assert torch.equal(rows[:, 1500:], before[:, 1500:])


def test_kernel_keys_and_draws_equal_those_of_rng():
    base = rng.np.arange(-3, 4) * 12345678987654321
    keys = torch.from_numpy(base).to(DEVICE)
    at = torch.tensor(41, device=DEVICE)
    assert mix(keys, at, (5, 6)).tolist() == rng.keys(base, 41, 5, 6).tolist()
    assert mix(keys, None, (7,)).tolist() == rng.keys(base, 7).tolist()
    for kind in ("uniform", "normal"):
        ours = fill(keys, 3000, kind, torch.float32).cpu()
        theirs = rng._hashed(keys.cpu(), (3000,), kind, torch.float32)
        assert torch.allclose(ours, theirs, atol=1e-5), kind


@pytest.mark.parametrize(("flatten", "shape"), [(True, ()), (False, (5, 2, 3)), (True, (5, 2, 3)), (False, ())])
def test_linear_kernel_between_images_equals_plain_pytorch(flatten, shape):
    """The kernel reads the weights in another order, which does not show outside."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 3, 2) if flatten else torch.randn(2, 3, 24)
    weight, bias = torch.randn(2, 30, 24), torch.randn(2, 30)
    results = []
    for library, dtype in ((ops, torch.float64), (ops_triton, torch.float32)):
        given = [t.to(DEVICE, dtype).requires_grad_() for t in (x, weight, bias)]
        out = library.linear(*given, ops.Fusions(flatten, shape))
        (out * torch.arange(out.numel(), device=DEVICE).view(out.shape)).sum().backward()
        results.append([out, *(t.grad for t in given)])
    assert results[0][0].shape == results[1][0].shape
    for ours, theirs in zip(results[1], results[0], strict=True):
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("shape", [(17, 3, 3, 3), (1, 40), (70, 150)], ids=["convolution", "one row", "linear"])
@pytest.mark.parametrize("move", [True, False])
def test_spectral_kernel_equals_plain_pytorch(shape, move):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 5 + math.prod(shape), generator=generator)  # a part of a longer row, as in the state
    u, given = (torch.randn(3, *sizes, generator=generator) for sizes in (shape[:1], shape))
    u = F.normalize(u, dim=1)
    results = []
    for divide, dtype in ((ops.divide, torch.float64), (ops_triton.divide, torch.float32)):
        own = rows.to(DEVICE, dtype).requires_grad_()
        weight, moved = divide(own[:, 5:].unflatten(1, shape), u.to(DEVICE, dtype), move)
        (grads,) = torch.autograd.grad((weight * given.to(DEVICE, dtype)).sum(), own)
        results.append([weight, moved, grads])
    for ours, theirs in zip(results[1], results[0], strict=True):
        close(ours, theirs, 1e-5)


def test_the_spectral_kernel_refuses_a_second_derivative():
    weight = torch.randn(2, 4, 6, device=DEVICE, requires_grad=True)
    divided, _ = ops_triton.divide(weight, F.normalize(torch.ones(2, 4, device=DEVICE), dim=1), True)
    (grads,) = torch.autograd.grad(divided.square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grads.sum().backward()


@pytest.mark.parametrize("transposed", [False, True])
def test_groups_of_a_convolution_run_as_members(transposed):
    torch.manual_seed(0)
    make = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    like = make(32, 48 if transposed else 32, 4, 2, 1, groups=2)
    x = torch.randn(2, 2, 32, 6, 5, device=DEVICE)
    weight = torch.randn(2, *like.weight.shape, device=DEVICE)
    bias = torch.randn(2, like.out_channels, device=DEVICE)
    assert ops_triton.has_group_kernel(like)
    results = []
    for library in (ops_triton, ops):
        leaves = [value.clone().requires_grad_() for value in (x, weight, bias)]
        out = (library.conv_transpose2d if transposed else library.conv2d)(*leaves, like)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, 1e-3 if DEVICE == "cuda" else 1e-5)


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_kernel_equals_plain_pytorch(affine):
    torch.manual_seed(0)
    values = [torch.randn(2, 3, 5, 4, 6, device=DEVICE), *(torch.randn(2, 5, device=DEVICE) for _ in range(2))]
    results = []
    for library in (ops_triton, ops):
        leaves = [value.clone().requires_grad_() for value in values[: 3 if affine else 1]]
        out = library.instance_norm(*leaves, *([] if affine else [None, None]), 1e-5)
        results.append([out, *torch.autograd.grad(out.pow(3).sum(), leaves)])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, 1e-5)


def test_weights_of_single_samples_are_not_kept_until_the_end_of_the_step():
    like = torch.nn.Conv2d(48, 48, 3, padding=1, groups=3)
    x, weight = torch.randn(2, 1, 48, 4, 4, device=DEVICE), torch.randn(2, *like.weight.shape, device=DEVICE)
    with weight_cache.cache_weights():
        close(ops_triton.conv2d(x, weight, None, like), ops.conv2d(x, weight, None, like), 1e-3)
        assert not weight_cache._CACHE.get()
        ops_triton.conv2d(x.expand(2, 2, 48, 4, 4), weight, None, like)
        assert len(weight_cache._CACHE.get()) == 1
