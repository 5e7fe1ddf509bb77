"""Compare the operations for a CPU with PyTorch's: CPU time of a forward and a backward pass, of one member.

    python benchmarks/cpu_operations.py -o FILE.json

One thread, float32. Both ways take turns; a row has the median of their CPU times and of the ratio in the same turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ganherd.herd.lowering import ops, ops_cpu, ops_onednn
from ganherd.util.host import keep_freed_memory
from provenance import provenance

_MEMBERS, _BATCH = 10, 32

# name: (function, shape of x without [N, B], layer or output features)
CASES: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "batch norm, 128 features": ("batch_norm", (128,), 128),
    "batch norm, 32 × 7 × 7": ("batch_norm", (32, 7, 7), 32),
    "transposed, 16 to 1 channel, 14 px": ("conv_transpose2d", (16, 14, 14), nn.ConvTranspose2d(16, 1, 4, 2, 1)),
    "transposed, 64 to 3 channels, 32 px": ("conv_transpose2d", (64, 32, 32), nn.ConvTranspose2d(64, 3, 4, 2, 1)),
    "convolution, 1 to 16 channels, 28 px": ("conv2d", (1, 28, 28), nn.Conv2d(1, 16, 4, 2, 1)),
    "convolution, 3 to 64 channels, 64 px": ("conv2d", (3, 64, 64), nn.Conv2d(3, 64, 4, 2, 1)),
    "transposed, from one position": ("conv_transpose2d", (64, 1, 1), nn.ConvTranspose2d(64, 32, 7)),
    "convolution at one position": ("conv2d", (32, 7, 7), nn.Conv2d(32, 1, 7)),
    "linear, 256 to 256": ("linear", (256,), 256),
    "linear, 784 to 256": ("linear", (784,), 256),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as a training does
    rows = [measure(name, args.turns) for name in CASES]
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))
    if args.output:
        facts = {**provenance(), "torch": torch.__version__, "members": _MEMBERS, "batch": _BATCH}
        args.output.write_text(json.dumps({**facts, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


def measure(name: str, turns: int) -> dict[str, object]:
    """Return the row of a case."""
    function, shape, what = CASES[name]
    batch = 100 if function == "linear" else _BATCH  # as in the cellular paper
    x = torch.randn(_MEMBERS, batch, *shape, requires_grad=True)
    runs = [_pass_of(library, function, x, what) for library in (ops, ops_onednn if function == "linear" else ops_cpu)]
    taken: list[list[float]] = [[], []]
    for turn in range(-2, turns):
        for seconds, run in zip(taken, runs, strict=True):
            began = time.process_time()
            run()
            if turn >= 0:
                seconds.append((time.process_time() - began) / _MEMBERS * 1e3)
    ratios = [plain / ours for plain, ours in zip(*taken, strict=True)]
    plain_ms, ours_ms = (round(statistics.median(seconds), 4) for seconds in taken)
    return {"case": name, "plain_ms": plain_ms, "ours_ms": ours_ms, "ratio": round(statistics.median(ratios), 2)}


def _pass_of(library: Any, function: str, x: Tensor, what: Any) -> Callable[[], object]:
    """Return a forward and backward pass for all members by one library."""
    generator = torch.Generator().manual_seed(0)

    def stacked(*shape: int) -> Tensor:
        return torch.randn(_MEMBERS, *shape, generator=generator).requires_grad_()

    if function == "batch_norm":
        weight, bias = stacked(what), stacked(what)
        call = lambda: library.batch_norm(x, weight, bias, 1e-5, 0.2, None)[0]  # noqa: E731
    elif function == "linear":
        weight, bias = stacked(what, x.shape[2]), stacked(what)
        call = lambda: library.linear(x, weight, bias)  # noqa: E731
    else:
        weight, bias = stacked(*what.weight.shape), stacked(what.out_channels)
        call = lambda: getattr(library, function)(x, weight, bias, what)  # noqa: E731
    dy = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), (x, weight, bias), dy)


if __name__ == "__main__":
    main()
