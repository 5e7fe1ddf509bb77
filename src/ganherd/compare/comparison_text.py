"""Show a comparison on a terminal: the answer first, then a short table; with all details the cost, scores and differences."""

from __future__ import annotations

from collections.abc import Sequence

from ganherd.compare.answer import RUNS, answer
from ganherd.compare.comparison_record import Comparison, ScoreDifference
from ganherd.compare.differences import ALPHA
from ganherd.metrics.metric_registry import METRICS, title_of
from ganherd.recipe.schema import parse_budget
from ganherd.report.templating import duration
from ganherd.scoring.result import format_value, measured, skipped
from ganherd.scoring.score_table import side_by_side
from ganherd.util.errors import counted
from ganherd.util.terminal.screen import Block, Columns, Styled
from ganherd.util.text import listed

_UNCORRECTED = (
    "Each interval is that of one score by itself; the last column is corrected for the number of scores (Holm)."
)
UNEQUAL = 0.05  # relative difference of device-seconds that gets a note


def title(facts: Comparison) -> str:
    """Return what is compared, in one sentence."""
    training = facts["training"]
    names, seeds = list(training["recipes"]), training["seeds"]
    return f"{names[0]} against {listed(names[1:])} on {facts['data']['name']}, {counted(seeds, 'seeds')} each"


def rows(facts: Comparison) -> str:
    """Return what a row of the data is: `images` or `points`. Older comparisons do not record it; all of them are of images."""
    return str(facts["data"].get("rows", "images"))


def heading(facts: Comparison, basis: str) -> str:
    """Return the heading of a basis, which states what is equal: the budget, or the images seen."""
    if basis == RUNS:
        return "Finished runs, as they are"
    if basis == "images":
        least = min(row["images"] or 0 for row in facts["bases"]["images"]["entries"].values())
        return f"At equal {rows(facts)} seen: about {least:,} by the discriminators of a seed"
    budget = facts["training"]["budget"]
    unit, amount = parse_budget(budget)
    if unit == "seconds":
        return f"At equal device-seconds: {duration(amount)} of training for each, all its seeds together"
    return f"At equal {unit}: {amount:g} for each"


def took(facts: Comparison, basis: str) -> list[Sequence[str]]:
    """Return the table of the size and cost of each recipe: the head, then a row for each recipe."""
    seen = f"{rows(facts)} seen"
    lines: list[Sequence[str]] = [
        ("recipe", "members", "parameters", "of G", "of D", "steps", seen, "device", "device s", "wall s")
    ]
    for name, row in facts["bases"][basis]["entries"].items():
        of_g = ", ".join(f"{n:,}" for n in row["generator_parameters"])
        counts = (
            _count(row["members"]),
            _count(row["parameters"]),
            of_g or "–",
            _count(row["discriminator_parameters"]),
        )
        wall = row["wall_seconds"]
        spent = (row["device"], f"{row['device_seconds']:.1f}", "–" if wall is None else f"{wall:.1f}")
        lines.append((name, *counts, _count(row["steps"]), _count(row["images"]), *spent))
    return lines


def of_a_seed(facts: Comparison) -> list[str]:
    """Return a note that explains which numbers in the table of costs are those of one seed; [] if there is only one."""
    if facts["training"]["seeds"] < 2:
        return []
    return [
        f"Members, parameters and {rows(facts)} seen are those of one seed; the seconds are those of all seeds, which train "
        "together."
    ]


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def difference_table(facts: Comparison, basis: str) -> list[Sequence[str]]:
    """Return the table of differences to the first recipe: a row for each metric, a column for each other recipe.

    Args:
        facts: The content of compare.json.
        basis: The comparison in it: `budget`, `images` or `runs`; see `answer`.
    """
    differences = facts["bases"][basis]["differences"]
    metrics = [metric for metric in named_metrics(facts, basis) if any(metric in own for own in differences.values())]
    lines: list[Sequence[str]] = [
        (title_of(metric), *(difference(metric, entry.get(metric)) for entry in differences.values()))
        for metric in metrics
    ]
    return [("difference", *differences), *lines]


def difference(metric: str, entry: ScoreDifference | None) -> str:
    """Return one difference with its interval, corrected p-value and verdict.

    >>> ends = {"low": -3.0, "high": -1.0}
    >>> difference("fid", {"value": -2.0, "interval": ends, "p_corrected": 0.0312, "verdict": "better"})
    '-2.000 (-3.000 to -1.000), p 0.031, better'
    """
    return "–" if entry is None else f"{difference_numbers(metric, entry)}, {entry['verdict']}"


def difference_numbers(metric: str, entry: ScoreDifference) -> str:
    """Return one difference with its interval and corrected p-value."""
    ends, p = entry.get("interval"), entry.get("p_corrected")
    span = f" ({format_value(metric, ends['low'])} to {format_value(metric, ends['high'])})" if ends else ""
    chance = "" if p is None else f", p {chance_text(p)}"
    return f"{signed(metric, entry['value'])}{span}{chance}"


def chance_text(p: float) -> str:
    """Return a p-value with three decimals, or with more if it would otherwise look like the limit of a verdict.

    >>> [chance_text(p) for p in (0.0312, 0.04996, 0.0500004, 0.05, 0.0500000000001, 0.0001)]
    ['0.031', '0.04996', '0.0500004', '0.050', '> 0.050', '< 0.001']
    """
    if p < 0.001:
        return "< 0.001"
    texts = (f"{p:.{decimals}f}" for decimals in range(3, 10))
    at_limit = f"{'> ' if p > ALPHA else ''}{ALPHA:.3f}"
    return next((text for text in texts if float(text) != ALPHA), at_limit)


def signed(metric: str, value: float) -> str:
    """Return a difference with its sign.

    >>> signed("fid", 0.5), signed("label_accuracy", -0.01)
    ('+0.500', '-1.0 %')
    """
    return f"{'+' if value > 0 else ''}{format_value(metric, value)}"


def notes(facts: Comparison, basis: str) -> list[str]:
    """Return what a reader needs to know about the tables."""
    first, entries = next(iter(facts["training"]["recipes"])), facts["bases"][basis]["entries"]
    seeds, primary = facts["training"]["seeds"], title_of(facts.get("primary", "fid"))
    out = []
    if seeds > 1:
        how = "seeds that both have are paired" if basis == RUNS else "paired by seed"
        out.append(f"difference: minus {first}, mean over the seeds, with its 95 % interval; {how}")
    elif basis == RUNS:
        out.append(f"difference: minus {first}, with its 95 % interval over the samples of these runs")
    else:
        out.append("one seed: the variation between trainings is unknown; --seeds 3 or more measures it")
    if seeds > 1 or basis == RUNS:
        declared = "" if basis == RUNS else ", declared before anything was trained"
        out.append(
            f"{primary} is the primary score{declared}; the p-values of all others are corrected together (Holm), and the verdict "
            "is better or worse if p is at most 0.05"
        )
    if nearest := [
        title_of(m) for m in named_metrics(facts, basis) if m in METRICS and METRICS[m].direction == "nearest"
    ]:
        out.append(f"for {listed(nearest)}, better means nearer to the best value, and p is about the distance to it")
    if cut := cut_intervals(facts, basis):
        out.append(f"an interval can exceed the possible values; it is cut there: {', '.join(cut)}")
    seconds = [row["device_seconds"] for row in entries.values()]
    timed = basis == "budget" and parse_budget(facts["training"]["budget"])[0] == "seconds"
    if timed and max(seconds) > (1 + UNEQUAL) * min(seconds):
        out.append(
            f"the device-seconds are not equal ({min(seconds):.1f} to {max(seconds):.1f}): the steps were planned by a rate "
            "that did not hold; on a quiet machine they are"
        )
    return out


def named_metrics(facts: Comparison, basis: str) -> list[str]:
    """Return the metrics of a basis, the primary one first."""
    entries = facts["bases"][basis]["entries"].values()
    names = dict.fromkeys(metric for row in entries for metric in measured(row.get("scores", {})))
    return sorted(names, key=lambda metric: metric != facts.get("primary"))


def cut_intervals(facts: Comparison, basis: str) -> list[str]:
    """Return the scores whose interval was cut at the least or the largest possible value, such as "recall of digits-wcgan".

    Args:
        facts: The content of compare.json.
        basis: The comparison in it: `budget`, `images` or `runs`; see `answer`.
    """
    return [
        f"{score.title} of {name}"
        for name, row in facts["bases"][basis]["entries"].items()
        for score in measured(row.get("scores", {})).values()
        if score.interval and score.interval.get("cut")
    ]


def warnings(facts: Comparison) -> list[str]:
    """Return every warning about a score once, with the contenders and scores that it is about."""
    about: dict[str, dict[str, set[str]]] = {}
    for by_basis in facts["bases"].values():
        for name, row in by_basis["entries"].items():
            for score in measured(row.get("scores", {})).values():
                if score.warning:
                    about.setdefault(score.warning, {}).setdefault(score.title, set()).add(name)
    out, number = [], len(facts["training"]["recipes"])
    for warning, titles in about.items():
        names = set.union(*titles.values())
        whose = "" if len(names) == number else f" of {', '.join(sorted(names))}"
        out.append(f"{', '.join(titles)}{whose}: {warning}.")
    return out


def answers(facts: Comparison) -> list[str]:
    """Return the answer at the first basis, and those at the others if they differ."""
    first, *others = facts["bases"]
    out = [facts.get("answer") or answer(facts)]
    for basis in others:
        other = answer(facts, basis)
        own, known = facts["bases"][basis], facts["bases"][first]
        same = all(own.get(key, {}) == known.get(key, {}) for key in ("best", "decided"))
        out.append(f"At equal {rows(facts)} seen: {'the same verdicts.' if same else other}")
    return out


def screen(facts: Comparison, verbose: bool = False) -> list[Block]:
    """Return the comparison for a terminal: the answer, a short table, and every warning; with `verbose` all tables."""
    first, *others = answers(facts)
    blocks: list[Block] = [Styled(first, "strong"), *others, "", *_short(facts)]
    blocks += [Styled(warning, "warn") for warning in warnings(facts)]
    return [*blocks, *(_details(facts) if verbose else [])]


def _short(facts: Comparison) -> list[Block]:
    """Return the scores at the first basis, the primary one first, with the verdict on each."""
    basis, by_basis = next(iter(facts["bases"].items()))
    entries, best = by_basis["entries"], by_basis.get("best", {})
    each = {name: measured(row["scores"]) for name, row in entries.items()}
    primary = facts.get("primary", "")
    lines: list[list[str | Styled]] = []
    for metric in named_metrics(facts, basis):
        name = f"{title_of(metric)} (primary)" if metric == primary else title_of(metric)
        values = [str(own[metric]) if metric in own else "–" for own in each.values()]
        lines.append([name, *values, *_verdict(facts, metric, list(entries), best.get(metric))])
    head = ["score", *entries, *(["second minus first, 95 %"] if len(entries) == 2 else []), "better"]
    right = range(1, len(entries) + 1)
    what = f"{title(facts)}. {heading(facts, basis)}."
    return [
        Styled(what, "soft"),
        Columns(head, lines, right=right),
        *(Styled(sentence, "soft") for sentence in _goals(named_metrics(facts, basis))),
        *([Styled(_UNCORRECTED, "soft")] if len(entries) == 2 and len(lines) > 1 else []),
        *(Styled(f"{n}.", "soft") for n in left_out(facts, basis)),
    ]


def _goals(metrics: Sequence[str]) -> list[str]:
    """Return which values of the metrics are better, in one line.

    >>> _goals(["fid", "recall", "kid", "of_a_later_version"])
    ['FID and KID: lower is better; recall: higher is better.']
    """
    titles: dict[str, list[str]] = {}
    for metric in metrics:
        if metric in METRICS:
            titles.setdefault(METRICS[metric].goal, []).append(title_of(metric))
    text = "; ".join(f"{listed(names)}: {goal}" for goal, names in titles.items())
    return [f"{text}."] if text else []


def _verdict(facts: Comparison, metric: str, names: Sequence[str], winner: str | None) -> list[str | Styled]:
    """Return the last cells of a row: the interval of the difference if there are two contenders, then the better one."""
    by_basis = next(iter(facts["bases"].values()))
    verdict = Styled("undecided", "soft") if winner is None else Styled(winner, "good")
    if len(names) > 2:
        return [verdict]
    one = by_basis["differences"][names[1]].get(metric)
    ends = one.get("interval") if one else None
    if one is None or ends is None:
        return ["–", verdict]
    span = f"{signed(metric, ends['low'])} to {signed(metric, ends['high'])}"
    return [f"{signed(metric, one['value'])} ({span})", verdict]


def left_out(facts: Comparison, basis: str) -> list[str]:
    """Return the metrics that were left out, each once with its reason."""
    lines = facts["bases"][basis]["entries"].values()
    return list(dict.fromkeys(sentence.rstrip(".") for row in lines for sentence in skipped(row.get("scores", {}))))


def _details(facts: Comparison) -> list[Block]:
    """Return the tables of all bases: what each contender took, its scores with intervals, and the differences."""
    blocks: list[Block] = []
    for basis, by_basis in facts["bases"].items():
        scores = {name: row["scores"] for name, row in by_basis["entries"].items()}
        costs, differences = took(facts, basis), difference_table(facts, basis)
        blocks += ["", Styled(heading(facts, basis), "strong"), "", Columns(costs[0], costs[1:]), *of_a_seed(facts), ""]
        blocks += [*side_by_side(scores, better=by_basis.get("best", {})), "", Columns(differences[0], differences[1:])]
        blocks += notes(facts, basis)
        if facts["training"]["seeds"] > 1:
            blocks.append(
                "a star marks a recipe that its paired differences show to be better than all others; without one, "
                "it is undecided which is the best"
            )
    return blocks
