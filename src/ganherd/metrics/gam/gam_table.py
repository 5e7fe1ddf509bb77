"""Write GAM-II of several runs as the tables of the paper: the least and the largest value of each run, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Required, TypedDict

import numpy as np

from ganherd.metrics.gam.gam import Gam2Scores, Helps, Player, apart, helps, weak_judges
from ganherd.metrics.statistics.significance import UNDECIDED, sign
from ganherd.util.text import text_table


class LeastAndLargest(TypedDict):
    """The least and the largest value over the generators of a run."""

    least: float
    largest: float


class GamRow(TypedDict, total=False):
    """GAM-II of the generators of one kind (their net, if a run has several nets) in one run."""

    run: Required[str]
    kind: Required[str]
    generators: Required[int]
    judges: Required[list[int]]
    avg: Required[LeastAndLargest | None]
    worst: Required[LeastAndLargest | None]
    real_errors: Required[LeastAndLargest | None]
    against: str  # the run that it is compared with
    words: dict[str, str]
    differences: dict[str, Helps]


def summary(players: Sequence[Player], verdict: Gam2Scores, real_errors: np.ndarray, samples: int) -> list[GamRow]:
    """Return the rows of the tables in the paper: for each kind and run, the least and the largest GAM-II of its generators.

    Rows also say whether the run helps against the first run of its kind, in `words`, and the `differences` of the best members.
    """
    out: list[GamRow] = []
    for kind in dict.fromkeys(player.kind for player in players):
        first: dict[str, np.ndarray] = {}
        for group in dict.fromkeys(player.group for player in players if player.kind == kind):
            rows = [i for i, player in enumerate(players) if (player.kind, player.group) == (kind, group)]
            own = {"avg": verdict.average[rows], "worst": verdict.worst[rows]}
            row: GamRow = {
                "run": group,
                "kind": kind,
                "generators": len(rows),
                "judges": sorted(set(verdict.judges[rows].tolist())),
                "avg": _span(own["avg"]),
                "worst": _span(own["worst"]),
                "real_errors": _span(real_errors[rows]),
            }
            if first:
                row["against"] = next(one["run"] for one in out if one["kind"] == kind)
                compared = {name: helps(values, first[name], samples) for name, values in own.items()}
                row["words"] = {name: one.pop("words") for name, one in compared.items()}
                row["differences"] = {name: one for name, one in compared.items() if one}
            first = first or own
            out.append(row)
    return out


def table(players: Sequence[Player], verdict: Gam2Scores, real_errors: np.ndarray, samples: int, held_out: int) -> str:
    """Return a table of GAM-II by run (least and largest over its members), and below it the weak judges."""
    groups = summary(players, verdict, real_errors, samples)
    lines = [("run", "generators", "judged by", "avg", "worst", "its judges' error on real")]
    for row in groups:
        judges = row["judges"]
        judged_by = " to ".join(str(n) for n in (judges if len(judges) < 3 else (judges[0], judges[-1])))
        avg, worst, real = (_words(row[name]) for name in ("avg", "worst", "real_errors"))
        lines.append((_named(row["run"], row["kind"]), str(row["generators"]), judged_by, avg, worst, real))
    text = text_table(lines)
    text.append(
        f"least to largest over the generators; {samples:,} samples of each and {held_out:,} held-out real ones; "
        "larger is better"
    )
    weak: dict[tuple[str, str], list[Player]] = {}
    for player, why in zip(players, weak_judges(real_errors, verdict), strict=True):
        if why:
            weak.setdefault((player.group, why), []).append(player)
    for (group, why), weak_players in weak.items():
        is_ = "is " if why.startswith("no ") else ""
        if len(weak_players) > 3:
            text.append(f"each of {len(weak_players)} judges of {group} {is_}{why}")
        else:
            text += [f"the judge of {player.name} {is_}{why}" for player in weak_players]
    for row in groups:
        baseline = _named(row.get("against", ""), row["kind"])
        sentence = f"{baseline} is the baseline: the first run given" + (" with this kind" if row["kind"] else "")
        if "words" in row and sentence not in text:
            text.append(sentence)
        for name, words in row.get("words", {}).items():
            is_ = "is " if words == UNDECIDED else ""
            by = _best_by(row["differences"].get(name))
            text.append(f"{_named(row['run'], row['kind'])} {is_}{words} against {baseline} ({name}{by})")
    if len({player.kind for player in players}) > 1:
        text.append(
            "generators of each kind are judged by the discriminators of that kind: compare them within a kind; the best of a "
            "run of several is picked by the judges of every kind"
        )
    elif verdict.winner is not None and len({player.label for player in players}) == 1:
        best = players[verdict.winner]
        top = float(verdict.average[verdict.winner])
        rest = [float(v) for i, v in enumerate(verdict.average) if i != verdict.winner and not np.isnan(v)]
        rivals = sum(sign(apart(top, v, samples)) == 0 for v in rest)
        unsure = f"; against {rivals} of the {len(rest)} others that is undecided" if rivals else ""
        text.append(f"the best by avg is {best.name} ({top:.3f}){unsure}")
    return "\n".join(text)


def _named(group: str, kind: str) -> str:
    """Return the name of a run, with the kind of its generators if there are several."""
    return f"{group} ({kind})" if kind else group


def _best_by(best: Helps | None) -> str:
    """Return the words for the difference of the best members, with its interval.

    >>> _best_by({"value": 0.04, "interval": {"low": 0.021, "high": 0.06}})
    ', best members differ by +0.040: 95 % +0.021 to +0.060'
    """
    if best is None:
        return ""
    low, high = (best["interval"][end] for end in ("low", "high"))
    return f", best members differ by {best['value']:+.3f}: 95 % {low:+.3f} to {high:+.3f}"


def _span(values: np.ndarray) -> LeastAndLargest | None:
    """Return the least and the largest of the values that are not NaN; None if all are.

    >>> _span(np.array([0.3, np.nan, 0.1])), _span(np.array([np.nan]))
    ({'least': 0.1, 'largest': 0.3}, None)
    """
    known = values[~np.isnan(values)]
    return {"least": float(known.min()), "largest": float(known.max())} if len(known) else None


def _words(span: LeastAndLargest | None) -> str:
    """Return a span as text; one number if both ends are written alike."""
    if span is None:
        return "–"
    low, high = f"{span['least']:.3f}", f"{span['largest']:.3f}"
    return low if low == high else f"{low} to {high}"
