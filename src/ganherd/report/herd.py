"""The herd's own story on the page: what happened along the steps, and how each member stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ganherd.report.gather import Story
from ganherd.report.numbers import per_class
from ganherd.report.parts import Safe, join, number, percent, plain, table, tag

_KINDS = {
    "nan": "bad",
    "diverged": "bad",
    "alarm": "warn",
    "repair": "warn",
    "finish": "good",
    "start": "busy",
    "resume": "busy",
}
_COLOURS = {"bad": "var(--bad)", "warn": "var(--warn)", "good": "var(--good)", "busy": "var(--busy)", "": "var(--soft)"}
_MOST_LINES = 200  # of a table


def events(story: Story) -> Safe:
    head = tag("h2", "What happened")
    if not story.events:
        return tag("section", head, tag("p", "Nothing has been recorded yet.", cls="soft"))
    kinds = Counter(str(e.get("event", "?")) for e in story.events)
    pills = join(_pill(kind, f"{kind} × {n:,}" if n > 1 else kind) for kind, n in kinds.items())
    told = [e for e in story.events if e.get("event") != "checkpoint"]
    rows = [_event_row(story, e) for e in told[:_MOST_LINES]]
    more = len(told) - len(rows)
    return tag(
        "section",
        head,
        tag("div", pills, cls="pills"),
        _timeline(story),
        table(("step", "event", "member", "details"), rows, right=(0,)) if rows else "",
        tag("p", f"{more:,} more in events.jsonl.", cls="small") if more > 0 else "",
    )


def _pill(kind: str, text: str) -> Safe:
    return tag("span", text, cls=f"pill {_KINDS.get(kind, '')}")


def _event_row(story: Story, event: Mapping[str, Any]) -> list[Any]:
    kind = str(event.get("event", "?"))
    member = event.get("member")
    name = str(event.get("name") or "").removeprefix("member ")
    if not name and isinstance(member, int):
        own = story.members[member] if 0 <= member < len(story.members) else None
        name = f"{member}" + (f" ({own.label})" if own and own.label else "")
    rest = {k: v for k, v in event.items() if k not in ("step", "event", "member", "name", "versions")}
    details = plain({k.replace("_", " "): v for k, v in rest.items()})
    return [number(event.get("step")), _pill(kind, kind), name, details]


def _timeline(story: Story) -> Safe:
    """A dot for each event along the steps; those that matter most are drawn last, on top."""
    steps = [e["step"] for e in (*story.metrics[-1:], *story.events) if isinstance(e.get("step"), (int, float))]
    end = max(steps, default=0) or 1
    dots = []
    order = ("", "busy", "good", "warn", "bad")
    for event in sorted(story.events[:2000], key=lambda e: order.index(_KINDS.get(str(e.get("event")), ""))):
        if not isinstance(event.get("step"), (int, float)):
            continue
        rank = _KINDS.get(str(event.get("event")), "")
        title = tag("title", f"{event.get('event')} at step {number(event['step'])}")
        x = 1 + 98 * event["step"] / end
        dots.append(f'<circle cx="{x:.2f}%" cy="17" r="{5 if rank else 3}" fill="{_COLOURS[rank]}">{title}</circle>')
    return Safe(
        '<svg class="timeline" role="img" aria-label="events along the steps">'
        f'<line x1="1%" x2="99%" y1="17" y2="17" stroke="var(--line)" stroke-width="2"/>{"".join(dots)}</svg>'
    )


def members(story: Story) -> Safe:
    if not story.members:
        return Safe("")
    many = max(m.replica for m in story.members) > 0
    accuracy, spread = per_class(story, "label_accuracy"), per_class(story, "diversity")
    head = ["member", *(["replica"] if many else []), "label", "weight", "generator loss", "discriminator loss"]
    head += [*(["recognised"] if accuracy else []), *(["diversity"] if spread else []), "troubles"]
    rows = []
    for m in story.members[:_MOST_LINES]:
        # the scores are the first replica's
        own = m.label if m.replica == 0 else None
        first = join([m.number, " ", tag("span", "best", cls="pill good", title="by GAM-II")]) if m.winner else m.number
        row: list[Any] = [first, *([m.replica] if many else []), m.label or "–", percent(m.weight)]
        row += [number(m.loss_g), number(m.loss_d)]
        row += [percent(accuracy.get(own or ""))] if accuracy else []
        row += [number(spread.get(own or ""))] if spread else []
        row.append(tag("span", m.troubles, cls="pill warn") if m.troubles else "–")
        rows.append(row)
    right = tuple(i for i, name in enumerate(head) if name != "label")
    more = len(story.members) - len(rows)
    rest = tag("p", f"{more:,} more members.", cls="small") if more > 0 else ""
    return tag("section", tag("h2", "Members"), table(head, rows, right=right), rest)
