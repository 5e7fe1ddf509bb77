"""`ganherd train --ranks 4`: the ranks of one machine, started by this process as torchrun would start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from ganherd.host import cores

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PATIENCE = 30.0  # seconds for the others to end by themselves when one has failed


def spawn(ranks: int, words: Sequence[str]) -> int:
    """Runs `ganherd` with these words on so many ranks; the exit code of the first that fails, else 0.

    A signal is passed on to all of them, in groups of their own so that a terminal's Ctrl-C does not reach them twice.
    """
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    threads = {"OMP_NUM_THREADS": str(max(1, cores() // ranks))}
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        for rank in range(ranks):
            environment = {**threads, **os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "ganherd", *words]
            processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return _watch(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits for all; where one fails, the others notice that it is gone, and are ended if they do not."""
    failed, since = 0, 0.0
    while any(process.poll() is None for process in processes):
        if not failed and (codes := [process.returncode for process in processes if process.returncode]):
            failed, since = codes[0], time.monotonic()
        if failed and time.monotonic() - since > _PATIENCE:
            break
        time.sleep(0.05)
    codes = [failed, *(process.returncode or 0 for process in processes)]
    found = next((code for code in codes if code), 0)
    return found if found >= 0 else 128 - found  # as a shell says that a signal ended it


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
