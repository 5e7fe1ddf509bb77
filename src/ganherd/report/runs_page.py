"""Render the page that compares several runs: the result, samples, scores, curves, and the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ganherd.metrics.metric_registry import title_of
from ganherd.report import templating
from ganherd.report.film_section import film_strip
from ganherd.report.gather import RunStory
from ganherd.report.sample_section import strips
from ganherd.report.story_section import state_pill, summary
from ganherd.report.templating import Cell, duration, number
from ganherd.scoring import METRICS
from ganherd.scoring.result import measured
from ganherd.util.text import listed

MOST_RUNS = 12
_PER_ROW = 8  # number of samples of each class
_NAVIGATION = (
    ("answer", "Answer"),
    ("samples", "Samples"),
    ("scores", "Scores"),
    ("course", "Curves"),
    ("film", "Film"),
)


def render(stories: Sequence[RunStory], answers: Sequence[str], winners: Mapping[str, str]) -> str:
    """Return the page as HTML.

    Args:
        answers: Sentences: which run is better, and remarks on that.
        winners: By metric, the name of the run that is better than all others, or "undecided".
    """
    names = [story.name for story in stories]
    embedded = [story.embedded for story in stories if story.embedded]
    settings = _differing(stories)
    return templating.render(
        "runs",
        title=listed(names),
        navigation=[*_NAVIGATION, ("settings", "Settings")],
        answers=answers,
        overview=_overview(stories),
        runs=[
            (story.name, state_pill(story), summary(story), strips(story, _PER_ROW), story.sample_png)
            for story in stories
        ],
        scores=_scores(stories, winners),
        names=names,
        compared=bool(winners),
        films=[strip for story in stories if (strip := film_strip(story))["run"] or strip["pictures"]],
        settings=settings,
        notes=[f"{story.name}: {note}" for story in stories for note in story.notes],
        **(templating.embedded(embedded) if embedded else {}),
    )


def _overview(stories: Sequence[RunStory]) -> list[list[Any]]:
    """Return a row for each run: name, state or verdict, members, steps, training time, changes to the recipe."""
    rows = []
    for story in stories:
        cost = number(len(story.members) or None), number(story.step), duration(story.seconds)
        rows.append([story.name, state_pill(story), *cost, ", ".join(story.info.changes or []) or "–"])
    return rows


def _scores(stories: Sequence[RunStory], winners: Mapping[str, str]) -> list[list[Any]]:
    """Return a row for each score: its name, its value for each run, and which run is better if that is known."""
    each = [measured(story.scores) for story in stories]
    rows = []
    for metric in [*winners, *(metric for metric in METRICS if metric not in winners)]:
        if not any(metric in own for own in each):
            continue
        cells: list[Any] = [
            Cell(str(own[metric]), "value" if winners.get(metric) == story.name else "", after=own[metric].span or "")
            if metric in own
            else "–"
            for story, own in zip(stories, each, strict=True)
        ]
        winner = winners.get(metric)
        decided = (
            Cell(winner, "pill good" if any(winner == story.name for story in stories) else "pill") if winner else "–"
        )
        rows.append([title_of(metric), *cells, *([decided] if winners else [])])
    return rows


def _differing(stories: Sequence[RunStory]) -> list[list[Any]]:
    """Return a row for each setting in which the runs differ: its key and its value in each run."""
    each = [(story.embedded or {"facts": {}})["facts"].get("settings", {}) for story in stories]
    keys = dict.fromkeys(key for own in each for key in own if key != "about")
    empty: tuple[Any, ...] = ("", [], {})  # the same as a setting that is missing
    shown = [(key, [None if own.get(key) in empty else own.get(key) for own in each]) for key in keys]
    return [
        [
            Cell(key, tag="code"),
            *(Cell("–" if value is None else templating.plain(value), tag="code") for value in values),
        ]
        for key, values in shown
        if any(value != values[0] for value in values)
    ]
