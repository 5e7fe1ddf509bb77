"""GAP: every so many steps the members swap discriminators (or generators) in random pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.pending import Fetch
from ganherd.comm.row_messages import index
from ganherd.herd import rng
from ganherd.herd.engine.engines import Herd
from ganherd.herd.state import finite_members
from ganherd.recipe.strategy.gap_config import GapConfig as Settings
from ganherd.strategies.strategy import Event, Strategy, on_all_ranks
from ganherd.util.registry import load_target

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd

Pair = tuple[int, int]


def pairs(seed: int, number: int, members: int, stay: Collection[int] = ()) -> list[Pair]:
    """Who swaps with whom at the swap of that number: random pairs of the slots 0 … members - 1, none of them twice.

    Those that `stay` do not swap. Where an odd number is left, one sits out, in turn: of n that could swap, in ascending
    order, the (number mod n)-th. So in n swaps on end everyone sits out once.

    >>> pairs(seed=0, number=1, members=4), pairs(seed=0, number=2, members=3)
    ([(0, 2), (1, 3)], [(0, 1)])
    """
    able = [slot for slot in range(members) if slot not in stay]
    if len(able) % 2:
        del able[number % len(able)]
    keys = rng.keys(np.zeros(len(able), np.int64), seed, rng.PAIRING, number, np.array(able, np.int64))
    drawn = [able[i] for i in np.argsort(keys)]
    return sorted((min(a, b), max(a, b)) for a, b in zip(drawn[::2], drawn[1::2], strict=True))


def travelling(names: Iterable[str], kind: str, travels: str) -> list[str]:
    """The parts of the state that a net takes along.

    `weights`: its parameters, and of a generator their running average, which would else be one of two different nets.
    `all`: also its buffers, Adam's moments and count, and its learning rate. Adam's betas and the loss stay with the slot.
    """
    if travels == "weights":
        return [name for name in names if name in (f"{kind}.params", f"{kind}.ema", f"{kind}.ema.t")]
    return [name for name in names if name.startswith(f"{kind}.") or name == f"set.lr_{kind}"]


@dataclass(frozen=True)
class Swap:
    """A swap that is under way."""

    pairs: Sequence[Pair]
    well: np.ndarray  # bool [N]: who is finite
    nets: Fetch  # of the partners of this rank's members


class Gap(Strategy):
    """All members swap at the same step: at warmup + every, warmup + 2 · every, … Each replica has its own pairs."""

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        settings = prepared.recipe.strategy.settings
        assert isinstance(settings, Settings)
        kind = load_target("ganherd.strategies.gap.paced:PacedGap") if settings.pace else cls
        gap: Gap = kind(prepared.herd, settings, spans, **on_all_ranks(prepared))
        return gap

    def __init__(
        self,
        herd: Herd,
        settings: Settings,
        spans: Mapping[str, int],
        *,
        comm: Communicator,
        placement: Placement,
        members: int,
    ) -> None:
        super().__init__()
        self.herd, self.settings, self.comm, self.placement, self.members = herd, settings, comm, placement, members
        self.every, self.warmup = spans["every"], spans["warmup"]
        self.replicas = placement.size // members
        self._begun: Swap | None = None  # sent ahead of `open`
        self._seeds: np.ndarray | None = None  # [N]; they never change
        self._looked: tuple[int, np.ndarray] | None = None  # the step of the loop's look, and who was finite

    def next_after(self, step: int) -> int | None:
        if not self.every:
            return None
        return self.warmup + (max(0, (step - self.warmup) // self.every) + 1) * self.every

    def looked(self, step: int, well: np.ndarray | None) -> None:
        self._looked = None if well is None else (step, well)

    def close(self, step: int, goes_on: bool = False) -> Iterator[Event]:
        """Over several ranks: nothing changes a member before `open`, so the nets travel while pictures are drawn and
        checkpoints written."""
        if goes_on and self.comm.size > 1 and self.meets_at(step):
            self._begun = self._drawn(step)
        return iter(())

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        swap, self._begun = self._begun or self._drawn(step), None
        self.write(swap, np.full(self.placement.size, step))
        able = [m for m in range(self.placement.size) if m % self.members not in self.settings.stay]
        yield self.told((step - self.warmup) // self.every, swap.pairs, able, swap.well)

    def leave(self) -> None:
        if self._begun is not None:
            self._begun.nets.wait()
            self._begun = None

    # -- what a meeting is made of ----------------------------------------------------------------------------------

    def _drawn(self, step: int) -> Swap:
        """Who swaps with whom, of those that are finite, with their nets under way."""
        number = (step - self.warmup) // self.every
        seeds, well = self.everyone(step)
        drawn: list[Pair] = []
        for first in range(0, self.placement.size, self.members):
            unwell = [slot for slot in range(self.members) if not well[first + slot]]
            found = pairs(int(seeds[first]), number, self.members, {*self.settings.stay, *unwell})
            drawn += [(first + a, first + b) for a, b in found]
        return self.begin(drawn, well)

    def everyone(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(seed [N], whether all its numbers are finite [N]) of the whole herd; one that is not would infect another.

        Where the loop has looked at this step nothing is read from the device; a run that is gone on with here looks itself.
        """
        state = self.herd.state
        if self._seeds is None:
            self._seeds = self.comm.gather(state["set.seed"].cpu().numpy(), self.placement)
        if self._looked is None or self._looked[0] != step:
            self._looked = step, self.comm.gather(finite_members(state).cpu().numpy(), self.placement)
        well, self._looked = self._looked[1], None
        return self._seeds, well

    def begin(self, drawn: Sequence[Pair], well: np.ndarray) -> Swap:
        """Sends the nets of each pair to the other one's rank, as they are now."""
        partner = dict(drawn) | {b: a for a, b in drawn}
        wanted = [[partner[m] for m in own if m in partner] for own in self.placement.ranks]
        state, kind = self.herd.state, "d" if self.settings.swap == "discriminators" else "g"
        parts = {name: state[name] for name in travelling(state, kind, self.settings.travels)}
        self.traffic.exchanges += 1
        return Swap(drawn, well, self.traffic.begin(self.comm, self.placement, self.members, parts, wanted))

    def write(self, swap: Swap, made: np.ndarray) -> None:
        """The nets that came, within the same storage; `made` [N]: the steps that each member has made."""
        found, state, own = swap.nets.wait(), self.herd.state, self.placement.ranks[self.comm.rank]
        partner = {m for pair in swap.pairs for m in pair}
        device = state["set.seed"].device
        rows = index([row for row, m in enumerate(own) if m in partner], device)
        with torch.no_grad():
            for name, value in found.items():
                state[name].index_copy_(0, rows, value)
            if "set.met" in state:  # from here on its learning rates are smoothed
                now = index([int(made[m]) for m in own if m in partner], device)
                state["set.met"].index_copy_(0, rows, now)

    def told(self, number: int, drawn: Sequence[Pair], able: Collection[int], well: np.ndarray) -> Event:
        """The event of a swap: who with whom, who sat out, and who could not since it is not finite."""
        busy = {m for pair in drawn for m in pair}
        facts: dict[str, Any] = {
            "number": number,
            "what": self.settings.swap,
            "pairs": [list(pair) for pair in drawn],
            "sat_out": [m for m in able if m not in busy and well[m]],
        }
        if unwell := [m for m in able if not well[m]]:
            facts["unwell"] = unwell
        return "swap", facts


def who_met(events: Iterable[Mapping[str, Any]], members: int, steps: int | None = None) -> np.ndarray:
    """[generators, discriminators] int64: for how many steps of the run each pair trained together.

    Both are named after the slot in which they began; `members` are those of all replicas. `steps`: how far the run has
    come, else the last event says it. A repair that puts an older net, a copy or a fresh one into a slot is followed.

    >>> swap = {"step": 30, "event": "swap", "what": "discriminators", "pairs": [[0, 1]]}
    >>> who_met([swap, {"step": 100, "event": "finish"}], 2).tolist()
    [[30, 70], [70, 30]]
    """
    counts = np.zeros((members, members), np.int64)
    held = np.tile(np.arange(members), (2, 1))  # [2, slots]: whose generator, whose discriminator
    saved = {0: held.copy()}  # by step, what a checkpoint holds
    at = 0

    def until(step: int) -> None:
        nonlocal at
        np.add.at(counts, (held[0], held[1]), max(0, step - at))
        at = max(at, step)

    for event in events:
        what, step = event.get("event"), int(event.get("step", at))
        until(step if steps is None else min(step, steps))
        if what == "swap":
            row = int(event["what"] == "discriminators")
            for a, b in event["pairs"]:
                held[row, [a, b]] = held[row, [b, a]]
        elif what == "checkpoint":
            saved[step] = held.copy()
        elif what == "repair":
            member = int(event["member"])
            if "from_step" in event:
                held[:, member] = saved[int(event["from_step"])][:, member]
            else:
                held[:, member] = held[:, event["from_member"]] if "from_member" in event else member
    if steps is not None:
        until(steps)
    return counts
