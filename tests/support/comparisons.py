"""Comparisons for tests: the command with few samples, and the facts of made-up scores."""

from __future__ import annotations

import json
from typing import Any

from ganherd.compare import compare_recipes, comparison_text, differences
from ganherd.util.terminal.screen import as_text

METRICS = ("--metrics", "diversity,kid", "--network", "pixels", "-n", 40)


def compared(cli: Any, *words: object) -> dict[str, Any]:
    """Return what `ganherd compare --json` prints."""
    answer = cli("compare", *words, *METRICS, "--json", "-q")
    assert answer.code == 0, answer
    assert answer.err == "" and answer.out.count("\n") == 1
    facts: dict[str, Any] = json.loads(answer.out)
    return facts


def scored(**values: list[float]) -> dict[str, Any]:
    """Return the scores of one recipe: those of its seeds, their mean, and an interval that all others overlap."""
    common = {"samples": 10, "network": "pixels", "seed": 0, "interval": {"low": 0.0, "high": 9.0}}
    return {
        n: {"value": sum(v) / len(v), "per_seed": v, "seeds": [*range(len(v))], **common} for n, v in values.items()
    }


def facts_of(scores: dict[str, dict[str, Any]], seeds: int, bases: tuple[str, ...] = ("budget", "images")) -> Any:
    """Return the content of a compare.json with these scores."""
    took = {"members": 1, "parameters": 2, "generator_parameters": [1], "discriminator_parameters": 1, "steps": 5, "images": 40,
            "device": "cpu", "device_seconds": 1.0, "wall_seconds": 1.0}  # fmt: skip
    metrics = [metric for own in scores.values() for metric in own]
    basis = {"entries": {name: {**took, "run": name, "scores": own} for name, own in scores.items()},
             **compare_recipes.basis_differences(scores, metrics, over_samples="runs" in bases)}  # fmt: skip
    training = {"recipes": dict.fromkeys(scores), "budget": "5steps", "seeds": seeds}
    return {"training": training, "data": {"name": "digits"}, "bases": dict.fromkeys(bases, basis),
            "primary": differences.primary_of(metrics)}  # fmt: skip


def shown(facts: Any, verbose: bool = False) -> str:
    """Return a comparison as a terminal shows it."""
    return as_text(*comparison_text.screen(facts, verbose))
