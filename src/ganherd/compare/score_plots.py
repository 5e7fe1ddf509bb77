"""Draw the scores of a comparison: a row for each contender, seeds as dots, means with their intervals, on sane axes.

An axis holds means and seeds, and never values that a score cannot have. An interval that reaches beyond it ends in an arrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

from ganherd.compare import comparison_text
from ganherd.compare.comparison_record import Comparison, ComparisonBasis
from ganherd.metrics.metric_registry import METRICS, title_of
from ganherd.scoring.result import Score, format_value, measured
from ganherd.viz import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Scores in the order in which they get a panel, while there is room; the primary one comes before them.
FIRST = ("fid", "ifid", "kid", "label_accuracy", "diversity", "precision", "recall", "coverage", "modes")
MOST, PER_ROW = 6, 3  # panels of the picture, and of one of its rows
COLOURS = ("#3b82f6", "#e08a1e", "#1a9f6b", "#a855f7", "#e5484d", "#64748b")
_MARGIN = 0.12  # of the range of the values, on both sides
_LONGEST = 22  # letters of a contender's name


def draw(facts: Comparison, others_in: str = "") -> Figure:
    """Draw the answer, and a panel for each of the first few metrics.

    Args:
        others_in: The file that has the scores without a panel.
    """
    metrics = panels(facts)
    shown, others = metrics[:MOST], metrics[MOST:]
    columns = max(1, min(PER_ROW, len(shown)))
    lines = max(1, math.ceil(len(shown) / columns))
    figure, axes = pictures.new_figure(3.9 * columns + 0.6, lines * _height(facts) + 0.9, columns, lines)
    for place, panel in enumerate(axes):
        if place < len(shown):
            _panel(panel, shown[place], facts, named=place % columns == 0)
        else:
            panel.set_visible(False)
    figure.suptitle(fill(_of(facts), 52 * columns), x=0.01, ha="left", fontsize=10, color=pictures.INK)
    words = [f"Not drawn, but in {others_in}: {', '.join(map(title_of, others))}."] if others and others_in else []
    figure.supxlabel(
        fill(" ".join([legend(facts), *words]), 52 * columns), x=0.01, ha="left", fontsize=8.5, color=pictures.INK
    )
    return figure


def draw_score(facts: Comparison, metric: str) -> Figure:
    """Draw one metric."""
    figure, (axes,) = pictures.new_figure(5.2, _height(facts))
    _panel(axes, metric, facts)
    return figure


def panels(facts: Comparison) -> list[str]:
    """Return the metrics that were measured: the primary one, the usual ones, and the others."""
    names = {
        m for basis in facts["bases"].values() for row in basis["entries"].values() for m in measured(row["scores"])
    }
    order = dict.fromkeys((facts.get("primary", ""), *FIRST, *METRICS))
    return [metric for metric in order if metric in names]


def legend(facts: Comparison) -> str:
    """Return what the marks mean."""
    seeds = facts["training"]["seeds"]
    what = (
        "small dots are seeds, bars 95 % intervals over them"
        if seeds > 1
        else "bars are 95 % intervals over the samples"
    )
    second = (
        f" Hollow: at equal {comparison_text.rows(facts)} seen, if that is another run."
        if _most_rows(facts) > 1
        else ""
    )
    arrows = " An arrow marks an interval that continues."
    return f"Large dots are means, {what}.{second}{arrows}"


def _bases_with_own_run(facts: Comparison, name: str) -> list[str]:
    """Return the bases at which a contender is drawn: the first, and those with another run than the first."""
    runs = {basis: by_basis["entries"][name]["run"] for basis, by_basis in facts["bases"].items()}
    first = next(iter(runs))
    return [basis for basis, run in runs.items() if basis == first or run != runs[first]]


def _most_rows(facts: Comparison) -> int:
    """Return the largest number of rows that any contender needs in a panel."""
    return max(len(_bases_with_own_run(facts, name)) for name in facts["training"]["recipes"])


def _of(facts: Comparison) -> str:
    """Return the title of the figure: the answer, or what is compared if there is no answer yet."""
    return facts.get("answer") or comparison_text.title(facts)


def _height(facts: Comparison) -> float:
    """Return the height of a panel in inches."""
    return 1.15 + 0.34 * len(facts["training"]["recipes"]) * _most_rows(facts)


def _panel(axes: Axes, metric: str, facts: Comparison, named: bool = True) -> None:
    """Draw a metric: rows from top to bottom are contenders, each at the first basis and below it at the second, if drawn."""
    names = list(facts["training"]["recipes"])
    low, high = limits(metric, facts["bases"])
    goal = METRICS[metric].goal
    axes.set_title(f"{title_of(metric)} ({goal})", color=pictures.INK, fontsize=10, loc="left")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=pictures.INK, alpha=0.09, lw=0.8)
    for i, name in enumerate(names):
        bases = _bases_with_own_run(facts, name)
        for place, basis in enumerate(bases):
            score = measured(facts["bases"][basis]["entries"][name]["scores"]).get(metric)
            if score is not None and score.value is not None:
                y = i + (place - (len(bases) - 1) / 2) * 0.8 / len(bases)
                _draw_score(axes, score, y, _colour(i), place > 0, (low, high))
    axes.set_xlim(low, high)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [_short(name) for name in names] if named else [""] * len(names))
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
    if format_value(metric, 1.0).endswith("%"):
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")


def _draw_score(axes: Axes, score: Score, y: float, colour: str, is_second: bool, ends: tuple[float, float]) -> None:
    """Draw the seeds, the interval and the mean of one score. An arrow marks values beyond the axis."""
    from matplotlib.markers import CARETLEFTBASE, CARETRIGHTBASE

    assert score.value is not None
    seeds = [v for v in score.entry.get("per_seed") or () if isinstance(v, (int, float))]
    axes.plot(seeds, [y] * len(seeds), ".", color=colour, alpha=0.45, ms=5)
    if span := score.interval:
        low, high = max(span["low"], ends[0]), min(span["high"], ends[1])
        axes.plot([low, high], [y, y], "-", color=colour, lw=1.4, alpha=0.8, solid_capstyle="butt")
        for at, is_beyond, caret in (
            (low, span["low"] < low, CARETLEFTBASE),
            (high, span["high"] > high, CARETRIGHTBASE),
        ):
            axes.plot([at], [y], marker=caret if is_beyond else "|", color=colour, ms=7, mew=1.2, clip_on=False, ls="")
    face = "none" if is_second else colour
    axes.plot([score.value], [y], "o", mfc=face, mec=colour, ms=7, mew=1.6, clip_on=False)


def limits(metric: str, bases: Mapping[str, ComparisonBasis]) -> tuple[float, float]:
    """Return the ends of the axis of a score: all means and seeds fit with a margin, within the possible values.

    Intervals may extend the axis on each side by at most twice the range of the values; longer ones end in an arrow.

    >>> row = {"scores": {"recall": {"value": 0.97, "per_seed": [0.95, 0.99], "interval": {"low": 0.0, "high": 1.0}}}}
    >>> [round(end, 3) for end in limits("recall", {"budget": {"entries": {"a": row}}})]
    [0.854, 1.0]
    >>> limits("recall", {"budget": {"entries": {"a": {"scores": {"recall": {"value": 0.0}}}}}})[1] > 0.01
    True
    """
    scores = [measured(row["scores"]).get(metric) for basis in bases.values() for row in basis["entries"].values()]
    known = [score for score in scores if score is not None and score.value is not None]
    values = [float(v) for score in known for v in (score.value, *(score.entry.get("per_seed") or ())) if _finite(v)]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = 2 * ((high - low) or abs(high) * 0.1 or 0.1)  # for what intervals have beyond the values
    spans = [score.interval for score in known if score.interval]
    low, high = (
        min([low, *(max(span["low"], low - room) for span in spans)]),
        max([high, *(min(span["high"], high + room) for span in spans)]),
    )
    margin = _MARGIN * ((high - low) or room)
    least, most = METRICS[metric].bounds
    return max(least, low - margin), min(most, high + margin)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
