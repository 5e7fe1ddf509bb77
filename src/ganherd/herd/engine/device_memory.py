"""Avoid that much of a GPU's memory is reserved by PyTorch but unused."""

from __future__ import annotations

import os

import torch

from ganherd.herd.state import State, bytes_per_member

_LARGE = 1 / 16  # share of the device's memory


def avoid_fragments() -> None:
    """Make PyTorch's allocator grow its segments of device memory instead of adding new ones (`expandable_segments`).

    A segment of fixed size can later be reused only for smaller tensors, so that a large herd would leave much memory
    unused in pieces that are too small. Captured graphs use expandable segments, too. Memory that is already allocated
    does not change. If the user has set PyTorch's allocator by an environment variable, nothing is done.
    """
    if any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        return
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # PyTorch 2.10 deprecates the older name
    (apply or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")


def release_cached(device: torch.device) -> None:
    """Release cached memory of a GPU that is not in use, so that other streams and captured graphs can have it.

    This first waits for all streams. Before PyTorch releases memory of a segment that can grow, it waits only for the
    stream that allocated it. Memory of a side stream may still be read by the main stream then.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def is_large(state: State, device: torch.device) -> bool:
    """Return whether a state takes so much of a GPU's memory that a step should save memory rather than time.

    There may then be no room for a copy of the state. Side streams, which cannot share memory, are not worth it either:
    with this many members each kernel fills the GPU alone.
    """
    num_bytes = bytes_per_member(state) * len(state["set.seed"])
    return num_bytes > _LARGE * int(torch.cuda.mem_get_info(device)[1])
