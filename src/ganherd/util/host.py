"""What a process may use of the machine that it is on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def own_cores() -> list[int]:
    """Their numbers, ascending: fewer than there are, where a scheduler or a container gave it some of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores() -> int:
    return len(own_cores())


def memory() -> int:
    """Bytes that the machine has; 0 where that cannot be found out."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def give_back() -> None:
    """What this process has freed goes back to the machine; C libraries keep it else, and each of many ranks does."""
    with suppress(OSError, AttributeError):  # GNU's alone has this
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """PyTorch works with so many, and afterwards with as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """`work` on each item, a run of neighbours in each of so many threads; pays where the work lets go of the interpreter.

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
