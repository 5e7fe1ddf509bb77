"""Measure wide convolutions on a GPU: ganherd's kernels with many tile shapes, next to cuDNN.

    python benchmarks/wide_convolutions.py -o benchmarks/results/h200-wide-convolutions.json

One member, bf16, channels last: forward pass, input gradient and weight gradient of 3 × 3 convolutions, also after a nearest
upsampling and before an average pooling, which both are 4 × 4 taps of stride 2. TFLOP/s count the operations of those taps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ganherd.herd.lowering.kernels.convolution import conv
from ganherd.herd.lowering.kernels.convolution.conv import gather, input_gradient, weight_gradient
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.herd.lowering.kernels.tiles import TileShape
from provenance import provenance

GATHER = [
    TileShape(128, 128, 64, 4, 3), TileShape(128, 128, 64, 8, 3), TileShape(128, 128, 64, 4, 4),
    TileShape(128, 256, 64, 8, 3), TileShape(128, 256, 64, 8, 4), TileShape(256, 128, 64, 8, 3),
    TileShape(128, 128, 64, 8, 4), TileShape(256, 128, 32, 8, 4), TileShape(64, 256, 64, 4, 4), TileShape(128, 128, 128, 8, 3),
]  # fmt: skip
WEIGHT = [
    TileShape(128, 128, 64, 8, 3), TileShape(128, 128, 64, 4, 3), TileShape(128, 128, 64, 8, 4), TileShape(64, 128, 64, 4, 4),
    TileShape(128, 256, 64, 8, 3), TileShape(256, 128, 64, 8, 3), TileShape(128, 128, 128, 8, 2), TileShape(128, 256, 32, 8, 4),
    TileShape(64, 256, 64, 8, 3),
]  # fmt: skip


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a launch, the best of four series."""
    run()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(4):
        began.record()
        for _ in range(8):
            run()
        ended.record()
        ended.synchronize()
        best = min(best, began.elapsed_time(ended) / 8e3)
    return best


def ours(run: Callable[[], object], shapes: list[TileShape], work: float) -> dict[str, float]:
    """Return TFLOP/s with each tile shape, and with the shape that ganherd chooses by its rule."""
    chosen: list[TileShape] = []

    def choose(
        x: Tensor, name: str, sizes: object, flop: float, candidates: list[TileShape], launch: object
    ) -> TileShape:
        return chosen[0] if chosen else candidates[0]

    original, rows = conv.choose_shape, {}
    conv.choose_shape = choose  # type: ignore[assignment]
    try:
        rows["rule"] = work / seconds(run) / 1e12
        for shape in shapes:
            chosen[:] = [shape]
            try:
                rows[" ".join(map(str, vars(shape).values()))] = work / seconds(run) / 1e12
            except Exception as error:  # too large for the device
                print(shape, type(error).__name__, file=sys.stderr)
    finally:
        conv.choose_shape = original
    return {key: round(value, 1) for key, value in rows.items()}


def measure(batch: int, edge: int, ci: int, co: int, kind: str) -> dict[str, object]:
    """Measure a layer in its three passes. `edge` is that of its input."""
    k, stride, pad, transposed = (3, 1, 1, False) if kind == "plain" else (4, 2, 1, kind == "fold")
    out = {"plain": edge, "fold": 2 * edge, "pool": edge // 2}[kind]
    x = torch.randn(1, batch, edge, edge, ci, device="cuda", dtype=torch.bfloat16)
    g = torch.randn(1, batch, out, out, co, device="cuda", dtype=torch.bfloat16)
    taps = torch.randn(1, k * k, ci, co, device="cuda", dtype=torch.bfloat16)
    spec = ConvSpec(
        (out, out), WeightLayout(3, fold=kind == "fold", pool=kind == "pool"), stride, pad, transposed, True
    )
    work = 2.0 * batch * min(edge, out) ** 2 * k * k * ci * co
    images, grads = x[0].permute(0, 3, 1, 2), g[0].permute(0, 3, 1, 2)
    shape = (ci, co, k, k) if transposed else (co, ci, k, k)
    w = torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)

    def backward(mask: list[bool]) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(
            grads, images, w, None, [stride] * 2, [pad] * 2, [1, 1], transposed, [0, 0], 1, mask
        )

    def cudnn() -> Tensor:
        return (F.conv_transpose2d if transposed else F.conv2d)(images, w, None, stride, pad)

    def gradient() -> object:
        if transposed:
            return weight_gradient(g, x, k, 2, pad, True)
        return weight_gradient(x, g, k, stride, pad, True)

    rows: dict[str, object] = {
        "batch": batch,
        "edge": edge,
        "ci": ci,
        "co": co,
        "kind": kind,
        "gflop": round(work / 1e9, 1),
    }
    rows["forward"] = {"cudnn": work / seconds(cudnn) / 1e12, **ours(lambda: gather(x, taps, None, spec), GATHER, work)}
    back = {"cudnn": work / seconds(backward([True, False, False])) / 1e12}
    rows["input"] = {**back, **ours(lambda: input_gradient(g, taps, spec, (edge, edge)), GATHER, work)}
    weight = {"cudnn": work / seconds(backward([False, True, False])) / 1e12}
    rows["weight"] = {**weight, **ours(gradient, WEIGHT, work)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--case", type=int, help="Number of the only case; several at once in processes fill the cache of kernels."
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    facts = {
        **provenance(),
        "device": torch.cuda.get_device_name(),
        "shapes": "rows, columns, depth, warps, stages of a tile; TFLOP/s",
    }
    rows = []
    cases = [(128, 32, 256, 256, "plain"), (128, 16, 256, 256, "plain"), (128, 8, 256, 256, "plain"), (128, 16, 256, 256, "fold"),
             (128, 32, 256, 256, "pool"), (256, 32, 128, 128, "plain"), (256, 32, 384, 384, "plain")]  # fmt: skip
    for case in cases if args.case is None else [cases[args.case]]:
        rows.append(measure(*case))
        print(json.dumps(rows[-1]), flush=True)
        args.output.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
