"""The engine `graph`: capture a whole training step as a CUDA graph, and replay it with almost no work on the host.

The graph includes the selection of the batch, random draws, updates of both nets, Adam and the sums of losses, for all
members (GANs).
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from ganherd.herd.engine.device_memory import is_large, release_cached
from ganherd.herd.engine.engines import (
    CompileReport,
    Engine,
    Plan,
    StackedHerd,
    StopCheck,
    Tick,
    collecting,
    has_kernels,
    never,
    no_report,
    no_tick,
)
from ganherd.herd.engine.side_streams import HIGH_PRIORITY
from ganherd.herd.lowering.kernels.weight_cache import cache_weights
from ganherd.herd.state import State, base_keys, members_of

_STEPS_AHEAD = 64  # the rows of the batches are sent to the device for this many periods at a time
_UNROLLED = 8  # number of periods in the longer of the two graphs
_SHORT = 1e-3  # seconds; only for shorter periods a graph of several periods saves enough to be worth capturing


class GraphEngine(Engine):
    """Train by replaying CUDA graphs. State and data must be on the device.

    A graph contains one or several whole periods. A period is the number of steps after which the sequence of updates
    repeats, e.g. because the discriminator is updated at every second step; see `StepRules.period`.
    """

    def __init__(self, herd: StackedHerd, plan: Plan) -> None:
        super().__init__(herd, plan)
        device, n = herd.device, herd.num_members
        self._period = herd.rules.period
        # Everything that changes between replays is in tensors that the graphs read.
        self._base = torch.zeros(n, dtype=torch.int64, device=device)  # the members' base keys
        self._at = torch.zeros((), dtype=torch.int64, device=device)  # the number of the step
        self._cursor = torch.zeros((), dtype=torch.int64, device=device)  # the next batch within `_indices`
        ahead = _STEPS_AHEAD * self._period * herd.rules.n_critic
        self._indices = torch.zeros(ahead, n, herd.rules.batch, dtype=torch.int64, device=device)
        self._sums = herd.zero_sums()
        self._whole = herd.blocks(n)  # one block for all members of a breed
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of periods

    def prepare(self, report: CompileReport = no_report) -> None:
        """Compile the kernels of a step, and capture the graphs, unless this was done before."""
        if not self._graphs:
            self._capture(report)

    def advance(self, start: int, stop: int, sums: Tensor, should_stop: StopCheck = never, tick: Tick = no_tick) -> int:
        """Train from step `start` to step `stop`, and return the step that was reached; see `Engine.advance`.

        Steps outside of whole periods run without a graph.
        """
        base = base_keys(self.herd.state)
        aligned = -(-start // self._period) * self._period
        if aligned != start:  # a resumed run may start inside a period
            start = super().advance(start, min(aligned, stop), sums, should_stop, tick)
        if start + self._period <= stop:
            self.prepare()
        self._base.copy_(torch.from_numpy(base))
        self._at.fill_(start)
        self._sums.copy_(sums)
        step = start
        while step + self._period <= stop:
            steps = min(_STEPS_AHEAD * self._period, (stop - step) // self._period * self._period)
            self._send(base, step, steps)
            step = self._replay(step, step + steps, should_stop, tick)
            if should_stop():
                break
        sums.copy_(self._sums)
        return step if should_stop() else super().advance(step, stop, sums, should_stop, tick)

    def _send(self, base: np.ndarray, step: int, steps: int) -> None:
        """Copy the indices of the batches of all members for the next `steps` steps to the device, all at once."""
        n_critic, everyone = self.herd.rules.n_critic, slice(0, self.herd.num_members)
        first = step * n_critic
        rows = [self.herd.feed.indices(everyone, base, first + c) for c in range(steps * n_critic)]
        self._indices[: len(rows)].copy_(torch.from_numpy(np.stack(rows)))
        self._cursor.zero_()

    def _replay(self, step: int, stop: int, should_stop: StopCheck, tick: Tick) -> int:
        """Replay graphs from `step` to `stop`, both the first step of a period; return the step that was reached."""
        while step < stop:
            periods = max(periods for periods in self._graphs if step + periods * self._period <= stop)
            self._graphs[periods].replay()
            step += periods * self._period
            tick(step)
            if should_stop():
                break
        torch.cuda.synchronize(self.herd.device)  # so that the host reports only finished steps
        return step

    def _capture(self, report: CompileReport) -> None:
        """Compile the kernels, warm up, capture the graphs, and restore the state, which the warm-up changes."""
        saved = _copy_aside(self.herd.state, self.herd.device)
        if has_kernels(self.herd):
            with collecting(report):
                self._steps(1)
            self._restore(saved)
            release_cached(self.herd.device)  # the next steps run on another stream, which could not reuse it
        side = torch.cuda.Stream(self.herd.device)
        side.wait_stream(torch.cuda.current_stream(self.herd.device))
        with torch.cuda.stream(side):
            self._steps(1)
        torch.cuda.current_stream(self.herd.device).wait_stream(side)
        stream = torch.cuda.Stream(self.herd.device, priority=HIGH_PRIORITY)  # of both graphs, which share its memory
        single = self._captured(1, stream)
        self._graphs = {1: single}
        if self._seconds_of(single) < _SHORT:
            self._graphs[_UNROLLED] = self._captured(_UNROLLED, stream, single)
        self._restore(saved)
        del saved
        release_cached(self.herd.device)

    def _captured(
        self, periods: int, stream: torch.cuda.Stream, other: torch.cuda.CUDAGraph | None = None
    ) -> torch.cuda.CUDAGraph:
        """Return a graph of this many periods, captured on a stream.

        Args:
            other: A graph that was captured on the same stream, to share its memory; None: the graph gets its own.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=None if other is None else other.pool(), stream=stream):
            self._steps(periods)
        return graph

    def _seconds_of(self, graph: torch.cuda.CUDAGraph) -> float:
        """Return the seconds that a replay of a graph takes."""
        self._cursor.zero_()
        graph.replay()  # the first one takes longer
        torch.cuda.synchronize(self.herd.device)
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize(self.herd.device)
        return time.perf_counter() - began

    def _restore(self, saved: State) -> None:
        for name, value in self.herd.state.items():
            value.copy_(saved[name])

    def _steps(self, periods: int) -> None:
        """Run this many periods in the form that graphs capture: numbers that change between replays are tensors."""
        feed, n_critic, opponents = self.herd.feed, self.herd.rules.n_critic, self.herd.opponents
        for number in range(periods * self._period):
            phase = number % self._period  # decides whether the discriminator is updated
            for block, breed in self._whole:

                def batch(update: int, block: slice = block) -> tuple[Tensor, Tensor]:
                    return feed.gather(self._indices.index_select(0, (self._cursor + update)[None])[0][block])

                state = breed.view(members_of(self.herd.state, block))
                step, sums = self._step[breed], self._sums[:, block]
                own_opponents = opponents and opponents.of(block)
                with cache_weights():
                    step(state, batch, self._base[block], sums, phase, at=self._at, opponents=own_opponents)
            self._at += 1
            self._cursor += n_critic


def _copy_aside(state: State, device: torch.device) -> State:
    """Return a copy of a state; on the host if it is large, because the device may have no room for a copy."""
    target = torch.device("cpu") if is_large(state, device) else device
    return {name: value.to(target, copy=True) for name, value in state.items()}
