"""A run's folder: what lies where, and readers for it that execute nothing."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TextIO

from ganherd import recipe_file
from ganherd.errors import UserError
from ganherd.recipe import Recipe


class RunFolder:
    """Paths and readers of one run.

    >>> RunFolder("runs/00001-digits").metrics_path.name
    'metrics.jsonl'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_path = self.path / "recipe.yaml"
        self.info_path = self.path / "run.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.events_path = self.path / "events.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples"
        self.mixture = self.path / "mixture"
        self.scores_path = self.path / "scores.json"
        self.report_path = self.path / "report.html"

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run, or one clear sentence."""
        folder = cls(path)
        if not folder.path.is_dir():
            raise UserError(f"there is no run folder {folder.path}; `ganherd train --run {folder.path}` makes one.")
        if not folder.info_path.is_file() or not folder.recipe_path.is_file():
            raise UserError(f"{folder.path} is not a run folder: it has no run.json and recipe.yaml.")
        return folder

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        folder = cls(path)
        if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
            raise UserError(
                f"{folder.path} exists already; choose another --run, or go on with `ganherd train --resume {folder.path}`."
            )
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the run folder {folder.path} cannot be made: {error.strerror}.") from error
        return folder

    @property
    def recipe(self) -> Recipe:
        return recipe_file.load(self.recipe_path)

    @property
    def info(self) -> dict[str, Any]:
        try:
            info = json.loads(self.info_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.info_path} cannot be read ({error}); is {self.path} a run folder?") from error
        if not isinstance(info, dict):
            raise UserError(f"{self.info_path} does not hold a JSON object; is {self.path} a run folder?")
        return info

    def write_info(self, **changes: Any) -> None:
        info = (self.info if self.info_path.exists() else {}) | changes
        write_aside(self.info_path, json.dumps(info, indent=1) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        return _lines(self.metrics_path)

    def events(self) -> list[dict[str, Any]]:
        return _lines(self.events_path)

    def latest_samples(self) -> Path | None:
        found = sorted(self.samples.glob("step-*.png"))
        return found[-1] if found else None

    def lock(self) -> TextIO:
        """Held while a process trains here; the system lets go of it when the process ends, however it ends."""
        handle = (self.path / ".lock").open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise UserError(
                f"another process is training in {self.path}; wait for it, or choose another --run."
            ) from error
        return handle


def write_aside(path: Path, text: str) -> None:
    """The whole file or the old one, never half."""
    aside = path.with_name(path.name + ".new")
    with aside.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(path)


def _lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; a last line that is still being written is left out."""
    if not path.is_file():
        return []
    found = []
    with path.open(encoding="utf-8", errors="replace") as handle:
        for line in handle:
            if line.endswith("\n"):
                try:
                    found.append(json.loads(line))
                except ValueError as error:
                    raise UserError(f"{path} holds a line that is not JSON: {line[:60]!r}.") from error
    return found


def next_path(parent: Path, name: str) -> Path:
    """runs/00001-digits-wcgan, runs/00002-…: numbered, so that nothing is ever overwritten."""
    numbers = [int(p.name[:5]) for p in parent.glob("[0-9][0-9][0-9][0-9][0-9]-*")] if parent.is_dir() else []
    return parent / f"{max(numbers, default=0) + 1:05d}-{name}"
