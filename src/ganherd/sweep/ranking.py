"""Rank the trials of a sweep, show them as a table and a sentence, and return the best one as a recipe."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ganherd.metrics.metric_registry import METRICS, title_of
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import Recipe
from ganherd.scoring.result import format_value
from ganherd.sweep.search_space import as_overrides
from ganherd.sweep.sweep_plan import cost_of
from ganherd.sweep.sweep_record import SweepRecord, TrialScore
from ganherd.util.terminal.screen import Block, Columns, Styled
from ganherd.util.text import duration

_SHOWN = 10  # number of trials in the table without --verbose


@dataclass(frozen=True)
class RankedTrial:
    """A trial (one setting of the sweep) with its last score, and the step at which that was measured."""

    number: int
    name: str
    step: int
    score: TrialScore


def ranked(record: SweepRecord) -> list[RankedTrial]:
    """Return all scored trials, sorted by how long they trained (longest first), then by score (best first)."""
    last: dict[int, tuple[int, TrialScore]] = {}
    for rung in record.rungs:
        last |= {score.trial: (rung.step, score) for score in rung.scores}
    order = sorted(last, key=lambda trial: (-last[trial][0], cost_of(last[trial][1].value, record.score), trial))
    return [RankedTrial(trial, record.names[trial], *last[trial]) for trial in order]


def answer(record: SweepRecord) -> str:
    """Return one or two sentences: which settings are best, and whether their 95 % interval is clear of the others'."""
    trials = ranked(record)
    best, title = trials[0], title_of(record.score)
    if best.score.value is None:
        return f"No trial could be scored: {best.score.why or 'no value is finite'}."
    winner = f"Best: {best.name}, with {title} {shown(best.score, record.score)}."
    rivals = [trial for trial in trials[1:] if trial.step == best.step and trial.score.value is not None]
    alike = [trial for trial in rivals if _overlap(best.score, trial.score)]
    if not rivals:
        return winner
    equal = [trial for trial in rivals if trial.score.value == best.score.value]
    if len(equal) == len(rivals):
        return (
            f"None is best: all {len(rivals) + 1} trials that trained as long have {title} "
            f"{shown(best.score, record.score)}, so this recipe or this score does not depend on what they vary."
        )
    if equal:
        others = f"{len(equal)} other trials have" if len(equal) > 1 else f"{equal[0].name} has"
        winner += f" {others} exactly the same {title}."
    if best.score.low is None:
        return f"{winner} Its interval is not known; --seeds 3 gives one."
    if alike:
        more = "" if record.seeds > 2 else " More seeds (--seeds 3) can tell them apart."
        others = f"{len(alike)} of the {len(rivals)} others" if len(rivals) > 1 else "The other"
        return f"{winner} {others} that trained as long may be as good: their intervals overlap.{more}"
    over = "seeds" if record.seeds > 1 else "samples of one seed"
    return f"{winner} Its interval (over {over}) lies apart from those of all others that trained as long."


def _overlap(one: TrialScore, other: TrialScore) -> bool:
    """Return whether the intervals of two scores overlap; True if one of them is not known."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.low <= other.high and other.low <= one.high


def shown(score: TrialScore, metric: str) -> str:
    """Return a score as text, with its interval if that is known.

    >>> shown(TrialScore(trial=0, value=2.0, low=1.5, high=2.5), "fid")
    '2.000 (1.500 to 2.500)'
    """
    if score.value is None:
        return "–"
    text = format_value(metric, score.value)
    if score.low is None or score.high is None:
        return text
    return f"{text} ({format_value(metric, score.low)} to {format_value(metric, score.high)})"


def screen(record: SweepRecord, verbose: bool = False) -> list[Block]:
    """Return what is printed at the end of a sweep: a sentence and a table of the ten best trials (or of all)."""
    trials, title = ranked(record), title_of(record.score)
    rows: list[Sequence[str | Styled]] = []
    for place, trial in enumerate(trials if verbose else trials[:_SHOWN], 1):
        failed = trial.score.value is None
        name = Styled(trial.name, "strong" if place == 1 else "")
        rows.append(
            (
                str(place),
                name,
                Styled("failed", "bad") if failed else shown(trial.score, record.score),
                f"{trial.step:,}",
            )
        )
    goal = METRICS[record.score].goal
    blocks: list[Block] = [
        Styled(answer(record), "strong"),
        "",
        Columns(("", "settings", f"{title} ({goal}), 95 %", "steps"), rows, right={0, 3}, whole={0, 2, 3}),
    ]
    if len(trials) > len(rows):
        blocks.append(Styled(f"… and {len(trials) - len(rows)} more trials (--verbose)", "soft"))
    members = f"{len(record.trials)} trials{f' × {record.seeds} seeds' if record.seeds > 1 else ''}"
    blocks += ["", Styled(f"{members}, {duration(record.seconds)}; {_halved(record)}", "soft")]
    return blocks


def _halved(record: SweepRecord) -> str:
    """Return in words how many trials were trained up to which step."""
    if len(record.steps) < 2:
        return f"each trained for {record.steps[0][0]:,} steps"
    return "trials left: " + ", ".join(f"{count} to step {step:,}" for step, count in record.steps)


def overrides_of(record: SweepRecord, number: int) -> list[str]:
    """Return the settings that turn the sweep's recipe into that of one trial, as `key=value`."""
    return [*record.overrides, *as_overrides(record.trials[number])]


def best_recipe(record: SweepRecord) -> Recipe:
    """Return the recipe of the best trial, with the last step of the sweep as its budget."""
    best = ranked(record)[0]
    return recipe_file.load(
        record.recipe, [*overrides_of(record, best.number), f"train.budget={record.steps[-1][0]}steps"]
    )


def train_command(record: SweepRecord) -> str:
    """Return the command that trains only the best trial, in a new run."""
    best = ranked(record)[0]
    sets = " ".join(f"--set {shlex.quote(text)}" for text in overrides_of(record, best.number))
    return f"ganherd train {shlex.quote(record.recipe)} {sets} --budget {record.steps[-1][0]}steps"


def is_finite(score: TrialScore) -> bool:
    """Return whether a score has a finite value."""
    return score.value is not None and math.isfinite(score.value)
