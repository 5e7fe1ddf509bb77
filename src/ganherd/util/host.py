"""Find out what a process may use of its machine: cores, memory, threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
# Settings of GNU's `mallopt`: which blocks are returned when they are freed, and how much free memory is kept at the end.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_BLOCKS = (1 << 30, 1 << 25)  # bytes; older versions refuse more than 32 MiB
_MAX_CACHED = (1 << 31) - 1  # bytes


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may use, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(own_cores())


def memory() -> int:
    """Return the bytes of memory of the machine; 0 if that is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def has_amd_processor() -> bool:
    """Return whether the processor is one of AMD's; False if that is unknown."""
    try:
        with open("/proc/cpuinfo") as facts:
            return any(line.startswith("vendor_id") and "AuthenticAMD" in line for line in facts)
    except OSError:
        return False


def wake_gpu() -> None:
    """Start the driver of the first NVIDIA GPU in a thread, which takes a second or more, while Python imports PyTorch.

    PyTorch shares the context that this creates. Not for ranks, which choose their GPU later.
    """

    def wake() -> None:
        with suppress(OSError, AttributeError):
            driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    if os.path.exists("/dev/nvidiactl"):
        Thread(target=wake, name="ganherd-wake-gpu", daemon=True).start()


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensors of this process; `give_back` still returns it.

    GNU's library returns large blocks to the system as soon as they are freed. The system then maps and clears the pages of
    the same tensors again in every training step, which can take a third of its time.
    """
    with suppress(OSError, AttributeError, TypeError):  # only GNU has this; Windows refuses the name None
        mallopt = ctypes.CDLL(None).mallopt
        for size in _LARGEST_BLOCKS:  # older versions refuse the first
            if mallopt(_MMAP_THRESHOLD, size):
                break
        mallopt(_TRIM_THRESHOLD, _MAX_CACHED)


class _HeapFacts(ctypes.Structure):
    """What GNU's `mallinfo2` returns: ten facts about the memory that the C library manages."""

    _fields_ = (
        *((f"other_{number}", ctypes.c_size_t) for number in range(8)),
        ("free", ctypes.c_size_t),  # bytes
        ("free_at_the_end", ctypes.c_size_t),
    )


def give_back(above: int = 0) -> None:
    """Return freed memory to the system, which the C library would keep for this process.

    Args:
        above: Do nothing if the C library keeps at most this many bytes. Older libraries cannot tell, and always return them.
    """
    with suppress(OSError, AttributeError, TypeError):  # only GNU has this; Windows refuses the name None
        library = ctypes.CDLL(None)
        if above and hasattr(library, "mallinfo2"):
            library.mallinfo2.restype = _HeapFacts
            if library.mallinfo2().free <= above:
                return
        library.malloc_trim(0)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let PyTorch use this many threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """Call `work` on each item, with neighbouring items in the same thread. Useful if the work releases the GIL.

    >>> seen = []
    >>> in_threads(seen.append, range(5), 2)
    >>> sorted(seen)
    [0, 1, 2, 3, 4]
    """

    def several(some: Iterable[T]) -> None:
        for item in some:
            work(item)

    threads = min(threads, len(items))
    if threads <= 1:
        return several(items)
    each = -(-len(items) // threads)
    with ThreadPoolExecutor(threads, "ganherd-host") as pool:
        runs = [
            pool.submit(copy_context().run, several, items[first : first + each])
            for first in range(0, len(items), each)
        ]
        for run in runs:
            run.result()
