"""The sections about events along the steps, and about each member."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ganherd.report.gather import MemberStory, RunStory
from ganherd.report.score_section import per_class
from ganherd.report.templating import Cell, number, percent, plain, render
from ganherd.util.files import JsonObject
from ganherd.util.text import words

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
_MEETINGS = (
    "swap",
    "share",
    "tournament",
    "replacement",
    "evaluation",
    "mixture",
    "exchange",
)  # shown in other sections
_COUNTED = ("checkpoint", *_MEETINGS)  # too many to list
_MOST_LINES = 200  # of a table


def events(story: RunStory) -> Markup:
    kinds = Counter((str(e.get("event", "?")), event_name(e)) for e in story.events)
    pills = [_pill(kind, f"{name} × {n:,}" if n > 1 else name) for (kind, name), n in kinds.items()]
    listed = [e for e in story.events if e.get("event") not in _COUNTED]
    rows = [_event_row(story, e) for e in listed[:_MOST_LINES]]
    return render("events", pills=pills, rows=rows, more=len(listed) - len(rows), **_timeline(story))


def event_name(event: Mapping[str, Any]) -> str:
    """Return the name of an event; of an alarm, its name and whether it is over.

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
    details = plain({k.replace("_", " "): v for k, v in event.items() if k not in shown_elsewhere})
    return [number(event.get("step")), _pill(kind, event_name(event)), _whose(story, event), details]


def _whose(story: RunStory, event: Mapping[str, Any]) -> str:
    """Return the member of an event with its label; empty if it has none."""
    member = event.get("member")
    name = str(event.get("name") or "").removeprefix("member ")
    if not name and isinstance(member, int):
        own = story.members[member] if 0 <= member < len(story.members) else None
        name = f"{member}" + (f" ({own.label})" if own and own.label else "")
    return name


def _timeline(story: RunStory) -> JsonObject:
    """Return a dot for each event, the most important ones last so that they lie on top, and a tick for each meeting."""
    known = [e for e in story.events if isinstance(e.get("step"), (int, float))]
    steps = [e["step"] for e in (*story.metrics[-1:], *known) if isinstance(e.get("step"), (int, float))]
    end = max(steps, default=0) or 1
    met = [e for e in known if e.get("event") in _MEETINGS]
    ticks = dict.fromkeys(round(4 + 392 * e["step"] / end) for e in met)  # no two at one place
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


def members(story: RunStory) -> Markup:
    if not story.members:
        return Markup()
    many = max(m.replica for m in story.members) > 0
    known = {m.label for m in story.members}
    accuracy, spread = (
        found if known & found.keys() else {}
        for found in (per_class(story, n) for n in ("label_accuracy", "diversity"))
    )
    bred = any(m.generator for m in story.members)
    paced = any(m.steps is not None for m in story.members)
    head = [
        "member",
        *(["replica"] if many else []),
        *(["generator"] if bred else []),
        "label",
        "weight",
        *(["own steps"] if paced else []),
        "generator loss",
        "discriminator loss",
    ]
    head += [*(["recognised"] if accuracy else []), *(["diversity"] if spread else []), "troubles"]
    rows = []
    for m in story.members[:_MOST_LINES]:
        # the scores are those of the first replica
        own = m.label if m.replica == 0 else None
        first = Cell("best", "pill good", before=m.number, title="by GAM-II") if m.winner else m.number
        row: list[Any] = [
            first,
            *([m.replica] if many else []),
            *([m.generator] if bred else []),
            m.label or "–",
            percent(m.weight),
            *([number(m.steps)] if paced else []),
        ]
        row += [_loss(m, m.loss_g), _loss(m, m.loss_d)]
        row += [percent(accuracy.get(own or ""))] if accuracy else []
        row += [number(spread.get(own or ""))] if spread else []
        row.append(_troubles(m))
        rows.append(row)
    right = tuple(i for i, name in enumerate(head) if name not in ("label", "generator"))
    return render("members", head=head, rows=rows, right=right, more=len(story.members) - len(rows))


def _loss(member: MemberStory, value: float | None) -> str:
    """Return the last loss of a member; a dash if it was at rest."""
    return "–" if value is not None and math.isnan(value) and not member.troubles else number(value)


def _troubles(member: MemberStory) -> Any:
    """Return the number of troubles of a member, and its active alarms."""
    if not member.troubles:
        return "–"
    if member.ill:
        return Cell(f"{member.troubles}, now: {', '.join(member.ill)}", "pill warn")
    return Cell(f"{member.troubles}, over", "pill")
