"""Ranks together and apart: where all of them are at the same step, and what waits until they are."""

from __future__ import annotations

from dataclasses import replace

from ganherd.recipe.schema import RunConfig
from ganherd.strategies.strategy import Strategy
from ganherd.training.health.look_interval import LookInterval
from ganherd.training.setup.assemble import PreparedHerd

_STRETCH = 0.5  # seconds of training after which ranks ask each other whether one of them was asked to stop
_DUE = ("record_every", "sample_every", "checkpoint_every", "buddy_every")


class RankSync:
    """Where all ranks are at the same step, and may take part in something.

    That is wherever the loop stops, and it does so at least after every stretch of steps; with a strategy that lets ranks go
    on apart, only where they rejoin.
    """

    def __init__(self, assembly: PreparedHerd, strategy: Strategy, step: int) -> None:
        self._ranks, self._herd, self._strategy = assembly.ranks, assembly.herd, strategy
        self.until = step  # where all are together next; before, each is at a step of its own
        self._stretch = 1  # steps until they hear of each other again
        self.ends: dict[str, int] = {}  # how many bytes the first rank had written when they heard of each other last

    def at(self, step: int) -> bool:
        return step >= self.until

    def share_ends(self, ends: dict[str, int]) -> None:
        """Tell all ranks how many bytes the first one has written."""
        self.ends = self._ranks.all_gather_json(ends)[0]

    def part(self, step: int, last: int) -> None:
        """Ranks that are together go on by themselves, where the strategy lets them; `last`: the step that the run ends with."""
        if (span := self._strategy.max_unsynced_steps) and self.at(step):
            self.until = min(last, (step // span + 1) * span)
            self._strategy.begin_unsynced(step, self.until, continues=self.until < last)

    def next_after(self, step: int) -> list[int]:
        """The step at which ranks hear of each other next, if there are several."""
        if self._strategy.max_unsynced_steps:
            return [self.until]
        # where not, members would be moved to and fro for it
        resident = self._herd.state["g.params"].device.type == self._herd.device.type
        return [step + self._stretch] if resident and not self._ranks.is_single_process else []

    def heard(self, step: int, asked: str, seconds: float, ends: dict[str, int]) -> str:
        """The signal that any rank was `asked` to stop by; none: all go on. `seconds`: what a step of this rank takes;
        `ends`: of the files that it writes."""
        if self._ranks.is_single_process:
            return asked
        if not self.at(step):
            return ""
        names, each, written = zip(*self._ranks.all_gather_json([asked, seconds, ends]), strict=True)
        self.ends = written[0]
        self._stretch = min(2 * self._stretch, max(1, int(_STRETCH / max(1e-9, *each))))
        return next((str(name) for name in names if name), "")


def waiting(settings: RunConfig, apart: int) -> RunConfig:
    """The settings of a run whose ranks are together every `apart` steps: all that all of them take part in falls there.

    >>> made = waiting(Run(record_every=50, checkpoint_every=700, sample_every=0), 600)
    >>> made.record_every, made.checkpoint_every, made.sample_every
    (600, 1200, 0)
    """
    if not apart:
        return settings
    return settings.model_copy(update={name: rounded(getattr(settings, name), apart) for name in _DUE})


def waiting_looks(cadence: LookInterval, apart: int) -> LookInterval:
    """The same for looks: also where they were found on fewer ranks, or are fixed by the recipe."""
    return replace(cadence, every=rounded(cadence.every, apart)) if apart and cadence.every else cadence


def rounded(every: int, apart: int) -> int:
    """Up to the next multiple.

    >>> rounded(50, 600), rounded(600, 600), rounded(0, 600)
    (600, 600, 0)
    """
    return -(-every // apart) * apart
