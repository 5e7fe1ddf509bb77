"""The state of a run without the tensors of its herd: everything else that a checkpoint saves and a resumed run needs.

In shapes, N is the number of members of the whole herd, and n the number of those on this rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ganherd.herd.state import State
from ganherd.herd.step.step import SUMS
from ganherd.runs import checkpoint
from ganherd.runs.models import TrainerState
from ganherd.strategies.strategy import Strategy
from ganherd.training.health.alarms import OF_ALL, Alarms
from ganherd.training.health.convergence import Convergence
from ganherd.training.health.monitor import Monitor, recall
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.util.files import JsonObject


class Tally:
    """Per-member sums of losses and mean logits, to which every step adds.

    A record writes the means and resets the sums.
    """

    def __init__(self, prepared: PreparedHerd, convergence: Convergence, resumed: TrainerState | None) -> None:
        """Start with the sums of the checkpoint that is `resumed`; None: start with zeros."""
        self._prepared, self._convergence = prepared, convergence
        self.since = resumed.recorded if resumed else 0  # the step of the last record
        # [N] the step from which each member's sums count
        self.counted_from = list(resumed.counted_from) if resumed else []
        self.counted_from = self.counted_from or [self.since] * prepared.size
        self.sums = prepared.herd.zero_sums()  # [4, n] of this rank's members; the rows are named in `SUMS`
        self._count()
        if resumed:
            own = [[row[member] for member in prepared.own] for row in resumed.sums]
            self.sums.copy_(torch.tensor(own, dtype=torch.float64))

    def gather(self) -> Tensor:
        """Return the sums of all members [4, N], on the host. Called by all ranks together."""
        return self._prepared.ranks.all_gather(self.sums.T).T

    def updates(self, step: int) -> dict[str, list[int]]:
        """Return how many updates of each member the sums contain at this step: for each name in `SUMS`, a list [N]."""
        at = {start: self._own_steps(start) for start in {*self.counted_from, step}}
        spans = [(at[start][member], at[step][member]) for member, start in enumerate(self.counted_from)]
        rules = self._prepared.herd.rules
        of_d = {span: sum(rules.d_updates(step) for step in range(*span)) for span in set(spans)}
        d, g = [of_d[span] for span in spans], [stop - start for start, stop in spans]
        return {"loss_d": d, "loss_g": g, "real": d, "fake": d}

    def means(self, step: int) -> dict[str, list[float] | None]:
        """Return the means since the last record: for each name in `SUMS`, a list [N] of means over a member's updates.

        The mean is NaN for a member without updates. The list is None if no member had any. Called by all ranks
        together.
        """
        updates, sums = self.updates(step), dict(zip(SUMS, self.gather().tolist(), strict=True))
        return {
            name: [v / n if n else math.nan for v, n in zip(sums[name], updates[name], strict=True)]
            if any(updates[name])
            else None
            for name in SUMS
        }

    def begin(self, step: int) -> None:
        """Set the sums to zero, because everything up to this step is recorded."""
        self.since = step
        self.counted_from = [step] * len(self.counted_from)
        self.sums.zero_()
        self._count()

    def forget(self, member: int, step: int) -> None:
        """Leave out what a member did before this step, for example after a repair. Called by all ranks."""
        self.counted_from[member] = step
        row = self._prepared.ranks.local_row(member)
        if row is not None:
            self.sums[:, row] = 0.0

    def _own_steps(self, step: int) -> list[int]:
        """Return the number of steps that each member has made at a step of the run [N]."""
        return self._convergence.own_steps(self._prepared.member_steps(step))

    def _count(self) -> None:
        """Set how many steps of members one step of the run contains, for rates in member-steps per second.

        A member that is not trained counts 0, a member with a slower pace less than 1.
        """
        trains = self._convergence.is_trained.tolist()
        each = [
            float(pace) if is_trained else 0.0 for pace, is_trained in zip(self._prepared.pace, trains, strict=True)
        ]
        self.per_step = sum(each)  # of all members
        self.per_step_here = sum(each[member] for member in self._prepared.own)  # of this rank's members


class RunState:
    """The state of a run at one step, without the tensors of its herd."""

    def __init__(
        self, prepared: PreparedHerd, strategy: Strategy, resumed: checkpoint.Checkpoint | None = None
    ) -> None:
        """Create the state of a new run, or that of the checkpoint that a run continues from.

        Called by all ranks together.
        """
        tensors = resumed.state if resumed else None
        meta = resumed.meta if resumed else None
        ranks = prepared.ranks
        self._prepared, self._strategy = prepared, strategy
        self.step = resumed.step if resumed else 0
        recall(strategy.state, tensors)
        if resumed:
            strategy.resume(self.step)
        self.monitor = Monitor(prepared, tensors)
        # every rank has the tensors of alarms and convergence for all members [N]
        known = {k: ranks.all_gather(v) for k, v in (tensors or {}).items() if k in OF_ALL or k.startswith("rest.")}
        self.alarms = Alarms(ranks.num_members, known)
        # A list, even an empty one, makes `Convergence` able to stop members; a sweep stops those of its worst trials.
        frozen = prepared.frozen_members or ([] if prepared.recipe.herd.trials else None)
        self.convergence = Convergence(prepared.recipe.train.stop, ranks.num_members, known, frozen)
        self.convergence.end_pauses(self.step)
        self.tally = Tally(prepared, self.convergence, meta)
        self.last_good = meta.last_good if meta else None  # the last checkpoint that was due: repairs roll back to it
        self.best = meta.best if meta else None  # score and step of the best checkpoint
        self.repairs = list(meta.repairs) if meta else [0] * ranks.num_members  # [N]
        self.seconds_before = meta.seconds if meta else 0.0  # seconds of training in earlier processes
        self.over = meta.over if meta else None  # the deadline that ended the run at this step
        self.saved = resumed.saved if resumed else None  # the step of the last checkpoint
        self.written = meta.bytes if meta else None  # the length of each record file at the checkpoint, in bytes
        self.arrived = meta is not None and meta.arrived  # whether what is due at this step is still to be done

    def tensors(self) -> State:
        """Return all tensors of this rank's members [n, …] that a checkpoint saves, including those of the herd."""
        return {**self._prepared.herd.state, **self.member_tensors()}

    def member_tensors(self) -> State:
        """Return the tensors of this rank's members [n, …] that are not part of the herd. They change only at stops."""
        of_all = (*self.alarms.state.items(), *self.convergence.state.items())
        own = list(self._prepared.own)
        return {**self.monitor.state, **{name: value[own] for name, value in of_all}, **self._strategy.state}

    def facts(self, seconds: float) -> JsonObject:
        """Return what a checkpoint saves in state.json. Called by all ranks together.

        Args:
            seconds: Seconds of training so far.
        """
        return {"sums": self.tally.gather().tolist(), **self.common_facts(seconds)}

    def common_facts(self, seconds: float) -> JsonObject:
        """Return the part of `facts` that every rank knows without communication."""
        return {
            "recorded": self.tally.since,
            "counted_from": [] if set(self.tally.counted_from) == {self.tally.since} else list(self.tally.counted_from),
            "last_good": self.last_good,
            "best": self.best,
            "repairs": list(self.repairs),
            "seconds": seconds,
            "over": self.over,
        }
