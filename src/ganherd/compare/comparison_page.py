"""Draw a comparison as one picture and one page: scores with their intervals, the cost of each recipe, and samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ganherd.compare import comparison_text
from ganherd.compare.comparison_record import Comparison, ComparisonBasis
from ganherd.metrics.metric_registry import METRICS
from ganherd.report import templating
from ganherd.scoring.result import format_value, measured, skipped
from ganherd.scoring.score_table import shared
from ganherd.util.files import JsonObject, atomic_write, read
from ganherd.viz import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Scores in the order in which they get a panel, while there is room.
FIRST = ("fid", "ifid", "kid", "label_accuracy", "precision", "recall", "coverage", "modes")
MOST = 6  # panels
_REPORTED = ("samples", "network", "seed")  # reported with every number
COLOURS = ("#3b82f6", "#e08a1e", "#1a9f6b", "#a855f7", "#e5484d", "#64748b")


def write(facts: Comparison, folder: Path) -> dict[str, Path]:
    """Write compare.png and compare.html into the folder; return the files of the comparison by their kind."""
    files = {"picture": folder / "compare.png", "page": folder / "compare.html", "data": folder / "compare.json"}
    pictures.save(draw(facts, "compare.html"), files["picture"])
    atomic_write(files["page"], render(facts, folder))
    return files


def draw(facts: Comparison, others_in: str = "") -> Figure:
    """Draw a panel for each metric: on the left at the equal budget, on the right at equal images; bars are intervals.

    Args:
        others_in: The file that has the scores without a panel.
    """
    bases = facts["bases"]
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


def panels(bases: Mapping[str, ComparisonBasis]) -> list[str]:
    """Return the metrics that were requested, the usual ones first; the first few are drawn."""
    names = {m for basis in bases.values() for row in basis["entries"].values() for m in measured(row["scores"])}
    return [m for m in (*FIRST, *(m for m in METRICS if m not in FIRST)) if m in names]


def _panel(axes: Axes, metric: str, facts: Comparison) -> None:
    bases, in_budget = facts["bases"], f"in {facts['training']['budget']}"
    axes.set_title(f"{metric.replace('_', ' ')} ({METRICS[metric].goal})", color=pictures.INK, fontsize=10, loc="left")
    for place, basis in enumerate(bases.values()):
        rows = basis["entries"]
        for i, row in enumerate(rows.values()):
            score = measured(row["scores"]).get(metric)
            if score is None or score.value is None:
                continue
            x = place + (i - (len(rows) - 1) / 2) * 0.6 / len(rows)
            seeds = [v for v in score.entry.get("per_seed", ()) if isinstance(v, (int, float))]
            axes.plot([x] * len(seeds), seeds, ".", color=_colour(i), alpha=0.4, ms=5)
            ends = score.interval
            reach = [[score.value - ends["low"]], [ends["high"] - score.value]] if ends else None
            axes.errorbar([x], [score.value], reach, fmt="o", color=_colour(i), ms=6, lw=1.4, capsize=3)
    axes.set_xticks(
        range(len(bases)),
        [in_budget if basis == "budget" else f"equal {comparison_text.rows(facts)}" for basis in bases],
    )
    axes.set_xlim(-0.6, len(bases) - 0.4)
    if format_value(metric, 1.0).endswith("%"):
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def render(facts: Comparison, folder: Path) -> str:
    """Return the page as HTML."""
    return templating.render(
        "comparison",
        title=comparison_text.title(facts),
        recipes=list(facts["training"]["recipes"]),
        chart=templating.svg(draw(facts), "compare"),
        legend=_legend(facts),
        bases=[_basis(facts, basis) for basis in facts["bases"]],
        samples=_samples(facts, folder),
    )


def _legend(facts: Comparison) -> str:
    seeds = facts["training"]["seeds"]
    what = "dots are seeds, bars 95 % intervals over them" if seeds > 1 else "bars are 95 % intervals over the samples"
    rest = " The other scores are in the tables below." if len(panels(facts["bases"])) > MOST else ""
    return f"Large dots are means, {what}.{rest}"


def _basis(facts: Comparison, basis: str) -> JsonObject:
    """Return the tables of recipes that had an equal budget, or saw equally many images."""
    facts_of_basis = facts["bases"][basis]
    entries = facts_of_basis["entries"]
    scores = [["score", *entries, *_REPORTED]]
    each_recipe = [measured(row["scores"]) for row in entries.values()]
    for metric in dict.fromkeys(metric for own in each_recipe for metric in own):
        each = [own.get(metric) for own in each_recipe]
        known = [score for score in each if score is not None]
        cells = ("–" if score is None else score.with_span for score in each)
        scores.append([known[0].title, *cells, *(shared(known, key) for key in _REPORTED)])
    left_out = {sentence for row in entries.values() for sentence in skipped(row["scores"])}
    return {
        "heading": comparison_text.heading(facts, basis),
        "took": comparison_text.took(facts, basis),
        "scores": scores,
        "differences": comparison_text.apart(facts_of_basis["differences"]),
        "notes": [*(f"{note}." for note in comparison_text.notes(facts, basis)), *sorted(left_out)],
    }


def _samples(facts: Comparison, folder: Path) -> list[tuple[str, bytes]]:
    """Return the last picture of each recipe's run at the equal budget."""
    runs = {name: folder / row["run"] for name, row in facts["bases"]["budget"]["entries"].items()}
    paths = {name: run / "samples" / "final.png" for name, run in runs.items()}
    return [(name, read(path)) for name, path in paths.items() if path.is_file()]
