"""Render the sections with numbers: scores and how they were measured, curves over time, and values of each class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from markupsafe import Markup

from ganherd.report.gather import MemberStory, RunStory
from ganherd.report.templating import Cell, number, percent, render
from ganherd.scoring import METRICS
from ganherd.scoring.result import measured, skipped
from ganherd.scoring.score_table import merged_warnings, network_notes, real_text, standing

_MOST_CHECKPOINTS = 20  # largest number of rows in the table of checkpoints
_MOST_CLASSES = 200


def scores(story: RunStory) -> Markup:
    """Render the table of scores, each with how it was measured."""
    known = measured(story.scores)
    if not known:
        how = (
            "ganherd score measures its mixture"
            if story.mixture_step is not None
            else "scores are measured when training ends"
        )
        return render("scores", rows=[], how=how)
    rows = []
    for name in [*(name for name in METRICS if name in known), *(name for name in known if name not in METRICS)]:
        score = known[name]
        verdict = standing(score)
        measured_with = [f"{score.samples} samples, {score.network}, seed {score.seed}", *score.remarks(False)]
        rows.append(
            [
                Cell(score.metric.about if score.metric else "", "about", before=score.title),
                Cell(str(score), "value"),
                score.span or "–",
                real_text(score),
                Cell(verdict.text, f"pill {verdict.style}".strip()) if verdict.text else "",
                "; ".join(measured_with),
            ]
        )
    notes = [*network_notes(story.scores), *skipped(story.scores)]
    return render("scores", rows=rows, notes=notes, warnings=merged_warnings(story.scores))


def course(story: RunStory) -> Markup:
    """Render the element in which the page's script draws curves, and a table of checkpoints' distances to the data."""
    records = len(story.metrics)
    if records < 2:
        about = "Nothing is recorded yet: curves begin with the second record."
        if records:
            about = f"There is one record, of step {story.metrics[0].step:,}, and a curve needs two."
        return render("course", caption=about, rows=[])
    saved = [event for event in story.events if event.kind == "checkpoint" and is_number(event.get("score"))]
    best = min((event["score"] for event in saved), default=None)
    rows = [
        [number(e.step), number(e["score"], 4), Cell("smallest", "pill good") if e["score"] == best else ""]
        for e in saved
    ]
    about = "Move the pointer over a curve for exact values, drag to zoom. Losses mean little by themselves: look at scores first."
    return render("course", caption=about, rows=_spread(rows, _MOST_CHECKPOINTS))


def classes(story: RunStory) -> Markup:
    """Render the scores that have a value for each class as one table with bars."""
    diversity, accuracy, seen = (per_class(story, name) for name in ("diversity", "label_accuracy", "histogram"))
    distance, weights = per_class(story, "ifid"), _member_weights(story)
    expected = story.scores["histogram"].get("expected") if seen else None
    expected = expected if isinstance(expected, Mapping) else {}
    names = list(dict.fromkeys([*diversity, *accuracy, *seen, *distance, *weights]))
    if not names:
        return Markup()
    most = max([*(share or 0.0 for share in seen.values()), 1e-9])
    columns: list[tuple[str, bool, Callable[[str], Any]]] = [
        ("class", True, lambda name: name),
        ("FID within the class", bool(distance), lambda name: number(distance.get(name))),
        ("diversity", bool(diversity), lambda name: _bar(number, diversity.get(name), 1.0)),
        ("recognised", bool(accuracy), lambda name: _bar(percent, accuracy.get(name), 1.0)),
        ("share of the samples", bool(seen), lambda name: _bar(percent, seen.get(name), most)),
        ("expected", bool(expected), lambda name: percent(expected.get(name))),
        ("members and their weights in the class", bool(weights), lambda name: weights.get(name, "–")),
    ]
    shown = [(title, value) for title, is_shown, value in columns if is_shown]
    rows = [[value(name) for _, value in shown] for name in names[:_MOST_CLASSES]]
    of_classes = any(m.label for m in story.members) or set(diversity) & set(story.labels)
    network = str(story.scores["diversity"].get("network", "pixels")) if diversity else ""
    about = f"Diversity: the spread of generated {network} divided by the data's; 1 is as varied as the data, 0 always the same."
    about = f"{about if diversity else ''} {'' if of_classes else 'No member represents a class.'}".strip()
    title = "Class by class" if of_classes else "Variety and classes of the samples"
    head = [title for title, _ in shown]
    right = tuple(range(1, len(shown) - bool(weights)))
    return render("classes", title=title, caption=about, head=head, rows=rows, right=right, more=len(names) - len(rows))


def _member_weights(story: RunStory) -> dict[str, str]:
    """Return by class its members and their shares of the class's weight, in words; empty if no class has several."""
    members: dict[str, list[MemberStory]] = {}
    for member in story.members:
        if member.of_class and member.replica == 0 and member.weight is not None:
            members.setdefault(member.of_class, []).append(member)
    if all(len(own) < 2 for own in members.values()):
        return {}
    whole = {name: sum(member.weight or 0.0 for member in own) or 1.0 for name, own in members.items()}
    return {
        name: ", ".join(f"{member.label} {(member.weight or 0.0) / whole[name]:.0%}" for member in own)
        for name, own in members.items()
    }


def _bar(text: Callable[[Any], str], value: float | None, end: float) -> Any:
    """Return a cell with a value, formatted by `text`, and a bar that is full at `end`; a dash if it is no number."""
    if not is_number(value):
        return "–"
    return Cell(text(value), part=round(100 * min(1.0, max(0.0, value / end))))


def _spread(rows: list[list[Any]], most: int) -> list[list[Any]]:
    """Return at most `most` rows, evenly spread, the first and the last included."""
    if len(rows) <= most:
        return rows
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def per_class(story: RunStory, name: str) -> dict[str, float | None]:
    """Return the values of a score by class; empty if it has none."""
    entry = story.scores.get(name)
    values = entry.get("per_class") if isinstance(entry, Mapping) else None
    if not isinstance(values, Mapping):
        return {}
    return {str(k): float(v) if isinstance(v, (int, float)) else None for k, v in values.items()}


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value that was read from a file is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)
