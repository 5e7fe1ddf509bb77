"""Ranks of torch.distributed find each other in a store that outlives them, and notice who falls silent."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from ganherd.comm.backends.startup import end_process, seconds_of, too_late
from ganherd.util.errors import UserError, few

LOST_AFTER = 60.0  # seconds without a word from a rank; GANHERD_LOST_AFTER is another number, 0 for never


def meet(store: Any, rank: int, size: int, patience: float) -> str:
    """A name for this attempt: the same on all ranks that are there now, and on none of an earlier attempt.

    torchrun keeps its store over restarts, and its agents do not count these alike: what an earlier attempt left must not be
    met. So each rank says a word of its own, the first one offers a name to whoever said these words, and the name counts
    when all have answered.
    """
    word, began = uuid.uuid4().hex, time.monotonic()
    here = [f"meet/{size}/here/{r}" for r in range(size)]
    store.set(here[rank], word)
    name, offered = "", None
    while True:
        if rank == 0 and store.check(here):
            words = [bytes(each).decode() for each in store.multi_get(here)]
            if words != offered:
                name, offered = uuid.uuid4().hex, words
                store.multi_set([f"meet/{size}/offer/{r}" for r in range(size)], [f"{each} {name}" for each in words])
        if store.check([f"meet/{size}/offer/{rank}"]):
            to, name = bytes(store.get(f"meet/{size}/offer/{rank}")).decode().split()
            if to == word:
                store.set(f"{name}/here/{rank}", "1")
                if rank == 0 and store.check([f"{name}/here/{r}" for r in range(size)]):
                    store.set(f"{name}/all", "1")
                if store.check([f"{name}/all"]):
                    return name
        waited = time.monotonic() - began
        if 0 < patience < waited:
            missing = [f"rank {r}" for r in range(size) if not store.check([here[r]])]
            raise UserError(too_late({"RANK": str(rank)}, patience, few(missing, 3)))
        time.sleep(min(0.2, 0.005 + waited / 20))


class LivenessRing:
    """Says in the store that this rank is alive, and listens to the one before it: a ring, so that nobody has much to do.

    A process that dies closes its connections, which the others notice at once. A host that loses its network or its power
    does not: packets are lost, and one would wait for ever. Where nothing is heard, of the other rank or of the store, this
    process ends, torchrun starts the group again, and those that are cut off are not part of it.
    """

    def __init__(self, store: Callable[[], Any], name: str, rank: int, size: int, after: float) -> None:
        """`store`: opens a connection for this alone. `after`: seconds of silence."""
        self._open, self._name, self._rank, self._before, self.after = store, name, rank, (rank - 1) % size, after
        self._over, self._heard, self._answered = threading.Event(), time.monotonic(), -math.inf
        for work in (self._talk, self._listen):
            threading.Thread(target=work, name="watch", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _talk(self) -> None:
        """May hang in the network: it is the other thread that looks at the clock."""
        own, other = (f"{self._name}/alive/{rank}" for rank in (self._rank, self._before))
        beat, last = 0, b""
        try:
            store = self._open()
            while not self._over.is_set():
                beat += 1
                store.set(own, str(beat))
                said = bytes(store.get(other)) if store.check([other]) else b""
                self._answered = time.monotonic()
                if said != last:
                    last, self._heard = said, self._answered
                self._over.wait(self.after / 10)
        except RuntimeError:  # of the store, of which nothing is heard from now on
            self._answered = -math.inf

    def _listen(self) -> None:
        while not self._over.wait(self.after / 10):
            if (now := time.monotonic()) - self._heard > self.after:
                silent = f"rank {self._before}" if now - self._answered < self.after / 2 else "the store"
                end_process(f"rank {self._rank} ends: nothing was heard of {silent} for {self.after:g} seconds.", 1)


def lost_after(text: str | None) -> float:
    """Return the seconds of silence after which a rank counts as lost; 0 means never.

    >>> lost_after(None), lost_after("5"), lost_after("0")
    (60.0, 5.0, 0.0)
    """
    return seconds_of("GANHERD_LOST_AFTER", text, LOST_AFTER)
