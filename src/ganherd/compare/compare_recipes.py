"""`ganherd compare`: recipes under equal budgets and at equal images seen, scored alike; a killed comparison can be resumed.

Every recipe first trains with the budget. The least number of images that one of them has seen then is common to all: those
that have seen more train once more, with the same seeds, up to that number. A run is a function of its seed and its step, so
this is exactly where the longer run passed by, measured without guessing. Of a recipe with two phases each is shortened by the
same part.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ganherd.compare.comparison_record import (
    Comparison,
    ComparisonRow,
    ComparisonScoring,
    ComparisonTraining,
    RecipeJson,
)
from ganherd.compare.differences import differences
from ganherd.compare.entry import Entry, TrainedSteps, look_at, names_of
from ganherd.metrics.metric_registry import METRICS, known_metrics
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs.folder import RunFolder
from ganherd.runs.score_entry import Scores
from ganherd.util import files
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.files import atomic_write

RESULT = "compare.json"
BUDGET, IMAGES = "budget", "images"  # the two bases, and the folders of their runs
Say = Callable[[str], None]


@dataclass(frozen=True)
class ComparisonRequest:
    """What is compared, and by which scores."""

    recipes: dict[str, Recipe]  # with budget and seeds, by a short name
    budget: str
    seeds: int
    metrics: list[str] | None = None  # None: what `ganherd score` measures
    samples: int | None = None
    network: str | None = None

    @classmethod
    def of(
        cls,
        sources: Sequence[str],
        budget: str,
        seeds: int = 3,
        overrides: Sequence[str] = (),
        metrics: Sequence[str] | None = None,
        samples: int | None = None,
        network: str | None = None,
        trust_code: bool = False,
    ) -> ComparisonRequest:
        """Read the recipes; every mistake is reported here, before anything trains."""
        if len(sources) < 2:
            raise UserError("a comparison needs at least two recipes: name them one after the other.")
        # no run is scored by itself: all are measured alike in the end
        own = [*overrides, f"train.budget={budget}", f"herd.seeds={seeds}", "run.scores=false"]
        loaded = [recipe_file.load(source, own) for source in sources]
        for source, recipe in zip(sources, loaded, strict=True):
            trust.check_recipe(recipe, source, trust_code)
        names = None if metrics is None else known_metrics(metrics, "score")
        if network is not None:
            trust.check_network(network, trust_code)
        return cls(dict(zip(names_of(list(sources)), loaded, strict=True)), budget, seeds, names, samples, network)

    @property
    def is_time(self) -> bool:
        return parse_budget(self.budget)[0] == "seconds"

    def training(self) -> ComparisonTraining:
        """What the runs of a comparison are made of; those of another one are not mixed with them."""
        recipes = {name: recipe.model_dump(exclude={"run": {"scores"}}) for name, recipe in self.recipes.items()}
        result: ComparisonTraining = _plain({"recipes": recipes, "budget": self.budget, "seeds": self.seeds})
        return result

    def scoring(self) -> ComparisonScoring:
        return {"metrics": self.metrics, "samples": self.samples, "network": self.network}


def compare(request: ComparisonRequest, folder: Path, quiet: bool = False, say: Say | None = None) -> Comparison:
    """Train and score what is still missing in the folder; return the content of compare.json."""
    from ganherd.training.variants import phases

    say = say or (lambda text: None)
    state = _State(folder, request)
    entries = _look(request)
    state.begin()
    with RunFolder(folder).lock():
        first = next(iter(entries.values()))
        state.write(data={"name": first.data, "rows": first.rows, "sha256": first.digest})
        for name, entry in entries.items():
            _train(state, BUDGET, name, entry.recipe, request.is_time, quiet, say)
        trained = {name: _trained_steps(state.run(BUDGET, name), entry) for name, entry in entries.items()}
        least = min(entry.seen(trained[name]) for name, entry in entries.items())
        for name, entry in entries.items():
            wanted = entry.shorter(least, trained[name])
            if wanted == trained[name]:
                continue
            recipe = entry.recipe
            if entry.first is not None:
                where = state.run(IMAGES, name).first.path
                recipe = phases.after(recipe, where)
                before = recipe_file.load(entry.first.recipe, [f"train.budget={wanted.first}steps"])
                _train(state, IMAGES, where.name, before, False, quiet, say)
            shorter = recipe_file.load(recipe, [f"train.budget={wanted.steps}steps"])
            _train(state, IMAGES, name, shorter, False, quiet, say)
        _score(state, entries, say)
    return state.facts


def default_folder(names: Sequence[str]) -> Path:
    """The same for the same recipes, so that the same command finds what it began."""
    return Path("comparisons") / "-vs-".join(names)


class _State:
    """compare.json, written again whenever something more is known."""

    def __init__(self, folder: Path, request: ComparisonRequest) -> None:
        self.folder, self.path, self.asked = folder, folder / RESULT, request
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
        self.facts |= _plain(changes)
        atomic_write(self.path, json.dumps(self.facts, indent=1, allow_nan=False) + "\n")

    def _refuse_another(self) -> None:
        old = cast(dict[str, Any], dict(self.facts.get("training", {})))
        new = self.asked.training()
        old["recipes"] = {name: recipe_file.up_to_date(recipe) for name, recipe in old.get("recipes", {}).items()}
        if old == new:
            return
        settings = {"budget": new["budget"], "seeds": new["seeds"]}
        changed = [f"{key}: {old.get(key)} -> {value}" for key, value in settings.items() if old.get(key) != value]
        before: dict[str, RecipeJson] = old["recipes"]
        if list(before) != list(new["recipes"]):
            changed.append(f"recipes: {', '.join(before)} -> {', '.join(new['recipes'])}")
        else:
            changed = changed or [
                f"{name}: {line}"
                for name, recipe in new["recipes"].items()
                for line in recipe_file.differing(before[name], recipe)
            ]
        raise UserError(
            f"{self.folder} holds a comparison with other settings ({'; '.join(changed)}): choose another -o, or remove it."
        )


def _look(request: ComparisonRequest) -> dict[str, Entry]:
    """Every recipe builds and reads the same data; otherwise nothing begins."""
    entries = {name: look_at(recipe) for name, recipe in request.recipes.items()}
    first, *others = entries
    for name in others:
        if entries[name].digest != entries[first].digest:
            raise UserError(
                f"{first} and {name} do not train on the same data ({entries[first].data} and {entries[name].data}, or other "
                "sizes or splits of it): give all the same with --set data.source=…, data.size, data.holdout or data.points."
            )
    return entries


def _train(state: _State, basis: str, name: str, recipe: Recipe, whole: bool, quiet: bool, say: Say) -> None:
    """The run of one recipe: as it is where it is finished, from its last checkpoint on where it is not."""
    from ganherd import api
    from ganherd.training import session

    run = state.run(basis, name)
    _refuse_strangers(run, recipe)
    if run.info_path.is_file() and run.info.state == "finished":
        return
    began = time.monotonic()
    try:
        if run.info_path.is_file():
            say(f"{name}: resumes in {run.path}")
            session.resume(run.path, quiet=quiet, trust_code=True, finishers=api.FINISHERS)
        else:
            say(f"{name}: {recipe.train.budget}, {recipe.herd.seeds} seeds, in {run.path}")
            shutil.rmtree(run.path, ignore_errors=True)  # a kill before the first word of the run
            session.train(recipe, run.path, name, quiet, counts_all=whole, finishers=api.FINISHERS)
    except Interrupted:
        raise Interrupted(f"stopped while {name} trained, and nothing is lost: the same command resumes it.") from None
    finally:
        wall = state.facts["wall"][basis]
        wall[name] = round(wall.get(name, 0.0) + time.monotonic() - began, 3)
        state.write()


def _refuse_strangers(run: RunFolder, recipe: Recipe) -> None:
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


def _score(state: _State, entries: dict[str, Entry], say: Say) -> None:
    """Scores of both bases, and what differs; a run that serves both, and one that was scored before, is scored once."""
    from ganherd.data.dataset import load

    request = state.asked
    data = load(next(iter(entries.values())).recipe.data)
    names = request.metrics or known_metrics(None, "score", data)
    scoring = _plain(request.scoring() | {"metrics": names})
    if state.facts.get("scoring") != scoring:
        state.write(scoring=scoring, scores={})
    bases = {}
    for basis in (BUDGET, IMAGES):
        runs = {name: state.run(basis, name) for name in entries}
        runs = {name: run if run.info_path.is_file() else state.run(BUDGET, name) for name, run in runs.items()}
        scores = _scores(state, names, runs, basis, say)
        rows = {name: {**_row(state, entries[name], run), "scores": scores[name]} for name, run in runs.items()}
        bases[basis] = {"entries": rows, "differences": differences(scores)}
    state.write(bases=bases, state="finished")


def _scores(state: _State, names: list[str], runs: dict[str, RunFolder], basis: str, say: Say) -> dict[str, Scores]:
    """Return the scores of each run, and those of contests between the runs if such metrics are requested."""
    from ganherd.scoring import score_run, score_runs

    request, cached = state.asked, state.facts["scores"]
    alone = [name for name in names if not METRICS[name].contest]
    contests = [name for name in names if METRICS[name].contest]
    scores: dict[str, Scores] = {}
    for name, run in runs.items():
        key = _key(run)
        if alone and key not in cached:
            say(f"scores of {name} ({basis})")
            settings: Any = {"trust_code": True, "progress": say, "network": request.network}
            cached[key] = _plain(score_run(run.path, alone, request.samples, **settings))
            state.write()
        scores[name] = dict(cached.get(key, {}))
    if contests:
        held = score_runs([run.path for run in runs.values()], contests, request.samples, trust_code=True, progress=say)
        for name, run in runs.items():
            scores[name] |= held.runs[str(run.path)]
    return scores


def _key(run: RunFolder) -> str:
    return f"{run.path.parent.name}/{run.path.name}"


def _trained_steps(run: RunFolder, entry: Entry) -> TrainedSteps:
    before = run.first.info.step or 0 if entry.first else 0
    return TrainedSteps(run.info.step or 0, before)


def _row(state: _State, entry: Entry, run: RunFolder) -> ComparisonRow:
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


def _plain(value: Any) -> Any:
    """Return the value as JSON reads it back."""
    from ganherd.runs.records import plain

    return json.loads(json.dumps(plain(value), allow_nan=False))


def _read(path: Path) -> Comparison:
    try:
        facts = files.read_json(path)
        wall = facts["wall"]
        if not all(isinstance(wall[basis], dict) for basis in (BUDGET, IMAGES)):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not what `ganherd compare` writes; choose another -o.") from error
    return cast(Comparison, facts)
