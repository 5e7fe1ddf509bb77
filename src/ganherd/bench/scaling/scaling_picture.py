"""The scaling benchmark as plots: weak and strong scaling as measured, and the model beside them and beside the paper."""

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


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Two panels of what was measured; with the model a third one."""
    figure, axes = new_figure(11.4 if "model" in found else 7.8, 3.6, 3 if "model" in found else 2)
    for panel, kind in zip(axes, ("weak", "strong"), strict=False):
        _measured(panel, [row for row in found["rows"] if row["kind"] == kind], kind)
    if "model" in found:
        _model(axes[2], found)
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
    axes.set_title(f"{kind} scaling, {cores} cores", color=INK, fontsize=9.5, loc="left")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks", color=INK)
    axes.set_ylabel("ms a round, slowest rank", color=INK)


def _model(axes: Axes, found: Mapping[str, Any]) -> None:
    made = found["model"]
    steps = made["compute_seconds"]
    for name, colour in COLOURS.items():
        own = [(row["ranks"], 100 * row["efficiency"]) for row in made["rows"] if row["strategy"] == name]
        axes.plot(*zip(*own, strict=True), color=colour, lw=1.8, label=name)
        # the exchange as measured, where every rank has a core: the model knows of no sharing
        seen = [row for row in found["rows"] if row["kind"] == "weak" and row["strategy"] == name]
        seen = [row for row in seen if 1 < row["ranks"] <= row["cores"]]
        share = [100 * steps / (steps + row["exchange_seconds"]) for row in seen]
        axes.plot([row["ranks"] for row in seen], share, "o", color=colour, ms=4.5)
    paper = made["paper"]
    axes.plot([row["ranks"] for row in paper], [100 * row["efficiency"] for row in paper], color=PAPER, marker="s", ms=4.5,
              lw=1.2, label="cellular paper, Table III")  # fmt: skip
    axes.set_title(f"model, every {made['every']} steps (dots: measured)", color=INK, fontsize=9.5, loc="left")
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("ranks", color=INK)
    axes.set_ylabel("weak-scaling efficiency, %", color=INK)
