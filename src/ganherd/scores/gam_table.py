"""GAM-II of runs as the paper's tables have it: by kind and run, the least and the largest over the generators, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ganherd.scores.gam import Player, Verdict, helps, weak_judges


def summary(players: Sequence[Player], verdict: Verdict, real_errors: np.ndarray) -> list[dict[str, Any]]:
    """GAM-II by kind and run, as the paper's tables have it: least and largest over the generators, and in words whether it
    helps against the first run of its kind."""
    out: list[dict[str, Any]] = []
    for kind in dict.fromkeys(player.kind for player in players):
        first: dict[str, np.ndarray] = {}
        for group in dict.fromkeys(player.group for player in players if player.kind == kind):
            rows = [i for i, player in enumerate(players) if (player.kind, player.group) == (kind, group)]
            own = {"avg": verdict.average[rows], "worst": verdict.worst[rows]}
            row: dict[str, Any] = {
                "run": group,
                "kind": kind,
                "generators": len(rows),
                "judges": sorted(set(verdict.judges[rows].tolist())),
                **{name: _span(values) for name, values in own.items()},
                "real_errors": _span(real_errors[rows]),
            }
            if first:
                row["against"] = next(one["run"] for one in out if one["kind"] == kind)
                row["words"] = {name: helps(values, first[name]) for name, values in own.items()}
            first = first or own
            out.append(row)
    return out


def table(players: Sequence[Player], verdict: Verdict, real_errors: np.ndarray, samples: int, held_out: int) -> str:
    """GAM-II by run, the least and the largest over its members, and below it what its judges are worth."""
    found = summary(players, verdict, real_errors)
    lines = [("run", "generators", "judged by", "avg", "worst", "its judges' error on real")]
    for row in found:
        judges = row["judges"]
        asked = " to ".join(str(n) for n in (judges if len(judges) < 3 else (judges[0], judges[-1])))
        avg, worst, real = (_words(row[name]) for name in ("avg", "worst", "real_errors"))
        lines.append((_named(row["run"], row["kind"]), str(row["generators"]), asked, avg, worst, real))
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.append(
        f"least to largest over the generators; {samples:,} samples of each and {held_out:,} held-out real ones; "
        "larger is better"
    )
    weak: dict[tuple[str, str], list[Player]] = {}
    for player, why in zip(players, weak_judges(real_errors, verdict), strict=True):
        if why:
            weak.setdefault((player.group, why), []).append(player)
    for (group, why), those in weak.items():
        is_ = "is " if why.startswith("no ") else ""
        if len(those) > 3:
            text.append(f"each of {len(those)} judges of {group} {is_}{why}")
        else:
            text += [f"the judge of {player.name} {is_}{why}" for player in those]
    for row in found:
        baseline = _named(row.get("against", ""), row["kind"])
        told = f"{baseline} is the baseline: the first run given" + (" with this kind" if row["kind"] else "")
        if "words" in row and told not in text:
            text.append(told)
        for name, words in row.get("words", {}).items():
            text.append(f"{_named(row['run'], row['kind'])} {words} against {baseline} ({name})")
    if len({player.kind for player in players}) > 1:
        text.append(
            "generators of each kind are judged by the discriminators of that kind: compare them within a kind; the best of a "
            "run of several is picked by the judges of every kind"
        )
    elif verdict.winner is not None and len({player.label for player in players}) == 1:
        best = players[verdict.winner]
        text.append(f"the best by avg is {best.name} ({verdict.average[verdict.winner]:.3f})")
    return "\n".join(text)


def _named(group: str, kind: str) -> str:
    return f"{group} ({kind})" if kind else group


def _span(values: np.ndarray) -> dict[str, float] | None:
    """
    >>> _span(np.array([0.3, np.nan, 0.1])), _span(np.array([np.nan]))
    ({'least': 0.1, 'largest': 0.3}, None)
    """
    known = values[~np.isnan(values)]
    return {"least": float(known.min()), "largest": float(known.max())} if len(known) else None


def _words(span: dict[str, float] | None) -> str:
    if span is None:
        return "–"
    low, high = f"{span['least']:.3f}", f"{span['largest']:.3f}"
    return low if low == high else f"{low} to {high}"
