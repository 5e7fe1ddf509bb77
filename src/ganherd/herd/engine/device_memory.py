"""Leave little of a GPU's memory reserved but unused."""

from __future__ import annotations

import os

import torch

from ganherd.herd.state import State, bytes_per_member

_LARGE = 1 / 16  # share of the device's memory


def avoid_fragments() -> None:
    """Let PyTorch grow its segments of device memory instead of adding new ones, unless the user has set its allocator.

    A freed segment of fixed size serves only smaller tensors, so a large herd would leave much memory in pieces that are too
    small. Captured graphs use such segments too. Only memory that is allocated later is affected.
    """
    if any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        return
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # PyTorch 2.10 deprecates the older name
    (apply or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")


def release_cached(device: torch.device) -> None:
    """Release unused cached memory of a GPU, which other streams and captured graphs could not reuse."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_large(state: State, device: torch.device) -> bool:
    """Return whether a state takes so much of a GPU's memory that a step should save memory rather than time.

    Then there may be no room for a copy of the state. Kernels of this many members fill the GPU one by one, so that side streams,
    which cannot share memory, would gain nothing.
    """
    num_bytes = bytes_per_member(state) * len(state["set.seed"])
    return num_bytes > _LARGE * int(torch.cuda.mem_get_info(device)[1])
