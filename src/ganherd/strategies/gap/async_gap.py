"""Asynchronous GAP over ranks, and its replay: members take the newest nets that have arrived from other ranks.

Each rank counts its swaps. At swap k it publishes its members' nets as version k, and each member takes a copy of its
partner's net: version k if that has arrived, otherwise an older one, at most `staleness` swaps behind. A rank waits
only if its partner's rank is further behind than that. If both ranks are at the same swap, the result is a real swap.
Otherwise the faster rank copies an older version of a net that the slower rank trains on, so a net may exist twice, or
disappear.

Which version has arrived depends on the speed of the ranks. Events record it (`versions`), and `strategy.gap.replay`
repeats a run from these events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ganherd.comm.version_board import VersionBoard
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import State, finite_members
from ganherd.recipe.strategy.gap_config import GapConfig as Settings
from ganherd.runs.folder import RunFolder
from ganherd.strategies.event_buffer import EventBuffer
from ganherd.strategies.gap.gap import Gap, Pair, partners
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event
from ganherd.util.errors import UserError

NOT_TAKEN = -1  # the version of a member that keeps its own net


class AsyncGap(Gap):
    """GAP without synchronisation: publish nets at each swap and take the newest version of the partner's net.

    A version is the number of the swap at which a net was published.
    """

    def __init__(self, herd: StackedHerd, settings: Settings, spans: Mapping[str, int], ranks: MemberRanks) -> None:
        super().__init__(herd, settings, spans, ranks)
        self.max_unsynced_steps = self.every * settings.rejoin
        self._board: VersionBoard | None = None
        self._events = EventBuffer(ranks)
        self._counted = 0  # received bytes that `_count` has already added to `traffic`
        replicas = [sorted({member // self.members for member in own}) for own in self.placement.ranks]
        # Any two members of a replica may become partners.
        self._wanted = tuple(
            tuple(r * self.members + slot for r in each for slot in range(self.members)) for each in replicas
        )

    def begin_unsynced(self, step: int, until: int, continues: bool) -> None:
        if self._board is None:
            self._seeds = self.ranks.all_gather(self.herd.state["set.seed"].cpu().numpy())
            bound = self.settings.staleness
            self._board = VersionBoard(self.ranks.comm, self.placement, self._wanted, self.swapped(), bound, ahead=0)
        first = max(1, -(-(step - self.warmup) // self.every))
        # A swap at the step `until` itself belongs to the next phase.
        self._board.begin_unsynced(first, (until - 1 - self.warmup) // self.every)

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        """Do nothing: nets are exchanged in `open`."""
        return iter(())

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return iter(())
        assert self._board is not None and self._seeds is not None, "no phase without synchronisation has begun"
        number, tensors = (step - self.warmup) // self.every, self.swapped()
        self.traffic.exchanges += 1
        self.traffic.count_all_gather(self.ranks, tensors)
        self._board.publish(tensors, number)
        nets = self._board.take(tensors, number)
        self._count()
        drawn = self.draw_pairs(number, self._seeds)
        rank, wanted = self.ranks.comm.rank, np.array(self._wanted[self.ranks.comm.rank])
        home = {member: place for member, (place, _) in self.placement.locations().items()}
        partner = partners(drawn)
        finite = finite_members(nets, self.herd.infinite_buffers).cpu().numpy()
        versions = np.full(len(self.ranks.own), NOT_TAKEN)
        rows, sources = list[int](), list[int]()
        for row, member in enumerate(self.ranks.own):
            if (other := partner.get(member)) is None or not finite[source := int(np.searchsorted(wanted, other))]:
                continue
            versions[row] = number if home[other] == rank else self._board.versions[home[other]]
            rows.append(row)
            sources.append(source)
        self.write_rows(
            {name: value[sources] for name, value in nets.items()}, rows, np.full(self.placement.num_members, step)
        )
        _, facts = self.event(number, drawn, self.able(), np.ones(self.placement.num_members, bool))
        self._events.add(step, "swap", facts, {"versions": versions})
        return iter(())

    def end_unsynced(self, step: int) -> Iterator[Event]:
        if self._board is not None:
            self._board.drain()
            self._count()
        yield from self._events.flush(step)

    def poll(self) -> None:
        if self._board is not None:
            self._board.poll()

    def on_interrupt(self) -> None:
        """Do nothing: a run is interrupted only while ranks are synchronised, and nothing is in transit then."""

    def _count(self) -> None:
        """Add the bytes received since the last call to the traffic."""
        assert self._board is not None
        self.traffic.received += self._board.bytes_received - self._counted
        self._counted = self._board.bytes_received


class ReplayedGap(Gap):
    """Repeat the swaps of a recorded run.

    For each of the last `staleness` swaps, `state` holds the nets of this rank as they were before that swap.
    """

    def __init__(self, herd: StackedHerd, settings: Settings, spans: Mapping[str, int], ranks: MemberRanks) -> None:
        super().__init__(herd, settings, spans, ranks)
        self._log = read_log(settings.replay)
        if any(versions for _, versions in self._log.values()):
            # Then the recorded ranks were apart: members are checked, repaired and saved only where ranks were together.
            self.max_unsynced_steps = self.every * settings.rejoin
            its_settings = RunFolder(Path(settings.replay)).recipe.strategy.settings
            recorded = its_settings.rejoin if isinstance(its_settings, Settings) else settings.rejoin
            if recorded != settings.rejoin:
                raise UserError(
                    f"strategy.gap.replay: the ranks of {settings.replay} were together after every {recorded} swaps: set "
                    f"strategy.gap.rejoin to {recorded}."
                )
        self._events = EventBuffer(ranks)
        for lag in range(1, settings.staleness + 1):
            self.state |= {f"meet.past{lag}.{name}": value.clone() for name, value in self.swapped().items()}

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        """Do nothing: nets are exchanged in `open`."""
        return iter(())

    def open(self, step: int) -> Iterator[Event]:
        if not self.meets_at(step):
            return
        number, members = (step - self.warmup) // self.every, self.placement.num_members
        if (entry := self._log.get(number)) is None:
            raise UserError(
                f"strategy.gap.replay: {self.settings.replay} has no swap {number}; replay at most its length."
            )
        drawn, versions = entry
        partner, now = partners(drawn), {name: value.clone() for name, value in self.swapped().items()}
        if len(versions) not in (0, members) or max(partner, default=0) >= members:
            recorded = len(versions) or f"at least {max(partner) + 1}"
            raise UserError(
                f"strategy.gap.replay: {self.settings.replay} has {recorded} members, and this herd has {members}; "
                "replay it with its own recipe."
            )
        has_versions, versions = bool(versions), versions or [number] * members
        lags = sorted({number - versions[m] for m in partner if versions[m] != NOT_TAKEN})
        if (worst := max(lags, default=0)) > self.settings.staleness:
            raise UserError(
                f"strategy.gap.replay: swap {number} took nets that were {worst} swaps old; set strategy.gap.staleness to at "
                f"least {worst}."
            )
        received = []
        for lag in lags:
            taking = {m for m in partner if versions[m] == number - lag}
            wanted = [[partner[m] for m in own if m in taking] for own in self.placement.ranks]
            nets = self.traffic.begin_fetch(self.ranks, now if lag == 0 else self._past(lag), wanted).wait()
            received.append((nets, [row for row, m in enumerate(self.ranks.own) if m in taking]))
        self.traffic.exchanges += 1
        for nets, rows in received:
            self.write_rows(nets, rows, np.full(members, step))
        for lag in range(self.settings.staleness, 0, -1):
            for name, value in (self._past(lag - 1) if lag > 1 else now).items():
                self._past(lag)[name].copy_(value)
        event, facts = self.event(number, drawn, self.able(), np.ones(members, bool))
        if not has_versions:
            yield event, facts
            return
        own = np.array([versions[m] if m in partner else NOT_TAKEN for m in self.ranks.own])
        self._events.add(step, event, facts, {"versions": own})
        if not self.max_unsynced_steps or self.ranks.comm.world_size == 1:
            yield from self._events.flush(step)

    def end_unsynced(self, step: int) -> Iterator[Event]:
        return self._events.flush(step)

    def _past(self, lag: int) -> State:
        """Return this rank's nets as they were before the swap `lag` swaps ago, by the names of the herd's state."""
        mark = f"meet.past{lag}."
        return {name.removeprefix(mark): value for name, value in self.state.items() if name.startswith(mark)}


def read_log(run: str) -> dict[int, tuple[list[Pair], list[int]]]:
    """Return by its number each swap that a run recorded: the pairs of members, and the version that each member took.

    The list of versions is empty for a synchronous swap, in which all members take the current nets.

    Args:
        run: The run folder.

    Raises:
        UserError: The folder has no events.jsonl.
    """
    if not (Path(run) / "events.jsonl").is_file():
        raise UserError(f"strategy.gap.replay: {run} is not the folder of a run; it has no events.jsonl.")
    swaps = [event for event in RunFolder(Path(run)).events() if event["event"] == "swap"]
    return {
        int(event["number"]): (
            [(int(a), int(b)) for a, b in event["pairs"]],
            [int(v) for v in event.get("versions", [])],
        )
        for event in swaps
    }
