"""Start the ranks of a job together, and detect a rank that falls silent.

If a rank dies during start-up, the others may wait forever in `MPI_Init` or in a rendezvous. Not every launcher notices
that, so each rank watches its own clock. The ranks of a torchrun job find each other in a store that outlives them.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ganherd.util.errors import UserError, few

# Seconds of silence after which a rank counts as lost; GANHERD_LOST_AFTER overrides it, 0 means never.
LOST_AFTER = 60.0
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


def meet(store: Any, rank: int, world_size: int, patience: float) -> str:
    """Agree with all other ranks on a new name for this attempt to connect, and return it.

    The name is the prefix of this attempt's keys in the store: torchrun keeps its store over restarts, and keys of an
    earlier attempt must not be used. Each rank writes a random token, rank 0 offers a name to the ranks with these
    tokens, and the name is valid once all of them have confirmed it.

    Args:
        store: The store (torch.distributed) that all ranks share.
        patience: Seconds to wait for the other ranks.

    Raises:
        UserError: Not all ranks came within `patience` seconds; 0 waits forever.
    """
    token, began = uuid.uuid4().hex, time.monotonic()
    token_keys = [f"meet/{world_size}/here/{r}" for r in range(world_size)]
    offer_keys = [f"meet/{world_size}/offer/{r}" for r in range(world_size)]
    store.set(token_keys[rank], token)
    name, offered = "", None
    while True:
        if rank == 0 and store.check(token_keys):
            tokens = [bytes(each).decode() for each in store.multi_get(token_keys)]
            if tokens != offered:
                name, offered = uuid.uuid4().hex, tokens
                store.multi_set(offer_keys, [f"{each} {name}" for each in tokens])
        if store.check([offer_keys[rank]]):
            addressee, name = bytes(store.get(offer_keys[rank])).decode().split()
            if addressee == token and _confirm(store, name, rank, world_size):
                return name
        waited = time.monotonic() - began
        if 0 < patience < waited:
            missing = [f"rank {r}" for r in range(world_size) if not store.check([token_keys[r]])]
            raise UserError(too_late({"RANK": str(rank)}, patience, few(missing, 3)))
        time.sleep(min(0.2, 0.005 + waited / 20))


def _confirm(store: Any, name: str, rank: int, world_size: int) -> bool:
    """Confirm an offered name, and return whether all ranks have confirmed it."""
    store.set(f"{name}/here/{rank}", "1")
    if rank == 0 and store.check([f"{name}/here/{r}" for r in range(world_size)]):
        store.set(f"{name}/all", "1")
    return bool(store.check([f"{name}/all"]))


class LivenessRing:
    """Write signs of life of this rank to the store, and watch those of the previous rank.

    Each rank watches one other rank, so the load stays small. If a process dies, the system closes its connections,
    which the other ranks notice at once. If a host loses its network or its power, connections stay open, and its peers
    would wait forever. So if the previous rank or the store is silent for too long, this process ends, and torchrun
    restarts the group without the ranks that are cut off.
    """

    def __init__(self, store: Callable[[], Any], name: str, rank: int, world_size: int, after: float) -> None:
        """Start the threads that write and watch.

        Args:
            store: Opens a separate connection to the store.
            name: The name of this attempt; see `meet`.
            rank: This rank.
            world_size: The number of ranks.
            after: Seconds of silence after which this process ends.
        """
        self._open, self._name, self._rank, self.after = store, name, rank, after
        self._previous = (rank - 1) % world_size
        self._closed = threading.Event()
        self._last_beat, self._last_reply = time.monotonic(), -math.inf  # of the previous rank, of the store
        for work in (self._exchange_beats, self._watch_clock):
            threading.Thread(target=work, name="watch", daemon=True).start()

    def close(self) -> None:
        """Stop both threads."""
        self._closed.set()

    def _exchange_beats(self) -> None:
        """Write beats of this rank, and read those of the previous one.

        This may hang in the network, so another thread (`_watch_clock`) measures the silence.
        """
        key, previous_key = (f"{self._name}/alive/{rank}" for rank in (self._rank, self._previous))
        beat, last = 0, b""
        try:
            store = self._open()
            while not self._closed.is_set():
                beat += 1
                store.set(key, str(beat))
                current = bytes(store.get(previous_key)) if store.check([previous_key]) else b""
                self._last_reply = time.monotonic()
                if current != last:
                    last, self._last_beat = current, self._last_reply
                self._closed.wait(self.after / 10)
        except RuntimeError:  # The store is gone.
            self._last_reply = -math.inf

    def _watch_clock(self) -> None:
        """End the process after too long a silence."""
        while not self._closed.wait(self.after / 10):
            if (now := time.monotonic()) - self._last_beat > self.after:
                silent = f"rank {self._previous}" if now - self._last_reply < self.after / 2 else "the store"
                end_process(f"rank {self._rank} ends: nothing was heard of {silent} for {self.after:g} seconds.", 1)


def lost_after(text: str | None) -> float:
    """Return the seconds of silence after which a rank counts as lost; 0 means never.

    >>> lost_after(None), lost_after("5"), lost_after("0")
    (60.0, 5.0, 0.0)
    """
    return seconds_of("GANHERD_LOST_AFTER", text, LOST_AFTER)
