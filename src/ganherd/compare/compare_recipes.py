"""`ganherd compare`: recipes under equal budgets and at equal images seen, scored alike; a killed comparison can be resumed.

Every recipe first trains with the budget. The fewest images that any of them has seen by then are the common number: recipes
that have seen more train once more, with the same seeds, up to that number. Because a run is a function of its seed and its
step, the shorter run has exactly the state that the longer one had there. If a recipe has two phases, both are shortened by
the same factor.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ganherd.compare.answer import answer
from ganherd.compare.comparison_record import Comparison, ComparisonRow, ComparisonTraining
from ganherd.compare.contenders import Contender
from ganherd.compare.differences import Differences, primary_of
from ganherd.compare.entry import BUDGET, IMAGES, Entry, TrainedSteps, look_at, shorter_trainings
from ganherd.metrics.metric_registry import METRICS, known_metrics
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.recipe.sources.option_override import OptionOverride
from ganherd.runs.folder import RunFolder
from ganherd.runs.score_entry import Scores
from ganherd.util import files
from ganherd.util.errors import Interrupted, UserError, counted
from ganherd.util.files import JsonObject, atomic_write

if TYPE_CHECKING:
    from ganherd.training.recording.series_progress import SeriesProgress

RESULT = "compare.json"


@dataclass(frozen=True)
class ComparisonRequest:
    """The recipes to compare, and the scores to compare them by."""

    recipes: dict[str, Recipe]  # with budget and seeds, by a short name
    budget: str
    seeds: int
    metrics: list[str] | None = None  # None: what `ganherd score` measures
    samples: int | None = None
    network: str | None = None

    @classmethod
    def of(
        cls,
        compared: Sequence[Contender],
        budget: str | None = None,
        seeds: int = 3,
        overrides: Sequence[str] = (),
        metrics: Sequence[str] | None = None,
        samples: int | None = None,
        network: str | None = None,
        trust_code: bool = False,
    ) -> ComparisonRequest:
        """Read the recipes; every mistake is reported here, before anything trains.

        Args:
            compared: The recipes with their own overrides.
            budget: The budget of each recipe. None: their own, if all have the same.
            overrides: Overrides of all recipes.
        """
        budget = budget or _common_budget(compared, overrides)
        # no run is scored by itself: all are measured alike in the end
        common = [
            OptionOverride.of("train.budget", budget, f"--budget {budget}"),
            OptionOverride.of("herd.seeds", seeds, f"--seeds {seeds}"),
            "run.scores=false",
        ]
        recipes = {}
        for one in compared:
            recipes[one.name] = recipe_file.load(one.source, [*overrides, *one.overrides, *common])
            trust.check_recipe(recipes[one.name], one.source, trust_code)
        names = None if metrics is None else known_metrics(metrics, "score")
        if network is not None:
            trust.check_network(network, trust_code)
        return cls(recipes, budget, seeds, names, samples, network)

    @property
    def is_time(self) -> bool:
        return parse_budget(self.budget)[0] == "seconds"

    def training(self) -> ComparisonTraining:
        """Return what the runs are trained with; a folder holds runs of one such setting only."""
        recipes = {name: recipe.model_dump(exclude={"run": {"scores"}}) for name, recipe in self.recipes.items()}
        result: ComparisonTraining = plain_json({"recipes": recipes, "budget": self.budget, "seeds": self.seeds})
        return result


def _common_budget(compared: Sequence[Contender], overrides: Sequence[str]) -> str:
    """Return the budget that all recipes have."""
    loaded = {one.name: recipe_file.load(one.source, [*overrides, *one.overrides]) for one in compared}
    budgets = {name: recipe.train.budget for name, recipe in loaded.items()}
    if len(set(budgets.values())) > 1:
        each = ", ".join(f"{name} {budget}" for name, budget in budgets.items())
        raise UserError(
            f"The recipes have different budgets ({each}). Set one for all, e.g. --budget 10m or 5000steps."
        )
    return next(iter(budgets.values()))


def compare(request: ComparisonRequest, folder: Path, quiet: bool = False) -> Comparison:
    """Train and score what is still missing in the folder; return the content of compare.json."""
    from ganherd.compare.comparison_tasks import planned_tasks
    from ganherd.training.recording.series_progress import SeriesProgress
    from ganherd.training.variants import phases

    series = SeriesProgress(quiet)
    state = _State(folder, request, series)
    entries = _look(request)
    state.begin()
    with RunFolder(folder).lock(), series:
        first = next(iter(entries.values()))
        state.write(data={"name": first.data, "rows": first.rows, "sha256": first.digest})
        if state.facts["state"] != "finished":
            state.log(f"{len(entries)} recipes, {request.budget} each, {counted(request.seeds, 'seeds')}, in {folder}")
        series.plan(planned_tasks(entries, state.run))
        for name, entry in entries.items():
            _train(state, BUDGET, name, entry.recipe, whole_time=request.is_time)
        trained = {name: _trained_steps(state.run(BUDGET, name), entry) for name, entry in entries.items()}
        series.plan(planned_tasks(entries, state.run, trained))
        for name, wanted in shorter_trainings(entries, trained).items():
            entry, recipe = entries[name], entries[name].recipe
            if entry.first is not None:
                where = state.run(IMAGES, name).first.path
                recipe = phases.after(recipe, where)
                before = recipe_file.load(entry.first.recipe, [f"train.budget={wanted.first}steps"])
                _train(state, IMAGES, where.name, before)
            shorter = recipe_file.load(recipe, [f"train.budget={wanted.steps}steps"])
            _train(state, IMAGES, name, shorter)
        _score(state, entries)
    return state.facts


class _State:
    """The folder of a comparison and the content of its compare.json, which is written after every change."""

    def __init__(self, folder: Path, request: ComparisonRequest, series: SeriesProgress) -> None:
        self.folder, self.path, self.request = folder, folder / RESULT, request
        self.series, self.log = series, series.say
        self.facts: Comparison = {
            "state": "running",
            "training": request.training(),
            "wall": {BUDGET: {}, IMAGES: {}},
            "scores": {},
        }
        if self.path.is_file():
            self.facts = _read(self.path)
            self._refuse_another()
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already and holds no comparison; choose another -o.")

    def begin(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.write()
        except OSError as error:
            raise UserError(f"the comparison cannot be written to {self.folder}: {error.strerror}.") from error

    def run(self, basis: str, name: str) -> RunFolder:
        return RunFolder(self.folder / basis / name)

    def write(self, **changes: Any) -> None:
        self.facts |= plain_json(changes)
        atomic_write(self.path, json.dumps(self.facts, indent=1, allow_nan=False) + "\n")

    def _refuse_another(self) -> None:
        """Raise a `UserError` with the differences if the folder holds a comparison with other settings."""
        old, new = self.facts["training"], self.request.training()
        recipes = {name: recipe_file.up_to_date(recipe) for name, recipe in old["recipes"].items()}
        if {**old, "recipes": recipes} == new:
            return
        brief = [{**training, "recipes": ", ".join(training["recipes"])} for training in (old, new)]
        changed = recipe_file.differing(*brief) or recipe_file.differing(recipes, new["recipes"])
        raise UserError(
            f"{self.folder} holds a comparison with other settings ({'; '.join(changed)}): choose another -o, or remove it."
        )


def _look(request: ComparisonRequest) -> dict[str, Entry]:
    """Build every recipe once, and refuse recipes that train on different data."""
    entries = {name: look_at(recipe) for name, recipe in request.recipes.items()}
    first, *others = entries
    for name in others:
        if entries[name].digest != entries[first].digest:
            raise UserError(
                f"{first} and {name} do not train on the same data ({entries[first].data} and {entries[name].data}, or other "
                "sizes or splits of it): give all the same with --set data.source=…, data.size, data.holdout or data.points."
            )
    return entries


def _train(state: _State, basis: str, name: str, recipe: Recipe, whole_time: bool = False) -> None:
    """Train one recipe, or resume its run; a finished run stays as it is.

    Args:
        whole_time: Whether all of a budget of time is for the training, with nothing reserved for the end of the run.
    """
    from ganherd import api
    from ganherd.training import session

    run = state.run(basis, name)
    refuse_strangers(run, recipe)
    if run.info_path.is_file() and run.info.state == "finished":
        return
    began = time.monotonic()
    try:
        if run.info_path.is_file():
            state.log(f"{name}: resumes in {run.path}")
            session.resume(run.path, trust_code=True, finishers=api.FINISHERS, series=state.series)
        else:
            shutil.rmtree(run.path, ignore_errors=True)  # left by a run that was killed before it wrote run.json
            session.train(recipe, run.path, name, counts_all=whole_time, finishers=api.FINISHERS, series=state.series)
    except Interrupted:
        raise Interrupted(f"stopped while {name} trained, and nothing is lost: the same command resumes it.") from None
    finally:
        wall = state.facts["wall"][basis]
        wall[name] = round(wall.get(name, 0.0) + time.monotonic() - began, 3)
        state.write()


def refuse_strangers(run: RunFolder, recipe: Recipe) -> None:
    """Refuse a run that was not trained with this recipe: its nets will be built, and the recipe is the user's own."""
    from ganherd.mixture import mixture_files
    from ganherd.training.setup.identity import refuse_changes

    if not run.info_path.is_file():
        return
    refuse_changes(RunFolder.open(run.path).recipe, recipe, run)
    if run.mixture.is_dir() and not trust.covers(recipe, mixture_files.read_facts(run.mixture)):
        raise UserError(
            f"the mixture of {run.path} names nets that its recipe does not: remove the run, or choose another -o."
        )


def _score(state: _State, entries: dict[str, Entry]) -> None:
    """Score all runs, each once, and write scores and differences at equal budget and at equal images seen."""
    from ganherd.data.dataset import load

    request = state.request
    data = load(next(iter(entries.values())).recipe.data)
    own = [metric for entry in entries.values() for metric in entry.recipe.run.metrics]
    names = request.metrics or known_metrics(None, "score", data, own)
    scoring = {"metrics": names, "samples": request.samples, "network": request.network}
    if state.facts.get("scoring") != scoring:
        state.write(scoring=scoring, scores={})
    bases = {}
    for basis in (BUDGET, IMAGES):
        runs = {name: state.run(basis, name) for name in entries}
        runs = {name: run if run.info_path.is_file() else state.run(BUDGET, name) for name, run in runs.items()}
        scores = _scores(state, names, runs)
        rows = {name: {**_row(state, entries[name], run), "scores": scores[name]} for name, run in runs.items()}
        bases[basis] = {"entries": rows, **basis_differences(scores, names)}
    state.write(bases=bases, primary=primary_of(names), state="finished")
    state.write(answer=answer(state.facts))


def basis_differences(scores: Mapping[str, Scores], names: Sequence[str], over_samples: bool = False) -> JsonObject:
    """Return the differences of a basis: to the first contender, the pairs that are decided, and the best of all by metric."""
    differences = Differences(scores, primary_of(names), over_samples)
    return {"differences": differences.to_first(), "decided": differences.decided(), "best": differences.best()}


def _scores(state: _State, names: list[str], runs: dict[str, RunFolder]) -> dict[str, Scores]:
    """Return the scores of each run, and those of contests between the runs if such metrics are requested."""
    from ganherd.scoring import score_run, score_runs

    request, cached = state.request, state.facts["scores"]
    settings: Any = {"trust_code": True, "progress": state.log}
    alone = [name for name in names if not METRICS[name].contest]
    contests = [name for name in names if METRICS[name].contest]
    scores: dict[str, Scores] = {}
    for name, run in runs.items():
        key = _key(run)
        if alone and key not in cached:
            with state.series.scoring(run.path):
                own = score_run(run.path, alone, request.samples, network=request.network, **settings)
            cached[key] = plain_json(own)
            state.write()
        state.series.skip("scoring", run.path)
        scores[name] = dict(cached.get(key, {}))
    if contests:
        held = score_runs([run.path for run in runs.values()], contests, request.samples, **settings)
        for name, run in runs.items():
            scores[name] |= held.runs[str(run.path)]
    return scores


def _key(run: RunFolder) -> str:
    """Return the path of a run within the comparison, e.g. budget/digits-wcgan."""
    return f"{run.path.parent.name}/{run.path.name}"


def _trained_steps(run: RunFolder, entry: Entry) -> TrainedSteps:
    """Return the steps that a finished run has trained, in both phases."""
    before = run.first.info.step or 0 if entry.first else 0
    return TrainedSteps(run.info.step or 0, before)


def _row(state: _State, entry: Entry, run: RunFolder) -> ComparisonRow:
    """Return what a run took: members, parameters, steps, images and seconds, without its scores."""
    info, basis, name = run.info, run.path.parent.name, run.path.name
    before = run.first.info.seconds or 0.0 if entry.first else 0.0
    wall, trained = state.facts["wall"][basis], _trained_steps(run, entry)
    return {
        "run": _key(run),
        "members": entry.members,
        "parameters": entry.parameters,
        "generator_parameters": list(entry.generators),
        "discriminator_parameters": entry.discriminator,
        "steps": trained.steps,
        "first": trained.first,
        "images": entry.seen(trained),
        "device": info.engine.device if info.engine else "unknown",
        "device_seconds": before + (info.seconds or 0.0),
        "wall_seconds": wall.get(name) and wall[name] + wall.get(run.first.path.name, 0.0),
    }


def plain_json(value: Any) -> Any:
    """Return the value as JSON reads it back."""
    from ganherd.runs.records import plain

    return json.loads(json.dumps(plain(value), allow_nan=False))


def _read(path: Path) -> Comparison:
    """Return the content of a compare.json.

    Raises:
        UserError: The file is not one that `ganherd compare` writes.
    """
    try:
        facts = files.read_json(path)
        sections = [facts["wall"][BUDGET], facts["wall"][IMAGES], facts["scores"], facts["training"]["recipes"]]
        if not all(isinstance(section, dict) for section in sections):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not what `ganherd compare` writes; choose another -o.") from error
    return cast(Comparison, facts)
