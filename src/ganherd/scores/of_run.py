"""Scores of a run: its mixture against the data that its recipe names, kept in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ganherd.scores.material import Progress


def score_run(
    run: str | Path,
    metrics: Sequence[str] | None = None,
    samples: int = 1000,
    seed: int = 0,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Measures and returns the scores; scores.json keeps them beside those of metrics that were not asked for now."""
    from ganherd import mixture
    from ganherd.data.source import load
    from ganherd.run.folder import RunFolder, write_aside
    from ganherd.scores import known_metrics, score

    names = known_metrics(metrics)  # a misspelt name is told before anything is loaded
    folder = RunFolder.open(run)
    found = score(mixture.load(run, trust_code), load(folder.recipe.data), names, samples, seed, progress=progress)
    kept = {name: entry for name, entry in _read(folder.scores_path).items() if name not in (*names, "skipped")}
    with suppress(OSError):  # a run on a read-only disk can be scored too
        write_aside(folder.scores_path, json.dumps({"scores": {**kept, **found}}, indent=1) + "\n")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["scores"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
