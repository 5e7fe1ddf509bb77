"""Start the ranks of `ganherd train --ranks 4` on this machine, as torchrun would start them.

On Linux they are forked after this process has loaded PyTorch, so that all ranks share its pages in memory.
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

from ganherd.comm.backends.detect import RANKS
from ganherd.training.stop_request import STOP_SIGNALS, stop_signals
from ganherd.util.host import cores

_PATIENCE = 30.0  # seconds that the other ranks have to end by themselves when one has failed
_WHY = {  # likely causes of signals that end a rank
    signal.SIGKILL: ", probably because memory ran out",
    signal.SIGBUS: ", probably because a data file was truncated while it was read",
    signal.SIGSEGV: "",
    signal.SIGABRT: "",
    signal.SIGILL: "",
}


def spawn(main: Callable[[], None], ranks: int, words: Sequence[str]) -> int:
    """Run the command on several ranks, and return the exit code of the first rank that fails, or 0.

    Signals are passed on to all ranks. Each rank is in a separate process group, so that a terminal's Ctrl-C reaches it only once.

    Args:
        main: Runs the command in a rank.
        ranks: The number of ranks.
        words: The arguments of the command.
    """
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port := _free_port()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # this process has torch's store, so that it outlives every rank
        RANKS: str(ranks),
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // ranks)))  # libraries read it when they are loaded
    forks = sys.platform == "linux"  # on other systems, libraries may not survive a fork
    if forks:
        from ganherd.training import session  # noqa: F401 - with all that training needs

        gc.freeze()  # otherwise garbage collection writes to every object, so that ranks do not share its memory
    context = multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")
    line, end = context.Pipe(duplex=False)  # nothing is ever sent: the pipe breaks when this process is gone
    processes: list[BaseProcess] = [
        context.Process(
            target=_run_rank, args=(main, {**common, "RANK": rank, "LOCAL_RANK": rank}, tuple(words), line, end)
        )
        for rank in map(str, range(ranks))
    ]

    def tell(number: int, frame: FrameType | None = None) -> None:
        for process in processes:
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, number)

    before = {number: signal.getsignal(number) for number in stop_signals()}
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until all ranks can receive signals
    try:
        for process in processes:
            process.start()
        for number in before:
            signal.signal(number, tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        # In this store the ranks find each other. Its thread must not run when ranks are forked.
        from torch.distributed import TCPStore  # only now: OMP_NUM_THREADS must be set before PyTorch is loaded

        _store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
        return _watch(processes)
    finally:
        tell(signal.SIGKILL)
        line.close()
        end.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _run_rank(
    main: Callable[[], None], environment: Mapping[str, str], words: Sequence[str], line: Connection, end: Connection
) -> None:
    """Run the command as one rank, in its own process group. `line`, `end`: a pipe that breaks when the parent process ends."""
    os.setsid()
    os.environ.update(environment)
    sys.argv[1:] = words
    # only the first rank reports an early Ctrl-C; the shell may have set SIGINT to be ignored
    signal.signal(signal.SIGINT, signal.default_int_handler if environment["RANK"] == "0" else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    end.close()
    threading.Thread(target=_end_with_parent, args=(line,), name="parent", daemon=True).start()
    main()


def _end_with_parent(line: Connection) -> None:
    """Send SIGTERM to this rank when the process that started the ranks is gone."""
    line.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)


def _watch(processes: Sequence[BaseProcess]) -> int:
    """Wait for all ranks, and return the exit code of the command.

    If a rank fails, the others have `_PATIENCE` to end.
    """
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
    if not failed:  # all have ended since the last check
        _explain(processes)
    return _code_of_all([failed, *(process.exitcode or 0 for process in processes)])


def _code_of_all(codes: Sequence[int]) -> int:
    """Return the exit code of the command from the exit codes of its ranks.

    When a rank is gone, the others end with 75. If that rank failed by itself, its code counts. If it was killed (a
    negative code), the others print how to continue the run, and 75 counts.

    Args:
        codes: The code of the first rank that failed, or 0, followed by the codes of all ranks.

    >>> [_code_of_all(codes) for codes in ([0, 0], [75, 75, 1], [-9, 75, -9], [-9, 0, -15])]
    [0, 1, 75, 137]
    """
    own = [code for code in codes if code > 0 and code != 75]
    if own:
        return own[0]
    if 75 in codes:
        return 75
    return next((128 - code for code in codes if code), 0)  # the code of a shell for a process that a signal ended


def _explain(processes: Sequence[BaseProcess]) -> None:
    """Report ranks that were ended by a signal: they cannot report it themselves."""
    for rank, process in enumerate(processes):
        for number, why in _WHY.items():
            if process.exitcode == -number:
                print(f"ganherd: rank {rank} was ended by {number.name}{why}.", file=sys.stderr, flush=True)


def _free_port() -> int:
    """Return a TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
