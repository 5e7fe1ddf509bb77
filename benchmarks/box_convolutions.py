"""Measure convolutions that load boxes next to those that load by pointers, on a GPU and with several tile shapes.

    python benchmarks/box_convolutions.py -o benchmarks/results/h200-box-convolutions.json

bf16: the two large layers of the W-CGAN's generator with their epilogues (statistics forward, batch-norm sums backward), at
batch 64, and layers of wider nets. A time is the median of five replays of a CUDA graph of ten launches.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from ganherd.herd.lowering.kernels.convolution import conv
from ganherd.herd.lowering.kernels.convolution.conv import gather, input_gradient
from ganherd.herd.lowering.kernels.convolution.conv_spec import ConvSpec
from ganherd.herd.lowering.kernels.convolution.taps import WeightLayout
from ganherd.herd.lowering.kernels.norm import NormOnLoad
from ganherd.herd.lowering.kernels.tiles import TileShape
from provenance import provenance

ROWS = [(64, 4, 3), (128, 4, 3), (128, 8, 3), (256, 8, 3), (256, 8, 4)]  # rows of a tile, warps and stages
COLUMNS = [64, 128, 256]


class Layer(NamedTuple):
    """A convolution of `n` members; transposed ones double the edge, others halve it at stride 2."""

    n: int
    batch: int
    edge: int
    ci: int
    co: int
    k: int
    stride: int
    transposed: bool
    backward: bool  # measure the input gradient
    with_norm: bool  # a batch norm follows; backward: a batch norm comes before


LAYERS = [
    *(
        Layer(n, 64, edge, 128, co, 4, 2, True, back, True)
        for n in (10, 100) for edge, co in ((8, 128), (16, 64)) for back in (False, True)
    ),
    Layer(1, 64, 32, 256, 256, 3, 1, False, False, False),
    Layer(1, 128, 16, 512, 512, 3, 1, False, False, False),
    Layer(8, 128, 8, 512, 256, 4, 2, True, False, True),
    Layer(8, 128, 16, 256, 128, 4, 2, True, False, True),
]  # fmt: skip


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a launch."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    times = []
    for _ in range(6):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e4)
    return sorted(times[1:])[2]


def measure(layer: Layer) -> dict[str, Any]:
    """Return the TFLOP/s of a layer by kernel and tile shape."""
    n, batch, edge, ci, co, k, stride, transposed, backward, with_norm = layer
    out = 2 * edge if transposed else edge // stride

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    x, g, w = random(n, batch, edge, edge, ci), random(n, batch, out, out, co), random(n, k * k, ci, co)
    bias, table = random(n, co, dtype=torch.float32), random(4, n, ci, dtype=torch.float32)
    spec = ConvSpec((out, out), WeightLayout(k), stride, 1, transposed, False)

    def run() -> object:
        if not backward:
            return gather(x, w, bias, spec, with_stats=with_norm)
        norm = NormOnLoad(table, x.view(n, -1, ci), 0.2, False) if with_norm else None
        return input_gradient(g, w, spec, (edge, edge), norm)

    work = 2.0 * n * batch * min(edge, out) ** 2 * k * k * ci * co
    rows: dict[str, Any] = {**layer._asdict(), "pointers": {}, "boxes": {}}
    for kind in ("pointers", "boxes"):
        for height, warps, stages in ROWS:
            for width in COLUMNS:
                shape = TileShape(height, width, 64, warps, stages)
                if (ci if backward else co) % width or height * width > 128 * 32 * warps:
                    continue
                by_boxes = {"uses_boxes": conv.uses_boxes if kind == "boxes" else lambda *_: False}
                with patch.multiple(conv, choose_shape=lambda *_, shape=shape: shape, **by_boxes):
                    try:
                        speed = work / seconds(run) / 1e12
                    except Exception as error:  # too large for the device
                        speed = 0.0
                        print(layer, shape, type(error).__name__)
                rows[kind][" ".join(map(str, vars(shape).values()))] = round(speed, 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    facts = {**provenance(), "device": torch.cuda.get_device_name()}
    facts["shapes"] = "rows, columns, depth, warps, stages of a tile; TFLOP/s"
    rows = []
    for layer in LAYERS:
        rows.append(measure(layer))
        print(json.dumps(rows[-1]), flush=True)
        args.output.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
