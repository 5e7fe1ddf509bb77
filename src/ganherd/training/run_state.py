"""Everything that a run continues with, besides the tensors of the herd itself; a checkpoint holds all of it."""

from __future__ import annotations

from typing import Any

from ganherd.herd.state import State
from ganherd.runs import checkpoint
from ganherd.strategies.strategy import Strategy
from ganherd.training.health.alarms import OF_ALL, Alarms
from ganherd.training.health.convergence import Convergence
from ganherd.training.health.monitor import Monitor, recall
from ganherd.training.recording.tally import Tally
from ganherd.training.setup.assemble import PreparedHerd


class RunState:
    """The state of a run at one step. It is created new, or from the checkpoint that a run continues from."""

    def __init__(
        self, prepared: PreparedHerd, strategy: Strategy, resumed: checkpoint.Checkpoint | None = None
    ) -> None:
        tensors = resumed.state if resumed else None
        facts: dict[str, Any] = resumed.facts if resumed else {}
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
        self.convergence = Convergence(prepared.recipe.train.stop, ranks.num_members, known, prepared.kept or None)
        self.convergence.wake(self.step)
        self.tally = Tally(prepared, self.convergence, facts)
        self.last_good: int | None = facts.get("last_good")  # the last checkpoint that was due: repairs roll back to it
        self.best: tuple[float, int] | None = tuple(facts["best"]) if facts.get("best") else None  # type: ignore[assignment]
        self.repairs: list[int] = list(facts.get("repairs", [0] * ranks.num_members))  # [N]
        self.seconds_before = float(facts.get("seconds", 0.0))  # of training, in earlier processes
        self.over: float | None = facts.get("over")  # the deadline that ended the run at this step
        self.saved: int | None = facts.get("saved", self.step) if resumed else None  # the step of the last checkpoint
        self.written: dict[str, int] | None = facts.get("bytes") if resumed else None  # of the records, by file
        self.arrived: bool = facts.get("arrived", False)  # whether what is due at this step is still to be done

    def tensors(self) -> State:
        """Return everything of this rank's members [n, …], the herd's own tensors included."""
        return {**self._prepared.herd.state, **self.member_tensors()}

    def member_tensors(self) -> State:
        """Return what is known of this rank's members [n, …] besides the herd's tensors: it changes only at stops."""
        of_all = (*self.alarms.state.items(), *self.convergence.state.items())
        own = list(self._prepared.own)
        return {**self.monitor.state, **{name: value[own] for name, value in of_all}, **self._strategy.state}

    def facts(self, seconds: float) -> dict[str, Any]:
        """Return what else of the whole herd is saved. All ranks ask for it together. `seconds`: of training, so far."""
        return {"sums": self.tally.everyones().tolist(), **self.common_facts(seconds)}

    def common_facts(self, seconds: float) -> dict[str, Any]:
        """Return the part of the facts that every rank knows by itself."""
        return {
            "recorded": self.tally.since,
            "last_good": self.last_good,
            "best": self.best,
            "repairs": list(self.repairs),
            "seconds": seconds,
            "over": self.over,
        }
