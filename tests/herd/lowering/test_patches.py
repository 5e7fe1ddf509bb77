"""Kernels that load their inputs as boxes equal those that load by pointers, with every kind of epilogue."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from further_tests import EACH_VALUE

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton is not installed")

from ganherd.herd import rng
from ganherd.herd.lowering.kernels.convolution import conv
from ganherd.herd.lowering.kernels.convolution.conv import UpstreamConv, gather
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.patches import choose_patch
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.herd.lowering.kernels.norm import NormOnLoad
from ganherd.herd.lowering.ops import Epilogue

HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # the interpreter has no products in bfloat16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# samples, height, width, channels in and out, taps, stride, padding, transposed, of a gradient
LAYERS = {
    "transposed": (4, 8, 8, 32, 64, 4, 2, 1, True, False),
    "transposed, odd number of taps": (8, 4, 4, 16, 128, 3, 2, 1, True, False),
    "stride 2": (8, 8, 8, 32, 64, 4, 2, 1, False, True),
    "stride 1, patches wider than the image": (2, 15, 31, 48, 64, 3, 1, 1, False, False),
    "stride 1, gradient": (2, 8, 16, 16, 192, 3, 1, 1, False, True),
}
ENDS = ["statistics", "activation and dropout", "gradient of a batch norm", "gradient of a dropout"]


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", LAYERS)
def test_boxes_give_the_results_of_pointers(name: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    b, h, wd, ci, co, k, stride, pad, transposed, of_gradient = LAYERS[name]
    n, generator = 2, torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    size = (2 * h, 2 * wd) if transposed else (h // stride, wd // stride)
    spec = ConvSpec(size, WeightLayout(k), stride, pad, transposed, False)
    x, w = random(n, b, h, wd, ci), random(n, k * k, *((co, ci) if of_gradient else (ci, co)))
    bias, producer = random(n, co, dtype=torch.float32), random(n, b * size[0] * size[1], co)
    table = random(4, n, co, dtype=torch.float32)
    keys = torch.from_numpy(rng.keys(rng.np.arange(n), 3)).to(DEVICE)
    drops = Epilogue(slope=0.2, p=0.3, keys=keys, call=5)

    def run() -> list[torch.Tensor | None]:
        upstream = NormOnLoad(table, producer, 0.2, False) if end == ENDS[2] else None
        options: dict[str, Any] = {
            ENDS[0]: {"with_stats": True},
            ENDS[1]: {"epilogue": drops},
            ENDS[2]: {"upstream": upstream},
            ENDS[3]: {"upstream": UpstreamConv(drops, producer, co)},
        }[end]
        y, stats = gather(x, w, bias if end in ENDS[:2] else None, spec, of_gradient, **options)
        if stats is None:
            return [y]
        if end == ENDS[0]:  # the tiles have other rows, but all rows together have the same mean and variance
            count, mean, squares = stats
            total = (count * mean).sum(1)
            return [y, count.sum(1), total, (squares + count * mean**2).sum(1)]
        return [y, stats.sum(2)]

    kernels: list[object] = []
    launch = conv.gather_patches
    monkeypatch.setattr(conv, "gather_patches", lambda *args, **options: (kernels.append(1), launch(*args, **options)))
    boxes = run()
    assert kernels
    monkeypatch.setattr(conv, "uses_boxes", lambda *_: False)
    pointers = run()
    assert len(kernels) == 1
    for ours, theirs in zip(boxes, pointers, strict=True):
        gap = (ours.float() - theirs.float()).norm() / theirs.float().norm()
        assert gap < 1e-3, float(gap)


@pytest.mark.parametrize("name", LAYERS)
def test_a_member_that_is_not_finite_leaves_its_neighbours_alone(name: str) -> None:
    b, h, wd, ci, co, k, stride, pad, transposed, of_gradient = LAYERS[name]
    size = (2 * h, 2 * wd) if transposed else (h // stride, wd // stride)
    x = torch.ones(3, b, h, wd, ci, dtype=HALF, device=DEVICE)
    w = torch.ones(3, k * k, *((co, ci) if of_gradient else (ci, co)), dtype=HALF, device=DEVICE)
    x[::2], w[::2] = math.nan, math.nan
    spec = ConvSpec(size, WeightLayout(k), stride, pad, transposed, False)
    y, stats = gather(x, w, None, spec, of_gradient, with_stats=True)
    assert stats is not None
    assert y[1].isfinite().all() and stats[:, 1].isfinite().all()
    assert y[::2].isnan().all()


@pytest.mark.parametrize("b", [1, 3, 64, 100])
@pytest.mark.parametrize("size", [(1, 1), (4, 4), (7, 7), (16, 8), (24, 24), (33, 65)])
def test_patches_cover_all_places_with_little_waste(b: int, size: tuple[int, int]) -> None:
    patch = choose_patch(b, *size, 128)
    if patch is None:
        return
    assert patch.images * patch.height * patch.width == 128
    assert b % patch.images == 0
    assert b * size[0] * size[1] <= patch.count_for(b, *size) * 128 <= 1.15 * b * size[0] * size[1]
