"""Collect what a page shows about a run, as plain JSON: its state, members, layout, settings, figures and verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import saved_steps
from ganherd.runs.models import MetricsRecord, RunInfo
from ganherd.runs.records import plain
from ganherd.runs.run_list import RunSummary, summarise
from ganherd.runs.run_status import PartsStatus, current_state, current_verdict, describe, seconds_left
from ganherd.runs.series import sprite_files
from ganherd.training.health.look_labels import LOOK_LABELS
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.text import without_controls
from ganherd.web.shown_run import ShownRun, mtime_ms

_CHANGING = ("running", "restarting", "unknown", "")  # states that can change although no file changes
_MOST_SCORES = 16 << 20  # largest scores.json that is read, in bytes
# names and explanations of recorded figures
_LOSSES = {
    "loss_g": ("generator loss", "what the generator minimises; only meaningful next to its own past"),
    "loss_d": ("discriminator loss", "what the discriminator minimises"),
    "real": ("output on real", "mean output of the discriminator for real data"),
    "fake": ("output on generated", "mean output of the discriminator for samples"),
    "lr_g": ("learning rate G", "learning rate of the generator"),
    "lr_d": ("learning rate D", "learning rate of the discriminator"),
    "cost_train": ("cost on training data", "loss of the discriminator on training data"),
    "cost_held_out": ("cost on held-out data", "loss of the discriminator on held-out data"),
    "augment": ("augmentation", "probability that an image is augmented; train.augment_target steers it"),
    "rate": ("rate", "member-steps per second"),
    "epoch": ("epoch", "passes through the data"),
}
_PERFECT = {"spread": 1.0, "tells": 0.5, "differs": 0.5, "copies": 0.0}  # values that perfect samples would have
_MOST_NESTED = 40  # deeper levels of JSON are dropped: ganherd does not write them


def summary(run: ShownRun) -> JsonObject:
    """Return what the list of runs shows about a run; the reason is in `problem` if it cannot be read.

    The result is cached in `run.summary` until files of the run change.
    """
    version = run.version()
    if run.summary is not None and run.summary[0] == version and run.summary[1]["state"] not in _CHANGING:
        return {**run.summary[1], "age": time.time() - mtime_ms(run.folder.info_path) / 1000}
    facts = _listed(run).as_json()
    for not_shown in ("path", "bytes", "checkpoint_bytes"):
        facts.pop(not_shown)
    answer = {"id": run.id, **facts}
    if not facts["problem"]:
        with suppress(UserError, OSError, ValueError, KeyError, TypeError, RecursionError):
            answer |= progress(run)
        sheets = sprite_files.saved_sheets(run.folder.sprites)
        answer["sprites"] = bool(sheets) and sprite_files.read_index(run.folder.sprites) is not None
        answer["picture"] = run.folder.newest_picture is not None
    answer = clean(answer)
    run.summary = version, answer
    return answer


def _listed(run: ShownRun) -> RunSummary:
    """Return the entry of a run in the list of runs; without sizes, because each poll would search the whole folder."""
    now = time.time()
    try:
        if not run.path.is_symlink():  # `summarise` reports a link as the problem
            run.check()
    except UserError as error:
        age = max(0.0, now - mtime_ms(run.folder.info_path) / 1000)
        return RunSummary(run.path.name, "", age, problem=str(error))
    return summarise(run.path, run.path.name, now, sizes=False)


def safe_summary(run: ShownRun) -> JsonObject:
    """Return the summary of a run; on any error, one with a `problem`, so that the other runs are still shown."""
    try:
        return summary(run)
    except Exception as error:
        problem = f"it cannot be shown ({type(error).__name__})"
        return {
            "id": run.id,
            "name": without_controls(run.path.name),
            "age": time.time() - mtime_ms(run.folder.info_path) / 1000,
            "state": "",
            "problem": problem,
        }


def progress(run: ShownRun) -> JsonObject:
    """Return what changes while a run trains: its state, step, rate (member-steps per second) and seconds left."""
    info, last = run.folder.info, last_records(run, 10)
    state = current_state(run.folder, info.state or "unknown", last)
    step = max([last[-1].step if last else 0, info.step or 0, *saved_steps(run.folder.checkpoints)])
    left = seconds_left(last, step, info.budget) if last and info.budget and state == "running" else None
    return {
        "state": state,
        "step": step,
        "steps": max(step, info.budget.steps) if info.budget and state != "finished" else step,
        "rate": last[-1].rate if last else None,
        "seconds": last[-1].seconds if last else None,
        "seconds_left": left,
    }


def last_records(run: ShownRun, count: int) -> list[MetricsRecord]:
    """Return the last `count` records of a run in their order; invalid lines are skipped."""
    records: list[MetricsRecord] = []
    for tried, line in enumerate(run.metrics_file.lines_before(run.metrics_file.size())):
        if len(records) == count or tried == 2 * count:
            break
        with suppress(ValueError):
            if (parsed := line.head()) is not None:
                record = MetricsRecord(parsed.step, parsed.content)
                if record.seconds >= 0 and record.rate >= 0:  # also raises if they are no numbers
                    records.append(record)
    return records[::-1]


def details(run: ShownRun) -> JsonObject:
    """Return all facts about a run whose size does not grow with the number of its steps."""
    folder, info = run.folder, run.folder.info
    index = sprite_files.read_index(folder.sprites)
    try:
        recipe: Recipe | None = folder.recipe
        problem = ""
    except UserError as error:
        recipe, problem = None, str(error)
    now = progress(run)
    verdict = current_verdict(folder, info.step) if now["state"] == "finished" else None
    answer = {
        "id": run.id,
        "name": run.path.name,
        "title": folder.title,
        "about": recipe.about if recipe else "",
        "problem": problem,
        **now,
        "members": number_of_members(run),
        "replicas": recipe.herd.replicas if recipe else 1,
        "names": index.names if index else [],
        "labels": index.labels if index else [],
        "layout": layout(recipe),
        "sprites": sprites(run),
        "figures": figures(run),
        "verdict": None if verdict is None else verdict.as_json(),
        "settings": _flat(recipe.model_dump()) if recipe else {},
        "has_mixture": (folder.mixture / "mixture.json").is_file(),
        "resume": folder.again,
        **_origin(info),
    }
    return clean(answer)


def _origin(info: RunInfo) -> JsonObject:
    """Return how and where a run was started: its recipe, changes, seed, command, host, versions and engine."""
    names = ("recipe", "changes", "seed", "command", "host", "git", "versions", "started")
    facts = {name: getattr(info, name) for name in names}
    return {**facts, "engine": info.engine.as_json() if info.engine else None}


def number_of_members(run: ShownRun) -> int:
    """Return the number of members in all replicas."""
    members = run.folder.info.members
    if members is None:  # run.json was written before the first step, or by an older version
        index = sprite_files.read_index(run.folder.sprites)
        members = index.members if index else 1
    return members


def layout(recipe: Recipe | None) -> JsonObject:
    """Return how members are arranged: "flat" (a row), "torus" or "gap" (pairs that swap), and the number per class."""
    if recipe is None:
        return {"kind": "flat"}
    if recipe.torus is not None:
        rows, columns = recipe.torus
        return {
            "kind": "torus",
            "rows": rows,
            "columns": columns,
            "population": recipe.strategy.settings.group_size,
        }
    kind = {"kind": "gap" if recipe.strategy.name == "gap" else "flat"}
    if recipe.herd.per_class == 1:
        return kind
    torus = recipe.strategy.settings.torus
    return {**kind, "per_class": recipe.herd.per_class, "torus_of_class": list(torus) if torus else None}


def sprites(run: ShownRun) -> JsonObject | None:
    """Return the layout of the sprite sheets (small samples of all members) and the saved steps; None if none."""
    index = sprite_files.read_index(run.folder.sprites)
    if index is None:
        return None
    facts = {key: value for key, value in index.as_json().items() if key not in ("names", "labels")}
    return {**facts, "members": index.members, "steps": list(sprite_files.saved_sheets(run.folder.sprites))}


def figures(run: ShownRun) -> list[JsonObject]:
    """Return the figures (e.g. losses) that a run records, each with label, explanation and ideal value (or None)."""
    known = []
    for name in run.metrics.figures():
        look = LOOK_LABELS.get(name)
        label, about = (look.label, look.about) if look else _LOSSES.get(name, (name.replace("_", " "), ""))
        share = look.is_share if look else False
        known.append({"name": name, "label": label, "about": about, "share": share, "best": _PERFECT.get(name)})
    order = ("spread", "differs", "loss_g", "loss_d", "tells", "copies", "returns")
    return sorted(known, key=lambda one: order.index(one["name"]) if one["name"] in order else len(order))


def ranks(run: ShownRun) -> JsonObject:
    """Return the hosts, heartbeats and rates of the processes (ranks) of a run, and how its time is spent."""
    status = describe(run.path)
    if isinstance(status, PartsStatus):
        return clean(status.as_json())
    facts = status.as_json()
    wanted = ("state", "ranks", "engine", "host", "heartbeat", "rate", "members", "profile", "staleness")
    return clean({name: facts[name] for name in wanted})


def scores(run: ShownRun) -> JsonObject:
    """Return the content of scores.json: the scores and the verdict; empty if there is no such file."""
    try:
        content = json.loads(run.read(run.folder.scores_path, _MOST_SCORES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"scores.json of {run.path.name} cannot be read ({error}).") from error
    return clean(content) if isinstance(content, dict) else {}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Return nested settings as a flat dictionary with dotted keys.

    >>> _flat({"train": {"batch": 8}, "code": []})
    {'train.batch': 8, 'code': []}
    """
    values: JsonObject = {}
    for key, value in settings.items():
        values |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return values


def clean(content: JsonObject) -> JsonObject:
    """Return content for strict JSON: texts without control characters, and "nan" or "inf" instead of such numbers."""
    return {without_controls(key): _without_controls(plain(value)) for key, value in content.items()}


def _without_controls(value: Any, depth: int = 0) -> Any:
    if depth > _MOST_NESTED:
        return None
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, dict):
        return {without_controls(str(key)): _without_controls(item, depth + 1) for key, item in value.items()}
    return [_without_controls(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value
