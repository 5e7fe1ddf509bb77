"""Train a herd that does not fit on the device: its state is on the host, and blocks of members are trained in turn.

The place of a block is the memory on the device that holds the state of the block that trains; every block uses the
same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ganherd.herd.batch_feed import Feed
from ganherd.herd.breeds import Breed
from ganherd.herd.engine.blocks.block_transfer import BlockTransfer
from ganherd.herd.engine.engines import (
    CompileReport,
    Engine,
    Plan,
    StackedHerd,
    StopCheck,
    Tick,
    aligned_rows,
    make_engine,
    never,
    no_report,
    no_tick,
)
from ganherd.herd.state import State, members_of
from ganherd.herd.step.pace import Pace

# (breed, number of members, their pace, whether they train against opponents): blocks with equal values can share an
# engine.
_Kind = tuple[Breed, int, Pace, bool]


class BlockEngine(Engine):
    """Train a herd block by block: move each block to the device, train it for all steps of the call, and move it back.

    While a block trains, the next one is copied to the device and the previous one back to the host, so that copies
    cost time only before the first block and after the last. Blocks of the same kind share an engine, which trains the
    block that is in the place at the time.
    """

    def __init__(self, herd: StackedHerd, plan: Plan) -> None:
        """Divide the herd into blocks of at most `plan.chunk` members."""
        self.herd, self.plan = herd, plan
        self._blocks = herd.blocks(plan.chunk)
        self._feed = BlockFeed(herd.feed)
        self._engines: dict[_Kind, Engine] = {}
        self._transfer: BlockTransfer | None = None

    @property
    def seconds_waited(self) -> float:
        """Return the seconds that training has spent waiting for copies so far."""
        return self._transfer.seconds_waited if self._transfer else 0.0

    def prepare(self, report: CompileReport = no_report) -> None:
        """Allocate memory on the device for the blocks, and prepare an engine for each kind of block.

        All engines are prepared before any block trains, because CUDA graphs must not be captured while threads copy.
        """
        if self._transfer is None:
            self._transfer = BlockTransfer(self._place(), self.herd.device)
        for block, breed in self._blocks:
            if self._kind(block, breed) not in self._engines:
                self._transfer.fetch(members_of(self.herd.state, block))
                self._visit(self._transfer, block, breed).prepare(report)

    def advance(self, start: int, stop: int, sums: Tensor, should_stop: StopCheck = never, tick: Tick = no_tick) -> int:
        """Train all members from step `start` to step `stop`, one block after another; see `Engine.advance`.

        Only the first block calls `should_stop`. If it stops early, all other blocks train up to the same step.
        """
        self.prepare()
        assert self._transfer is not None
        try:
            self._transfer.fetch(members_of(self.herd.state, self._blocks[0][0]))
            for number, (block, breed) in enumerate(self._blocks):
                engine = self._visit(self._transfer, block, breed)
                if number + 1 < len(self._blocks):
                    self._transfer.fetch(members_of(self.herd.state, self._blocks[number + 1][0]))
                device_sums = sums[:, block].to(self.herd.device, copy=True)
                stop_check = should_stop if number == 0 else never
                stop = engine.advance(start, stop, device_sums, stop_check, self._overall(tick, number, start, stop))
                sums[:, block].copy_(device_sums)
                self._transfer.leave(members_of(self.herd.state, block))
            self._transfer.wait()
        except BaseException:
            self._transfer.abandon()
            raise
        return stop

    def _visit(self, transfer: BlockTransfer, block: slice, breed: Breed) -> Engine:
        """Move the block that was fetched to the place for training, and return the engine that trains it."""
        state = transfer.enter(block.stop - block.start)
        self._feed.first = block.start
        opponents = self.herd.opponents and self.herd.opponents.of(block)
        kind = self._kind(block, breed)
        if kind not in self._engines:
            pace = self.herd.pace[block]
            herd = replace(self.herd, state=state, feed=self._feed, pace=pace, opponents=opponents)
            # A graph would hold the opponents of the block with which it was captured.
            name = "fused" if opponents else self.plan.name
            self._engines[kind] = make_engine(herd, replace(self.plan, name=name, chunk=herd.num_members))
        self._engines[kind].herd.opponents = opponents
        return self._engines[kind]

    def _kind(self, block: slice, breed: Breed) -> _Kind:
        """Return the kind of a block: blocks of the same kind share an engine."""
        return breed, block.stop - block.start, self.herd.pace[block], self.herd.opponents is not None

    def _place(self) -> State:
        """Return zeros on the device for the state of the largest block: the place of the block that trains."""
        width = max(block.stop - block.start for block, _ in self._blocks)
        shapes = {name: (width, *value.shape[1:]) for name, value in self.herd.state.items()}
        return {
            name: aligned_rows(shape, self.herd.state[name].dtype, self.herd.device) for name, shape in shapes.items()
        }

    def _overall(self, tick: Tick, number: int, start: int, stop: int) -> Tick:
        """Return a callback for the engine of a block, which reports its steps to `tick` as progress of the whole herd.

        Args:
            number: The number of the block; the blocks before have made all steps from `start` to `stop`.
        """
        return lambda step: tick(start + ((stop - start) * number + step - start) // len(self._blocks))


class BlockFeed(Feed):
    """The feed of the block that trains: the whole herd's feed, but with the block's members numbered from 0."""

    def __init__(self, feed: Feed) -> None:
        self._of_herd = feed
        self.x, self.y, self.plan, self.resident = feed.x, feed.y, feed.plan, feed.resident
        self.first = 0  # the first member of the block

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        """Return the rows of the data in batch `c` of some members of the block, int64 [n, B]; see `Feed.indices`."""
        return self._of_herd.indices(self._in_herd(members), base, c)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …] and labels [n, B] of batch number `c` of some members of the block."""
        return self._of_herd.batch_at(self._in_herd(members), base, c)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …] and labels [n, B] for rows [n, B] of the data."""
        return self._of_herd.gather(indices)

    def select(self, members: Sequence[int]) -> Feed:
        """Return a feed for some members of the block."""
        return self._of_herd.select([self.first + member for member in members])

    def _in_herd(self, members: slice) -> slice:
        """Return a range of the block's members as a range of the herd's."""
        return slice(self.first + members.start, self.first + members.stop)
