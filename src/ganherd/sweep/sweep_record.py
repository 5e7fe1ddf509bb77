"""Read and write sweep.json: what a sweep tries, and what it has measured so far."""

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
    """The trials that one run trains: they have the same nets, batch and data, and differ in settings of members."""

    run: str  # name of the run's folder inside the sweep's
    trials: list[int]  # numbers of its trials, in the order of the run's replicas


class TrialScore(_Record):
    """The score of a trial (one setting of the sweep) at a step."""

    trial: int  # number of the trial
    value: float | None  # None: it could not be measured; `why` has the reason
    low: float | None = None  # lower end of the 95 % interval
    high: float | None = None  # upper end
    per_seed: list[float | None] = []
    samples: int = 0
    network: str = ""  # that computed the features
    why: str = ""


class RungResult(_Record):
    """The result of a rung, a step at which trials are ranked: their scores, and which of them continue."""

    step: int
    scores: list[TrialScore]
    left: list[int]  # numbers of the trials that continue


class SweepRecord(_Record):
    """The content of sweep.json: the settings of a sweep, which never change, and its results, which grow."""

    format: Literal[1] = 1
    recipe: str  # the name or file of the recipe
    overrides: list[str]
    vary: list[str]
    trials: list[dict[str, Any]]  # the settings of each trial
    names: list[str]  # of the trials
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
        """Return everything except results: what must be equal if the sweep is resumed."""
        return self.model_dump(exclude={"steps", "rungs", "round_scores", "seconds"})

    @property
    def is_finished(self) -> bool:
        return bool(self.steps) and len(self.rungs) == len(self.steps)

    @property
    def left(self) -> list[int]:
        """The numbers of the trials that still continue: all before the first rung."""
        return self.rungs[-1].left if self.rungs else list(range(len(self.trials)))

    def write(self, folder: Path) -> None:
        """Write sweep.json into a folder, which is created if needed."""
        folder.mkdir(parents=True, exist_ok=True)
        files.atomic_write(folder / FILE, json.dumps(plain(self.model_dump()), indent=1) + "\n")


def read(folder: Path) -> SweepRecord | None:
    """Return the record of the sweep in a folder; None if the folder has no sweep.json."""
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
