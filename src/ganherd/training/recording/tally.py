"""Sum the losses and logits of each member over the steps since the last record."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ganherd.herd.step.step import SUMS
from ganherd.runs.models import TrainerState
from ganherd.training.health.convergence import Convergence
from ganherd.training.setup.assemble import PreparedHerd


class Tally:
    """Sums of losses and logits: every step adds to them, and a record takes the means and starts new ones."""

    def __init__(self, prepared: PreparedHerd, rest: Convergence, resumed: TrainerState | None) -> None:
        """Start with the sums of the checkpoint that is `resumed`; None: start with zeros."""
        self._prepared, self._rest = prepared, rest
        self.since = resumed.recorded if resumed else 0  # the step of the last record
        self.sums = prepared.herd.zero_sums()  # [4, n] of this rank's members
        self._count()
        if resumed:
            own = [[row[member] for member in prepared.own] for row in resumed.sums]
            self.sums.copy_(torch.tensor(own, dtype=torch.float64))

    def everyones(self) -> Tensor:
        """Return the sums [4, N] of all members, on the host; all ranks ask for them together."""
        return self._prepared.ranks.all_gather(self.sums.T).T

    def updates(self, step: int) -> dict[str, list[int]]:
        """Return the number of updates of each member that the sums hold at this step."""
        own_steps = [self._rest.own_steps(self._prepared.member_steps(at)) for at in (self.since, step)]
        spans = list(zip(*own_steps, strict=True))
        rules = self._prepared.herd.rules
        of_d = {span: sum(rules.d_updates(step) for step in range(*span)) for span in set(spans)}
        d, g = [of_d[span] for span in spans], [stop - start for start, stop in spans]
        return {"loss_d": d, "loss_g": g, "real": d, "fake": d}

    def means(self, step: int) -> dict[str, list[float] | None]:
        """Return the mean of each member over its updates; NaN if it made none, None if no member made any."""
        updates, sums = self.updates(step), dict(zip(SUMS, self.everyones().tolist(), strict=True))
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
        """Count the member-steps of a step: members that rest make none, and slow members fewer than the run."""
        trains = self._rest.trains(self._prepared.size).tolist()
        each = [float(pace) if awake else 0.0 for pace, awake in zip(self._prepared.pace, trains, strict=True)]
        self.per_step = sum(each)  # member-steps that one step of the run is
        self.per_step_here = sum(each[member] for member in self._prepared.own)  # … of this rank's members
