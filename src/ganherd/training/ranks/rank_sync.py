"""Synchronise ranks: determine the steps at which all ranks wait for each other, and exchange requests to stop."""

from __future__ import annotations

from ganherd.strategies.strategy import Strategy
from ganherd.training.setup.assemble import PreparedHerd

_STRETCH = 0.5  # seconds of training, about, between two exchanges of requests to stop


class RankSync:
    """Determine the steps at which all ranks wait for each other, so that they can communicate.

    Usually this is every stop of the loop, plus stops about twice per second at which ranks exchange requests to end
    the run. If the strategy lets ranks run without synchronising (`max_unsynced_steps`), they wait for each other only
    at multiples of that number of steps.
    """

    def __init__(self, prepared: PreparedHerd, strategy: Strategy, step: int) -> None:
        self._ranks, self._herd, self._strategy = prepared.ranks, prepared.herd, strategy
        self.until = step  # the next step at which all ranks are synchronised
        self._stretch = 1  # steps until ranks exchange their requests to stop again
        self.ends: dict[str, int] = {}  # length in bytes of each file of the first rank, when ranks exchanged it last

    def at(self, step: int) -> bool:
        """Return whether ranks are synchronised at this step, so that they can communicate."""
        return step >= self.until

    def share_ends(self, ends: dict[str, int]) -> None:
        """Send the lengths of the files that the first rank writes, in bytes, to all ranks."""
        self.ends = self._ranks.all_gather_json(ends)[0]

    def part(self, step: int, last: int) -> None:
        """Start a phase in which ranks do not synchronise, if the strategy allows it.

        Args:
            last: The last step of the run.
        """
        if (span := self._strategy.max_unsynced_steps) and self.at(step):
            self.until = min(last, (step // span + 1) * span)
            self._strategy.begin_unsynced(step, self.until, continues=self.until < last)

    def next_after(self, step: int) -> list[int]:
        """Return the next step at which ranks have to synchronise, in a list; it is empty if there is no such step.

        A single rank needs none. Nor do ranks whose members do not all fit on the device: they only use the loop's own
        stops.
        """
        if self._strategy.max_unsynced_steps:
            return [self.until]
        # if members do not all fit on the device, every additional stop would move them there and back
        return [step + self._stretch] if self._herd.is_resident and not self._ranks.is_single_process else []

    def heard(self, step: int, asked: str, seconds: float, ends: dict[str, int]) -> str:
        """Exchange requests to stop between ranks, and return the name of the first signal; empty if no rank received one.

        Args:
            asked: The name of the signal that this rank received; empty: none.
            seconds: The mean duration of a step on this rank.
            ends: The length in bytes of each file that this rank writes, by name.
        """
        if self._ranks.is_single_process:
            return asked
        if not self.at(step):
            return ""
        names, each, written = zip(*self._ranks.all_gather_json([asked, seconds, ends]), strict=True)
        self.ends = written[0]
        self._stretch = min(2 * self._stretch, max(1, int(_STRETCH / max(1e-9, *each))))
        return next((str(name) for name in names if name), "")
