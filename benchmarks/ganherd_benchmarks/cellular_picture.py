"""Plot the parallel cellular benchmark: minutes by grid (Table III), and by routine (Figure 4 of the cellular paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.viz import pictures
from ganherd.viz.pictures import DATA, GENERATED, INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_WIDTH = 0.2  # of a bar
_BARS = (("single", DATA, ""), ("distributed", GENERATED, ""), ("single", DATA, "//"), ("distributed", GENERATED, "//"))


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw minutes of all grids, and the routines of the largest one, each with the published numbers if there are any."""
    figure, (left, right) = new_figure(9.6, 3.8, 2)
    rows = result["table_3"]
    known = [row["published"] and [row["published"][name] for name in ("single", "distributed")] for row in rows]
    _bars(left, [f"{row['grid']}×{row['grid']}\n{_ranks(row)}" for row in rows], rows, known, 1.0)
    last = rows[-1]
    routines = [
        row
        for row in result["table_4"]
        if (row["grid"], row["ranks"]) == (last["grid"], last["ranks"]) and row["routine"] != "overall"
    ]
    _bars(right, [row["routine"] for row in routines], routines, [row["published"] for row in routines], 0.01)
    left.set_title("minutes of 200 iterations, projected (Table III)", color=INK, fontsize=9.5, loc="left")
    right.set_title(f"{last['grid']}×{last['grid']} by routine (Figure 4)", color=INK, fontsize=9.5, loc="left")
    lines = {label: bar for axes in (left, right) for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        lines.values(), lines.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8.5, labelcolor=INK
    )
    pictures.save(figure, path)


def _bars(
    axes: Axes, names: Sequence[str], rows: Sequence[Row], known: Sequence[Sequence[float] | None], least: float
) -> None:
    """Draw the bars of each row: one core and distributed, as measured and as published.

    Args:
        least: The minutes at which the log axis begins.
    """
    for place, (name, colour, hatch) in enumerate(_BARS):
        values = [
            row[name] if not hatch else published and published[name == "distributed"]
            for row, published in zip(rows, known, strict=True)
        ]
        at = [n + (place - 1.5) * _WIDTH for n, value in enumerate(values) if value]
        if at:
            label = f"{'one core' if name == 'single' else name}, {'published' if hatch else 'measured'}"
            axes.bar(
                at,
                [value for value in values if value],
                _WIDTH,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=label,
            )
    axes.set_xticks(range(len(names)), names)
    axes.set_yscale("log")
    axes.set_ylim(bottom=least)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_ylabel("minutes", color=INK)


def _ranks(row: Row) -> str:
    return f"{row['ranks']} ranks" + (", more than cores" if row["oversubscribed"] else "")
