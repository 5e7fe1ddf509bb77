"""List the trainings and scorings of a sweep with their amount of work, so that the time left can be estimated."""

from __future__ import annotations

from pathlib import Path

from ganherd.sweep.sweep_record import SweepGroup, SweepRecord
from ganherd.training.recording.series_progress import SeriesTask


def tasks_of_rungs(record: SweepRecord, folder: Path) -> list[SeriesTask]:
    """Return the tasks of all rungs (steps at which trials are ranked), finished ones included.

    It is not known yet which trials reach later rungs; the estimate assumes that all runs lose the same share of
    trials.
    """
    tasks: list[SeriesTask] = []
    before = 0
    for number, (step, trials) in enumerate(record.steps):
        done = number < len(record.rungs)
        own = [score.trial for score in record.rungs[number].scores] if done else record.left
        for group in record.groups:
            count: float = len(set(group.trials) & set(own))
            if number > len(record.rungs):
                count *= trials / max(1, len(own))
            if count:
                tasks += _pair(record, group, folder, step - before, count, done)
        before = step
    return tasks


def tasks_of_rounds(record: SweepRecord, folder: Path) -> list[SeriesTask]:
    """Return the tasks of all rounds of Optuna. Rounds that are not proposed yet are counted as one run each."""
    step, finished = record.steps[0][0], sum(len(scores) for scores in record.round_scores)
    tasks: list[SeriesTask] = []
    for group in record.groups:
        tasks += _pair(record, group, folder, step, len(group.trials), group.trials[0] < finished)
    later = record.rounds - len(record.round_scores) - 1
    for _ in range(later):
        count = (record.wanted - len(record.trials)) / later
        tasks += [SeriesTask("training", "", work=step * count), SeriesTask("scoring", "", work=count)]
    return tasks


def _pair(
    record: SweepRecord, group: SweepGroup, folder: Path, steps: int, count: float, done: bool
) -> list[SeriesTask]:
    """Return two tasks: training `count` trials of a run for `steps` steps, and scoring them."""
    run = f" of {group.run}" if len(record.groups) > 1 else ""
    name = f"{count:.0f} trial{'s' * (round(count) != 1)}{run}"
    path = folder / group.run
    return [
        SeriesTask("training", name, path, steps * count, group=group.run, done=done),
        SeriesTask("scoring", name, path, count, group=group.run, done=done),
    ]
