"""Synchronise ranks: know where all of them are at the same step, and delay what needs all of them until then."""

from __future__ import annotations

from dataclasses import replace

from ganherd.recipe.schema import RunConfig
from ganherd.strategies.strategy import Strategy
from ganherd.training.health.look_interval import LookInterval
from ganherd.training.setup.assemble import PreparedHerd

_STRETCH = 0.5  # seconds of training between two exchanges of requests to stop
_DUE = ("record_every", "sample_every", "checkpoint_every", "buddy_every")


class RankSync:
    """Know at which steps all ranks are at the same step, so that all of them can take part in something.

    All ranks are synchronised wherever the loop stops, which happens at least after every stretch of steps. If the strategy
    lets ranks run apart, they are synchronised only where they rejoin.
    """

    def __init__(self, prepared: PreparedHerd, strategy: Strategy, step: int) -> None:
        self._ranks, self._herd, self._strategy = prepared.ranks, prepared.herd, strategy
        self.until = step  # the next step at which all ranks are synchronised
        self._stretch = 1  # steps until ranks exchange their requests to stop again
        self.ends: dict[str, int] = {}  # bytes that the first rank had written when ranks exchanged them last

    def at(self, step: int) -> bool:
        """Return whether all ranks are at this step."""
        return step >= self.until

    def share_ends(self, ends: dict[str, int]) -> None:
        """Tell all ranks how many bytes the first one has written."""
        self.ends = self._ranks.all_gather_json(ends)[0]

    def part(self, step: int, last: int) -> None:
        """Let ranks run apart from here, if the strategy allows it. `last`: the step that the run ends with."""
        if (span := self._strategy.max_unsynced_steps) and self.at(step):
            self.until = min(last, (step // span + 1) * span)
            self._strategy.begin_unsynced(step, self.until, continues=self.until < last)

    def next_after(self, step: int) -> list[int]:
        """Return the next step at which ranks are synchronised, if there are several ranks."""
        if self._strategy.max_unsynced_steps:
            return [self.until]
        # otherwise members would be moved to the device and back for it
        resident = self._herd.state["g.params"].device.type == self._herd.device.type
        return [step + self._stretch] if resident and not self._ranks.is_single_process else []

    def heard(self, step: int, asked: str, seconds: float, ends: dict[str, int]) -> str:
        """Return the signal by which any rank was asked to stop; empty: none was.

        Args:
            asked: The signal that this rank received.
            seconds: What a step of this rank takes.
            ends: The length of the files that this rank writes.
        """
        if self._ranks.is_single_process:
            return asked
        if not self.at(step):
            return ""
        names, each, written = zip(*self._ranks.all_gather_json([asked, seconds, ends]), strict=True)
        self.ends = written[0]
        self._stretch = min(2 * self._stretch, max(1, int(_STRETCH / max(1e-9, *each))))
        return next((str(name) for name in names if name), "")


def waiting(settings: RunConfig, apart: int) -> RunConfig:
    """Return settings whose intervals are multiples of `apart`, the steps between two synchronisations of the ranks.

    >>> made = waiting(RunConfig(record_every=50, checkpoint_every=700, sample_every=0), 600)
    >>> made.record_every, made.checkpoint_every, made.sample_every
    (600, 1200, 0)
    """
    if not apart:
        return settings
    return settings.model_copy(update={name: rounded(getattr(settings, name), apart) for name in _DUE})


def waiting_looks(cadence: LookInterval, apart: int) -> LookInterval:
    """Return an interval of looks that is a multiple of `apart`."""
    return replace(cadence, every=rounded(cadence.every, apart)) if apart and cadence.every else cadence


def rounded(every: int, apart: int) -> int:
    """Round up to the next multiple of `apart`.

    >>> rounded(50, 600), rounded(600, 600), rounded(0, 600)
    (600, 600, 0)
    """
    return -(-every // apart) * apart
