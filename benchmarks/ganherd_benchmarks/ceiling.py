"""Count the operations and bytes of a member-step, and measure the rates of the device.

Operations are those of matrix products and convolutions in one step of one plain pair of nets, forward and backward, as
the modules are written (an upsampling that is folded into a convolution needs fewer). Bytes are a lower bound with perfect fusion:
the output of every layer with weights is written and read once in a forward pass, and in a backward pass read once more,
its gradient written and read; parameters, gradients and Adam's moments are read and written once by each update.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ganherd.bench.cases import Case, recipe_of
from ganherd.bench.engine_rates import synchronize
from ganherd.herd.engine.device import set_precision
from ganherd.recipe.schema import Recipe
from ganherd_benchmarks.plain import PlainGanPair, RivalWork

_FORWARD, _BACKWARD = 2, 3  # how often a layer's output, or its gradient, passes through memory
_STATE = 8  # parameter, gradient and two moments, in and out
_BATCH = 2  # of the step that is counted: operations grow with the batch


@dataclass(frozen=True)
class Machine:
    """A device and its two measured rates."""

    name: str
    flops: float  # of a large matrix product in the precision that is measured, per second
    bytes: float  # of a large copy, in and out, per second


@dataclass(frozen=True)
class StepCost:
    """The operations of a member-step, and the fewest bytes that it moves."""

    flops: float
    bytes: float

    def ceiling(self, machine: Machine) -> tuple[float, float]:
        """Return the most member-steps per second: operations and traffic one after the other, and perfectly overlapped."""
        compute, move = self.flops / machine.flops, self.bytes / machine.bytes
        return 1.0 / (compute + move), 1.0 / max(compute, move)


class Limits:
    """The limits of a device for the cases of the fusion benchmark."""

    def __init__(self, device: torch.device, recipe: Recipe) -> None:
        self.precision = recipe.train.precision
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        set_precision(recipe)
        self.machine = machine(device, self.precision)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
        if device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def rates(self) -> dict[str, float]:
        """The rates of a large matrix product and of a large copy."""
        return {"matmul_flops_per_second": self.machine.flops, "copy_bytes_per_second": self.machine.bytes}

    def of_case(self, case: Case) -> dict[str, Any]:
        """Return what a member-step of a case takes, and how many the device can do at most."""
        step = count(case, self.precision)
        return {
            "flops_per_member_step": step.flops,
            "least_bytes_per_member_step": step.bytes,
            "ceiling_member_steps_per_second": list(step.ceiling(self.machine)),
        }


def count(case: Case, precision: str) -> StepCost:
    """Count one step of one pair with a small batch on the CPU.

    >>> from ganherd.bench.cases import known
    >>> round(count(known("wcgan"), "bf16").flops / 1e9)  # four passes of 14.8 through the generator, and the critic
    60
    """
    small = recipe_of(replace(case, batch=_BATCH), 1, "random", "cpu", "float32")
    data = torch.zeros(_BATCH, *case.shape, dtype=torch.uint8)
    pair = PlainGanPair(RivalWork.of(case, small, data, torch.device("cpu")))
    outputs = {"g": 0, "d": 0}  # numbers that layers with weights output in all forward passes

    def hook(kind: str) -> Callable[[nn.Module, object, torch.Tensor], None]:
        def add(module: nn.Module, inputs: object, out: torch.Tensor) -> None:
            outputs[kind] += out.numel()

        return add

    for kind, net in (("g", pair.g), ("d", pair.d)):
        for layer in net.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
                layer.register_forward_hook(hook(kind))
    counter = FlopCounterMode(display=False)
    with counter:
        pair.step()
    scale = case.batch / _BATCH
    element = {"bf16": 2, "float64": 8}.get(precision, 4)
    # of the generator's two passes one goes back; of the discriminator's, all
    passed = outputs["g"] * (_FORWARD + _BACKWARD / 2) + outputs["d"] * (_FORWARD + _BACKWARD)
    weights = sum(p.numel() for net in (pair.g, pair.d) for p in net.parameters())
    word = 8 if precision == "float64" else 4
    return StepCost(counter.get_total_flops() * scale, passed * scale * element + _STATE * weights * word)


def machine(device: torch.device, precision: str, seconds: float = 0.3) -> Machine:
    """Measure the two rates. PyTorch must be set to the precision (TF32 or not) before."""
    gpu = device.type == "cuda"
    dtype = {"bf16": torch.bfloat16, "float64": torch.float64}.get(precision, torch.float32)
    side = 8192 if gpu else 512
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    flops = 2.0 * side**3 / _fastest(lambda: torch.mm(a, b, out=out), device, seconds)
    source = torch.zeros(2**30 if gpu else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    moved = 2.0 * source.numel() / _fastest(lambda: target.copy_(source), device, seconds)
    where = torch.cuda.get_device_name(device) if gpu else f"{os.cpu_count()} CPU cores, {platform.machine()}"
    return Machine(f"{where}, PyTorch {torch.__version__}", flops, moved)


def _fastest(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the seconds of the fastest of several calls."""
    each = 10 if device.type == "cuda" else 1  # a queue of calls hides the launches
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(each):
            run()
        synchronize(device)
        best = min(best, (time.perf_counter() - began) / each)
    return best
