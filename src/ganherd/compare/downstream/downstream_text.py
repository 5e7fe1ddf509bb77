"""Show what classifiers gain from a mixture: a table, a picture, and the conclusions in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ganherd.compare.comparison_record import Downstream, DownstreamRow
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.text import text_table
from ganherd.viz import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERDICTS = {"helped": "it helped", "hurt": "it hurt", "undecided": "undecided"}


def text(results: Mapping[str, Downstream]) -> str:
    """Return the table and the conclusions of every run."""
    return "\n\n".join(_of_run(facts) for facts in results.values())


def _of_run(facts: Downstream) -> str:
    head = ("real images a class", "real alone", f"with {facts['generated']:,} generated a class", "difference", "")
    rows = []
    for row in facts["rows"]:
        difference = row["difference"]
        verdict = VERDICTS[difference["verdict"]] if difference else ""
        cells = (_percent(row["alone"]), _percent(row["with"]), _percent(difference, True))
        rows.append((_name(row, facts), *cells, verdict))
    lines = [f"{facts['run']}: accuracy on {facts['held_out']:,} held-out images of {facts['data']}", ""]
    return "\n".join(
        [*lines, *text_table([head, *rows]), "", *sentences(facts), f"picture  {facts['files']['picture']}"]
    )


def sentences(facts: Downstream) -> list[str]:
    """Return the conclusions, and what a reader must know."""
    verdicts = {row["real"]: row["difference"]["verdict"] for row in facts["rows"] if row["difference"]}
    (whole,) = [row for row in facts["rows"] if row["real"] == "all"]
    words = {v: [f"{n:,}" for n, verdict in verdicts.items() if n != "all" and verdict == v] for v in VERDICTS}
    seeds = len(facts["seeds"])
    out = [
        f"With {' and '.join(numbers)} real images a class: {VERDICTS[v]}." for v, numbers in words.items() if numbers
    ]
    out.append(
        f"With all {facts['seen']:,} images that the mixture was trained on: {VERDICTS[verdicts['all']]}. "
        f"A classifier has {_percent(whole['alone'])} on these alone; what few images gain from the mixture comes from them."
    )
    out.append(
        f"Means over {seeds} seeds with 95 % intervals (Student's t), differences paired by seed."
        if seeds > 1
        else "One seed: every difference is undecided; take --seeds 3 or more."
    )
    if facts["left_out"]:
        counts = ", ".join(str(n) for n in facts["left_out"])
        out.append(f"No class has {counts} real images or more: the row of all covers that.")
    return out


def draw(facts: Downstream) -> Figure:
    """Draw the accuracy over the number of real images, without and with generated ones."""
    figure, (axes,) = pictures.new_figure(5.6, 3.6)
    rows = facts["rows"]
    series = (
        ([row["alone"] for row in rows], "real alone", pictures.DATA, -0.08),
        ([row["with"] for row in rows], "with generated", pictures.GENERATED, 0.08),
    )
    for entries, label, colour, shift in series:
        known = [(place + shift, entry) for place, entry in enumerate(entries) if entry]
        x, y = [place for place, _ in known], [100 * (entry["value"] or 0.0) for _, entry in known]
        ends = [entry.get("interval") for _, entry in known]
        reach = [
            [v - 100 * e["low"] if e else 0.0 for v, e in zip(y, ends, strict=True)],
            [100 * e["high"] - v if e else 0.0 for v, e in zip(y, ends, strict=True)],
        ]
        axes.errorbar(x, y, reach, fmt="o", color=colour, ms=5, lw=1.4, capsize=3, label=label)
        for place, entry in known:
            seeds = [100 * v for v in entry["per_seed"] if v is not None]
            axes.plot([place] * len(seeds), seeds, ".", color=colour, alpha=0.4, ms=4)
    axes.set_xticks(range(len(rows)), [_name(row, facts) for row in rows])
    axes.set_xlabel("real images of each class", color=pictures.INK)
    axes.set_ylabel(f"accuracy on {facts['held_out']:,} held-out images, %", color=pictures.INK, fontsize=9)
    axes.legend(frameon=False, labelcolor=pictures.INK, loc="lower right")
    return figure


def _name(row: DownstreamRow, facts: Downstream) -> str:
    if row["real"] == "all":
        return f"all ({facts['seen']:,} in all)"
    return f"{row['real']:,}" if row["real"] else "none"


def _percent(entry: ScoreEntry | None, signed: bool = False) -> str:
    """
    >>> _percent({"value": 0.5, "interval": {"low": 0.4, "high": 0.6}})
    '50.0 % (40.0 to 60.0)'
    """
    if entry is None:
        return "–"
    ends, sign = entry.get("interval"), "+" if signed else ""
    span = f" ({100 * ends['low']:{sign}.1f} to {100 * ends['high']:{sign}.1f})" if ends else ""
    return f"{100 * (entry['value'] or 0.0):{sign}.1f} %{span}"
