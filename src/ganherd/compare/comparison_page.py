"""A comparison as one picture and one page: the scores with their intervals and seeds, what each took, and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.compare import comparison_text
from ganherd.metrics.registry import METRICS
from ganherd.report.document import document
from ganherd.report.html import SafeHtml, figure, image, join, table, tag
from ganherd.runs.folder import write_aside
from ganherd.scoring.score_table import shared, shown, value
from ganherd.util import files
from ganherd.viz import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Scores in the order in which they get a panel, while there is room.
FIRST = ("fid", "ifid", "kid", "label_accuracy", "precision", "recall", "coverage", "modes")
MOST = 6  # panels
BESIDE = ("samples", "network", "seed")  # what stands beside every number
COLOURS = ("#3b82f6", "#e08a1e", "#1a9f6b", "#a855f7", "#e5484d", "#64748b")


def write(facts: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """compare.png and compare.html in the folder; what was written, by its kind."""
    pictures.save(draw(facts, "compare.html"), folder / "compare.png")
    write_aside(folder / "compare.html", render(facts, folder))
    return {
        kind: folder / name
        for kind, name in (("picture", "compare.png"), ("page", "compare.html"), ("data", "compare.json"))
    }


def draw(facts: Mapping[str, Any], others_in: str = "") -> Figure:
    """A panel for each metric: on the left at the equal budget, on the right at equal images; bars are intervals.

    `others_in`: where the scores stand that have no panel.
    """
    bases: Mapping[str, Any] = facts["bases"]
    metrics, others = panels(bases)[:MOST], panels(bases)[MOST:]
    drawn, axes = pictures.new_figure(2.6 * max(2, len(metrics)) + 0.6, 3.3, columns=max(1, len(metrics)))
    for panel, metric in zip(axes, metrics, strict=False):
        _panel(panel, metric, facts)
    names = list(facts["training"]["recipes"])
    handles = [axes[0].plot([], [], "o", color=_colour(i), label=name)[0] for i, name in enumerate(names)]
    drawn.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=9, labelcolor=pictures.INK)
    if others and others_in:
        words = f"Not drawn, but in {others_in}: {', '.join(m.replace('_', ' ') for m in others)}."
        drawn.supxlabel(words, x=0.01, ha="left", fontsize=9, color=pictures.INK)
    return drawn


def panels(bases: Mapping[str, Any]) -> list[str]:
    """The metrics that were asked for, the usual ones first; the first few are drawn."""
    found = {
        m for found in bases.values() for row in found["entries"].values() for m in row["scores"] if m != "skipped"
    }
    return [m for m in (*FIRST, *(m for m in METRICS if m not in FIRST)) if m in found]


def _panel(axes: Axes, metric: str, facts: Mapping[str, Any]) -> None:
    bases, in_budget = facts["bases"], f"in {facts['training']['budget']}"
    axes.set_title(f"{metric.replace('_', ' ')} ({METRICS[metric].goal})", color=pictures.INK, fontsize=10, loc="left")
    for place, found in enumerate(bases.values()):
        rows = found["entries"]
        for i, row in enumerate(rows.values()):
            entry = row["scores"].get(metric)
            if entry is None or not isinstance(entry.get("value"), (int, float)):
                continue
            x = place + (i - (len(rows) - 1) / 2) * 0.6 / len(rows)
            seeds = [v for v in entry.get("per_seed", ()) if isinstance(v, (int, float))]
            axes.plot([x] * len(seeds), seeds, ".", color=_colour(i), alpha=0.4, ms=5)
            ends = entry.get("interval")
            reach = [[entry["value"] - ends["low"]], [ends["high"] - entry["value"]]] if ends else None
            axes.errorbar([x], [entry["value"]], reach, fmt="o", color=_colour(i), ms=6, lw=1.4, capsize=3)
    axes.set_xticks(
        range(len(bases)),
        [in_budget if basis == "budget" else f"equal {comparison_text.rows(facts)}" for basis in bases],
    )
    axes.set_xlim(-0.6, len(bases) - 0.4)
    if value(metric, 1.0).endswith("%"):
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def render(facts: Mapping[str, Any], folder: Path) -> str:
    """The page."""
    training = facts["training"]
    head = tag(
        "header",
        tag("div", "ganherd compare", cls="kicker"),
        tag("h1", tag("span", " · ".join(training["recipes"]))),
        tag("p", comparison_text.title(facts) + ".", cls="lead"),
    )
    chart = tag("section", tag("h2", "Scores"), figure(draw(facts), "compare"), tag("p", _legend(facts), cls="caption"))
    sections = [_basis(facts, basis) for basis in facts["bases"]]
    return document(comparison_text.title(facts), join([head, chart, *sections, _samples(facts, folder)], "\n"))


def _legend(facts: Mapping[str, Any]) -> str:
    seeds = facts["training"]["seeds"]
    what = "dots are seeds, bars 95 % intervals over them" if seeds > 1 else "bars are 95 % intervals over the samples"
    rest = " The other scores stand in the tables below." if len(panels(facts["bases"])) > MOST else ""
    return f"Large dots are means, {what}.{rest}"


def _basis(facts: Mapping[str, Any], basis: str) -> SafeHtml:
    found = facts["bases"][basis]
    entries: Mapping[str, Any] = found["entries"]
    metrics = list(dict.fromkeys(m for row in entries.values() for m in row["scores"] if m != "skipped"))
    rows = []
    for m in metrics:
        each = [row["scores"].get(m) for row in entries.values()]
        known = [one for one in each if one is not None]
        rows.append([m.replace("_", " "), *(_cell(m, one) for one in each), *(shared(known, key) for key in BESIDE)])
    left_out = {why for row in entries.values() for why in _left_out(row["scores"])}
    return tag(
        "section",
        tag("h2", comparison_text.heading(facts, basis)),
        _table(comparison_text.took(facts, basis), right=(1, 2, 3, 4, 5, 6, 8, 9)),
        tag("h3", "Scores"),
        table(["score", *entries, *BESIDE], rows, right=range(1, len(entries) + 2)),
        tag("h3", "Difference to the first"),
        _table(comparison_text.apart(found["differences"]), right=range(1, len(entries))),
        join(tag("p", note + ".", cls="small") for note in (*comparison_text.notes(facts, basis), *sorted(left_out))),
    )


def _table(content: tuple[Sequence[str], Sequence[Sequence[str]]], right: Sequence[int]) -> SafeHtml:
    return table(content[0], content[1], right=right)


def _cell(metric: str, entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "–"
    ends = entry.get("interval")
    span = f" ({' to '.join(shown(metric, {'value': ends[end]}) for end in ('low', 'high'))})" if ends else ""
    return shown(metric, entry) + span


def _left_out(scores: Mapping[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')} is left out: {why}" for name, why in scores.get("skipped", {}).items()]


def _samples(facts: Mapping[str, Any], folder: Path) -> SafeHtml:
    """What the mixtures at the equal budget make, as the end of their training drew it."""
    grids = []
    for name, row in facts["bases"]["budget"]["entries"].items():
        path = folder / row["run"] / "samples" / "final.png"
        if path.is_file():
            picture = image(files.read(path), f"samples of {name}")
            grids.append(tag("div", tag("h3", name), tag("div", picture, cls="paper"), cls="map"))
    return tag("section", tag("h2", "Samples"), tag("div", join(grids), cls="maps")) if grids else SafeHtml("")
