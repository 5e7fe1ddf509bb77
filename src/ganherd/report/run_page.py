"""The page: a story of a run becomes one HTML text that asks the network for nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from ganherd.recipe.strategy_config import settings_of
from ganherd.report.document import document
from ganherd.report.gather import RunStory
from ganherd.report.grid_section import cells
from ganherd.report.herd_section import events, members
from ganherd.report.html import SafeHtml, count, duration, join, number, percent, plain, table, tag
from ganherd.report.sample_section import maps, samples
from ganherd.report.score_section import classes, losses, scores
from ganherd.report.swap_section import meetings

_STATES = {"finished": "good", "running": "busy", "starting": "busy", "interrupted": "warn", "failed": "bad"}


def render(story: RunStory) -> str:
    sections = (samples, scores, maps, losses, classes, meetings, cells, events, members, _settings)
    body = join([_part(section, story) for section in (_header, *sections)], "\n")
    return document(story.name, body)


def _part(section: Callable[[RunStory], SafeHtml], story: RunStory) -> SafeHtml:
    """A section that odd values in the files cannot take the page down with."""
    try:
        return section(story)
    except Exception as error:
        name = section.__name__.strip("_")
        return tag("p", f"the part {name!r} could not be made: {type(error).__name__}: {error}", cls="note")


def _header(story: RunStory) -> SafeHtml:
    state = str(story.info.get("state") or "unknown")
    last = story.metrics[-1] if story.metrics else {}
    engine = story.info.get("engine")
    engine = engine.get("name", "") if isinstance(engine, Mapping) else engine
    facts = [
        ("members", number(len(story.members)) if story.members else "–"),
        ("steps", number(last.get("step"))),
        ("epochs", number(last.get("epoch"), 1)),
        ("training time", duration(last.get("seconds"))),
        ("member-steps/s", number(round(last["rate"])) if isinstance(last.get("rate"), (int, float)) else "–"),
        ("engine", str(engine or "–")),
        ("seed", number(_dig(story.recipe, "run", "seed"))),
    ]
    about = str(story.recipe.get("about") or "")
    return tag(
        "header",
        tag("div", "ganherd report", cls="kicker"),
        tag("h1", tag("span", story.name), tag("span", state, cls=f"pill {_STATES.get(state, '')}")),
        tag("p", summary(story), cls="lead"),
        tag("p", about, cls="soft") if about else "",
        tag("div", join(tag("div", tag("b", value), tag("span", name)) for name, value in facts), cls="facts"),
        join(tag("p", note, cls="note") for note in story.notes),
    )


def summary(story: RunStory) -> str:
    """The run in one sentence."""
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
    last = story.metrics[-1] if story.metrics else {}
    budget = _dig(story.recipe, "train", "budget")
    if story.info.get("state") == "finished":
        text += f" for {number(last.get('step'))} steps in {duration(last.get('seconds'))}"
    else:
        text += f" up to step {number(last.get('step', 0))}" + (f" of a budget of {_spaced(budget)}" if budget else "")
    accuracy = story.scores.get("label_accuracy")
    if isinstance(accuracy, Mapping) and isinstance(accuracy.get("value"), (int, float)):
        text += (
            f"; a classifier of the real data recognises {percent(accuracy['value'])} of "
            f"{number(accuracy.get('samples'))} samples as the label that was asked for"
        )
    return text + "."


def _drawn_losses(story: RunStory) -> str:
    """Return the losses that generators draw from, with their frequencies; empty if generators draw none."""
    mutation = settings_of(story.recipe).mutation_rules
    each = Counter(mutation.losses)
    named = [f"{name} ({n} of {each.total()})" if len(set(each.values())) > 1 else name for name, n in each.items()]
    known = " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else "".join(named)
    when = {"batch": "for every batch", "iteration": "in every iteration", "creation": "at the start"}
    return f"{known} {when[mutation.loss_each]}".rstrip() if known else ""


def _settings(story: RunStory) -> SafeHtml:
    recipe = yaml.safe_dump(dict(story.recipe), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    info = {k: v for k, v in story.info.items() if k != "versions"}
    versions = story.info.get("versions")
    rows = [(k, tag("code", plain(v, True))) for k, v in info.items()]
    rows += [(k, tag("code", plain(v))) for k, v in versions.items()] if isinstance(versions, Mapping) else []
    notes = join(tag("p", f"data: {note}", cls="small") for note in story.data_notes)
    folded = {
        "The recipe, every default written out": tag("pre", recipe) if story.recipe else "",
        "Run and versions": table(("what", "value"), rows) if rows else "",
    }
    details = join(tag("details", tag("summary", name), inside) for name, inside in folded.items() if inside)
    return tag("section", tag("h2", "Settings"), notes, details)


def _dig(tree: Mapping[str, Any], *path: str) -> Any:
    """A value deep in the recipe, None where there is none."""
    found: Any = tree
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _spaced(budget: Any) -> str:
    """
    >>> _spaced("20000steps"), _spaced("10m")
    ('20,000 steps', '10 m')
    """
    return re.sub(r"(\d+)\s*([a-z]+)", lambda m: f"{int(m[1]):,} {m[2]}", str(budget))
