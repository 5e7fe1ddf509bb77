"""Asynchronous GAP: members make steps at their own pace, and swap as soon as two of them are ready.

The clock is simulated: at step t of the run a member of pace p has made floor(t · p) steps of its own. Batches, noise and
schedules of a member follow its own steps, so between two swaps it is trained as if it were alone. It is ready when it has
made `every` steps of its own since its last swap (and since the warm-up).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ganherd.herd.engine.engines import Herd
from ganherd.herd.step.pace import paces
from ganherd.recipe.strategy.gap_config import GapConfig as Settings
from ganherd.strategies.gap.gap import Gap, pairs
from ganherd.strategies.strategy import Event


class PacedGap(Gap):
    """Remembers of each member the own steps at its last swap, and how often its replica has swapped."""

    def __init__(self, herd: Herd, settings: Settings, spans: Mapping[str, int], **everyone: Any) -> None:
        super().__init__(herd, settings, spans, **everyone)
        self.pace = paces(settings.pace) * self.replicas  # [N]
        self._last = np.full(self.placement.size, self.warmup)
        self._number = np.zeros(self.placement.size, np.int64)  # the same within a replica
        own = len(self.placement.ranks[self.comm.rank])
        self.state = {name: torch.zeros(own, dtype=torch.int64) for name in ("meet.made", "meet.number")}
        self._remember()

    def next_after(self, step: int) -> int | None:
        found = [t for first in range(0, len(self.pace), self.members) if (t := self._pair_ready(first)) is not None]
        return max(min(found), step + 1) if found else None

    def close(self, step: int, goes_on: bool = False) -> Iterator[Event]:
        """One replica swaps after another: nothing is sent ahead."""
        return iter(())

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        seeds, well = self.everyone(step)
        made = np.array([int(step * pace) for pace in self.pace])
        for first in range(0, len(self.pace), self.members):
            slots = range(first, first + self.members)
            ready = [m for m in slots if m - first not in self.settings.stay and made[m] >= self._last[m] + self.every]
            if len(ready) < 2:
                continue
            able = {m - first for m in ready if well[m]}
            number = int(self._number[first]) + 1
            found = pairs(int(seeds[first]), number, self.members, set(range(self.members)) - able)
            drawn = [(first + a, first + b) for a, b in found]
            self.write(self.begin(drawn, well), made)
            # one that is not finite lets its turn pass, so that it does not keep the others waiting
            done = [m for pair in drawn for m in pair] + [m for m in ready if not well[m]]
            self._last[done] = made[done]
            self._number[first : first + self.members] = number
            yield self.told(number, drawn, ready, well)
        self._remember()

    def resume(self, step: int) -> None:
        self._last, self._number = (
            self.comm.gather(self.state[name].numpy(), self.placement).copy() for name in ("meet.made", "meet.number")
        )

    def _pair_ready(self, first: int) -> int | None:
        """The step of the run at which two members of a replica are ready."""
        slots = [m for m in range(first, first + self.members) if m - first not in self.settings.stay]
        if not self.every or len(slots) < 2:
            return None
        return sorted(-(-(int(self._last[m]) + self.every) // self.pace[m]) for m in slots)[1]

    def _remember(self) -> None:
        own = list(self.placement.ranks[self.comm.rank])
        self.state["meet.made"].copy_(torch.from_numpy(self._last[own]))
        self.state["meet.number"].copy_(torch.from_numpy(self._number[own]))
