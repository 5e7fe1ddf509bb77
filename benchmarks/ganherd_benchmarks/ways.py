"""Measure other ways to train N small GANs on one device: member-steps per second, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ganherd.bench.cases import images, known, recipe_of
from ganherd.bench.engine_rates import MeasuredWay, best_threads, peaks, reset_peaks, synchronize
from ganherd.herd.engine.device import device_of, set_precision
from ganherd.util.errors import UserError
from ganherd_benchmarks.grouped import GroupedHerd, GroupedNet, VmappedNet
from ganherd_benchmarks.plain import PlainGanPair, RivalWork
from ganherd_benchmarks.processes import processes

_STREAMS = 16  # more do not run at once
_CAPTURED = 32  # minimum number of member-steps in a graph, so that the cost of a replay is negligible


def timed(step: Callable[[], None], each: int, seconds: float, device: torch.device) -> float:
    """Measure member-steps per second of a function that makes `each` of them, for at least `seconds`, after warming up."""
    step()
    calls, took, more = 0, 0.0, 1
    while took < seconds:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(more):
            step()
        synchronize(device)
        took += time.perf_counter() - began
        calls += more
        more *= 2 if took < seconds / 4 else 1
    return calls * each / took


def captured(steps: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return the steps as one CUDA graph; on a CPU, unchanged. The caller keeps the tensors alive."""
    if device.type != "cuda":
        return steps
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):  # makes Adam's moments, lets cuDNN choose
            steps()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    return graph.replay


def eager(work: RivalWork, members: int, seconds: float) -> MeasuredWay:
    """Measure plain modules, one member after another."""
    pairs = [PlainGanPair(work) for _ in range(members)]

    def step() -> None:
        for pair in pairs:
            pair.step()

    return _measured("eager", lambda: timed(step, members, seconds, work.device), work)


def streams(work: RivalWork, members: int, seconds: float, compiled: bool = False) -> MeasuredWay:
    """Measure plain modules, each on a stream, all in one CUDA graph, in the faster layout."""
    _needs_gpu(work, "streams")
    convolves = any(isinstance(child, nn.Conv2d) for child in work.make_d().modules())
    layouts = {"": False} | ({"channels last": True} if convolves else {})
    if compiled and convolves:
        layouts.pop("")  # the slower one; compiling takes long
    found, failed = [], RuntimeError("no layout was tried")
    for name, last in layouts.items():
        run = partial(_streamed, work, members, seconds / len(layouts), last, compiled)
        try:
            found.append(_measured("streams", run, work, name))
        except RuntimeError as error:  # the other layout may do
            failed = error
    if not found:
        raise failed
    return max(found, key=lambda one: one.rate)


def compiled(work: RivalWork, members: int, seconds: float) -> MeasuredWay:
    """Measure `streams` with modules through torch.compile."""
    return streams(work, members, seconds, compiled=True)


def _streamed(work: RivalWork, members: int, seconds: float, channels_last: bool, compiled: bool) -> float:
    pairs = [PlainGanPair(work, channels_last, compiled) for _ in range(members)]
    sides = [torch.cuda.Stream(work.device) for _ in range(min(members, _STREAMS))]
    times = max(1, _CAPTURED // members)

    def steps() -> None:
        main = torch.cuda.current_stream(work.device)
        for side in sides:
            side.wait_stream(main)
        for number, pair in enumerate(pairs):
            with torch.cuda.stream(sides[number % len(sides)]):
                for _ in range(times):
                    pair.step()
        for side in sides:
            main.wait_stream(side)

    return timed(captured(steps, work.device), times * members, seconds, work.device)


def grouped(work: RivalWork, members: int, seconds: float) -> MeasuredWay:
    """Measure members folded into channels: grouped convolutions (batched products for an MLP) in a CUDA graph."""
    return _stacked("grouped", GroupedNet, work, members, seconds)


def vmapped(work: RivalWork, members: int, seconds: float) -> MeasuredWay:
    """Measure stacked modules through `torch.func.vmap`."""
    herd = GroupedHerd(work, members, VmappedNet)
    return _measured("vmap", lambda: timed(herd.step, members, seconds, work.device), work)


def vmapped_graph(work: RivalWork, members: int, seconds: float) -> MeasuredWay:
    """Measure stacked modules through `torch.func.vmap`, in a CUDA graph."""
    _needs_gpu(work, "vmap-graph")
    return _stacked("vmap-graph", VmappedNet, work, members, seconds)


def _stacked(
    name: str, net: Callable[[list[nn.Module]], object], work: RivalWork, members: int, seconds: float
) -> MeasuredWay:
    """Measure stacked members, in a CUDA graph on a GPU."""

    def run() -> float:
        herd = GroupedHerd(work, members, net)
        times = max(1, _CAPTURED // members) if work.device.type == "cuda" else 1

        def steps() -> None:
            for _ in range(times):
                herd.step()

        return timed(captured(steps, work.device), times * members, seconds, work.device)

    return _measured(name, run, work)


def measure(name: str, members: int, way: str, seconds: float, device: str, precision: str) -> MeasuredWay:
    """Measure one of these ways, or `processes`, for a case of the benchmark."""
    case = known(name)
    recipe = recipe_of(case, members, "random", device, precision)
    set_precision(recipe)
    if way == "processes":
        return processes(name, members, seconds, device, precision)
    torch.backends.cudnn.benchmark = True  # the shapes stay the same
    work = RivalWork.of(case, recipe, torch.from_numpy(images(case)), device_of(recipe))
    return best_threads(lambda share: PLAIN[way](work, members, share), work.device, seconds)


def _measured(name: str, run: Callable[[], float], work: RivalWork, note: str = "") -> MeasuredWay:
    reset_peaks(work.device)
    speed = run()
    return MeasuredWay(speed, *peaks(work.device), name, torch.get_num_threads(), note)


def _needs_gpu(work: RivalWork, name: str) -> None:
    if work.device.type != "cuda":
        raise UserError(f"{name} needs a GPU: there are no CUDA graphs here.")


PLAIN = {"eager": eager, "streams": streams, "grouped": grouped, "compiled": compiled}
VMAPPED = {"vmap": vmapped, "vmap-graph": vmapped_graph}
