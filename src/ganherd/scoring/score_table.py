"""Tables of scores for a terminal; every number has its samples, its network and its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ganherd.metrics.metric_registry import Metric
from ganherd.metrics.statistics.verdict import Ends, difference, verdict
from ganherd.scoring.result import Score, format_value, measured, skipped
from ganherd.util.text import text_table

Scores = Mapping[str, Mapping[str, Any]]
MOST = 30  # lines of a table of members or classes


def table(scores: Scores) -> str:
    """Return a table with one line for each score, then tables of groups and notes.

    >>> print(table({"diversity": {"value": 0.9, "samples": 1000, "network": "pixels", "seed": 0, "mean": 0.95}}))
    score      value  samples  network  seed  remarks
    diversity  0.900  1,000    pixels   0     mean over the classes 0.950
    """
    known = measured(scores).values()
    lines = [("score", "value", "samples", "network", "seed", "remarks")] if known else []
    lines += [(s.title, str(s), s.samples, s.network, s.seed, "; ".join(s.remarks)) for s in known]
    return "\n".join([*text_table(lines), *_groups(scores), *_notes(scores)])


def side_by_side(runs: Mapping[str, Scores], parts: bool = False, better: Mapping[str, str] | None = None) -> str:
    """Return a table with a column for each run.

    A star marks a run that is better than all others. If that is undecided, a tilde marks the runs that may be the best.

    Args:
        runs: The scores of each run.
        parts: Add tables of the members or classes of each run.
        better: For each score the run that is better than all others, if a finer rule than these intervals decided it.

    >>> ends = {"interval": {"low": 2.9, "high": 3.1}}, {"interval": {"low": 4.9, "high": 5.1}}
    >>> one, two = ({"value": v, "samples": 10, "network": "pixels", "seed": 0} | e for v, e in zip((3.0, 5.0), ends))
    >>> print(side_by_side({"a": {"fid": one}, "b": {"fid": two}}))
    score  a                         b                       samples  network  seed
    fid    3.000 * (2.900 to 3.100)  5.000 (4.900 to 5.100)  10       pixels   0
    * better than all others.
    """
    known = {run: measured(scores) for run, scores in runs.items()}
    names = list(dict.fromkeys(name for scores in known.values() for name in scores))
    lines = [("score", *runs, "samples", "network", "seed")]
    used: set[str] = set()
    for name in names:
        row = [scores.get(name) for scores in known.values()]
        marks = _marks(row)
        if better is not None and ("*" in marks or "~" in marks):
            marks = ["*" if run == better.get(name) else "" for run in runs]
        used |= set(marks)
        there = [score for score in row if score is not None]
        cells = [_cell(score, mark) for score, mark in zip(row, marks, strict=True)]
        lines.append((there[0].title, *cells, *(shared(there, key) for key in ("samples", "network", "seed"))))
    notes = [text for mark, text in LEGEND.items() if mark in used]
    for run, scores in runs.items():
        for name in (name for name in names if name in known[run]):
            notes += [f"{run}: {known[run][name].title}: {words}." for words in known[run][name].details]
        notes += [f"{run}: {note}" for note in _notes(scores)]
    below = [line for run, scores in runs.items() for line in _groups(scores, f"{run}: ")] if parts else []
    return "\n".join([*text_table(lines), *below, *notes])


LEGEND = {
    "*": "* better than all others.",
    "~": "~ undecided: one of these is the best, and the interval of their difference holds zero, or there is none.",
    "?": "? measured with another network, number of samples or data: not comparable.",
}


def _cell(score: Score | None, mark: str) -> str:
    """Return a cell of a table: the value, a mark and the interval."""
    if score is None:
        return "–"
    return f"{score} {mark}".rstrip() + (f" ({score.span})" if score.span else "")


def _marks(row: Sequence[Score | None]) -> list[str]:
    """Return a mark for each score: see LEGEND."""
    known = [score for score in row if score is not None and score.value is not None]
    if len(known) < 2 or (metric := known[0].metric) is None:
        return [""] * len(row)
    kinds = [tuple(score.entry.get("kinds", ())) for score in known]
    if len(set(kinds)) > 1 or max(map(len, kinds)) > 1:  # generators of different kinds have different judges
        return [""] * len(row)
    with_what = ("network", "head", "samples", "real", "real_samples")
    if len({tuple(score.entry.get(key) for key in with_what) for score in known}) > 1:
        return ["?" if score in known else "" for score in row]
    first = max(known, key=lambda score: score.merit or 0.0)
    rivals = [score for score in known if score is not first and verdict(_gain(metric, score, first)) == "undecided"]
    marked = ("~", [first, *rivals]) if rivals else ("*", [first])
    return [marked[0] if any(score is one for one in marked[1]) else "" for score in row]


def _gain(metric: Metric, worse: Score, better: Score) -> Ends | None:
    """Return the interval of how much better one is than the other; None if one of them has no interval."""
    merits, ends = [], []
    for score in (better, worse):
        if score.interval is None or score.value is None:
            return None
        low, high = score.interval["low"], score.interval["high"]
        around = [metric.merit(end) for end in (low, high)]
        if metric.direction == "nearest" and low <= metric.best <= high:
            around.append(0.0)  # the best value lies within
        merits.append(metric.merit(score.value))
        ends.append((min(around), max(around)))
    return difference(merits[0], ends[0], merits[1], ends[1])


def shared(scores: Sequence[Score], key: str) -> str:
    """Return the `samples`, `network` or `seed` of the scores as text: the common one, or all."""
    return " / ".join(dict.fromkeys(str(getattr(score, key)) for score in scores))


def _notes(scores: Scores) -> list[str]:
    """Return notes: the resizing of each network, warnings, and metrics that were left out."""
    warnings = [f"{score.title}: {score.warning}." for score in measured(scores).values() if score.warning]
    return [*network_notes(scores), *warnings, *skipped(scores)]


def network_notes(scores: Scores) -> list[str]:
    """Return the resizing that each network uses, and the accuracy of the classifiers behind features."""
    fed, judges = {}, {}
    for score in measured(scores).values():
        if (resizing := score.entry.get("resizing")) not in (None, "none"):
            fed[score.network] = resizing
        if "real_samples" in score.entry and "held_out_accuracy" in score.entry:  # others have it among their remarks
            judges[score.network] = format_value("accuracy", score.entry["held_out_accuracy"])
    notes = [f"{network}: resizing {resizing}." for network, resizing in fed.items()]
    return notes + [f"{network} is right on {share} of held-out real data." for network, share in judges.items()]


def _groups(scores: Scores, prefix: str = "") -> list[str]:
    """Return a table of the values of each class, member or neighbourhood, with their samples."""
    out: list[str] = []
    for per in ("class", "member", "neighbourhood"):
        values, counts = f"per_{per}", f"per_{per}_samples"
        columns = [
            (score, dict[str, Any](scores[name][values]), dict[str, int](scores[name][counts]))
            for name, score in measured(scores).items()
            if values in score.entry and counts in score.entry
        ]
        if not columns:
            continue
        rows = list(dict.fromkeys(row for _, each, _ in columns for row in each))
        lines = [(f"{prefix}{per}", *(score.title for score, _, _ in columns), "samples")]
        for row in rows:
            numbers = {count[row] for _, _, count in columns if row in count}
            cells = (score.of_group(each.get(row)) for score, each, _ in columns)
            lines.append((str(row), *cells, " / ".join(f"{number:,}" for number in sorted(numbers))))
        more = [f"… and {len(lines) - 1 - MOST:,} more in scores.json"] if len(lines) - 1 > MOST else []
        out += ["", *text_table(lines[: MOST + 1]), *more, ""]
    return out
