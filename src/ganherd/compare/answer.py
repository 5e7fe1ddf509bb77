"""Answer a comparison in one sentence: which contender is better in the primary score, in which others, and what is undecided."""

from __future__ import annotations

from collections.abc import Sequence

from ganherd.compare.comparison_record import Comparison, ComparisonBasis
from ganherd.metrics.metric_registry import METRICS, title_of
from ganherd.metrics.statistics.significance import UNDECIDED
from ganherd.scoring.result import measured
from ganherd.util.text import listed

FEW_SEEDS = 5  # with fewer, what is undecided may be so because of the number of seeds
MOST_NAMED = 3  # undecided scores that are named
RUNS = "runs"  # the basis of finished runs


def answer(facts: Comparison, basis: str | None = None) -> str:
    """Return the answer in one sentence.

    Args:
        facts: The content of compare.json.
        basis: Which comparison is meant: `budget` (at equal budget), `images` (at equal images seen) or `runs` (finished runs).
            None: the first one in the file.
    """
    basis = basis or next(iter(facts["bases"]))
    by_basis, primary = facts["bases"][basis], facts.get("primary", "fid")
    names = list(by_basis["entries"])
    best, metrics = by_basis.get("best", {}), _metrics(by_basis, primary)
    if not metrics:
        return "No score could be measured for all of them, so nothing is decided."
    clauses = [_primary_clause(by_basis, primary, names)] if primary in metrics else []
    winner = best.get(primary)
    others = [metric for metric in metrics if metric != primary]
    for name in sorted(set(best.values()), key=lambda name: (name != winner, names.index(name))):
        won = [title_of(metric) for metric in others if best.get(metric) == name]
        if won:
            word = "better" if len(names) == 2 else "better than all others"
            clauses.append(f"{'it is also' if name == winner else f'{name} is'} {word} in {listed(won)}")
    open_ones = [title_of(metric) for metric in others if metric not in best]
    if len(open_ones) > MOST_NAMED:
        clauses.append(f"{len(open_ones)} other scores are undecided")
    elif open_ones:
        clauses.append(f"{listed(open_ones)} {'is' if len(open_ones) == 1 else 'are'} undecided")
    is_open = bool(open_ones) or winner is None
    return "; ".join([*clauses, *_limits(facts, basis, is_open)]) + "."


def _primary_clause(by_basis: ComparisonBasis, primary: str, names: Sequence[str]) -> str:
    """Return the clause about the primary score, with the values."""
    title, winner = title_of(primary), by_basis.get("best", {}).get(primary)
    scores = {name: measured(row["scores"]).get(primary) for name, row in by_basis["entries"].items()}
    values = {name: str(score) for name, score in scores.items() if score is not None}
    if winner is not None:
        rest = [value for name, value in values.items() if name != winner]
        than = "" if len(names) == 2 else " than all others"
        return f"{winner} is better{than} in {title} ({values[winner]} against {listed(rest)})"
    if decided := _decided(by_basis, primary, names[0]):
        losers: dict[str, list[str]] = {}
        for better, worse in decided:
            losers.setdefault(better, []).append(worse)
        each_better = "; ".join(f"{better} is better than {listed(worse)}" for better, worse in losers.items())
        return f"{each_better} in {title}, and which is the best is undecided"
    each = listed([f"{name} {value}" for name, value in values.items()])
    return f"{title} does not decide between them ({each})"


def _decided(by_basis: ComparisonBasis, metric: str, first: str) -> list[tuple[str, str]]:
    """Return the pairs (better, worse) that are decided: of all pairs, or of those with the first one in an older file."""
    if "decided" in by_basis:
        return [(better, worse) for better, worse in by_basis["decided"].get(metric, ())]
    return [
        (name, first) if one["verdict"] == "better" else (first, name)
        for name, own in by_basis["differences"].items()
        if (one := own.get(metric)) is not None and one["verdict"] != UNDECIDED
    ]


def _limits(facts: Comparison, basis: str, is_open: bool) -> list[str]:
    """Return what limits the answer: few seeds, or one seed."""
    seeds = facts["training"]["seeds"]
    if seeds == 1 and basis == RUNS:
        recipes = facts["training"]["recipes"].values()
        all_have_one = all(((recipe or {}).get("herd") or {}).get("seeds", 1) == 1 for recipe in recipes)
        return [f"{'one seed each' if all_have_one else 'some runs have one seed'}: other seeds may differ"]
    if seeds == 1:
        return ["one seed decides nothing: use --seeds 3 or more"]
    return [f"{seeds} seeds decide little"] if is_open and seeds < FEW_SEEDS else []


def _metrics(by_basis: ComparisonBasis, primary: str) -> list[str]:
    """Return the metrics that every contender has, the primary one first."""
    each = [measured(row["scores"]) for row in by_basis["entries"].values()]
    common = [m for m in METRICS if all(m in own and own[m].value is not None for own in each)]
    return sorted(common, key=lambda metric: metric != primary)
