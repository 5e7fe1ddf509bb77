"""Find out when a process was started, and what it may use of its machine: cores, memory, threads."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

_IMPORTED = time.monotonic()
_LONGEST_START = 5.0  # seconds from the start of a process to the import of this module


def process_began() -> float:
    """Return when the command of this process was started, on the clock of `time.monotonic`.

    If the system does not tell, it is when this module was imported. That also holds for a process that a script has become by
    `exec`, whose age is that of the script, and for a forked one, whose parent has imported this module.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    began = time.monotonic() - age
    return began if _IMPORTED - _LONGEST_START <= began <= _IMPORTED else _IMPORTED


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


def give_back() -> None:
    """Return freed memory to the system, which the C library would keep for this process."""
    with suppress(OSError, AttributeError):  # only GNU has this
        ctypes.CDLL(None).malloc_trim(0)


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
