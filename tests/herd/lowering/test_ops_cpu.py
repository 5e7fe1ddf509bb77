"""The operations for a CPU equal their plain definitions: values, gradients and second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ganherd.herd.lowering import ops, ops_cpu, ops_onednn

N, B = 3, 4

# layers, with the height and width of their input
CONVOLUTIONS = {
    "from an image": (nn.Conv2d(3, 8, 4, 2, 1), (9, 6)),  # the last row of the image is not read
    "from an image, dilated": (nn.Conv2d(1, 6, 3, 1, 2, dilation=2, bias=False), (5, 7)),
    "of one position": (nn.Conv2d(6, 5, (3, 2)), (3, 2)),
    "of one position, to an image": (nn.Conv2d(6, 1, 3, bias=False), (3, 3)),
    "padded by reflection": (nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect"), (5, 5)),
    "padded by name": (nn.Conv2d(2, 6, 3, padding="same"), (5, 5)),
    "between maps": (nn.Conv2d(6, 5, 3, 2, 1), (5, 5)),
    "in groups": (nn.Conv2d(4, 8, 3, 1, 1, groups=2), (4, 4)),
    "to an image": (nn.ConvTranspose2d(6, 3, 4, 2, 1), (4, 3)),
    "to an image, of uneven size": (nn.ConvTranspose2d(5, 1, 3, 2, 1, output_padding=1, bias=False), (4, 4)),
    "to an image, dilated": (nn.ConvTranspose2d(5, 2, (3, 2), (2, 3), (1, 0), dilation=2), (3, 4)),
    "to an image, with more extra pixels than its stride": (
        nn.ConvTranspose2d(6, 1, 3, 1, dilation=2, output_padding=1),
        (3, 3),
    ),
    "from one position": (nn.ConvTranspose2d(7, 5, 4), (1, 1)),
    "from one position, padded": (nn.ConvTranspose2d(7, 5, 4, 1, 1, bias=False), (1, 1)),
    "between maps, transposed": (nn.ConvTranspose2d(6, 5, 4, 2, 1), (3, 3)),
}


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def derivatives(run, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the output, all gradients, and the gradients of the squared length of the first one, as R1 has them."""
    out = run(*tensors)
    first = torch.autograd.grad(torch.sin(out).sum(), tensors, create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), tensors, allow_unused=True, materialize_grads=True)
    return [out, *first, *second]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_equal_the_plain_ones(name):
    layer, size = CONVOLUTIONS[name]
    function = "conv_transpose2d" if isinstance(layer, nn.ConvTranspose2d) else "conv2d"
    x = normal(N, B, layer.in_channels, *size)
    weight, bias = normal(N, *layer.weight.shape), None if layer.bias is None else normal(N, layer.out_channels)
    tensors = [x, weight] if bias is None else [x, weight, bias]

    def run(library):
        return lambda x, weight, bias=None: getattr(library, function)(x, weight, bias, layer)

    assert_equal(derivatives(run(ops_cpu), *tensors), derivatives(run(ops), *tensors))


@pytest.mark.parametrize("shape", [(N, B, 5), (N, B, 5, 3, 2), (N, 1, 2, 4, 4)])
def test_batch_norm_equals_the_plain_one(shape):
    x, weight, bias = normal(*shape), normal(N, shape[2]), normal(N, shape[2])
    running = ops.RunningStats(torch.zeros(N, shape[2]), torch.ones(N, shape[2]), torch.zeros(N), 0.1)

    def run(library):
        return lambda *tensors: library.batch_norm(*tensors, 1e-5, 0.2, running)[0]

    assert_equal(derivatives(run(ops_cpu), x, weight, bias), derivatives(run(ops), x, weight, bias))
    ours, theirs = (library.batch_norm(x, weight, bias, 1e-5, 1.0, running)[1] for library in (ops_cpu, ops))
    assert_equal([ours.mean, ours.var], [theirs.mean, theirs.var])


@pytest.mark.parametrize("shape", [(2, 64, 3), (1, 2000, 4, 5, 5), (1, 512, 16, 4, 4)])
def test_values_far_from_zero_are_normalised_exactly(shape):
    """Sums of squares would lose all digits here, and sums of many rows half of them."""
    x = (1e4 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
    out, _ = ops_cpu.batch_norm(x, None, None, 0.0, 1.0, None)
    exact, _ = ops.batch_norm(x.double(), None, None, 0.0, 1.0, None)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=4e-3)


def test_a_transposed_convolution_of_one_image_equals_the_plain_one():
    """An image without a batch axis, as a learned constant is."""
    layer, x, weight = nn.ConvTranspose2d(6, 2, 4, 2, 1, bias=False), normal(N, 6, 3, 3), normal(N, 6, 2, 4, 4)
    assert_equal([ops_cpu.conv_transpose2d(x, weight, None, layer)], [ops.conv_transpose2d(x, weight, None, layer)])


@pytest.mark.parametrize("of", ["column", "expanded", "flipped"])
def test_products_read_biases_by_their_strides(of, monkeypatch):
    if not ops_onednn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(ops_onednn, "_LEAST", 0)
    x, weight, table = (normal(*shape, dtype=torch.float32) for shape in ((N, 6, 5), (N, 7, 5), (N, 7, 3)))
    bias = {"column": table[..., 1], "expanded": table[:, :1, 0].expand(N, 7), "flipped": table.flatten(1)[:, ::3]}[of]
    assert bias[0].stride() != (1,)
    out = ops_onednn.linear(x, weight, bias)
    torch.testing.assert_close(out, ops.linear(x, weight, bias), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("least", [0, 1 << 22])
def test_products_equal_the_plain_ones(dtype, least, monkeypatch):
    if least == 0 and not ops_onednn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(ops_onednn, "_LEAST", least)
    shapes = (N, 6, 5), (N, 7, 5), (N, 7)
    exact = derivatives(lambda x, w, b: ops.linear(x, w, b), *(normal(*shape) for shape in shapes))
    ours = derivatives(lambda x, w, b: ops_onednn.linear(x, w, b), *(normal(*shape, dtype=dtype) for shape in shapes))
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == dtype and one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-11 if dtype == torch.float64 else 2e-4)
