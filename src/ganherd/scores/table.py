"""Scores as lines of text for a terminal: no number without its samples, its network and its seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def table(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each score, what to know about it below.

    >>> print(table({"diversity": {"value": 0.9, "samples": 1000, "network": "pixels", "seed": 0, "mean": 0.95}}))
    score      value  samples  network  seed  beside it
    diversity  0.900  1,000    pixels   0     mean over the classes 0.950
    """
    entries = {name: entry for name, entry in scores.items() if name != "skipped"}
    lines = [("score", "value", "samples", "network", "seed", "beside it")] if entries else []
    notes = []
    for name, entry in entries.items():
        title = name.replace("_", " ")
        lines.append(
            (
                title,
                value(name, entry.get("value")),
                f"{entry['samples']:,}",
                str(entry["network"]),
                str(entry["seed"]),
                "; ".join(remarks(entry)),
            )
        )
        if "warning" in entry:
            notes.append(f"{title}: {entry['warning']}.")
    notes += [f"{name.replace('_', ' ')} is left out: {why}." for name, why in scores.get("skipped", {}).items()]
    widths = [max(len(line[i]) for line in lines) for i in range(6)] if lines else []
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*padded, *notes])


def value(name: str, number: float | None) -> str:
    """A score as people write it: accuracies in percent.

    >>> value("label_accuracy", 0.981), value("diversity", 0.9), value("diversity", None)
    ('98.1 %', '0.900', '–')
    """
    if not isinstance(number, (int, float)):
        return "–"
    return f"{100 * number:.1f} %" if name.endswith("accuracy") else f"{number:.3f}"


def remarks(entry: Mapping[str, Any]) -> list[str]:
    """What has to stand beside a score so that it can be read."""
    out = []
    if "held_out_accuracy" in entry:
        known = value("accuracy", entry["held_out_accuracy"])
        out.append(f"the classifier on held-out real data: {known}")
    if "by_chance" in entry:
        out.append(f"perfect draws would show about {value('', entry['by_chance'])}")
    if "mean" in entry:
        worst = [name for name, v in entry.get("per_class", {}).items() if v == entry.get("value")]
        out.append(f"mean over the classes {value('', entry['mean'])}" + (f", least in {worst[0]}" if worst else ""))
    return out
