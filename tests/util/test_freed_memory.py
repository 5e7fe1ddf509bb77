"""Memory that a training step frees stays with the process, so that the next step need not ask the system for it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys, torch
from ganherd.util.host import give_back, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        (torch.ones(1 << 24) + 1).sum()  # two blocks of 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20

faults()
print(faults())
keep_freed_memory()
faults()
print(faults())
before = resident()
give_back(above=1 << 30)
print(before - resident())
give_back(above=1 << 26)
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library has these settings")
def test_freed_memory_is_kept_until_too_much_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True)
    before, after, too_little, returned = map(int, done.stdout.split())
    assert before > 100 and after < before / 10
    assert too_little < 10 and returned > 100  # MiB
