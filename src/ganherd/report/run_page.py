"""The page of a run: its sections in order, each rendered from what was gathered of the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from markupsafe import Markup

from ganherd.recipe.strategy_config import settings_of
from ganherd.report import templating
from ganherd.report.gather import RunStory
from ganherd.report.grid_section import cells
from ganherd.report.herd_section import events, meetings, members
from ganherd.report.sample_section import maps, samples
from ganherd.report.score_section import classes, losses, scores
from ganherd.report.templating import Cell, count, duration, number, plain
from ganherd.runs.results.verdict_record import style_of
from ganherd.util.text import listed

_STATES = {"finished": "good", "running": "busy", "starting": "busy", "interrupted": "warn", "failed": "bad"}


def render(story: RunStory) -> str:
    """Return the page of a run as HTML."""
    sections = (_header, samples, scores, maps, losses, classes, meetings, cells, events, members, _settings)
    return templating.render(
        "run", title=story.name, sections=[_section_or_note(section, story) for section in sections]
    )


def _section_or_note(section: Callable[[RunStory], Markup], story: RunStory) -> Markup:
    """Return a section, or a note if odd values in the files of the run make it fail."""
    try:
        return section(story)
    except Exception as error:
        name, why = repr(section.__name__.strip("_")), f"{type(error).__name__}: {error}"
        return templating.render("missing_section", name=name, why=why)


def _header(story: RunStory) -> Markup:
    """Return the head of the page: name, state, a summary and a few numbers."""
    state = story.info.state or "unknown"
    last = story.metrics[-1] if story.metrics else {}
    judged = story.verdict if state == "finished" else None  # a verdict says more than that a run has ended
    facts = [
        ("members", number(len(story.members)) if story.members else "–"),
        ("steps", number(story.step) if story.step else "–"),
        ("epochs", number(story.epoch, 1)),
        ("training time", duration(story.seconds)),
        ("member-steps/s", number(round(last["rate"])) if isinstance(last.get("rate"), (int, float)) else "–"),
        ("engine", story.info.engine.name if story.info.engine else "–"),
        ("seed", number(_dig(story.recipe, "run", "seed"))),
    ]
    return templating.render(
        "header",
        name=story.name,
        state=state if judged is None else judged.word,
        kind=_STATES.get(state, "") if judged is None else style_of(judged.word),
        verdict=None if judged is None else judged.sentence,
        summary=summary(story),
        about=str(story.recipe.get("about") or ""),
        facts=facts,
        notes=story.notes,
    )


def summary(story: RunStory) -> str:
    """Describe the run in one sentence."""
    seeds = int(_dig(story.recipe, "herd", "seeds") or 1)
    each = len(story.members) // seeds if story.members else 0
    source = story.data_name or str(_dig(story.recipe, "data", "source") or "its data")
    if not each:
        return f"A herd on {source} of which nothing is recorded yet."
    if any(m.label for m in story.members):
        text = f"{count(each, 'member').capitalize()}, {'one for each class of' if each > 1 else 'on'} {source},"
    else:
        text = f"{count(each, 'member').capitalize()} on {source},"
    if seeds > 1:
        text += f" with {count(seeds, 'seed')},"
    loss = _dig(story.recipe, "loss", "name")
    if drawn := _drawn_losses(story):
        text += f" trained with losses that are drawn from {drawn},"
    elif isinstance(loss, str):
        text += f" trained with the {loss} loss"
    else:
        text += " trained"
    budget = _dig(story.recipe, "train", "budget")
    if story.info.state == "finished":
        text += f" for {number(story.step)} steps in {duration(story.seconds)}"
    else:
        text += f" up to step {number(story.step)}" + (f" of a budget of {_spaced(budget)}" if budget else "")
    return text + "."


def _drawn_losses(story: RunStory) -> str:
    """Return the losses that generators draw from, with their frequencies; empty if generators draw none."""
    mutation = settings_of(story.recipe).mutation_rules
    each = Counter(mutation.losses)
    named = [f"{name} ({n} of {each.total()})" if len(set(each.values())) > 1 else name for name, n in each.items()]
    known = listed(named)
    when = {"batch": "for every batch", "iteration": "in every iteration", "creation": "at the start"}
    return f"{known} {when[mutation.loss_each]}".rstrip() if known else ""


def _settings(story: RunStory) -> Markup:
    """Return the section with the recipe, the content of run.json, and the versions of the software."""
    recipe = yaml.safe_dump(dict(story.recipe), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    info = story.info.as_json()
    rows = [(key, Cell(plain(value, True), tag="code")) for key, value in info.items() if key != "versions"]
    rows += [(name, Cell(plain(version), tag="code")) for name, version in (story.info.versions or {}).items()]
    notes = [f"data: {note}" for note in story.data_notes]
    return templating.render("settings", notes=notes, recipe=recipe if story.recipe else "", rows=rows)


def _dig(tree: Mapping[str, Any], *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _spaced(budget: Any) -> str:
    """Return a budget with a space before its unit.

    >>> _spaced("20000steps"), _spaced("10m")
    ('20,000 steps', '10 m')
    """
    return re.sub(r"(\d+)\s*([a-z]+)", lambda m: f"{int(m[1]):,} {m[2]}", str(budget))
