"""`ganherd compare RUN RUN`: compare finished runs as they are, scored alike. Nothing is trained, and no run is changed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.compare.answer import RUNS, answer
from ganherd.compare.compare_recipes import RESULT, basis_differences, plain_json
from ganherd.compare.comparison_record import Comparison, ComparisonRow
from ganherd.compare.differences import primary_of
from ganherd.compare.entry import names_of
from ganherd.metrics.metric_registry import METRICS, known_metrics
from ganherd.runs.folder import RunFolder, mixture_of
from ganherd.runs.score_entry import Scores
from ganherd.scoring.result import measured
from ganherd.util.errors import UserError
from ganherd.util.files import atomic_write, read_json
from ganherd.util.text import shortened

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset


def are_runs(names: Sequence[str]) -> bool:
    """Return whether all names are run folders. Raises a `UserError` if only some are."""
    folders = [name for name in names if RunFolder(Path(name)).info_path.is_file()]
    if folders and len(folders) < len(names):
        other = next(name for name in names if name not in folders)
        raise UserError(f"{folders[0]} is a run and {other} is not: compare either recipes or finished runs.")
    return bool(folders)


def compare_runs(
    paths: Sequence[str],
    folder: Path | None = None,
    metrics: Sequence[str] | None = None,
    samples: int | None = None,
    network: str | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> tuple[Comparison, Path]:
    """Score the runs alike and compare them; return the content of compare.json and its folder.

    Args:
        folder: The folder of the comparison. None: one below comparisons/, with the names of the runs.
    """
    from ganherd.data.dataset import load
    from ganherd.scoring import score_run
    from ganherd.training.recording.series_progress import SeriesProgress, SeriesTask

    if len(paths) < 2 or len({Path(path).resolve() for path in paths}) < len(paths):
        raise UserError("a comparison needs at least two different runs: name them one after the other.")
    runs = dict(zip(names_of([Path(path).resolve().name for path in paths]), map(RunFolder.open, paths), strict=True))
    for run in runs.values():
        mixture_of(run.path)
    folder = folder or Path("comparisons") / shortened("-vs-".join(runs))
    _check(folder)
    wanted = None if metrics is None else known_metrics(metrics, "score")
    if contests := [name for name in wanted or () if METRICS[name].contest]:
        raise UserError(f"{contests[0]} compares runs by itself: use `ganherd score --metrics {contests[0]} RUN RUN`.")
    data = {name: load(run.recipe.data) for name, run in runs.items()}
    first, *others = runs
    for name in others:
        if data[name].digest != data[first].digest:
            raise UserError(f"{first} and {name} were not trained on the same data: their scores cannot be compared.")
    names = wanted or known_metrics(None, "score", data[first])
    network = network or _common_network(list(runs.values()), data[first])
    rows: dict[str, ComparisonRow] = {}
    scores: dict[str, Scores] = {}
    with SeriesProgress(quiet) as series:
        series.plan(SeriesTask("scoring", name, run.path) for name, run in runs.items())
        for name, run in runs.items():
            with series.scoring(run.path):
                own = score_run(run.path, names, samples, 0, trust_code, series.say, network=network, store=False)
            scores[name], rows[name] = own, {**_row(run), "scores": own}
    facts = _comparison(runs, rows, scores, names)
    facts["scoring"] = {"metrics": names, "samples": samples, "network": network}
    facts["data"] = {"name": data[first].name, "rows": data[first].kind, "sha256": data[first].digest}
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / RESULT, json.dumps(facts, indent=1, allow_nan=False) + "\n")
    return facts, folder


def compare_recorded(runs: Mapping[str, RunFolder]) -> Comparison | str:
    """Compare finished runs by the scores that they have already; return the reason if these cannot be compared."""
    for name, run in runs.items():
        if not (run.mixture / "mixture.json").is_file():
            return f"{name} has not finished, so the runs cannot be compared yet."
    if len({run.info.data for run in runs.values()}) > 1:
        return "The runs were not trained on the same data, so their scores cannot be compared."
    each = {name: recorded_scores(run.scores_path) for name, run in runs.items()}
    if bare := [name for name, own in each.items() if not own]:
        path = shlex.quote(str(runs[bare[0]].path))
        return f"{bare[0]} has no scores, so nothing is decided: `ganherd score {path}` measures them."
    scores = {name: {metric: own[metric] for metric in _measured_alike(each)} for name, own in each.items()}
    names = list(next(iter(scores.values())))
    if not names:
        return "The runs have no scores that were measured alike: `ganherd compare` with these runs does that."
    return _comparison(runs, {name: {**_row(run), "scores": scores[name]} for name, run in runs.items()}, scores, names)


def recorded_scores(path: Path) -> Scores:
    """Return the scores of a scores.json; empty if there are none."""
    try:
        scores = read_json(path)["scores"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return (
        {name: score for name, score in scores.items() if isinstance(score, dict)} if isinstance(scores, dict) else {}
    )


def _measured_alike(scores: Mapping[str, Scores]) -> list[str]:
    """Return the metrics that all runs have, by the same network and with equally many samples."""
    known = [measured(own) for own in scores.values()]
    common = [metric for metric in METRICS if all(metric in own and own[metric].value is not None for own in known)]
    return [metric for metric in common if len({(own[metric].network, own[metric].samples) for own in known}) == 1]


def _comparison(
    runs: Mapping[str, RunFolder], rows: Mapping[str, ComparisonRow], scores: Mapping[str, Scores], names: Sequence[str]
) -> Comparison:
    """Return the content of compare.json, with the answer."""
    seeds = min(run.recipe.herd.seeds for run in runs.values())
    recipes = {name: run.recipe.model_dump() for name, run in runs.items()}
    facts: Comparison = plain_json(
        {
            "state": "finished",
            "training": {"recipes": recipes, "budget": "", "seeds": seeds},
            "wall": {},
            "scores": {},
            "primary": primary_of(names),
            "bases": {RUNS: {"entries": rows, **basis_differences(scores, names, over_samples=True)}},
        }
    )
    facts["answer"] = answer(facts)
    return facts


def _common_network(runs: Sequence[RunFolder], data: Dataset) -> str:
    """Return the network that scores all runs: that of their recorded scores if all have the same, otherwise the best one."""
    from ganherd.features import networks
    from ganherd.scoring.one_run import recorded_network

    recorded = {recorded_network(run.scores_path, data) for run in runs}
    return (recorded.pop() if len(recorded) == 1 else None) or networks.choose(data)


def _check(folder: Path) -> None:
    """Refuse a folder that holds anything but a comparison of finished runs."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        if RUNS in read_json(folder / RESULT)["bases"]:
            return
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"{folder} exists already and holds no comparison of runs; choose another -o.")


def _row(run: RunFolder) -> ComparisonRow:
    """Return what is known of a finished run; numbers that only a comparison of recipes counts are None."""
    from ganherd.mixture import mixture_files  # here, because it imports torch

    info = run.info
    return {
        "run": str(run.path.resolve()),
        "members": len(mixture_files.read_facts(mixture_of(run.path)).label_of),
        "parameters": None,
        "generator_parameters": [],
        "discriminator_parameters": None,
        "steps": info.step or 0,
        "first": 0,
        "images": None,
        "device": info.engine.device if info.engine else "unknown",
        "device_seconds": info.seconds or 0.0,
        "wall_seconds": None,
    }
