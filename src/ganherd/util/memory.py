"""Recognise errors about exhausted memory, find out how much is available, and advise what to change about a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.util.errors import UserError

if TYPE_CHECKING:
    import torch

SMALLER = "Train fewer members, lower train.batch, or use smaller nets"
RESUMED = "Members, batch and nets of a run that has begun stay as they are: free memory, or resume it with more ranks"
_IS_RESUMED: ContextVar[bool] = ContextVar("is_resumed", default=False)
_MEMINFO = Path("/proc/meminfo")
_PHRASES = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory of the host or of a GPU is exhausted.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."))
    (True, True)
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in _PHRASES)


def reason(error: BaseException) -> str:
    """Return the first sentence of an error's message, without the full stop; "out of memory" if the message is empty.

    >>> reason(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …"))
    'CUDA out of memory'
    >>> reason(MemoryError())
    'out of memory'
    """
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or "out of memory"


def advice(new_run: str = SMALLER) -> str:
    """Return advice about a run that needs too much memory: `new_run`, or other advice if a run is being resumed."""
    return RESUMED if _IS_RESUMED.get() else new_run


@contextmanager
def refused_if_too_large(is_resumed: bool = False) -> Iterator[None]:
    """Raise a UserError that states what to change if memory runs out inside the block.

    Args:
        is_resumed: True if the run has begun already: the advice is then not to change members, batch or nets.
    """
    before = _IS_RESUMED.set(is_resumed or _IS_RESUMED.get())
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"this run does not fit into memory ({reason(error)}). {advice()}.") from error
    finally:
        _IS_RESUMED.reset(before)


def peak_memory(device: torch.device) -> int:
    """Return the largest number of bytes that this process has used so far; 0 if that is unknown.

    If `device` is a GPU, this is the GPU's memory, otherwise the machine's.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes


def available_memory(with_swap: bool = False) -> int:
    """Return the bytes of memory that this process can still use, at most the memory limit of its control groups.

    Memory counts as available if it is free or if the system can reclaim it, e.g. from its cache of files.

    Args:
        with_swap: Add the free swap space, which is far too slow to train in.
    """
    available = 4 << 30  # assumed if the system does not report it
    with suppress(OSError, ValueError, AttributeError):  # pages that are not even used as a cache of files
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, KeyError):
        lines = _MEMINFO.read_text().splitlines()
        facts = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        available = facts["MemAvailable"] + (facts["SwapFree"] if with_swap else 0)
    return min([available, *group_limits()])


def group_limits() -> list[int]:
    """Return the memory limits in bytes of this process's Linux control groups, e.g. of a container or a Slurm job."""
    limits: list[int] = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if not controllers:  # version 2
                root, file = Path("/sys/fs/cgroup"), "memory.max"
            elif "memory" in controllers.split(","):
                root, file = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
            else:
                continue
            steps = Path(own.lstrip("/")).parts
            for depth in range(len(steps) + 1):
                with suppress(OSError, ValueError):  # "max": no limit
                    limits.append(int(root.joinpath(*steps[:depth], file).read_text()))
    return limits


def require_memory(num_bytes: int, what: str, way_out: str = "") -> None:
    """Raise a `UserError` if `num_bytes` exceed the available memory with swap, before the system kills the process.

    Args:
        num_bytes: The bytes that are about to be allocated.
        what: What needs the memory, as a plural noun for the error message.
        way_out: A sentence about what to change, without the full stop; empty: that of `advice`.

    Raises:
        UserError: Less memory is available.
    """
    if num_bytes > (available := available_memory(with_swap=True)):
        need, there = (f"{number / 2**30:,.1f} GiB" for number in (num_bytes, available))
        raise UserError(f"{what} need {need} of memory, and {there} are available. {way_out or advice()}.")
