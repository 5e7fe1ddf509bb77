"""Scores as lines of text for a terminal: no number without its samples, its network and its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ganherd.metrics.metric_registry import METRICS, Metric
from ganherd.metrics.statistics.verdict import Ends, difference, verdict
from ganherd.util.text import text_table

Scores = Mapping[str, Mapping[str, Any]]
MOST = 30  # lines of a table of members or classes


def table(scores: Scores) -> str:
    """One line for each score, what to know about it below.

    >>> print(table({"diversity": {"value": 0.9, "samples": 1000, "network": "pixels", "seed": 0, "mean": 0.95}}))
    score      value  samples  network  seed  beside it
    diversity  0.900  1,000    pixels   0     mean over the classes 0.950
    """
    entries = {name: entry for name, entry in scores.items() if name != "skipped"}
    lines = [("score", "value", "samples", "network", "seed", "beside it")] if entries else []
    for name, entry in entries.items():
        lines.append(
            (
                name.replace("_", " "),
                shown(name, entry),
                f"{entry['samples']:,}",
                str(entry["network"]),
                str(entry["seed"]),
                "; ".join(remarks(entry, name)),
            )
        )
    return "\n".join([*text_table(lines), *_parts(entries), *_notes(scores)])


def side_by_side(runs: Mapping[str, Scores], parts: bool = False, better: Mapping[str, str] | None = None) -> str:
    """Return a table with a column for each run. A star marks a run that is better than all others; if that is undecided,
    a tilde marks the runs that may be the best.

    Args:
        parts: add the lines of the members or classes of each run.
        better: by score the run that is better than all others, if a finer rule than these intervals decided it.

    >>> ends = {"interval": {"low": 2.9, "high": 3.1}}, {"interval": {"low": 4.9, "high": 5.1}}
    >>> one, two = ({"value": v, "samples": 10, "network": "pixels", "seed": 0} | e for v, e in zip((3.0, 5.0), ends))
    >>> print(side_by_side({"a": {"fid": one}, "b": {"fid": two}}))
    score  a                         b                       samples  network  seed
    fid    3.000 * (2.900 to 3.100)  5.000 (4.900 to 5.100)  10       pixels   0
    * better than all others.
    """
    names = list(dict.fromkeys(name for scores in runs.values() for name in scores if name != "skipped"))
    lines = [("score", *runs, "samples", "network", "seed")]
    marks: set[str] = set()
    for name in names:
        entries = [scores.get(name) for scores in runs.values()]
        cells = []
        found = _marks(entries, METRICS.get(name))
        if better is not None and ("*" in found or "~" in found):
            found = ["*" if run == better.get(name) else "" for run in runs]
        for entry, mark in zip(entries, found, strict=True):
            cells.append("–" if entry is None else f"{shown(name, entry)} {mark}".rstrip() + _span(name, entry))
            marks.add(mark)
        facts = [entry for entry in entries if entry is not None]
        lines.append((name.replace("_", " "), *cells, *(shared(facts, key) for key in ("samples", "network", "seed"))))
    notes = [text for mark, text in LEGEND.items() if mark in marks]
    for run, scores in runs.items():
        for name in (name for name in names if name in scores):
            notes += [f"{run}: {name.replace('_', ' ')}: {words}." for words in _own(scores[name])]
        notes += [f"{run}: {note}" for note in _notes(scores)]
    below = [line for run, scores in runs.items() for line in _parts(scores, f"{run}: ")] if parts else []
    return "\n".join([*text_table(lines), *below, *notes])


LEGEND = {
    "*": "* better than all others.",
    "~": "~ undecided: one of these is the best, and the interval of their difference holds zero, or there is none.",
    "?": "? measured with another network, number of samples or data: not comparable.",
}


def _marks(entries: Sequence[Mapping[str, Any] | None], metric: Metric | None) -> list[str]:
    """Return a mark for each entry: see LEGEND."""
    known = [entry for entry in entries if entry is not None and isinstance(entry.get("value"), (int, float))]
    if len(known) < 2 or metric is None:
        return [""] * len(entries)
    kinds = [tuple(entry.get("kinds", ())) for entry in known]
    if len(set(kinds)) > 1 or max(map(len, kinds)) > 1:  # each kind of generator has judges of its own
        return [""] * len(entries)
    with_what = ("network", "head", "samples", "real", "real_samples")
    if len({tuple(entry.get(key) for key in with_what) for entry in known}) > 1:
        return ["?" if entry in known else "" for entry in entries]
    first = max(known, key=lambda entry: metric.merit(entry["value"]))
    rivals = [entry for entry in known if entry is not first and verdict(_gain(metric, entry, first)) == "undecided"]
    marked = ("~", [first, *rivals]) if rivals else ("*", [first])
    return [marked[0] if any(entry is one for one in marked[1]) else "" for entry in entries]


def _gain(metric: Metric, worse: Mapping[str, Any], better: Mapping[str, Any]) -> Ends | None:
    """Return the interval of how much better one is than the other; None if one of them has no interval."""
    merits, ends = [], []
    for entry in (better, worse):
        interval = entry.get("interval")
        if not interval:
            return None
        value, low, high = entry["value"], interval["low"], interval["high"]
        around = [metric.merit(end) for end in (low, high)]
        if metric.direction == "nearest" and low <= metric.best <= high:
            around.append(0.0)  # the best value lies within
        merits.append(metric.merit(value))
        ends.append((min(around), max(around)))
    return difference(merits[0], ends[0], merits[1], ends[1])


def shared(entries: Sequence[Mapping[str, Any]], key: str) -> str:
    found = list(dict.fromkeys(f"{e[key]:,}" if key == "samples" else str(e[key]) for e in entries))
    return " / ".join(found)


def _notes(scores: Scores) -> list[str]:
    """How each network was fed, warnings, and what was left out."""
    entries = {name: entry for name, entry in scores.items() if name != "skipped"}
    notes = networks_told(scores)
    notes += [f"{name.replace('_', ' ')}: {e['warning']}." for name, e in entries.items() if e.get("warning")]
    return notes + [f"{name.replace('_', ' ')} is left out: {why}." for name, why in scores.get("skipped", {}).items()]


def networks_told(scores: Scores) -> list[str]:
    """What is done to an image before each network sees it, and how good the classifiers behind features are."""
    entries = [entry for name, entry in scores.items() if name != "skipped" and isinstance(entry, Mapping)]
    fed = {str(e.get("network")): e["resizing"] for e in entries if e.get("resizing") not in (None, "none")}
    judges = {
        str(e.get("network")): e["held_out_accuracy"]
        for e in entries
        if "real_samples" in e and "held_out_accuracy" in e  # others say it beside their value
    }
    told = [f"{network}: resizing {resizing}." for network, resizing in fed.items()]
    known = {network: value("accuracy", share) for network, share in judges.items()}
    return told + [f"{network} is right on {share} of held-out real data." for network, share in known.items()]


def _parts(scores: Scores, of: str = "") -> list[str]:
    """What --per asked for, and what is known of members anyway: a line for each, with its samples."""
    entries = {name: entry for name, entry in scores.items() if name != "skipped"}
    out: list[str] = []
    for per in ("class", "member", "neighbourhood"):
        columns = {name: e for name, e in entries.items() if f"per_{per}_samples" in e and f"per_{per}" in e}
        if columns:
            rows = list(dict.fromkeys(key for e in columns.values() for key in e[f"per_{per}"]))
            lines = [(f"{of}{per}", *(name.replace("_", " ") for name in columns), "samples")]
            for row in rows:
                counts = {e[f"per_{per}_samples"].get(row) for e in columns.values()} - {None}
                cells = (shown(name, {**e, "value": e[f"per_{per}"].get(row)}) for name, e in columns.items())
                lines.append((str(row), *cells, " / ".join(f"{count:,}" for count in sorted(counts))))
            more = [f"… and {len(lines) - 1 - MOST:,} more in scores.json"] if len(lines) - 1 > MOST else []
            out += ["", *text_table(lines[: MOST + 1]), *more, ""]
    return out


def shown(name: str, entry: Mapping[str, Any]) -> str:
    """The value of an entry as people write it.

    >>> shown("modes", {"value": 8, "of": 8}), shown("ais", {"value": 328.77, "unit": "nats an image"})
    ('8 of 8', '328.8 nats')
    """
    number = entry.get("value")
    if not isinstance(number, (int, float)):
        return "–"
    if "of" in entry:
        return f"{_count(number)} of {entry['of']:,}"
    if name == "ais":
        return f"{number:.1f} nats"
    return value(name, number)


def value(name: str, number: float | None) -> str:
    """A score as people write it: accuracies in percent, KID with the digits that it needs.

    >>> value("label_accuracy", 0.981), value("diversity", 0.9), value("diversity", None), value("kid", 0.00123)
    ('98.1 %', '0.900', '–', '0.00123')
    """
    if not isinstance(number, (int, float)):
        return "–"
    if name == "kid":
        return f"{number:.5f}"
    return f"{100 * number:.1f} %" if name.endswith("accuracy") or name == "memorisation" else f"{number:.3f}"


def remarks(entry: Mapping[str, Any], name: str = "") -> list[str]:
    """What has to stand beside a score so that it can be read."""
    out = []
    if "per_seed" in entry:
        seeds = entry.get("seeds") or entry["per_seed"]
        out.append(f"mean of {len(seeds)} seeds, standard deviation {value('', entry.get('std'))}")
    if span := _span(name, entry):
        out.append(f"95 % {span.strip(' ()')} ({entry['interval'].get('how', '')})")
    if "real_samples" in entry:
        out.append(f"against {entry['real_samples']:,} of {entry.get('real', 'the data')}")
    elif "held_out_accuracy" in entry:
        known = value("accuracy", entry["held_out_accuracy"])
        out.append(f"the classifier on held-out real data: {known}")
    if "head" in entry:
        out.append(f"classifier head {entry['head']}")
    out += _own(entry)
    if "by_chance" in entry and "nearer" not in entry and "kl" not in entry:
        out.append(f"perfect draws would show about {value('', entry['by_chance'])}")
    if isinstance(entry.get("mean"), (int, float)) and list(entry.get("per_class", ())) != ["all"]:
        worst = [name for name, v in entry.get("per_class", {}).items() if v == entry.get("value")]
        out.append(f"mean over the classes {value('', entry['mean'])}" + (f", least in {worst[0]}" if worst else ""))
    return out


def _span(name: str, entry: Mapping[str, Any]) -> str:
    """Its interval, written as its value is; nothing where it has none.

    >>> _span("fid", {"interval": {"low": 2.9, "high": 3.1}}), _span("modes", {"of": 8, "interval": {"low": 6.0, "high": 7.0}})
    (' (2.900 to 3.100)', ' (6 to 7)')
    """
    interval = entry.get("interval")
    if not isinstance(interval, Mapping) or not all(isinstance(interval.get(k), (int, float)) for k in ("low", "high")):
        return ""
    ends = (interval[end] for end in ("low", "high"))
    low, high = (_count(end) if "of" in entry else shown(name, {"value": end}) for end in ends)
    return f" ({low} to {high})"


def _own(entry: Mapping[str, Any]) -> list[str]:
    """What belongs to one metric alone, told by what it keeps."""
    out = []
    if "high_quality" in entry:
        kl = value("", entry.get("reverse_kl"))
        span = _span("accuracy", {"interval": entry.get("high_quality_interval")})
        out.append(
            f"{value('accuracy', entry['high_quality'])}{span} high quality, reverse KL {kl}, "
            f"{_count(entry.get('represented'))} represented; {entry.get('modes', '')}"
        )
    if "mean_member" in entry:
        out.append(f"a member alone {_count(entry['mean_member'])} on average")
    if "kl" in entry:
        out.append(f"KL {value('', entry['kl'])}; perfect draws would show about {value('', entry.get('by_chance'))}")
    if "nearer" in entry:
        out.append(
            f"{value('accuracy', entry.get('by_chance'))} is chance; nearer to the training data than held-out data is: "
            f"{value('accuracy', entry['nearer'])} (50 % is chance); distance by that of held-out data "
            f"{value('', entry.get('ratio'))}; {_count(entry.get('held_out'))} held out, {_count(entry.get('training'))} trained on"
        )
    if "gap" in entry:
        out.append(
            f"gap of the bounds {value('', entry['gap'])}; KDE of {_count(entry.get('kde_samples'))} samples "
            f"{shown('ais', {'value': entry.get('kde')})}"
        )
    if isinstance(entry.get("kid"), Mapping):
        out.append(f"mean KID within the classes {value('kid', entry['kid'].get('value'))}")
    if isinstance(counts := entry.get("per_class_samples"), Mapping) and counts:
        out.append(f"at least {_count(min(counts.values()))} samples of each class")
    if "judged_by" in entry:
        errors = [e for e in entry.get("real_errors", ()) if isinstance(e, (int, float))]
        worst = [e for e in entry.get("worst", ()) if isinstance(e, (int, float))]
        span = f", worst judge {min(worst):.3f} to {max(worst):.3f}" if worst else ""
        best = f", best member {entry['best_member']}" if entry.get("best_member") is not None else ""
        out.append(f"judged by {entry['judged_by']}{span}{best}")
        if errors:
            out.append(f"its own judges err on {min(errors):.3f} to {max(errors):.3f} of held-out real data")
    if "won" in entry:
        out.append(f"{_count(entry['won'])} battles won, {_count(entry['tied'])} tied, {_count(entry['lost'])} lost")
    return out


def _count(number: Any) -> str:
    """
    >>> _count(1200), _count(7.25), _count(None)
    ('1,200', '7.2', '–')
    """
    if not isinstance(number, (int, float)):
        return "–"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if number.is_integer() else f"{number:,.1f}"
