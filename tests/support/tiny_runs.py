"""Train tiny recipes in this process, and run commands in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import ganherd


def skip_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings end with the mixture: without scores, pictures and report, which take most of the time."""
    monkeypatch.setattr("ganherd.report.write", lambda *_, **__: None)
    monkeypatch.setattr("ganherd.training.finish.write_scores", lambda *_: {})
    monkeypatch.setattr("ganherd.training.finish.write_picture", lambda *_: None)
    monkeypatch.setattr("ganherd.viz.pictures.png", lambda picture: b"")


def train(run: Path, settings: dict[str, Any]) -> None:
    """Train a recipe in a new run folder."""
    ganherd.train(settings, run=run, quiet=True)


def resume(run: Path, budget: str | None = None) -> None:
    """Resume a run, with another budget if one is given."""
    ganherd.resume(run, [f"train.budget={budget}"] if budget else [], quiet=True)


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
