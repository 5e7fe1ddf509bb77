"""sweep.json: what a sweep tries, and what it has measured so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ganherd.runs.records import plain
from ganherd.util import files
from ganherd.util.errors import UserError

FILE = "sweep.json"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SweepGroup(_Record):
    """The trials that one run trains: they have the same nets, batch and data, and differ in settings of single members."""

    run: str  # the run's folder inside of the sweep's
    trials: list[int]  # the numbers of its trials, in the order of its replicas


class TrialScore(_Record):
    """The score of a trial after the steps of a rung."""

    trial: int
    value: float | None  # None: it could not be measured; `why` says why
    low: float | None = None  # the 95 % interval
    high: float | None = None
    per_seed: list[float | None] = []
    samples: int = 0
    network: str = ""
    why: str = ""


class RungResult(_Record):
    """The scores of the trials that trained up to a rung, and those that continue."""

    step: int
    scores: list[TrialScore]
    left: list[int]  # the trials that continue


class SweepRecord(_Record):
    """A sweep: its settings, which never change, and its results, which grow while it runs."""

    format: Literal[1] = 1
    recipe: str  # the name or file of the recipe
    overrides: list[str]
    vary: list[str]
    trials: list[dict[str, Any]]  # the settings of each
    names: list[str]
    groups: list[SweepGroup]
    seeds: int
    budget: str
    score: str
    samples: int
    seed: int = 0
    halves: bool = True
    sampler: Literal["even", "optuna"] = "even"
    # optuna: the number of rounds, each of which is proposed from the scores of those before
    rounds: int = Field(1, ge=1)
    wanted: int = 0  # optuna: the number of trials of all rounds; `trials` has those that are proposed so far
    round_scores: list[list[TrialScore]] = []  # optuna: the scores of each finished round
    steps: list[tuple[int, int]] = []  # (step, trials) of each rung; empty until a time budget is measured
    rungs: list[RungResult] = []
    seconds: float = Field(0.0, ge=0)  # of training and scoring, over all processes

    @model_validator(mode="after")
    def _is_consistent(self) -> SweepRecord:
        numbers = range(len(self.trials))
        steps = [step for step, _ in self.steps]
        if steps != sorted(set(steps)) or any(step < 1 for step in steps) or len(self.rungs) > len(steps):
            raise ValueError("its rungs do not follow each other")
        for rung in self.rungs:
            if not rung.scores or any(n not in numbers for n in [*rung.left, *(score.trial for score in rung.scores)]):
                raise ValueError(f"the scores at step {rung.step} are not those of its trials")
        return self

    def settings(self) -> dict[str, Any]:
        """Return what the user chose, which never changes."""
        return self.model_dump(exclude={"steps", "rungs", "round_scores", "seconds"})

    @property
    def is_finished(self) -> bool:
        return bool(self.steps) and len(self.rungs) == len(self.steps)

    @property
    def left(self) -> list[int]:
        """The trials that the last rung has left; all if there was none yet."""
        return self.rungs[-1].left if self.rungs else list(range(len(self.trials)))

    def write(self, folder: Path) -> None:
        """Write sweep.json."""
        folder.mkdir(parents=True, exist_ok=True)
        files.atomic_write(folder / FILE, json.dumps(plain(self.model_dump()), indent=1) + "\n")


def read(folder: Path) -> SweepRecord | None:
    """Return the sweep of a folder; None if there is none yet."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return SweepRecord.model_validate(files.read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        why = f"{place}: {first['msg']}" if place else first["msg"].removeprefix("Value error, ")
        raise UserError(f"{path} is not what ganherd writes ({why}): choose another folder with -o.") from None
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{path} is not what ganherd writes ({why}): choose another folder with -o.") from None
