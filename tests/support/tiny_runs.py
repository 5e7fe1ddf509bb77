"""Train tiny recipes in this process, and run commands in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import ganherd


def skip_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands and `ganherd.train` end with the mixture: without scores, pictures and report.

    Two small batches of noise instead of twenty re-estimate the mixture's batch norm, in each process that calls this.
    """
    monkeypatch.setattr("ganherd.api.FINISHERS", ())
    monkeypatch.setattr("ganherd.mixture.recalibration.NOISES", 128)
    monkeypatch.setattr("ganherd.mixture.recalibration.NOISES_AT_ONCE", 64)
    monkeypatch.setattr("ganherd.viz.pictures.png", lambda picture: b"")  # of samples during a training


def shorten_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the speed of engines for 20 ms each: tests do not depend on which engine is the fastest."""
    for module in ("ganherd.herd.engine.autotune", "ganherd.training.budget", "ganherd.training.setup.dry_run"):
        monkeypatch.setattr(f"{module}._SECONDS", 0.02)


def shorten_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train classifiers for 20 steps in place of 500: what is tested does not depend on what they have learnt.

    The cache keeps them apart from those of other tests.
    """
    monkeypatch.setattr("ganherd.features.classifier.STEPS", (20, 20))
    monkeypatch.setattr("ganherd.features.classifier.VERSION", "brief")


def train(run: Path, settings: dict[str, Any]) -> None:
    """Train a recipe in a new run folder, without scores, pictures and report."""
    ganherd.train(settings, run=run, quiet=True, finishers=())


def resume(run: Path, budget: str | None = None) -> None:
    """Resume a run without making products, with another budget if one is given."""
    ganherd.resume(run, [f"train.budget={budget}"] if budget else [], quiet=True, finishers=())


def command(*words: object) -> int:
    """Run a `ganherd` command in this process and return its exit code."""
    from ganherd.cli.main import main

    before, sys.argv = sys.argv, ["ganherd", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("a command ends with an exit code")
