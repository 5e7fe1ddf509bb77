"""Measure peak memory: of the allocator of the device, or of this process on a CPU."""

from __future__ import annotations

import gc
import resource
from contextlib import suppress
from pathlib import Path

import torch


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peaks(device: torch.device) -> None:
    """Reset the peaks of a GPU; those of a process cannot be reset."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> tuple[int, int]:
    """Return the peak bytes of tensors, and the peak bytes that were reserved for them."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    resident = _resident()
    return resident, resident


def _resident() -> int:
    """Return the peak memory of this process; `getrusage` would include the process that started it."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
