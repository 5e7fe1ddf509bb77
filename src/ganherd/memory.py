"""Recognise that memory ran out, find out how much there is, and say what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ganherd.errors import UserError
from ganherd.host import free_memory

SMALLER = "Train fewer members, lower train.batch, or use smaller nets"
_PHRASES = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, of the host or of a GPU.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."))
    (True, True)
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in _PHRASES)


def reason(error: BaseException) -> str:
    """Return the first sentence of such an error.

    >>> reason(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …"))
    'CUDA out of memory'
    >>> reason(MemoryError())
    'out of memory'
    """
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or "out of memory"


@contextmanager
def refused_if_too_large() -> Iterator[None]:
    """Turn memory that runs out before the first step into a sentence that says what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"this run does not fit into memory ({reason(error)}). {SMALLER}.") from error


def available_memory() -> int:
    """Return the bytes that this process can still use: free, reclaimable or swap, within the limit of its control group."""
    available = free_memory()
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        available = facts["MemAvailable"] + facts["SwapFree"]
    return min([available, *_group_limits()])


def _group_limits() -> list[int]:
    """Return the memory limits of the control groups of this process, e.g. of a container or of a Slurm job."""
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


def require_memory(num_bytes: int, what: str) -> None:
    """Refuse an allocation that certainly cannot be made, before the system ends the process for it.

    Raises:
        UserError: Less memory is available.
    """
    if num_bytes > (available := available_memory()):
        need, there = (f"{number / 2**30:,.1f} GiB" for number in (num_bytes, available))
        raise UserError(f"{what} need {need} of memory, and {there} are available. {SMALLER}.")
