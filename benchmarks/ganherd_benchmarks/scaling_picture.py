"""Plot the scaling benchmark: weak and strong scaling as measured, and the model with the numbers of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.viz import pictures
from ganherd.viz.pictures import INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"independent": "#10b981", "gap": "#8b5cf6", "cellular": "#3b82f6", "cellular, all-gather": "#c9772b"}
PAPER = "#6b7280"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw two panels of what was measured, and a third one if there is a model."""
    figure, axes = new_figure(11.4 if "model" in result else 7.8, 3.6, 3 if "model" in result else 2)
    for panel, kind in zip(axes, ("weak", "strong"), strict=False):
        _measured(panel, [row for row in result["rows"] if row["kind"] == kind], kind)
    if "model" in result:
        _model(axes[2], result)
    lines = {label: line for panel in axes for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8.5, labelcolor=INK
    )
    pictures.save(figure, path)


def _measured(axes: Axes, rows: Sequence[Mapping[str, Any]], kind: str) -> None:
    ranks = sorted({row["ranks"] for row in rows})
    one = {row["strategy"]: row["seconds"] for row in rows if row["ranks"] == ranks[0]}
    cores = rows[0]["cores"] if rows else 1
    if kind == "weak":
        first = max(one.values(), default=0.0)
        ideal = [1e3 * first * max(1, n / cores) / max(1, ranks[0] / cores) for n in ranks]
    else:
        first = max(one.values(), default=0.0)
        ideal = [1e3 * first * min(ranks[0], cores) / min(n, cores) for n in ranks]
    axes.plot(ranks, ideal, color=PAPER, lw=1.2, ls=(0, (4, 2)), label="ideal")
    for name, colour in COLOURS.items():
        own = sorted((row["ranks"], 1e3 * row["seconds"]) for row in rows if row["strategy"] == name)
        axes.plot(*zip(*own, strict=True), color=colour, lw=1.8, marker="o", ms=4, label=name)
    axes.set_title(f"{kind} scaling", color=INK, fontsize=9.5, loc="left")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"ranks, which share {cores} cores", color=INK)
    axes.set_ylabel("ms per round, slowest rank", color=INK)


def _model(axes: Axes, result: Mapping[str, Any]) -> None:
    model = result["model"]
    for name, colour in COLOURS.items():
        own = [(row["ranks"], 100 * row["efficiency"]) for row in model["rows"] if row["strategy"] == name]
        axes.plot(*zip(*own, strict=True), color=colour, lw=1.8, label=name)
        seen = [row for row in model["measured"] if row["strategy"] == name]
        axes.plot([row["ranks"] for row in seen], [100 * row["efficiency"] for row in seen], "o", color=colour, ms=4.5)
    paper = model["paper"]
    axes.plot([row["ranks"] for row in paper], [100 * row["efficiency"] for row in paper], color=PAPER, marker="s", ms=4.5,
              lw=1.2, label="cellular paper, Table III")  # fmt: skip
    axes.set_title(f"model, every {model['every']} steps (dots: measured)", color=INK, fontsize=9.5, loc="left")
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("ranks", color=INK)
    axes.set_ylabel("weak-scaling efficiency, %", color=INK)
