"""Who meets whom, and when: what the training loop asks of a strategy. The one here lets nobody meet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ganherd.herd.state import State
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.strategies.traffic import Traffic

Event = tuple[str, dict[str, Any]]  # its name and its facts, for events.jsonl


class Strategy:
    """Acts on a herd between its steps.

    Arriving at a step where members meet, the loop first looks for members that turned NaN and tells what it saw (`looked`),
    then calls `close`; before it trains on from there, `open`. A checkpoint lies between the two, so that a run which ends here,
    or is resumed from here, is the same run. Nothing changes a member between the two: over several ranks members travel
    meanwhile.
    """

    def __init__(self) -> None:
        self.state: State = {}  # what it remembers from one meeting to the next, [N, …]; saved with the herd's state
        self.traffic = Traffic()
        # over several ranks: steps that each may go on by itself, before all are together again; 0: all are, wherever
        # anything but training happens. What is due meanwhile waits: see `run.apart`
        self.apart = 0

    def next_after(self, step: int) -> int | None:
        """The next step at which members meet; none: they never do again."""
        return None

    def meets_at(self, step: int) -> bool:
        return step > 0 and self.next_after(step - 1) == step

    def looked(self, step: int, well: np.ndarray | None) -> None:
        """Is told whose numbers are all finite, bool [N] of all members, where the loop looks; None: one was repaired since."""

    def close(self, step: int, goes_on: bool = False) -> Iterator[Event]:
        """Ends what began at the meeting before. `goes_on`: `open` or `leave` follows, so members may be sent ahead for it."""
        return iter(())

    def leave(self) -> None:
        """The run stops after `close`, and no `open` follows: what is under way comes to its end, on all ranks."""

    def open(self, step: int) -> Iterator[Event]:
        """Begins what lasts to the next meeting; also called at step 0, and wherever a run is gone on with: see `resume`."""
        return iter(())

    def resume(self, step: int) -> None:
        """Rebuilds, from `state` and the herd as a checkpoint holds them, what is in memory between two meetings."""

    def part(self, step: int, until: int, goes_on: bool) -> None:
        """Where `apart`: ranks go on by themselves, up to the step `until`, and then together or not at all; called by all of
        them together."""

    def rejoin(self, step: int) -> Iterator[Event]:
        """Where `apart`: all are at the same step again; after `close`, where members meet there too."""
        return iter(())

    def push(self) -> None:
        """Called after every step; moves on what is under way."""

    def trained(self, seconds: float, step: int) -> None:
        """Is told how long the engine took, each time that it was asked to go on, and the step that it came to."""

    def neighbourhoods(self, step: int) -> Neighbourhoods | None:
        """The mixtures that it made of the members, at the end of a run; none: they all are one."""
        return None

    def generators(self) -> State | None:
        """Of this rank's members, what goes into the mixture instead of what they are now; none: as they are."""
        return None

    def measured(self) -> dict[str, Any]:
        """Numbers for the next line of metrics, as seconds per routine since the last one."""
        return {}
