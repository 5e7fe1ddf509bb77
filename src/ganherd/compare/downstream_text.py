"""What classifiers say of a mixture, for people: a table, a picture, and the honest sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ganherd.util.text import text_table
from ganherd.viz import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERDICTS = {"helped": "it helped", "hurt": "it hurt", "undecided": "undecided"}


def text(found: Mapping[str, Any]) -> str:
    """Every run with its table and its sentence."""
    return "\n\n".join(_of_run(facts) for facts in found.values())


def _of_run(facts: Mapping[str, Any]) -> str:
    head = ("real images a class", "real alone", f"with {facts['generated']:,} generated a class", "difference", "")
    rows = []
    for row in facts["rows"]:
        apart = row["difference"]
        verdict = VERDICTS[apart["verdict"]] if apart else ""
        cells = (_percent(row["alone"]), _percent(row["with"]), _percent(apart, True))
        rows.append((_name(row, facts), *cells, verdict))
    lines = [f"{facts['run']}: accuracy on {facts['held_out']:,} held-out images of {facts['data']}", ""]
    return "\n".join(
        [*lines, *text_table([head, *rows]), "", *sentences(facts), f"picture  {facts['files']['picture']}"]
    )


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """What may be said, and what must be known to read it."""
    few = [row for row in facts["rows"] if row["difference"] and row["real"] != "all"]
    (whole,) = [row for row in facts["rows"] if row["real"] == "all"]
    words = {v: [f"{row['real']:,}" for row in few if row["difference"]["verdict"] == v] for v in VERDICTS}
    seeds = len(facts["seeds"])
    out = [
        f"With {' and '.join(numbers)} real images a class: {VERDICTS[v]}." for v, numbers in words.items() if numbers
    ]
    out.append(
        f"With all {facts['seen']:,} images that the mixture was trained on: {VERDICTS[whole['difference']['verdict']]}. "
        f"A classifier has {_percent(whole['alone'])} on these alone; what few images gain beside the mixture comes from them."
    )
    out.append(
        f"Means over {seeds} seeds with 95 % intervals (Student's t), differences paired by seed."
        if seeds > 1
        else "One seed: every difference is undecided; take --seeds 3 or more."
    )
    if facts["left_out"]:
        asked = ", ".join(str(n) for n in facts["left_out"])
        out.append(f"No class has {asked} real images or more: the row of all stands for that.")
    return out


def draw(facts: Mapping[str, Any]) -> Figure:
    """Accuracy by the number of real images, without and with generated ones."""
    figure, (axes,) = pictures.new_figure(5.6, 3.6)
    rows = facts["rows"]
    series = (("alone", "real alone", pictures.DATA, -0.08), ("with", "with generated", pictures.GENERATED, 0.08))
    for key, label, colour, shift in series:
        known = [(place + shift, row[key]) for place, row in enumerate(rows) if row[key]]
        x, y = [place for place, _ in known], [100 * entry["value"] for _, entry in known]
        ends = [entry.get("interval") or {"low": entry["value"], "high": entry["value"]} for _, entry in known]
        reach = [
            [v - 100 * e["low"] for v, e in zip(y, ends, strict=True)],
            [100 * e["high"] - v for v, e in zip(y, ends, strict=True)],
        ]
        axes.errorbar(x, y, reach, fmt="o-", color=colour, ms=5, lw=1.4, capsize=3, label=label)
        for place, entry in known:
            seeds = [100 * v for v in entry["per_seed"]]
            axes.plot([place] * len(seeds), seeds, ".", color=colour, alpha=0.4, ms=4)
    axes.set_xticks(range(len(rows)), [_name(row, facts) for row in rows])
    axes.set_xlabel("real images of each class", color=pictures.INK)
    axes.set_ylabel(f"accuracy on {facts['held_out']:,} held-out images, %", color=pictures.INK, fontsize=9)
    axes.legend(frameon=False, labelcolor=pictures.INK, loc="lower right")
    return figure


def _name(row: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if row["real"] == "all":
        return f"all ({facts['seen']:,} in all)"
    return f"{row['real']:,}" if row["real"] else "none"


def _percent(entry: Mapping[str, Any] | None, signed: bool = False) -> str:
    """
    >>> _percent({"value": 0.5, "interval": {"low": 0.4, "high": 0.6}})
    '50.0 % (40.0 to 60.0)'
    """
    if entry is None:
        return "–"
    ends, sign = entry.get("interval"), "+" if signed else ""
    span = f" ({100 * ends['low']:{sign}.1f} to {100 * ends['high']:{sign}.1f})" if ends else ""
    return f"{100 * entry['value']:{sign}.1f} %{span}"
