"""Pass on the signals of spares: ranks without members, which only wait until the other ranks have ended.

Ranks that train exchange requests to stop every half second, but a spare only waits for one message that comes at the
end. So if a spare receives a signal to stop, it writes a file in the run's folder, which the first rank reads. Python
runs no signal handler while C code waits for the message, so the system writes the signal's number into a pipe, and a
thread reads it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ganherd.comm.ranks import Ranks
from ganherd.training.stop_request import STOP_SIGNALS, StopRequest

_LOOK = 0.25  # seconds between two times that the first rank tries to read the file


def _file(run: Path) -> Path:
    """Return the file in a run's folder by which a spare passes on a request to stop."""
    return run / "ranks" / "stop"


def forget(run: Path) -> None:
    """Remove the request file of an earlier job. Called by the first rank before it announces the run to the spares."""
    with suppress(OSError):
        _file(run).unlink(missing_ok=True)


@contextmanager
def passing_on(run: Path) -> Iterator[None]:
    """On a spare, write the name of each signal to stop that it receives into a file that the first rank reads.

    Args:
        run: The run's folder.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    end, begin = os.pipe()
    os.set_blocking(begin, False)
    before = signal.set_wakeup_fd(begin)
    thread = threading.Thread(target=_pass_on, args=(run, end), name="spare", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(begin)  # this ends the thread
        thread.join(1.0)
        os.close(end)


def _pass_on(run: Path, end: int) -> None:
    """Write the names of signals to stop whose numbers are read from the pipe `end`, until the pipe is closed."""
    while number := os.read(end, 1):
        if number[0] not in STOP_SIGNALS:  # such as that of a user's timer
            continue
        with suppress(OSError, ValueError):
            path = _file(run)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(signal.Signals(number[0]).name, encoding="utf-8")


@contextmanager
def listening(ranks: Ranks, run: Path, stop: StopRequest) -> Iterator[None]:
    """On the first rank, set the name of `stop` when a spare has received a signal to stop.

    Do nothing if there are no spares.
    """
    if not ranks.is_first or all(ranks.members_by_rank):
        yield
        return
    over = threading.Event()

    def listen() -> None:
        while not over.wait(_LOOK):
            with suppress(OSError):
                if asked := _file(run).read_text(encoding="utf-8"):
                    stop.name = stop.name or asked
                    return

    threading.Thread(target=listen, name="spares", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        forget(run)
