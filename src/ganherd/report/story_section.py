"""Render the head of a report: what was trained, whether it worked, and which sections are worth a look."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ganherd.recipe.strategy_config import settings_of
from ganherd.report import templating
from ganherd.report.gather import RunStory, seeds_and_trials
from ganherd.report.score_section import is_number
from ganherd.report.templating import Cell, count, duration, number
from ganherd.runs import run_status
from ganherd.runs.results.verdict_record import style_of
from ganherd.scoring.result import measured
from ganherd.scoring.score_table import LIKE, real_text, standing
from ganherd.util.text import listed

_STATES = {
    "finished": "",  # no colour: the verdict says whether it is good
    "running": "busy",
    "starting": "busy",
    "interrupted": "warn",
    "failed": "bad",
    "killed": "bad",
}
_ENDED = {
    "interrupted": "It was stopped before its end",
    "killed": "Its process ended before its last step",
    "failed": "It failed",
}
_MOST_ORIGINS = 3  # if there are more, only their number is given
_MOST_HINTS = 3  # if more members are poor, only their number is given


def story_section(story: RunStory) -> Markup:
    """Return the head of the page of a run, as HTML."""
    last = story.metrics[-1] if story.metrics else {}
    facts = [
        ("members", number(len(story.members)) if story.members else "–"),
        ("steps", number(story.step) if story.step else "–"),
        ("epochs", number(story.epoch, 1).removesuffix(".0")),
        ("training time", duration(story.seconds)),
        ("member-steps/s", number(round(last["rate"])) if is_number(last.get("rate")) else "–"),
        ("engine", story.info.engine.name if story.info.engine else "–"),
        ("seed", number(_dig(story.recipe, "run", "seed"))),
    ]
    changes = story.info.changes or []
    return templating.render(
        "story",
        name=story.name,
        pill=state_pill(story),
        summary=summary(story),
        about="" if changes else str(story.recipe.get("about") or ""),
        origin=_origin(story),
        started_from=_started_from(story),
        changes=changes,
        answers=list(_answers(story)),
        hints=list(_hints(story)),
        facts=facts,
        notes=story.notes,
    )


def state_pill(story: RunStory) -> Cell:
    """Return a coloured cell with the verdict on a finished run; with its state if it has no verdict."""
    if story.judged is not None:
        return Cell(story.judged.word, f"pill {style_of(story.judged.word)}")
    return Cell(story.state, f"pill {_STATES.get(story.state, '')}")


def summary(story: RunStory) -> str:
    """Describe in one sentence what was trained: members, data, loss, steps and time."""
    seeds, trials = seeds_and_trials(story.recipe)
    each = len(story.members) // (seeds * trials) if story.members else 0
    source = story.data_name or str(_dig(story.recipe, "data", "source") or "its data")
    if not each:
        return f"A herd on {source}. Nothing is recorded yet."
    if any(m.label for m in story.members):
        per_class = _dig(story.recipe, "herd", "per_class") or 1
        of_class = f"{per_class if per_class > 1 else 'one'} for each class of"
        text = f"{count(each, 'member').capitalize()}, {of_class if each > 1 else 'on'} {source},"
    else:
        text = f"{count(each, 'member').capitalize()} on {source},"
    if trials > 1:
        text += f" with {count(trials, 'setting')} of a sweep,"
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
    if (first := story.first) is not None:
        text += f", after a first phase of {number(first.step)} steps in {duration(first.seconds)}"
    return text + "."


def _origin(story: RunStory) -> str:
    """Return in words which recipe was trained, and whether it was changed; empty if an old run did not record it."""
    recipe, changes = story.info.recipe, story.info.changes
    if changes:
        return f"Changed from the recipe{f' {recipe}' if recipe else ''}:"
    return f"The recipe {recipe}, with nothing changed." if recipe and changes is not None else ""


def _started_from(story: RunStory) -> str:
    """Return which runs the members started from, whose training is not counted; empty if all began with new weights."""
    starts = dict.fromkeys((one.path, one.step) for one in story.info.origins or [] if one.path)
    if not starts:
        return ""
    runs = [Path(path).name + (f" (step {number(step)})" if step is not None else "") for path, step in starts]
    several = f"{count(len(runs), 'other run')}" if len(runs) > _MOST_ORIGINS else listed(runs)
    if story.first is not None:
        return f"Members started from the first phase, {several}. The steps and the time below are those of the second phase."
    return f"Members started from {several}. The steps and the time here do not include the training before that."


def _answers(story: RunStory) -> Iterator[tuple[Any, str, str]]:
    """Yield the answers to whether training worked: the verdict or the state, then the FID and that of real data.

    Each is a word in bold, the sentence that continues it, and a class of the style sheet.
    """
    again = f"`ganherd report {story.command_path}`"
    if story.judged is not None:
        reason = story.judged.sentence.removeprefix(story.judged.word)
        yield Cell(story.judged.word.capitalize(), tag="b"), reason, f"verdict {style_of(story.judged.word)}"
    elif story.state == "finished":
        yield (
            "",
            f"It finished, and was not judged: `ganherd check {story.command_path}` gives a verdict.",
            "verdict warn",
        )
    elif story.state in _ENDED:
        why = f": {story.info.reason.rstrip('.')}" if story.info.reason else ""
        yield "", f"{_ENDED[story.state]}{why}. It can be resumed, and judged when it has finished.", "verdict warn"
    else:
        yield (
            "",
            f"It cannot be judged before it has finished. {again} writes this page with the newest state.",
            "verdict",
        )
    fid = measured(story.scores).get("fid")
    if fid is not None and fid.value is not None:
        real = real_text(fid)
        span = f"95 % interval {fid.span}; " if fid.span else ""
        compared = f": {LIKE}" if standing(fid).text == LIKE else ""
        yield Cell(f"FID {fid}", tag="b"), f" ({span}real data against real data has {real}{compared}).", ""


def _hints(story: RunStory) -> Iterator[tuple[str, str]]:
    """Yield what is worth a look, each as a phrase and the id of the element that the page links to."""
    poor = [(i, m) for i, m in enumerate(story.members) if m.verdict is not None and m.verdict.word != "good"]
    if len(poor) > _MOST_HINTS:
        yield f"{len(poor)} of {len(story.members)} members, which are not good", "members"
    for i, member in poor if len(poor) <= _MOST_HINTS else ():
        yield f"{member.title}, which is {member.verdict.word}" if member.verdict else "", f"member-{i}"
    worse = [score.title for score in measured(story.scores).values() if standing(score).style == "warn"]
    if worse:
        yield f"Scores unlike those of real data: {listed(worse)}", "scores"
    active = run_status.active_alarms(story.events)
    if active and story.judged is None:
        yield f"{count(len(active), 'alarm').capitalize()} not over at the last look", "events"
    saved = [event for event in story.events if event.kind == "checkpoint" and is_number(event.get("score"))]
    if saved and saved[-1]["score"] > 1.2 * (best := min(saved, key=lambda event: float(event["score"])))["score"]:
        yield f"The distance to the data was smallest at step {number(best.step)}, not at the end", "course"
    if story.generated is not None or story.sample_png is not None:
        yield "Generated samples next to real data" if story.real is not None else "Generated samples", "samples"
    if story.embedded and len(story.embedded["sheets"]) > 1:
        yield "How the samples formed, step by step", "film"
    if story.metrics:
        yield "Scores and losses over time", "course"


def _drawn_losses(story: RunStory) -> str:
    """Return in words which losses are drawn at random for generators (Mustangs), and how often; empty if none are."""
    mutation = settings_of(story.recipe).mutation_rules
    each = Counter(mutation.losses)
    named = [f"{name} ({n} of {each.total()})" if len(set(each.values())) > 1 else name for name, n in each.items()]
    known = listed(named)
    when = {"batch": "for every batch", "iteration": "in every iteration", "creation": "at the start"}
    return f"{known} {when[mutation.loss_each]}".rstrip() if known else ""


def _dig(tree: Mapping[str, Any], *path: str) -> Any:
    """Return the value in nested mappings at a path of keys; None if there is none."""
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _spaced(budget: Any) -> str:
    """Return a training budget with a space before its unit and commas in the number.

    >>> _spaced("20000steps"), _spaced("10m")
    ('20,000 steps', '10 m')
    """
    return re.sub(r"(\d+)\s*([a-z]+)", lambda m: f"{int(m[1]):,} {m[2]}", str(budget))
