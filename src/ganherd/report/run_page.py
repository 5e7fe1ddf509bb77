"""Render the page of a run: its sections in order, each from the facts that `gather` has read."""

from __future__ import annotations

from collections.abc import Callable

import yaml
from markupsafe import Markup

from ganherd.report import templating
from ganherd.report.film_section import film
from ganherd.report.gather import RunStory
from ganherd.report.grid_section import cells
from ganherd.report.herd_section import events, meetings, members
from ganherd.report.sample_section import maps, samples
from ganherd.report.score_section import classes, course, scores
from ganherd.report.story_section import story_section
from ganherd.report.templating import Cell, plain

_NAVIGATION = {
    "samples": "Samples",
    "film": "Film",
    "course": "Curves",
    "scores": "Scores",
    "members": "Members",
    "events": "Events",
    "meetings": "Swaps",
    "grid": "Grid",
    "maps": "Maps",
    "use": "Use it",
    "settings": "Settings",
}


def render(story: RunStory) -> str:
    """Return the page of a run as HTML."""
    sections = (samples, film, course, scores, classes, members, events, meetings, cells, maps, use, _settings)
    rendered = [section_or_note(section, story) for section in sections]
    rendered.insert(0, section_or_note(story_section, story))  # rendered last, because other sections add notes to it
    navigation = [(id, title) for id, title in _NAVIGATION.items() if any(f'id="{id}"' in part for part in rendered)]
    embedded = templating.embedded([story.embedded]) if story.embedded else {}
    return templating.render("run", title=story.name, navigation=navigation, sections=rendered, **embedded)


def section_or_note(section: Callable[[RunStory], Markup], story: RunStory) -> Markup:
    """Return a section as HTML; if it raises an error, e.g. because of odd values in the files of the run, a note."""
    try:
        return section(story)
    except Exception as error:
        name, why = repr(section.__name__.strip("_")), f"{type(error).__name__}: {error}"
        return templating.render("missing_section", name=name, why=why)


def use(story: RunStory) -> Markup:
    """Return the section that lists commands to resume, sample, score or export the run, as HTML."""
    path = story.command_path
    commands = []
    if story.state not in ("finished", "running", "starting", "restarting"):
        commands.append(("Resume it", f"ganherd train --resume {path}"))
    if story.sample_command or story.mixture_step is not None:
        commands += [("Draw samples", f"ganherd sample {path} -n 64 -o grid.png")]
    if story.mixture_step is not None:
        commands += [
            ("Judge it", f"ganherd check {path}"),
            ("Measure scores", f"ganherd score {path}"),
            ("Sample it in a browser", f"ganherd export {path} --format html -o sampler.html"),
            ("Sample it in Python", f"import ganherd; ganherd.load({story.path.as_posix()!r}).sample(64)"),
        ]
    commands += [("Look at it live", f"ganherd ui {path}"), ("Update this page", f"ganherd report {path}")]
    if story.info.command:
        commands.append(("It was started with", story.info.command))
    return templating.render("use", commands=commands)


def _settings(story: RunStory) -> Markup:
    """Return the section with the recipe, the content of run.json, and the versions of the software, as HTML."""
    recipe = yaml.safe_dump(dict(story.recipe), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)
    info = story.info.as_json()
    rows = [(key, Cell(plain(value, True), tag="code")) for key, value in info.items() if key != "versions"]
    rows += [(name, Cell(plain(version), tag="code")) for name, version in (story.info.versions or {}).items()]
    notes = [f"data: {note}" for note in story.data_notes]
    return templating.render("settings", notes=notes, recipe=recipe if story.recipe else "", rows=rows)
