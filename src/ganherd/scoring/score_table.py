"""Tables of scores for a terminal; every number has its samples, its network and its seed.

The short table compares each score with what real data would have; the long one has all remarks, for `--verbose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ganherd.metrics.metric_registry import Metric
from ganherd.metrics.statistics.significance import Ends, difference, outcome, sign
from ganherd.scoring.result import Score, format_value, measured, skipped
from ganherd.util.terminal.screen import Block, Columns, Styled

Scores = Mapping[str, Mapping[str, Any]]
MOST = 30  # lines of a table of members or classes
LIKE = "like real data"


def brief(scores: Scores, parts: bool = False) -> list[Block]:
    """Return the short table, and below it what was measured with what, and every warning.

    Args:
        parts: Add the tables of classes, members or neighbourhoods.
    """
    known = list(measured(scores).values())
    with_what = ["", Styled(_measured_with(known), "soft")] if known else []
    warnings = [Styled(note, "warn") for note in merged_warnings(scores)]
    left_out = [Styled(note, "soft") for note in skipped(scores)]
    return [*_compared(known), *with_what, *(_groups(scores) if parts else ()), *warnings, *left_out]


def full(scores: Scores) -> list[Block]:
    """Return the short table and all details: a paragraph for each score, tables of groups, and notes.

    >>> from ganherd.util.terminal.screen import as_text
    >>> entry = {"value": 0.9, "samples": 1000, "network": "pixels", "seed": 0, "mean": 0.95}
    >>> print(as_text(*full({"diversity": entry})))
    score      value  95 % interval  real data has  compared
    diversity  0.900  –                          1  no interval
    <BLANKLINE>
    diversity: 1,000 samples, network pixels, seed 0; mean over the classes 0.950
    """
    known = list(measured(scores).values())
    each = ["; ".join([f"{s.samples} samples, network {s.network}, seed {s.seed}", *s.remarks()]) for s in known]
    details = [f"{score.title}: {text}" for score, text in zip(known, each, strict=True)]
    return [*_compared(known), *([""] if known else []), *details, *_groups(scores), *_notes(scores)]


def _compared(known: Sequence[Score]) -> list[Block]:
    """Return a table with the value, the interval and the comparison with real data of each score; [] without scores."""
    if not known:
        return []
    rows = [(s.title, str(s), s.span or "–", real_text(s), standing(s)) for s in known]
    head = ("score", "value", "95 % interval", "real data has", "compared")
    return [Columns(head, rows, right={1, 3}, whole=range(4))]


def real_text(score: Score) -> str:
    """Return the cell of the column "real data has".

    It is the value that real data would have; if that is not known, "best is …" with the best possible value, or "–" for a
    score without a limit.
    """
    if score.real_value is None:
        return "–" if score.best in ("", "the higher") else f"best is {score.best}"
    return score.best if score.metric and score.metric.real in ("best", "of") else score.of_value(score.real_value)


def standing(score: Score) -> Styled:
    """Return how a score compares with that of real data: like it if the 95 % interval of their difference contains 0.

    The value of real data has an error, too, so a perfect mixture is called worse in at most about 5 % of cases.

    >>> ends = {"low": 0.97, "high": 0.98}
    >>> standing(Score("label_accuracy", {"value": 0.975, "interval": ends, "held_out_accuracy": 0.99})).text
    'worse'
    >>> few_held_out = {"held_out_accuracy": 0.99, "held_out_samples": 100}
    >>> standing(Score("label_accuracy", {"value": 0.975, "interval": ends, **few_held_out})).text
    'like real data'
    >>> standing(Score("kid", {"value": 0.001, "interval": {"low": -0.01, "high": 0.01}})).text
    'like real data'
    """
    real, real_ends, ends, metric = score.real_value, score.real_ends, score.interval, score.metric
    if real is None or real_ends is None or score.value is None or metric is None:
        return Styled("")
    if ends is None:
        return Styled("no interval", "soft")
    side = sign(difference(score.value, (ends["low"], ends["high"]), real, real_ends))
    below, above = metric.beyond_real
    if side < 0 and metric.direction != "lower":
        return Styled(below, "warn")
    if side > 0 and (metric.direction != "higher" or above != "worse"):
        return Styled(above, "warn")
    return Styled(LIKE, "good")


def _measured_with(known: Sequence[Score]) -> str:
    """Return one sentence with the samples, seeds and networks of the scores.

    >>> facts = {"samples": 100, "network": "pixels", "seed": 0}
    >>> _measured_with([Score("fid", facts), Score("kid", facts | {"samples": 50})])
    'Samples: 100 (FID), 50 (KID), seed 0. Network: pixels. More with --verbose.'
    """
    samples, networks = (_shared_by(known, key) for key in ("samples", "network"))
    counts = f"Samples: {samples}" if "(" in samples else f"{samples} samples"
    several = max(len(score.entry.get("per_seed") or ()) for score in known)
    means = f"; means of {several} seeds" if several else ""
    return f"{counts}, seed {shared(known, 'seed')}{means}. Network: {networks}. More with --verbose."


def _shared_by(known: Sequence[Score], key: str) -> str:
    """Return the `samples` or the `network` of the scores as text; if they differ, each with the scores that have it."""
    by: dict[str, list[str]] = {}
    for score in known:
        by.setdefault(getattr(score, key), []).append(score.title)
    return next(iter(by)) if len(by) == 1 else ", ".join(f"{value} ({', '.join(names)})" for value, names in by.items())


def merged_warnings(scores: Scores) -> list[str]:
    """Return each warning once, with the scores that it is about."""
    about: dict[str, list[str]] = {}
    for score in measured(scores).values():
        if score.warning:
            about.setdefault(score.warning, []).append(score.title)
    return [f"{', '.join(names)}: {warning}." for warning, names in about.items()]


def side_by_side(
    runs: Mapping[str, Scores], parts: bool = False, better: Mapping[str, str] | None = None
) -> list[Block]:
    """Return a table with a column for each run.

    A star marks a run that is better than all others. If that is undecided, a tilde marks the runs that may be the best.

    Args:
        runs: The scores of each run.
        parts: Add tables of the members or classes of each run.
        better: For each score the run that is better than all others, if a finer rule than these intervals decided it.

    >>> from ganherd.util.terminal.screen import as_text
    >>> ends = {"interval": {"low": 2.9, "high": 3.1}}, {"interval": {"low": 4.9, "high": 5.1}}
    >>> one, two = ({"value": v, "samples": 10, "network": "pixels", "seed": 0} | e for v, e in zip((3.0, 5.0), ends))
    >>> print(as_text(*side_by_side({"a": {"fid": one}, "b": {"fid": two}})))
    score  a                         b                       samples  network  seed
    FID    3.000 * (2.900 to 3.100)  5.000 (4.900 to 5.100)  10       pixels   0
    * better than all others.
    """
    known = {run: measured(scores) for run, scores in runs.items()}
    names = list(dict.fromkeys(name for scores in known.values() for name in scores))
    lines: list[Sequence[str | Styled]] = []
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
    return [Columns(("score", *runs, "samples", "network", "seed"), lines), *below, *notes]


LEGEND = {
    "*": "* better than all others.",
    "~": "~ undecided: the best scores are too close to tell which is better (the interval of their difference contains zero, or "
    "is not known).",
    "?": "? measured with another network, number of samples or data: not comparable.",
}


def _cell(score: Score | None, mark: str) -> Styled:
    """Return a cell of a table: the value, a mark and the interval."""
    if score is None:
        return Styled("–")
    text = f"{score} {mark}".rstrip() + (f" ({score.span})" if score.span else "")
    return Styled(text, {"*": "good", "?": "warn"}.get(mark, ""))


def _marks(row: Sequence[Score | None]) -> list[str]:
    """Return the mark of each run in one row of the table, "" for none; the marks are explained in LEGEND.

    Args:
        row: The same score of each run; None if a run does not have it.
    """
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
    rivals = [score for score in known if score is not first and outcome(_gain(metric, score, first)) == "undecided"]
    marked = ("~", [first, *rivals]) if rivals else ("*", [first])
    return [marked[0] if any(score is one for one in marked[1]) else "" for score in row]


def _gain(metric: Metric, worse: Score, better: Score) -> Ends | None:
    """Return the interval of how much better the score `better` is than `worse`; None if one of them has no interval.

    The gain is measured by `Metric.merit`, of which more is better.
    """
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
    return [*network_notes(scores), *merged_warnings(scores), *skipped(scores)]


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


def _groups(scores: Scores, prefix: str = "") -> list[Block]:
    """Return tables of the values of each class, member and neighbourhood, as far as they were measured; [] if none was."""
    out: list[Block] = []
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
        head, lines = (f"{prefix}{per}", *(score.title for score, _, _ in columns), "samples"), []
        for row in rows:
            numbers = {count[row] for _, _, count in columns if row in count}
            cells = (score.of_value(each.get(row)) for score, each, _ in columns)
            lines.append((str(row), *cells, " / ".join(f"{number:,}" for number in sorted(numbers))))
        more = [f"… and {len(lines) - MOST:,} more in scores.json"] if len(lines) > MOST else []
        out += ["", Columns(head, lines[:MOST]), *more, ""]
    return out
