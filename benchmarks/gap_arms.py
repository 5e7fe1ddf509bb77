"""Train one arm of the toy study: GANs of many seeds in one run; measure what each seed captured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import existing_runs
import ganherd
from ganherd.data.dataset import load
from ganherd.metrics.modes import POINTS, Coverage, Modes, coverage, modes_of
from ganherd.runs.folder import RunFolder

ARMS = {"one": "gan", "apart": "apart4", "gap": "gap4"}  # by the end of their recipes' names
# Four that swap and four that do not in one run: a GPU waits for the launches of a step, whose number is the same
BOTH = "both"
SLOTS = {"gap": range(4), "apart": range(4, 8)}
_BOTH = ("herd.members=8", f"strategy.gap.stay={list(SLOTS['apart'])}")
KINDS = ("mean", "best", "mixture")  # of the members of an arm
NUMBERS = ("modes", "represented", "high_quality", "reverse_kl")  # represented: with a fifth of its share at least
# nothing is measured or drawn while it trains; engine and threads are fixed, so that nothing depends on the machine
_PLAIN = (
    "run.scores=false",
    "run.watch.every=0",
    "run.sample_every=0",
    "run.checkpoint_every=0",
    "run.record_every=1000",
)
_CPU = ("engine.device=cpu", "engine.name=fused", "engine.threads=1", "engine.chunk=40")


@dataclass(frozen=True)
class Job:
    """The recipe and settings of one arm."""

    data: str  # r15, grid25, ring8
    arm: str
    seed: int
    seeds: int
    overrides: tuple[str, ...] = ()
    device: str = "cpu"
    as_described: bool = False  # with what the paper describes: unlike priors, batch norm, clipped gradients

    @property
    def recipe(self) -> str:
        return f"{self.data}-{ARMS['gap' if self.arm == BOTH else self.arm]}{'-paper' if self.as_described else ''}"

    @property
    def settings(self) -> list[str]:
        gpu = (f"engine.device={self.device}", "train.precision=tf32", "run.checkpoint_every=20000")
        where = _CPU if self.device == "cpu" else gpu
        both = _BOTH if self.arm == BOTH else ()
        return [f"run.seed={self.seed}", f"herd.seeds={self.seeds}", *_PLAIN, *where, *both, *self.overrides]


def trained(job: Job, runs: Path) -> tuple[Path, float]:
    """Return the finished run of a job and the seconds that it took.

    An existing run is used, with the seconds of its training; a stopped one is resumed; one with other settings is refused.
    """
    path = runs / f"{job.recipe}-{job.seed}"
    began = time.perf_counter()
    state = existing_runs.state(path, job.recipe, job.settings)
    if state == "finished":
        return path, float(RunFolder.open(path).info.seconds)
    if state == "new":
        ganherd.train(job.recipe, job.settings, run=path, quiet=True)
    else:
        ganherd.resume(path, quiet=True)
    return path, time.perf_counter() - began


def measured(run: Path, arm: str, slots: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return modes, share of high quality and reverse KL of the mean member, the best and the mixture, for each seed.

    Each is measured with 2,500 points, as in the protocol. The best member is chosen with other points than it is measured with.

    Args:
        slots: The members that count; default: all.
    """
    mixture, modes = ganherd.load(run), modes_of(load(RunFolder.open(run).recipe.data))
    slots = range(mixture.members) if slots is None else slots
    mixture = replace(mixture, weights=np.isin(np.arange(mixture.members), slots) / len(slots))
    out = []
    for replica, seed in enumerate(mixture.seeds):
        each = [coverage(mixture.alone(m).sample(POINTS, replica=replica).x, modes) for m in slots]
        row = {"mean": _mean([numbers(one) for one in each])}
        if arm != "one":
            row["best"] = numbers(each[_best(mixture, modes, replica, slots)])
            row["mixture"] = numbers(coverage(mixture.sample(POINTS, replica=replica).x, modes))
        out.append({"seed": seed, **row, "members": [numbers(one) for one in each]})
    return out


def numbers(one: Coverage) -> dict[str, float | None]:
    values = (float(one.captured), float(one.represented.sum()), one.high_quality, one.reverse_kl)
    return dict(zip(NUMBERS, values, strict=True))


def _best(mixture: Any, modes: Modes, replica: int, slots: Sequence[int]) -> int:
    """Return the position of the best slot: by modes, then by quality, of points of another sampling seed."""
    judged = [coverage(mixture.alone(m).sample(POINTS, seed=1, replica=replica).x, modes) for m in slots]
    return max(range(len(judged)), key=lambda m: (judged[m].captured, judged[m].high_quality))


def _mean(each: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name in NUMBERS:
        known = [value for one in each if (value := one[name]) is not None]
        out[name] = float(np.mean(known)) if known else None
    return out


def work(job: Job, runs: Path) -> list[dict[str, Any]]:
    """Train an arm, or both, and measure each, all in this process."""
    path, seconds = trained(job, runs)
    run, rows = RunFolder.open(path), []
    for arm, slots in SLOTS.items() if job.arm == BOTH else [(job.arm, None)]:
        began = time.perf_counter()
        per_seed = measured(path, arm, slots)
        row = {
            **asdict(job),
            "arm": arm,
            "recipe": job.recipe,
            "steps": run.info.step,
            "points": run.recipe.data.points,
            "seconds": round(seconds, 1),
            "measuring_seconds": round(time.perf_counter() - began, 1),
            "per_seed": per_seed,
        }
        rows.append(row | ({"slots": list(slots)} if slots else {}))
    return rows
