"""The state of a run in addition to the tensors of the herd: everything else that a checkpoint saves and a resume needs."""

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
    """Sums of losses and logits: every step adds to them, and a record takes the means and starts new ones."""

    def __init__(self, prepared: PreparedHerd, convergence: Convergence, resumed: TrainerState | None) -> None:
        """Start with the sums of the checkpoint that is `resumed`; None: start with zeros."""
        self._prepared, self._convergence = prepared, convergence
        self.since = resumed.recorded if resumed else 0  # the step of the last record
        self.sums = prepared.herd.zero_sums()  # [4, n] of this rank's members
        self._count()
        if resumed:
            own = [[row[member] for member in prepared.own] for row in resumed.sums]
            self.sums.copy_(torch.tensor(own, dtype=torch.float64))

    def gather(self) -> Tensor:
        """Gather the sums [4, N] of all members, on the host. Called by all ranks together."""
        return self._prepared.ranks.all_gather(self.sums.T).T

    def updates(self, step: int) -> dict[str, list[int]]:
        """Return how many updates of each member the sums contain at this step, by the name of the sum."""
        own_steps = [self._convergence.own_steps(self._prepared.member_steps(at)) for at in (self.since, step)]
        spans = list(zip(*own_steps, strict=True))
        rules = self._prepared.herd.rules
        of_d = {span: sum(rules.d_updates(step) for step in range(*span)) for span in set(spans)}
        d, g = [of_d[span] for span in spans], [stop - start for start, stop in spans]
        return {"loss_d": d, "loss_g": g, "real": d, "fake": d}

    def means(self, step: int) -> dict[str, list[float] | None]:
        """Return the mean of each member over its updates; NaN if it made none, None if no member made any."""
        updates, sums = self.updates(step), dict(zip(SUMS, self.gather().tolist(), strict=True))
        return {
            name: [v / n if n else math.nan for v, n in zip(sums[name], updates[name], strict=True)]
            if any(updates[name])
            else None
            for name in SUMS
        }

    def begin(self, step: int) -> None:
        """Start new sums: everything up to this step is recorded."""
        self.since = step
        self.sums.zero_()
        self._count()

    def _count(self) -> None:
        """Count the member-steps that one step of the run is. A member that is not trained makes none, a slow one less than one."""
        trains = self._convergence.is_trained.tolist()
        each = [
            float(pace) if is_trained else 0.0 for pace, is_trained in zip(self._prepared.pace, trains, strict=True)
        ]
        self.per_step = sum(each)  # member-steps that one step of the run is
        self.per_step_here = sum(each[member] for member in self._prepared.own)  # … of this rank's members


class RunState:
    """The state of a run at one step. It is created new, or from the checkpoint that a run continues from."""

    def __init__(
        self, prepared: PreparedHerd, strategy: Strategy, resumed: checkpoint.Checkpoint | None = None
    ) -> None:
        tensors = resumed.state if resumed else None
        meta = resumed.meta if resumed else None
        ranks = prepared.ranks
        self._prepared, self._strategy = prepared, strategy
        self.step = resumed.step if resumed else 0
        recall(strategy.state, tensors)
        if resumed:
            strategy.resume(self.step)
        self.monitor = Monitor(prepared, tensors)
        # alarms and convergence are known of all members on every rank
        known = {k: ranks.all_gather(v) for k, v in (tensors or {}).items() if k in OF_ALL or k.startswith("rest.")}
        self.alarms = Alarms(ranks.num_members, known)
        # the members of a sweep's worst trials are stopped
        frozen = prepared.frozen_members or ([] if prepared.recipe.herd.trials else None)
        self.convergence = Convergence(prepared.recipe.train.stop, ranks.num_members, known, frozen)
        self.convergence.end_pauses(self.step)
        self.tally = Tally(prepared, self.convergence, meta)
        self.last_good = meta.last_good if meta else None  # the last checkpoint that was due: repairs roll back to it
        self.best = meta.best if meta else None  # score and step of the best checkpoint
        self.repairs = list(meta.repairs) if meta else [0] * ranks.num_members  # [N]
        self.seconds_before = meta.seconds if meta else 0.0  # of training, in earlier processes
        self.over = meta.over if meta else None  # the deadline that ended the run at this step
        self.saved = resumed.saved if resumed else None  # the step of the last checkpoint
        self.written = meta.bytes if meta else None  # of the records, by file
        self.arrived = meta is not None and meta.arrived  # whether what is due at this step is still to be done

    def tensors(self) -> State:
        """Return all tensors of this rank's members [n, …] that a checkpoint saves, including those of the herd."""
        return {**self._prepared.herd.state, **self.member_tensors()}

    def member_tensors(self) -> State:
        """Return the tensors of this rank's members [n, …] that are not the herd's: they change only at stops."""
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
        """Return those of the facts that a rank knows without the others."""
        return {
            "recorded": self.tally.since,
            "last_good": self.last_good,
            "best": self.best,
            "repairs": list(self.repairs),
            "seconds": seconds,
            "over": self.over,
        }
