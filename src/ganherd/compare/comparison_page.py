"""Write a comparison as one picture and one page: the answer first, with samples and the primary score; then all tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ganherd.compare import comparison_text, score_plots
from ganherd.compare.comparison_record import Comparison
from ganherd.metrics.metric_registry import title_of
from ganherd.metrics.statistics.significance import UNDECIDED
from ganherd.report import templating
from ganherd.report.templating import Cell
from ganherd.scoring.result import measured
from ganherd.scoring.score_table import shared
from ganherd.util.files import JsonObject, atomic_write, read
from ganherd.viz import pictures

_REPORTED = ("samples", "network", "seed")  # reported with every number
_PILLS = {"better": "pill good", "worse": "pill bad", UNDECIDED: "pill"}


def write(facts: Comparison, folder: Path) -> dict[str, Path]:
    """Write compare.png and compare.html into the folder; return the files of the comparison by their kind."""
    files = {"picture": folder / "compare.png", "page": folder / "compare.html", "data": folder / "compare.json"}
    pictures.save(score_plots.draw(facts, "compare.html"), files["picture"])
    atomic_write(files["page"], render(facts, folder))
    return files


def render(facts: Comparison, folder: Path) -> str:
    """Return the page as HTML."""
    first, *others = score_plots.panels(facts) or [""]
    charts = [(templating.svg(score_plots.draw_score(facts, metric), f"score-{metric}"), "") for metric in others]
    return templating.render(
        "comparison",
        title=comparison_text.title(facts),
        recipes=list(facts["training"]["recipes"]),
        answers=comparison_text.answers(facts),
        samples=_samples(facts, folder),
        chart=templating.svg(score_plots.draw_score(facts, first), "primary") if first else "",
        legend=score_plots.legend(facts),
        warnings=comparison_text.warnings(facts),
        charts=charts,
        bases=[_basis(facts, basis) for basis in facts["bases"]],
    )


def _basis(facts: Comparison, basis: str) -> JsonObject:
    """Return the tables of contenders that had an equal budget, or saw equally many images."""
    by_basis = facts["bases"][basis]
    entries, best = by_basis["entries"], by_basis.get("best", {})
    scores: list[list[Any]] = [["score", *entries, *_REPORTED]]
    each = [measured(row["scores"]) for row in entries.values()]
    for metric in comparison_text.named_metrics(facts, basis):
        known = [own[metric] for own in each if metric in own]
        cells = [
            "–" if metric not in own else f"{own[metric].with_span}{' *' * (best.get(metric) == name)}"
            for name, own in zip(entries, each, strict=True)
        ]
        scores.append([title_of(metric), *cells, *(shared(known, key) for key in _REPORTED)])
    notes = [f"{note}." for note in comparison_text.notes(facts, basis)]
    return {
        "heading": comparison_text.heading(facts, basis),
        "took": comparison_text.took(facts, basis),
        "of_a_seed": comparison_text.of_a_seed(facts),
        "scores": scores,
        "star": ["* better than all others."] if best else [],
        "differences": _differences(facts, basis),
        "notes": [*notes, *(f"{sentence}." for sentence in comparison_text.left_out(facts, basis))],
    }


def _differences(facts: Comparison, basis: str) -> list[list[Any]]:
    """Return the table of differences to the first: for each metric and other contender the verdict, then the numbers."""
    first, *others = facts["bases"][basis]["entries"]
    head: list[Any] = ["score", *(column for name in others for column in (f"{name} is", f"minus {first}"))]
    differences = facts["bases"][basis]["differences"]
    rows = []
    for metric in comparison_text.named_metrics(facts, basis):
        cells: list[Any] = []
        for own in differences.values():
            entry = own.get(metric)
            if entry is None:
                cells += ["–", "–"]
                continue
            verdict = Cell(entry["verdict"], _PILLS[entry["verdict"]])
            cells += [verdict, comparison_text.difference_numbers(metric, entry)]
        rows.append([title_of(metric), *cells])
    return [head, *rows]


def _samples(facts: Comparison, folder: Path) -> list[tuple[str, bytes]]:
    """Return the last picture of each contender's run, in the first comparison of the file (at equal budget, or finished runs)."""
    basis = next(iter(facts["bases"].values()))
    paths = {name: folder / row["run"] / "samples" / "final.png" for name, row in basis["entries"].items()}
    return [(name, read(path)) for name, path in paths.items() if path.is_file()]
