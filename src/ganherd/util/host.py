"""Find out which cores and how much memory a process may use, and set its threads, memory allocator and GPU driver."""

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
# Options of glibc's `mallopt`: M_MMAP_THRESHOLD, the size in bytes from which freed blocks are returned to the system
# at once, and M_TRIM_THRESHOLD, how many free bytes the end of the heap may have before they are returned.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_BLOCKS = (1 << 30, 1 << 25)  # bytes, tried in this order: older versions refuse more than 32 MiB
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
    """Initialise the driver of the first NVIDIA GPU in a background thread, while Python imports PyTorch.

    The initialisation takes a second or more. PyTorch later uses the CUDA context that this creates. Do not call this
    in the ranks of a distributed job: they choose their GPU later.
    """

    def wake() -> None:
        with suppress(OSError, AttributeError):
            driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    if os.path.exists("/dev/nvidiactl"):
        Thread(target=wake, name="ganherd-wake-gpu", daemon=True).start()


def keep_freed_memory() -> None:
    """Make the C library (glibc) keep freed memory and reuse it for the next tensors; `give_back` still returns it.

    By default glibc returns large blocks to the system as soon as they are freed. The system then has to map and clear
    the pages of the same tensors again in every training step, which can take a third of the step's time.
    """
    with suppress(OSError, AttributeError, TypeError):  # only glibc has `mallopt`; Windows refuses the name None
        mallopt = ctypes.CDLL(None).mallopt
        for size in _LARGEST_BLOCKS:  # older versions refuse the first size
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
    """Return the memory that this process has freed, and that the C library still holds, to the system.

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
    """Let PyTorch use `number` threads inside the block; restore the old number afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """Call `work` on each item, in several threads. Useful if `work` releases the GIL.

    Each thread gets one contiguous block of items. The first error of `work` is raised.

    Args:
        threads: The largest number of threads; 1 calls `work` in this thread.

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
