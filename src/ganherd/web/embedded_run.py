"""Describe a run as JSON of limited size, for a page without a server: facts, figures over steps, events and sprites.

A figure is a number that a run records at each step, such as a loss. A sprite sheet is one picture with small samples
of all members. If there are too many sheets or records, every second, fourth, … is embedded. With very many members,
only the band of each figure over all members is embedded, and events with values of every member are left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from ganherd.metrics.metric_registry import title_of
from ganherd.runs.models import EventRecord
from ganherd.runs.series import event_pages, sprite_files
from ganherd.runs.series.record_file import plain_number
from ganherd.util.files import JsonObject
from ganherd.web import run_facts
from ganherd.web.shown_run import ShownRun

MOST_BYTES = 4 << 20  # bytes of JSON about one run: half for sheets, the rest for figures and events
_MOST_SHEETS = 60
_POINTS = 300  # largest number of records of a curve or band
_BYTES_PER_VALUE = 8  # approximate size of a number as text
# the kinds of events that history.js reads to show alarms, and where nets moved
_FOLLOWED = (
    "swap", "tournament", "replacement", "evaluation", "alarm", "calm", "nan", "diverged", "repair", "converged", "lost",
)  # fmt: skip


def embed(run: ShownRun, events: Sequence[EventRecord] = (), most_bytes: int = MOST_BYTES) -> JsonObject:
    """Return the content of a page about a run, in at most about `most_bytes` bytes of JSON.

    The class `EmbeddedSource` of static/ reads it in the browser.

    Args:
        events: All events of the run; those with scores become curves.
    """
    facts = run_facts.details(run)
    names = [figure["name"] for figure in facts["figures"]]
    bands = run.metrics.columns(names, None, points=_POINTS)
    course = _course(events, bands)
    facts["course"] = [about for about, _ in course.values()]
    sheets = _sheets(run, facts, most_bytes // 2)
    followed = _followed(run, most_bytes // 6)
    if followed is None:
        facts["layout"] = {"kind": "flat"}
        followed = [
            event
            for event in event_pages.page(run.events_file, 0, 1000, None, _FOLLOWED)["events"]
            if "member" in event
        ]
    return {
        "facts": facts,
        "bands": bands,
        "lines": _lines(run, names, int(facts["members"]), most_bytes // 3 // _BYTES_PER_VALUE),
        "course": {name: series for name, (_, series) in course.items()},
        "events": run_facts.clean({"events": followed})["events"],
        "sheets": sheets,
    }


def _lines(run: ShownRun, names: Sequence[str], members: int, most_values: int) -> JsonObject | None:
    """Return recorded numbers of every member at evenly chosen records; None if not even two records fit.

    Args:
        names: The names of the numbers (figures), such as `loss_g`.
        most_values: The largest number of values in total.
    """
    points = min(_POINTS, most_values // max(1, members * len(names)))
    return run.metrics.columns(names, range(members), points=points) if points > 1 else None


def _followed(run: ShownRun, most_bytes: int) -> list[JsonObject] | None:
    """Return the events that history.js reads; None if they have more than `most_bytes` bytes as JSON."""
    events: list[JsonObject] = []
    size, offset, more = 0, 0, True
    while more:
        page = event_pages.page(run.events_file, offset, 1000, None, _FOLLOWED)
        size += len(json.dumps(page["events"]))
        if size > most_bytes:
            return None
        events += page["events"]
        offset, more = page["offset"], page["more"]
    return events


def _sheets(run: ShownRun, facts: JsonObject, most_bytes: int) -> JsonObject:
    """Return the sprite sheets of some saved steps, by step: WebP in base64 for images, JSON for points.

    They have at most `most_bytes` bytes. `facts["sprites"]["steps"]` is set to these steps. Return {} if the run has
    none.
    """
    index = sprite_files.read_index(run.folder.sprites)
    if index is None:
        return {}
    paths = sprite_files.saved_sheets(run.folder.sprites)
    sizes = {step: path.stat().st_size * 4 / 3 for step, path in paths.items()}
    sheets: JsonObject = {}
    for step in thinned_steps(sizes, most_bytes):
        with suppress(ValueError):  # a damaged sheet is left out
            content = run.read(paths[step], sprite_files.MOST_SHEET)
            sprite_files.check_sheet(content, index)
            is_text = index.kind == "points"
            sheets[str(step)] = json.loads(content) if is_text else base64.b64encode(content).decode()
    facts["sprites"]["steps"] = [int(step) for step in sheets]
    return sheets


def thinned_steps(sizes: Mapping[int, float], most_bytes: float) -> list[int]:
    """Choose steps whose sheets fit into `most_bytes`: all, every second, every fourth, …, or only the last.

    Args:
        sizes: The bytes of the sheet of each saved step.

    Returns:
        The steps in ascending order, the last step included; empty if not even the last sheet fits.

    >>> thinned_steps(dict.fromkeys(range(0, 100, 10), 5), 25), thinned_steps({0: 5, 10: 7}, 6)
    ([0, 40, 80, 90], [])
    """
    steps, stride = sorted(sizes), 1
    while stride <= 2 * len(steps):
        chosen = sorted({*steps[::stride], *steps[-1:]}) if stride <= len(steps) else steps[-1:]
        if len(chosen) <= _MOST_SHEETS and sum(sizes[step] for step in chosen) <= most_bytes:
            return chosen
        stride *= 2
    return []


def _course(events: Sequence[EventRecord], records: JsonObject) -> dict[str, tuple[JsonObject, JsonObject]]:
    """Return the scores that events contain, as curves over steps: by name, a description and the values."""
    scores: dict[str, tuple[JsonObject, JsonObject]] = {}
    mixtures = [e for e in events if e.kind == "mixture" and isinstance(e.get("after"), list)]
    if mixtures:
        title = title_of(str(mixtures[-1].get("score")))
        about = _described(
            "mixture_score", f"{title} of the mixtures", "of every neighbourhood, each time the weights evolve"
        )
        rows = [[plain_number(value) for value in e["after"]] for e in mixtures]
        cells = range(max(map(len, rows)))
        lines = [[row[cell] if cell < len(row) else None for row in rows] for cell in cells]
        scores["mixture_score"] = (
            about,
            _series(mixtures, records, {"mixture_score": {"members": [*cells], "lines": lines}}),
        )
    saved = [e for e in events if e.kind == "checkpoint" and plain_number(e.get("score")) is not None]
    if len(saved) > 2:
        about = _described(
            "distance",
            "distance to the data",
            "how far means and deviations of pixels or coordinates are from the data's, at each checkpoint; lower is better",
        )
        scores["distance"] = (
            about,
            _series(saved, records, {"distance": {"all": [plain_number(e["score"]) for e in saved]}}),
        )
    return scores


def _described(name: str, label: str, about: str) -> JsonObject:
    return {"name": name, "label": label, "about": about, "share": False, "best": None}


def _series(events: Sequence[EventRecord], records: JsonObject, figures: JsonObject) -> JsonObject:
    """Return a curve with a value at each event.

    Its times are interpolated between those of the records, in seconds.
    """
    steps = [event.step for event in events]
    known = [(step, at) for step, at in zip(records["step"], records["seconds"], strict=True) if at is not None]
    xs, ys = np.array([(0, 0.0), *known], float).T
    times = np.interp(np.array(steps, float), xs, ys).round(3).tolist()
    return {"step": steps, "seconds": times, "figures": figures}
