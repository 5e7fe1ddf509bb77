"""Show a comparison as lines of text: the cost of each recipe, its scores, and how certain the differences are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ganherd.compare.comparison_record import Comparison, ScoreDifference
from ganherd.compare.differences import better
from ganherd.recipe.schema import parse_budget
from ganherd.report.templating import duration
from ganherd.scoring.result import format_value
from ganherd.scoring.score_table import side_by_side
from ganherd.util.screen import as_text
from ganherd.util.text import text_table

UNEQUAL = 0.05  # relative difference of device-seconds that gets a note


def title(facts: Comparison) -> str:
    """Return what is compared, in one sentence."""
    training = facts["training"]
    names, seeds = list(training["recipes"]), training["seeds"]
    others = " and ".join([", ".join(names[1:-1]), names[-1]] if len(names) > 2 else names[1:])
    return f"{names[0]} against {others} on {facts['data']['name']}, {seeds} seed{'s' * (seeds > 1)} each"


def rows(facts: Comparison) -> str:
    """Return what a row of the data is: `images` or `points`. Older comparisons do not record it; all of them are of images."""
    return str(facts["data"].get("rows", "images"))


def heading(facts: Comparison, basis: str) -> str:
    """Return the heading of a basis, which states what is equal: the budget, or the images seen."""
    if basis == "images":
        least = min(row["images"] for row in facts["bases"]["images"]["entries"].values())
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
        counts = (f"{row['members']:,}", f"{row['parameters']:,}", of_g, f"{row['discriminator_parameters']:,}")
        wall = row["wall_seconds"]
        spent = (row["device"], f"{row['device_seconds']:.1f}", "–" if wall is None else f"{wall:.1f}")
        lines.append((name, *counts, f"{row['steps']:,}", f"{row['images']:,}", *spent))
    return lines


def apart(differences: Mapping[str, Mapping[str, ScoreDifference]]) -> list[Sequence[str]]:
    """Return the table of differences to the first recipe: a row for each metric, a column for each other recipe."""
    metrics = list(dict.fromkeys(metric for entry in differences.values() for metric in entry))
    lines: list[Sequence[str]] = [
        (metric.replace("_", " "), *(difference(metric, entry.get(metric)) for entry in differences.values()))
        for metric in metrics
    ]
    return [("difference", *differences), *lines]


def difference(metric: str, entry: ScoreDifference | None) -> str:
    """Return one difference with its interval and verdict.

    >>> difference("fid", {"value": -2.0, "interval": {"low": -3.0, "high": -1.0}, "verdict": "better"})
    '-2.000 (-3.000 to -1.000) better'
    """
    if entry is None:
        return "–"
    ends = entry.get("interval")
    span = f" ({format_value(metric, ends['low'])} to {format_value(metric, ends['high'])})" if ends else ""
    sign = "+" if entry["value"] > 0 else ""
    return f"{sign}{format_value(metric, entry['value'])}{span} {entry['verdict']}"


def notes(facts: Comparison, basis: str) -> list[str]:
    """Return what a reader needs to know about the tables."""
    first, entries = next(iter(facts["training"]["recipes"])), facts["bases"][basis]["entries"]
    out = []
    if facts["training"]["seeds"] > 1:
        out.append(f"difference: minus {first}, mean over the seeds, paired by seed, with its 95 % interval")
    else:
        out.append("one seed: the variation between trainings is unknown; --seeds 3 or more measures it")
    seconds = [row["device_seconds"] for row in entries.values()]
    timed = basis == "budget" and parse_budget(facts["training"]["budget"])[0] == "seconds"
    if timed and max(seconds) > (1 + UNEQUAL) * min(seconds):
        out.append(
            f"the device-seconds are not equal ({min(seconds):.1f} to {max(seconds):.1f}): the steps were planned by a rate "
            "that did not hold; on a quiet machine they are"
        )
    return out


def text(facts: Comparison) -> str:
    """Return the whole comparison as text."""
    parts = [title(facts)]
    for basis, by_basis in facts["bases"].items():
        scores = {name: row["scores"] for name, row in by_basis["entries"].items()}
        parts += ["", heading(facts, basis), "", *text_table(took(facts, basis)), ""]
        parts += [as_text(*side_by_side(scores, better=better(scores))), ""]
        parts += [*text_table(apart(by_basis["differences"])), *notes(facts, basis)]
        if facts["training"]["seeds"] > 1:
            parts.append(
                "a star marks a recipe that its paired differences show to be better than all others; without one, "
                "it is undecided which is the best"
            )
    return "\n".join(parts)
