"""Says now and then how far a score is, and how long it will take: nothing that takes long is silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[str], None]
SECONDS_BETWEEN_LINES = 5.0


class TimeLeft:
    """Told what is done, it tells a person, at most every few seconds.

    >>> told = []
    >>> Clock(told.append, "features", 100, seconds=0).at(50)
    >>> told
    ['features: 50 of 100, 0 s left']
    """

    def __init__(
        self, progress: Progress | None, what: str, total: int, seconds: float = SECONDS_BETWEEN_LINES
    ) -> None:
        self.progress, self.what, self.total, self.seconds = progress, what, total, seconds
        self.start = self.said = time.monotonic()

    def at(self, done: int) -> None:
        now = time.monotonic()
        if self.progress is None or not 0 < done < self.total or now - self.said < self.seconds:
            return
        from ganherd.util.progress import duration

        self.said = now
        left = duration((now - self.start) / done * (self.total - done))
        self.progress(f"{self.what}: {done:,} of {self.total:,}, {left} left")


def timed(items: Sequence[T], progress: Progress | None, what: str) -> Iterator[T]:
    """The items, one after the other, with the time left where they take long."""
    clock = TimeLeft(progress, what, len(items))
    for done, item in enumerate(items):
        clock.at(done)
        yield item
