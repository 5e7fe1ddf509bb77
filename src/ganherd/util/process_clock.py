"""Find out when the command of this process was started."""

from __future__ import annotations

import os
import time

_IMPORTED = time.monotonic()
_LONGEST_START = 5.0  # seconds from the start of a process to the import of this module


def process_began() -> float:
    """Return when the command of this process was started, on the clock of `time.monotonic` in seconds.

    Return when this module was imported if the start is unknown or more than 5 s before that. The latter happens in a
    process that a script started by `exec`, because the process then has the age of the script. Also return the time of
    the import if the process was started after it: it is a fork of the process that imported this module.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    began = time.monotonic() - age
    return began if _IMPORTED - _LONGEST_START <= began <= _IMPORTED else _IMPORTED
