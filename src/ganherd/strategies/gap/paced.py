"""GAP with paces: members train at different simulated speeds, and swap as soon as two of them are ready.

Speeds are simulated: at step t of the run, a member of pace p (at most 1) has made floor(t · p) steps of its own.
Batches, noise and schedules of a member follow its own steps, so between two swaps it trains as if it were alone. A
member is ready when it has made `every` steps since its last swap, or since the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.step.pace import paces
from ganherd.recipe.strategy.gap_config import GapConfig as Settings
from ganherd.strategies.gap.gap import Gap
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event


class PacedGap(Gap):
    """Swap nets of members that are ready.

    `state` holds for each member of this rank the number of its own steps at its last swap (`meet.made`), and the
    number of swaps so far of the members that it meets (`meet.number`).
    """

    def __init__(self, herd: StackedHerd, settings: Settings, spans: Mapping[str, int], ranks: MemberRanks) -> None:
        super().__init__(herd, settings, spans, ranks)
        self.pace = paces(settings.pace) * (self.placement.num_members // self.members)  # [N]
        self._last = np.full(self.placement.num_members, self.warmup)
        self._number = np.zeros(self.placement.num_members, np.int64)  # swaps so far, equal for all members that meet
        n = len(ranks.own)
        self.state = {name: torch.zeros(n, dtype=torch.int64) for name in ("meet.made", "meet.number")}
        self._remember()

    def next_after(self, step: int) -> int | None:
        firsts = range(0, len(self.pace), self.members)
        meetings = [meeting for first in firsts if (meeting := self._pair_ready(first)) is not None]
        return max(min(meetings), step + 1) if meetings else None

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        """Start no transfer: in `open`, one replica after another sends and writes its nets."""
        return iter(())

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        seeds, well = self.seeds_and_health(step)
        member_steps = np.array([int(step * pace) for pace in self.pace])
        for first in range(0, len(self.pace), self.members):
            slots = range(first, first + self.members)
            due = self._last + self.every
            ready = [m for m in slots if m - first not in self.settings.stay and member_steps[m] >= due[m]]
            if len(ready) < 2:
                continue
            able = {m - first for m in ready if well[m]}
            number = int(self._number[first]) + 1
            drawn = self.pairs_from(first, int(seeds[first]), number, set(range(self.members)) - able)
            self.write(self.begin(drawn, well), member_steps)
            # A member that is not finite misses its turn, so that the others need not wait for it.
            done = [m for pair in drawn for m in pair] + [m for m in ready if not well[m]]
            self._last[done] = member_steps[done]
            self._number[first : first + self.members] = number
            yield self.event(number, drawn, ready, well)
        self._remember()

    def resume(self, step: int) -> None:
        self._last, self._number = (
            self.ranks.all_gather(self.state[name].numpy()).copy() for name in ("meet.made", "meet.number")
        )

    def _pair_ready(self, first: int) -> int | None:
        """Return the step of the run at which two members of a group are ready; None if they never swap.

        `first` is the first member of the group, which is all members that meet each other.
        """
        slots = [m for m in range(first, first + self.members) if m - first not in self.settings.stay]
        if not self.every or len(slots) < 2:
            return None
        return sorted(-(-(int(self._last[m]) + self.every) // self.pace[m]) for m in slots)[1]

    def _remember(self) -> None:
        """Write the counters of this rank's members into the state."""
        local = list(self.ranks.own)
        self.state["meet.made"].copy_(torch.from_numpy(self._last[local]))
        self.state["meet.number"].copy_(torch.from_numpy(self._number[local]))
