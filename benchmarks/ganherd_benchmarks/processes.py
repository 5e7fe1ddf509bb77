"""Train one GAN per process, all at once on one device, as the papers and most people do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from ganherd.bench.engine_rates import MeasuredWay
from ganherd_benchmarks.launchers import process_environment


def processes(name: str, members: int, seconds: float, device: str, precision: str) -> MeasuredWay:
    """Start all processes, wait until each is warm, start the measurement, and add up the rates."""
    command = [sys.executable, "-m", "ganherd_benchmarks.single_gan", name, str(seconds), device, precision]
    before = _free()
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = process_environment()
    running = [subprocess.Popen(command, text=True, env=environment, **pipes) for _ in range(members)]
    try:
        for one in running:
            assert one.stdin and one.stdout
            if one.stdout.readline() != "ready\n":
                raise RuntimeError(_last_words(one))
        taken = before - _free()
        for one in running:
            assert one.stdin
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [_answer(one) for one in running]
    finally:
        for one in running:
            one.kill()
            one.communicate()
    rate, peak, reserved = (sum(one[key] for one in answers) for key in ("rate", "peak", "reserved"))
    note = f"{taken / 2**30:.1f} GiB of the device with {members} CUDA contexts" if taken else ""
    return MeasuredWay(rate, int(peak), int(reserved), "processes", 1, note)


def _answer(one: subprocess.Popen[str]) -> dict[str, float]:
    assert one.stdout
    line = one.stdout.readline()
    if not line:
        raise RuntimeError(_last_words(one))
    answer: dict[str, float] = json.loads(line)
    return answer


def _last_words(one: subprocess.Popen[str]) -> str:
    one.kill()
    lines = one.communicate()[1].strip().splitlines()
    return f"a process ended: {lines[-1] if lines else 'without a message'}"


def _free() -> int:
    """Return the free bytes of the device; 0 without a GPU."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
