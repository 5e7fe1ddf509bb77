"""Start the ranks of `ganherd train --ranks 4` on this machine, as torchrun would start them.

If it is safe they are forked after this process has loaded PyTorch, which is then read once and shared in memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from ganherd.comm.backends.detect import RANKS
from ganherd.training.stop_request import STOP_SIGNALS, stop_signals
from ganherd.util.host import cores

_PATIENCE = 30.0  # seconds for the others to end by themselves when one has failed
_WHY = {  # of ranks that were ended by a signal which nobody asked for
    signal.SIGKILL: ", as the system does where memory runs out",
    signal.SIGBUS: ", as where a file of the data was shortened while it was read",
    signal.SIGSEGV: "",
    signal.SIGABRT: "",
    signal.SIGILL: "",
}


def spawn(main: Callable[[], None], ranks: int, words: Sequence[str]) -> int:
    """Run `main`, the command, with these words on so many ranks; the exit code of the first that fails, else 0.

    A signal is passed on to all of them, in groups of their own so that a terminal's Ctrl-C does not reach them twice.
    """
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port := _free_port()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # where they meet lives here, and outlives any of them
        RANKS: str(ranks),
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // ranks)))  # libraries look when they are loaded
    forks = sys.platform == "linux"  # elsewhere the system's own libraries may not survive it
    if forks:
        from ganherd.training import session  # noqa: F401 - with all that training needs

        gc.freeze()  # collecting would write to every object, and so make a copy for each rank
    context = multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")
    line, end = context.Pipe(duplex=False)  # nothing is ever sent: it breaks when this process is gone
    processes: list[BaseProcess] = [
        context.Process(target=_be, args=(main, {**common, "RANK": rank, "LOCAL_RANK": rank}, tuple(words), line, end))
        for rank in map(str, range(ranks))
    ]

    def tell(number: int, frame: FrameType | None = None) -> None:
        for process in processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, number)

    before = {number: signal.getsignal(number) for number in stop_signals()}
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until all are there to be told
    try:
        for process in processes:
            process.start()
        for number in before:
            signal.signal(number, tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        _store = _meeting_place(port)  # its thread must not be there when ranks are forked
        return _watch(processes)
    finally:
        tell(signal.SIGKILL)
        line.close()
        end.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _be(
    main: Callable[[], None], environment: Mapping[str, str], words: Sequence[str], line: Connection, end: Connection
) -> None:
    """Run the command as a rank, in its own process group."""
    os.setsid()
    os.environ.update(environment)
    sys.argv[1:] = words
    # the first alone says that it was interrupted before it listened; a shell may have left it deaf
    signal.signal(signal.SIGINT, signal.default_int_handler if environment["RANK"] == "0" else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    end.close()
    threading.Thread(target=_follow, args=(line,), name="parent", daemon=True).start()
    main()


def _follow(line: Connection) -> None:
    """Stop a rank, as if it was asked to, when the process that started the ranks is gone."""
    line.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)


def _watch(processes: Sequence[BaseProcess]) -> int:
    """Wait for all ranks. If one fails, the others notice it, and are ended if they do not."""
    failed, since = 0, 0.0
    while any(process.exitcode is None for process in processes):
        if not failed and (codes := [process.exitcode for process in processes if process.exitcode]):
            failed, since = codes[0], time.monotonic()
            _explain(processes)
        if failed and time.monotonic() - since > _PATIENCE:
            message = f"the other ranks still ran {_PATIENCE:.0f} seconds later and were ended; start the command again"
            print(f"ganherd: {message}.", file=sys.stderr, flush=True)
            break
        time.sleep(0.05)
    if not failed:  # all have ended since the last look
        _explain(processes)
    return _code_of_all([failed, *(process.exitcode or 0 for process in processes)])


def _code_of_all(codes: Sequence[int]) -> int:
    """Return the exit code of the command from those of its ranks, the first that failed first.

    The others notice that a rank is gone and end with 75, in any order. If that one failed by itself, its code counts; if it was
    killed, the others say how to go on.

    >>> [_code_of_all(codes) for codes in ([0, 0], [75, 75, 1], [-9, 75, -9], [-9, 0, -15])]
    [0, 1, 75, 137]
    """
    own = [code for code in codes if code > 0 and code != 75]
    if own:
        return own[0]
    if 75 in codes:
        return 75
    return next((128 - code for code in codes if code), 0)  # as a shell says that a signal ended it


def _explain(processes: Sequence[BaseProcess]) -> None:
    """Report ranks that were ended by a signal: they cannot report it themselves."""
    for rank, process in enumerate(processes):
        for number, why in _WHY.items():
            if process.exitcode == -number:
                print(f"ganherd: rank {rank} was ended by {number.name}{why}.", file=sys.stderr, flush=True)


def _meeting_place(port: int) -> Any:
    """Return the store in which the ranks find each other."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
