"""Train one GAN in a separate process: print `ready`, wait for `go`, train, and print the rate."""

from __future__ import annotations

import json
import sys
import time

import torch

from ganherd.bench.cases import images, known, recipe_of
from ganherd.bench.engine_rates import peaks, synchronize
from ganherd.herd.engine.device import device_of, set_precision
from ganherd_benchmarks.plain import PlainGanPair, RivalWork


def main(name: str, seconds: str, asked_device: str, precision: str) -> None:
    case = known(name)
    recipe = recipe_of(case, 1, "unused", asked_device, precision)
    device = device_of(recipe)
    set_precision(recipe)
    torch.backends.cudnn.benchmark = True
    pair = PlainGanPair(RivalWork.of(case, recipe, torch.from_numpy(images(case)), device))
    for _ in range(3):
        pair.step()
    synchronize(device)
    print("ready", flush=True)
    if sys.stdin.readline() != "go\n":  # the process that started it has ended
        return
    began = waited = time.perf_counter()
    steps = 0
    while time.perf_counter() - began < float(seconds):
        pair.step()
        steps += 1
        if time.perf_counter() - waited > 0.1:  # count only finished steps, but wait rarely
            synchronize(device)
            waited = time.perf_counter()
    synchronize(device)
    took = time.perf_counter() - began
    peak, reserved = peaks(device)
    print(json.dumps({"rate": steps / took, "peak": peak, "reserved": reserved}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
