"""Render the sections about events over the steps, about swaps of discriminators, and about each member."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from ganherd.report.gather import MemberStory, RunStory
from ganherd.report.templating import Cell, count, number, percent, plain, render, svg
from ganherd.runs.models import EngineRecord
from ganherd.runs.results.verdict_record import style_of
from ganherd.training.health.look_labels import LOOK_LABELS, explained
from ganherd.util.files import JsonObject
from ganherd.util.text import words
from ganherd.viz.charts import draw_pair_counts

_KINDS = {
    "nan": "bad",
    "diverged": "bad",
    "alarm": "warn",
    "repair": "warn",
    "lost": "warn",
    "calm": "good",
    "finish": "good",
    "start": "busy",
    "resume": "busy",
}
_COLOURS = {"bad": "var(--bad)", "warn": "var(--warn)", "good": "var(--good)", "busy": "var(--busy)", "": "var(--soft)"}
# kinds of events in which members exchange nets; other sections show their details
_MEETINGS = ("swap", "share", "tournament", "replacement", "evaluation", "mixture", "exchange")
_COUNTED = ("checkpoint", *_MEETINGS)  # kinds that are too frequent to list: only their number is shown
_MOST_LINES = 200  # largest number of rows of a table
_MOST_ALARMS = 20  # largest number of sentences about alarms


def events(story: RunStory) -> Markup:
    """Return the section about events: their numbers by kind, a timeline, and a table of the less frequent ones."""
    kinds = Counter((str(e.get("event", "?")), event_name(e)) for e in story.events)
    pills = [_pill(kind, f"{name} × {n:,}" if n > 1 else name) for (kind, name), n in kinds.items()]
    listed = [e for e in story.events if e.get("event") not in _COUNTED]
    rows = [_event_row(story, e) for e in listed[:_MOST_LINES]]
    meaning = explained(*LOOK_LABELS) if any("spread" in e for e in listed) else ""
    more = len(listed) - len(rows)
    return render(
        "events", pills=pills, alarms=_alarms(story), rows=rows, more=more, meaning=meaning, **_timeline(story)
    )


def _alarms(story: RunStory) -> list[tuple[str, str]]:
    """Return the step and a sentence for each of the first alarms: what it means, whether it ended, and what to try."""
    from ganherd.training.health.alarms import TRY, WHY  # imported here because it imports torch

    sentences: list[tuple[str, str]] = []
    for i, event in enumerate(story.events):
        if event.kind not in ("alarm", "nan", "diverged") or event.alarm not in WHY or event.member is None:
            continue
        if len(sentences) == _MOST_ALARMS:
            break
        later = (e for e in story.events[i + 1 :] if e.member == event.member)
        end = next((e for e in later if e.kind == "repair" or (e.kind == "calm" and e.alarm == event.alarm)), None)
        over = f"; it was {'repaired' if end.kind == 'repair' else 'over'} at step {number(end.step)}" if end else ""
        advice = "" if end else f". {TRY[event.alarm].capitalize()}"
        sentences.append((number(event.step), f"Member {_whose(story, event)}: {WHY[event.alarm]}{over}{advice}."))
    return sentences


def event_name(event: Mapping[str, Any]) -> str:
    """Return the kind of an event in words; for an alarm, the name of the alarm, followed by "over" if the alarm ended.

    >>> [event_name({"event": kind, "what": "dead_critic"}) for kind in ("alarm", "calm")], event_name({"event": "nan"})
    (['dead critic', 'dead critic over'], 'nan')
    """
    kind, what = str(event.get("event", "?")), event.get("what")
    if kind not in ("alarm", "calm") or not isinstance(what, str):
        return kind
    return words(what) + (" over" if kind == "calm" else "")


def _pill(kind: str, text: str) -> Cell:
    return Cell(text, f"pill {_KINDS.get(kind, '')}")


def _event_row(story: RunStory, event: Mapping[str, Any]) -> list[Any]:
    kind = str(event.get("event", "?"))
    shown_elsewhere = {"step", "event", "member", "name", "versions", "profile"} | (
        {"what"} if kind in ("alarm", "calm") else set()
    )
    details = plain(dict(_detail(k, v, len(story.members)) for k, v in event.items() if k not in shown_elsewhere))
    return [number(event.get("step")), _pill(kind, event_name(event)), _whose(story, event), details]


def _detail(key: str, value: Any, num_members: int) -> tuple[str, Any]:
    """Return one field of an event as (label, value) for the table; known scores and engines are put into words.

    >>> _detail("spread", 0.0425, 3), _detail("lr_g", 0.001, 3)
    (('variety', '0.04'), ('lr g', 0.001))
    >>> _detail("engine", {"name": "loop", "chunk": 3, "threads": 1, "device": "cpu"}, 3)
    ('engine', 'loop on cpu, 1 thread')
    """
    if key == "engine":
        return key, _engine_in_words(value, num_members)
    label = LOOK_LABELS.get(key)
    return (label.label, label.value(value)) if label else (key.replace("_", " "), value)


def _engine_in_words(value: Any, num_members: int) -> Any:
    """Return an engine's JSON record in words; unchanged if it is not valid."""
    from ganherd.herd.engine.engines import Plan  # imported here because it imports torch

    try:
        engine = EngineRecord.parse(value)
    except ValueError:
        return value
    return Plan(engine.name, engine.chunk, engine.threads, engine.device, engine.operations).describe(num_members)


def _whose(story: RunStory, event: Mapping[str, Any]) -> str:
    """Return the number of an event's member with its label, e.g. `3 (cat)`; empty if the event is about no member."""
    member = event.get("member")
    name = str(event.get("name") or "").removeprefix("member ")
    if not name and isinstance(member, int):
        own = story.members[member] if 0 <= member < len(story.members) else None
        name = f"{member}" + (f" ({own.label})" if own and own.label else "")
    return name


def _timeline(story: RunStory) -> JsonObject:
    """Return the variables of the timeline: a dot for each event, and a tick for each exchange of nets.

    The most important dots come last, so that they are drawn on top. Positions are percentages of the width.
    """
    known = [e for e in story.events if isinstance(e.get("step"), (int, float))]
    end = max([story.step, *(e["step"] for e in known)]) or 1
    met = [e for e in known if e.get("event") in _MEETINGS]
    ticks = dict.fromkeys(round(4 + 392 * e["step"] / end) for e in met)  # in quarters of a percent, each once
    dots = []
    order = ("", "busy", "good", "warn", "bad")
    shown = [e for e in known if e.get("event") not in _MEETINGS]
    for event in sorted(shown[:2000], key=lambda e: order.index(_KINDS.get(str(e.get("event")), ""))):
        rank = _KINDS.get(str(event.get("event")), "")
        whose = f", member {name}" if (name := _whose(story, event)) else ""
        title = f"{event_name(event)}{whose}, step {number(event['step'])}"
        x = f"{1 + 98 * event['step'] / end:.2f}"
        dots.append({"x": x, "radius": 5 if rank else 3, "colour": _COLOURS[rank], "title": title})
    kinds = ", ".join(dict.fromkeys(event_name(e) for e in met))
    return {"ticks": [x / 4 for x in ticks], "dots": dots, "end": end, "met": kinds}


def meetings(story: RunStory) -> Markup:
    """Return the section about swaps: how long each generator trained with each discriminator; empty without swaps."""
    swaps = [e for e in story.events if e.get("event") == "swap"]
    if not swaps or not story.members:
        return Markup()
    from ganherd.strategies.gap.gap import count_meetings

    each = sum(m.replica == 0 for m in story.members)
    steps = story.metrics[-1].get("step") if story.metrics else None
    counts = count_meetings(story.events, len(story.members), steps)[:each, :each]  # replicas never meet
    what = str(swaps[0].get("what", "nets"))
    text = f"{count(len(swaps), 'swap').capitalize()} of {what}, from step {number(swaps[0].get('step'))} to "
    text += f"{number(swaps[-1].get('step'))}. Both kinds of nets are named after the slot in which they began"
    text += "; of the first replica." if each < len(story.members) else "."
    return render("meetings", caption=text, svg=svg(draw_pair_counts(counts), "met"))


def members(story: RunStory) -> Markup:
    """Return the table of members as HTML; optional columns appear if any member has a value for them."""
    if not story.members:
        return Markup()
    columns: list[tuple[str, bool, Callable[[MemberStory], Any]]] = [
        ("member", True, _number_and_prize),
        ("replica", any(m.replica for m in story.members), lambda m: m.replica),
        ("generator", any(m.generator for m in story.members), lambda m: m.generator),
        ("label", any(m.label for m in story.members), lambda m: m.label or "–"),
        ("weight", True, lambda m: percent(m.weight)),
        ("own steps", any(m.steps is not None for m in story.members), lambda m: number(m.steps)),
        ("generator loss", True, lambda m: _loss(m, m.loss_g)),
        ("discriminator loss", True, lambda m: _loss(m, m.loss_d)),
        ("troubles", True, _troubles),
        ("verdict", any(m.verdict for m in story.members), _verdict),
    ]
    shown = [(name, cell) for name, is_shown, cell in columns if is_shown]
    head = [name for name, _ in shown]
    rows = [[cell(m) for _, cell in shown] for m in story.members[:_MOST_LINES]]
    right = tuple(i for i, name in enumerate(head) if name not in ("label", "generator", "verdict"))
    ids = [f"member-{i}" for i in range(len(rows))]
    return render("members", head=head, rows=rows, right=right, ids=ids, more=len(story.members) - len(rows))


def _number_and_prize(member: MemberStory) -> Any:
    """Return the number of a member, marked as "best" if it wins the tournament GAM-II between the run's members."""
    return Cell("best", "pill good", before=member.number, title="by GAM-II") if member.winner else member.number


def _loss(member: MemberStory, value: float | None) -> str:
    """Return the last loss of a member as text; a dash if it is NaN because the member was not training then."""
    return "–" if value is not None and math.isnan(value) and not member.troubles else number(value)


def _verdict(member: MemberStory) -> Any:
    """Return the verdict on a member with its reason; a good one's reason is shown only while the mouse is over it."""
    if member.verdict is None:
        return "–"
    word, reason = member.verdict.word, member.verdict.reason
    return Cell(word, f"pill {style_of(word)}", title=reason, after="" if word == "good" else reason)


def _troubles(member: MemberStory) -> Any:
    """Return the number of a member's health events (NaN, divergence, alarms, repairs), and its active alarms."""
    if not member.troubles:
        return "–"
    if member.alarms_now:
        return Cell(f"{member.troubles}, now: {', '.join(member.alarms_now)}", "pill warn")
    return Cell(f"{member.troubles}, over", "pill")
