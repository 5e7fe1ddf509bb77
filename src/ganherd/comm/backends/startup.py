"""End a rank that waits too long for the other ranks of its job to start.

If a rank dies during start-up, the others may wait forever in `MPI_Init` or in a rendezvous. Not every launcher notices
that, so each rank watches its own clock.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn

from ganherd.util.errors import UserError

TIMEOUT = "GANHERD_START_TIMEOUT"  # environment variable: seconds to wait; 0 waits forever
DEFAULT_TIMEOUT = 600.0  # seconds: loading PyTorch from a busy file server may take minutes
_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
EXIT_CODE = 2


def start_timeout(environ: Mapping[str, str]) -> float:
    """Return the seconds that a rank waits for the others to start; 0 means forever.

    >>> start_timeout({}), start_timeout({"GANHERD_START_TIMEOUT": "30"})
    (600.0, 30.0)
    """
    return seconds_of(TIMEOUT, environ.get(TIMEOUT), DEFAULT_TIMEOUT)


def seconds_of(name: str, text: str | None, default: float) -> float:
    """Return the seconds that an environment variable sets; 0 means never.

    Raises:
        UserError: Its value is not a number of seconds.
    """
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise UserError(f"{name}={text}: give seconds, or 0 for never.")
    return seconds


@contextmanager
def start_watchdog(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """End this process with a message if the block takes longer than the timeout.

    The watchdog is a thread: it also works while the block waits in C code, if that code releases Python's lock.
    """
    seconds = start_timeout(environ)
    started = threading.Event()

    def watch() -> None:
        if not started.wait(seconds):
            end_process(too_late(environ, seconds), EXIT_CODE)

    if seconds:
        threading.Thread(target=watch, name="start watchdog", daemon=True).start()
    try:
        yield
    finally:
        started.set()


def too_late(environ: Mapping[str, str], seconds: float, missing: str = "") -> str:
    """Return the message for ranks that did not connect in time; `missing` names the absent ranks, if known."""
    rank = next((f"Rank {environ[name]}" for name in _RANK_NAMES if name in environ), "This rank")
    others = f"{missing}, which did not start" if missing else "the other ranks, and not all of them started"
    return (
        f"{rank} on {platform.node()} waited {seconds:g} seconds for {others}. A rank has probably died or was never started: "
        f"start the job again. If ranks need longer to start here, set {TIMEOUT} to more seconds."
    )


def end_process(sentence: str, code: int) -> NoReturn:
    """Write a message to stderr and end this process at once, from any thread."""
    with suppress(OSError):  # The terminal may be closed, or the disk of the log full.
        os.write(2, f"ganherd: {sentence}\n".encode())
    os._exit(code)
