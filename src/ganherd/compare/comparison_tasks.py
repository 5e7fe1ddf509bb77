"""List the trainings and scorings of a comparison with their amount of work, so that the time left can be estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ganherd.compare.entry import BUDGET, IMAGES, Entry, TrainedSteps, shorter_trainings
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs.folder import RunFolder
from ganherd.training.recording.series_progress import SeriesTask
from ganherd.training.variants import phases

RunOf = Callable[[str, str], RunFolder]  # of a basis and a name


def planned_tasks(
    entries: Mapping[str, Entry], run_of: RunOf, trained: Mapping[str, TrainedSteps] | None = None
) -> list[SeriesTask]:
    """Return all trainings, then all scorings.

    Args:
        run_of: Returns the run of a basis and a recipe.
        trained: The steps of the recipes that have trained with the budget; None: these trainings are still to come. With a
            time budget it is not known then which recipes train once more. The plan assumes all but one, each for at most the
            budget.
    """
    trainings: list[SeriesTask] = []
    scorings: list[SeriesTask] = []
    known = trained or {name: steps for name, entry in entries.items() if (steps := entry.planned())}
    for name, entry in entries.items():
        run = run_of(BUDGET, name)
        trainings += _phases(name, name, entry, run, known.get(name), None if name in known else entry.recipe)
        scorings.append(SeriesTask("scoring", name, run.path))
    if len(known) < len(entries):
        seconds = parse_budget(next(iter(entries.values())).recipe.train.budget)[1]
        trainings += [SeriesTask("training", "", seconds=seconds, is_limit=True) for _ in range(len(entries) - 1)]
        return trainings + scorings + [SeriesTask("scoring", "") for _ in range(len(entries) - 1)]
    for name, steps in shorter_trainings(entries, known).items():
        entry, run = entries[name], run_of(IMAGES, name)
        label = f"{name} (equal {entry.rows})"
        again = _phases(label, name, entry, run, steps)
        if trained is not None:
            for task in again:
                task.seconds = _seconds(run_of(BUDGET, name), entry) * task.work / max(1, entry.seen(trained[name]))
        trainings += again
        scorings.append(SeriesTask("scoring", label, run.path))
    return trainings + scorings


def _phases(
    label: str, name: str, entry: Entry, run: RunFolder, steps: TrainedSteps | None, timed: Recipe | None = None
) -> list[SeriesTask]:
    """Return the training of a recipe, after that of its first phase if it has one.

    Args:
        steps: Its steps; None if they are not known.
        timed: The recipe, if its budget is a time.
    """
    tasks = []
    if entry.first is not None:
        work = entry.first.images(steps.first) if steps else 1
        tasks.append(
            SeriesTask("training", f"{label}, first phase", run.first.path, work, group=f"{name}, first phase")
        )
    work = entry.images(steps.steps) if steps else 1
    tasks.append(SeriesTask("training", label, run.path, work, group=name))
    if timed is not None:
        budgets = [timed] if entry.first is None else [entry.first.recipe, phases.after(timed)]
        for task, recipe in zip(tasks, budgets, strict=True):
            task.seconds = parse_budget(recipe.train.budget)[1]
    folders = [(run, entry)] if entry.first is None else [(run.first, entry.first), (run, entry)]
    for task, (folder, own) in zip(tasks, folders, strict=True):
        if folder.info_path.is_file():
            task.done = folder.info.state == "finished"
            task.work = max(1, task.work - own.images(folder.info.step or 0))  # a run that was stopped is resumed
    return tasks


def _seconds(run: RunFolder, entry: Entry) -> float:
    """Return the seconds that all phases of a run have trained."""
    return (run.info.seconds or 0.0) + (run.first.info.seconds or 0.0 if entry.first else 0.0)
