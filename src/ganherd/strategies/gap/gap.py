"""GAP: every K steps the members swap discriminators (or generators) in random pairs.

A slot is the position of a member within its replica (one of several independent copies of the herd). A swap moves nets
between slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ganherd.comm.row_messages import Fetch, index
from ganherd.herd import rng
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import State, finite_members
from ganherd.recipe.strategy.gap_config import GapConfig as Settings
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event, Facts, Strategy
from ganherd.util.registry import load_target

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd

Pair = tuple[int, int]


def pairs(seed: int, number: int, members: int, stay: Collection[int] = (), first: int = 0) -> list[Pair]:
    """Return random disjoint pairs of the slots 0 … members - 1 for one swap.

    If the number n of slots that can swap is odd, one sits out: the (number mod n)-th of them, in ascending order. So
    each slot sits out once in n consecutive swaps.

    Args:
        seed: The seed of the replica.
        number: The number of the swap.
        members: The number of members that can meet.
        stay: Slots that do not swap.
        first: The position of slot 0 in the replica. It enters the random keys, so that each class of a replica, whose
            slots are counted from 0, draws its own pairs.

    >>> pairs(seed=0, number=1, members=4), pairs(seed=0, number=2, members=3)
    ([(0, 2), (1, 3)], [(0, 1)])
    """
    able = [slot for slot in range(members) if slot not in stay]
    if len(able) % 2:
        del able[number % len(able)]
    keys = rng.keys(np.zeros(len(able), np.int64), seed, rng.PAIRING, number, np.array(able, np.int64) + first)
    shuffled = [able[i] for i in np.argsort(keys)]
    return sorted((min(a, b), max(a, b)) for a, b in zip(shuffled[::2], shuffled[1::2], strict=True))


def partners(drawn: Sequence[Pair]) -> dict[int, int]:
    """Return a mapping from each member of these pairs to its partner."""
    return dict(drawn) | {b: a for a, b in drawn}


def swapped_tensors(names: Iterable[str], kind: str, travels: str) -> list[str]:
    """Return the names of the tensors that move with a net when it is swapped.

    Args:
        names: The names of all tensors of the herd's state.
        kind: g or d.
        travels: What moves. `weights`: the parameters, and for a generator their running average, because a running
            average over two different nets would be meaningless. `all`: also buffers, Adam's moments and step count,
            and the learning rate. Adam's betas and the loss always stay with the slot.
    """
    if travels == "weights":
        return [name for name in names if name in (f"{kind}.params", f"{kind}.ema", f"{kind}.ema.t")]
    return [name for name in names if name.startswith(f"{kind}.") or name == f"set.lr_{kind}"]


@dataclass(frozen=True)
class Swap:
    """A swap whose nets are in transit."""

    pairs: Sequence[Pair]
    finite: np.ndarray  # bool [N], True for members whose state is finite
    nets: Fetch  # the transfer of the nets that this rank's members get from their partners


class Gap(Strategy):
    """Swap nets between random pairs of members at warmup + every, warmup + 2 · every, … steps.

    Pairs are drawn within each replica, or within each class of a replica if members see only one class.
    """

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        settings = prepared.recipe.strategy.settings
        assert isinstance(settings, Settings)
        ranks, target = MemberRanks.of(prepared), ""
        if settings.replay:
            target = "async_gap:ReplayedGap"
        elif settings.pace:
            target = "paced:PacedGap"
        elif settings.exchange == "async" and settings.staleness and spans["every"] and ranks.comm.world_size > 1:
            target = "async_gap:AsyncGap"
        kind = load_target(f"ganherd.strategies.gap.{target}") if target else cls
        gap: Gap = kind(prepared.herd, settings, spans, ranks)
        return gap

    def __init__(self, herd: StackedHerd, settings: Settings, spans: Mapping[str, int], ranks: MemberRanks) -> None:
        super().__init__()
        self.herd, self.settings, self.ranks = herd, settings, ranks
        self.placement, self.members = ranks.placement, ranks.members
        self.every, self.warmup = spans["every"], spans["warmup"]
        self._pending: Swap | None = None  # a swap that `close` has started for the next `open`
        self._seeds: np.ndarray | None = None  # int64 [N], the seeds of all members, which never change
        self._health: tuple[int, np.ndarray] | None = None  # the step of the last health check, and its result [N]

    def next_after(self, step: int) -> int | None:
        if not self.every:
            return None
        return self.warmup + (max(0, (step - self.warmup) // self.every) + 1) * self.every

    def on_health_check(self, step: int, finite: np.ndarray | None) -> None:
        self._health = None if finite is None else (step, finite)

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        """Start the transfer of nets if there are several ranks.

        No member changes before `open`, so the nets travel while pictures are drawn and checkpoints written.
        """
        if continues and self.ranks.comm.world_size > 1 and self.meets_at(step):
            self._pending = self._begin_swap(step)
        return iter(())

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        swap, self._pending = self._pending or self._begin_swap(step), None
        self.write(swap, np.full(self.placement.num_members, step))
        yield self.event((step - self.warmup) // self.every, swap.pairs, self.able(), swap.finite)

    def on_interrupt(self) -> None:
        if self._pending is not None:
            self._pending.nets.wait()
            self._pending = None

    # -- the steps of a swap ----------------------------------------------------------------------------------------

    def _begin_swap(self, step: int) -> Swap:
        """Draw pairs among the members whose state is finite, and start to send their nets."""
        number = (step - self.warmup) // self.every
        seeds, well = self.seeds_and_health(step)
        return self.begin(self.draw_pairs(number, seeds, well), well)

    def able(self) -> list[int]:
        """Return the members, of all replicas, that the recipe allows to swap."""
        return [m for m in range(self.placement.num_members) if m % self.members not in self.settings.stay]

    def draw_pairs(self, number: int, seeds: np.ndarray, well: np.ndarray | None = None) -> list[Pair]:
        """Return the pairs of swap `number` over the whole herd, drawn for each group of members that meet.

        Args:
            number: The number of the swap.
            seeds: int64 [N], the seed of each member's replica.
            well: bool [N], False for members that must sit out because their state is not finite; None: all are finite.
        """
        drawn: list[Pair] = []
        for first in range(0, self.placement.num_members, self.members):
            unwell = [slot for slot in range(self.members) if well is not None and not well[first + slot]]
            drawn += self.pairs_from(first, int(seeds[first]), number, {*self.settings.stay, *unwell})
        return drawn

    def swapped(self) -> State:
        """Return the tensors [n, …] of this rank's members that a swap moves; they share storage with the state."""
        state, kind = self.herd.state, "d" if self.settings.swap == "discriminators" else "g"
        return {name: state[name] for name in swapped_tensors(state, kind, self.settings.travels)}

    def pairs_from(self, first: int, seed: int, number: int, stay: Collection[int]) -> list[Pair]:
        """Return the pairs of one swap within one group of members that meet, as numbers over the whole herd.

        Args:
            first: The first member of the group.
            seed: The seed of the group's replica.
            number: The number of the swap.
            stay: Slots of the group, counted from 0, that do not swap.
        """
        drawn = pairs(seed, number, self.members, stay, first % (self.members * self.ranks.classes))
        return [(first + a, first + b) for a, b in drawn]

    def seeds_and_health(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for each of the N members of the herd its seed, int64 [N], and whether its state is finite, bool [N].

        Members with NaN or infinite state must not swap, because their nets would spoil their partners. If the training
        loop has checked the members at this step, its result is used. A run that is resumed at this step checks them
        here.
        """
        state = self.herd.state
        if self._seeds is None:
            self._seeds = self.ranks.all_gather(state["set.seed"].cpu().numpy())
        if self._health is None or self._health[0] != step:
            self._health = step, self.ranks.all_gather(finite_members(state, self.herd.infinite_buffers).cpu().numpy())
        well, self._health = self._health[1], None
        return self._seeds, well

    def begin(self, drawn: Sequence[Pair], well: np.ndarray) -> Swap:
        """Start to send the net of each member in these pairs, as it is now, to the rank of its partner.

        Args:
            drawn: The pairs of members.
            well: bool [N], True for members whose state is finite.
        """
        partner = partners(drawn)
        wanted = [[partner[m] for m in members if m in partner] for members in self.placement.ranks]
        self.traffic.exchanges += 1
        return Swap(drawn, well, self.traffic.begin_fetch(self.ranks, self.swapped(), wanted))

    def write(self, swap: Swap, member_steps: np.ndarray) -> None:
        """Wait for the nets of a swap, and write them into the state of this rank.

        Args:
            swap: The swap that `begin` started.
            member_steps: int64 [N], the steps that each member has made.
        """
        swapped = {m for pair in swap.pairs for m in pair}
        rows = [row for row, m in enumerate(self.ranks.own) if m in swapped]
        self.write_rows(swap.nets.wait(), rows, member_steps)

    def write_rows(self, nets: State, rows: Sequence[int], member_steps: np.ndarray) -> None:
        """Write received nets into this rank's state, and record the steps of their members for the smoothing of rates.

        Args:
            nets: Tensors with one row for each entry of `rows`.
            rows: The rows of this rank's state that are overwritten.
            member_steps: int64 [N], the steps that each member of the herd has made.
        """
        state = self.herd.state
        device = state["set.seed"].device
        places = index(rows, device)
        with torch.no_grad():
            for name, value in nets.items():
                state[name].index_copy_(0, places, value.to(device))
            if "set.met" in state:  # The learning rates of swapped members are smoothed from this step on.
                now = index([int(member_steps[self.ranks.own[row]]) for row in rows], device)
                state["set.met"].index_copy_(0, places, now)

    def event(self, number: int, drawn: Sequence[Pair], able: Collection[int], well: np.ndarray) -> Event:
        """Return the event of a swap: its pairs, the members that sat out, and those that are not finite.

        Args:
            number: The number of the swap.
            drawn: The pairs that swapped.
            able: The members that were allowed to swap.
            well: bool [N], True for members whose state is finite.
        """
        busy = {m for pair in drawn for m in pair}
        facts: Facts = {
            "number": number,
            "what": self.settings.swap,
            "pairs": [list(pair) for pair in drawn],
            "sat_out": [m for m in able if m not in busy and well[m]],
        }
        if unwell := [m for m in able if not well[m]]:
            facts["unwell"] = unwell
        return "swap", facts


def count_meetings(events: Iterable[Mapping[str, Any]], members: int, steps: int | None = None) -> np.ndarray:
    """Return how many steps each generator trained with each discriminator, int64 [generators, discriminators].

    Nets are numbered by the slot in which they began. If a repair puts an older net, a copy or a new one into a slot,
    the following steps count for that net.

    Args:
        events: The lines of events.jsonl.
        members: The number of members in all replicas.
        steps: The last step of the run; None takes it from the last event.

    >>> swap = {"step": 30, "event": "swap", "what": "discriminators", "pairs": [[0, 1]]}
    >>> count_meetings([swap, {"step": 100, "event": "finish"}], 2).tolist()
    [[30, 70], [70, 30]]
    """
    counts = np.zeros((members, members), np.int64)
    nets = np.tile(np.arange(members), (2, 1))  # [2, slots]: the generator and the discriminator in each slot
    saved = {0: nets.copy()}  # `nets` as it was at each checkpoint, by its step
    published: dict[int, np.ndarray] = {}  # `nets` as it was before each asynchronous swap, by its number
    at = 0

    def train_until(step: int) -> None:
        """Count the steps up to this one for the pairs that are together now."""
        nonlocal at
        np.add.at(counts, (nets[0], nets[1]), max(0, step - at))
        at = max(at, step)

    for event in events:
        name, step = event.get("event"), int(event.get("step", at))
        train_until(step if steps is None else min(step, steps))
        if name == "swap":
            row, before = int(event["what"] == "discriminators"), nets.copy()
            number, versions = int(event.get("number", 0)), event.get("versions")
            if versions is not None:
                published[number] = before
            for a, b in event["pairs"]:
                for taker, giver in ((a, b), (b, a)):
                    source = before if versions is None else published.get(versions[taker])
                    if source is not None:  # otherwise it kept its own net
                        nets[row, taker] = source[row, giver]
        elif name == "checkpoint":
            saved[step] = nets.copy()
        elif name == "repair":
            member = int(event["member"])
            if "from_step" in event:
                nets[:, member] = saved[int(event["from_step"])][:, member]
            else:
                nets[:, member] = nets[:, event["from_member"]] if "from_member" in event else member
    if steps is not None:
        train_until(steps)
    return counts
