"""The folder of a run: its paths, and readers that execute no code from it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from ganherd.recipe import recipe_file
from ganherd.recipe.plugins.recipe_plugins import plugins_of
from ganherd.recipe.schema import Recipe
from ganherd.recipe.sources.data_address import short_name
from ganherd.runs import json_lines
from ganherd.runs.models import EventRecord, MetricsRecord, RunInfo
from ganherd.runs.results.verdict_record import VerdictRecord, read_verdict
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.objects.memory_objects import label_of
from ganherd.util.paths import RUNS, given_path
from ganherd.util.text import did_you_mean, printable

_DATA = "data.source="  # the change of a recipe that gives it other data
_BEFORE_INFO = {".lock", "recipe.yaml"}  # files that are created before run.json
_CHECKPOINT, _PART = re.compile(r"step-(\d{8,18})"), re.compile(r"(\d{3,})-(\d{3,})")  # names of folders
_FIRST = "-first"  # end of the name of a first phase's folder
NOT_OURS = ("tensorboard", "wandb", "mlruns")  # folders of other programs, which may hold links: they are not checked


class RunFolder:
    """Paths and readers of one run.

    >>> RunFolder("runs/00001-digits").metrics_path.name
    'metrics.jsonl'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = given_path("the run", path)
        self.recipe_path = self.path / "recipe.yaml"
        self.info_path = self.path / "run.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.events_path = self.path / "events.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples"
        self.sprites = self.path / "sprites"
        self.mixture = self.path / "mixture"
        self.scores_path = self.path / "scores.json"
        self.report_path = self.path / "report.html"

    @property
    def title(self) -> str:
        """The run's name in pictures: the name of the data if the recipe was given other data, or the recipe's name.

        If neither is recorded, it is the folder's name without its number.

        >>> RunFolder("runs/00012-digits-wcgan").title
        'digits-wcgan'
        """
        recorded = None
        with suppress(UserError):
            given = [text.removeprefix(_DATA) for text in self.info.changes or () if text.startswith(_DATA)]
            recorded = short_name(label_of(given[-1])) if given else self.info.recipe
        name = self.path.name or self.path.resolve().name
        return printable(recorded or re.sub(r"^\d{5}-", "", name))

    @property
    def newest_picture(self) -> Path | None:
        """The newest picture of samples: that of the mixture, otherwise of the last step; None if there is none yet."""
        final = self.samples / "final.png"
        return final if final.is_file() else max(self.samples.glob("step-*.png"), default=None)

    @property
    def first(self) -> RunFolder:
        """The folder of the first phase, next to this one, if the recipe has two phases."""
        own = self.path if self.path.name else self.path.resolve()
        return RunFolder(own.with_name(own.name + _FIRST))

    @property
    def second(self) -> RunFolder | None:
        """The folder of the run whose first phase is in this one, judging by its name; None if this is no first phase.

        >>> RunFolder("runs/00012-cifar10-perclass").first.second.path.name, RunFolder("runs/00012-digits").second
        ('00012-cifar10-perclass', None)
        """
        own = self.path.name.removesuffix(_FIRST)
        return RunFolder(self.path.with_name(own)) if own not in ("", self.path.name) else None

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return the folder of an existing run.

        Raise a `UserError` if there is no run, or if it holds links or devices.
        """
        folder = cls(path)
        if not folder.path.is_dir():
            if folder.first.info_path.is_file():
                raise UserError(
                    f"{folder.path} is in its first phase ({folder.first.path}): the command that began it continues with "
                    f"--run {folder.path}."
                )
            known = [str(path.parent) for path in RUNS.glob("*/run.json")]
            hint = did_you_mean(str(RUNS / folder.path.name), known, "{}") or "`ganherd runs` lists all runs."
            raise UserError(f"there is no run folder {folder.path}; {hint}")
        if not folder.info_path.is_file() or not folder.recipe_path.is_file():
            raise UserError(f"{folder.path} is not a run folder: it has no run.json and recipe.yaml.")
        files.refuse_odd_files(folder.path, NOT_OURS)
        return folder

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        """Create and return the folder of a new run; an empty folder may exist already."""
        folder = cls(path)
        folder.refuse_existing()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the run folder {folder.path} cannot be made: {error.strerror}.") from error
        return folder

    @property
    def again(self) -> str:
        """The command that resumes the run, with --trust-code if its recipe names code that is not ganherd's."""
        trust = ""
        with suppress(UserError, OSError):  # the recipe may be damaged, or not there yet
            trust = " --trust-code" if any(plugins_of(self.recipe)) or any(self.recipe.own_names) else ""
        return f"ganherd train --resume {shlex.quote(str(self.path))}{trust}"

    def refuse_existing(self) -> None:
        """Raise a `UserError` unless a new run can be created in this folder: it does not exist yet, or is empty."""
        try:
            taken = self.path.exists() and (not self.path.is_dir() or not self._is_free())
        except OSError as error:
            raise UserError(f"the run folder {self.path} cannot be looked at: {error.strerror}.") from error
        if taken:
            raise UserError(f"{self.path} exists already; choose another --run, or resume it with `{self.again}`.")

    def _is_free(self) -> bool:
        """Return whether the folder is empty, or only has files of a process that was killed before it wrote run.json.

        Such a folder can be used for a new run.
        """
        names = {path.name for path in self.path.iterdir()}
        return not names or (
            ".lock" in names and all(name in _BEFORE_INFO or name.startswith(files.NEW) for name in names)
        )

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return recipe_file.load(self.recipe_path)

    @property
    def info(self) -> RunInfo:
        """The content of run.json. It is read at each access."""
        return self._read_info()[1]

    def _read_info(self) -> tuple[JsonObject, RunInfo]:
        """Return the content of run.json as plain data and as a checked record."""
        try:
            content = files.read_json(self.info_path)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise UserError(f"{self.info_path} cannot be read ({why}); is {self.path} a run folder?") from error
        if not isinstance(content, dict):
            raise UserError(f"{self.info_path} does not hold a JSON object; is {self.path} a run folder?")
        try:
            return content, RunInfo.parse(content)
        except ValueError as error:
            raise UserError(
                f"{self.info_path} is not what ganherd writes ({error}); it cannot be resumed exactly."
            ) from None

    @property
    def verdict(self) -> VerdictRecord | None:
        """The verdict in scores.json, whose advice names this run; None if the run was not judged.

        The file names no run, because the folder may be moved.
        """
        stored = read_verdict(self.scores_path)
        return None if stored is None else stored.for_run(self.again)

    def write_info(self, **changes: Any) -> None:
        """Change keys of run.json; all others stay as they are."""
        before = self._read_info()[0] if self.info_path.exists() else {}
        files.atomic_write(self.info_path, json.dumps(before | changes, indent=1) + "\n")

    def metrics(self, most: int | None = None) -> list[MetricsRecord]:
        """Return all records; if `most` is given, at most twice that many of them, evenly spaced (see `read_some`)."""
        if most is not None:
            return json_lines.read_some(self.metrics_path, MetricsRecord, most)
        return list(json_lines.read_all(self.metrics_path, MetricsRecord))

    def events(self) -> list[EventRecord]:
        """Return all events."""
        return list(json_lines.read_all(self.events_path, EventRecord))

    def has_written(self, ends: Mapping[str, int]) -> bool:
        """Return whether the files of metrics and events have at least these lengths in bytes."""
        paths = {"metrics": self.metrics_path, "events": self.events_path}
        return all(path.is_file() and path.stat().st_size >= ends[name] for name, path in paths.items())

    def lock(self) -> TextIO:
        """Lock the run for this process, and return the lock file; closing it releases the lock.

        The system also releases the lock when the process ends, even if it is killed.

        Raises:
            UserError: Another process has the lock, or nothing can be written to the folder.
        """
        try:
            return files.lock(self.path / ".lock", waits=(0.05, 0.2, 0.5))  # `ganherd status` locks it for a moment
        except BlockingIOError as error:
            raise UserError(
                f"another process is training in {self.path}; wait for it, or choose another --run."
            ) from error
        except OSError as error:
            raise UserError(f"nothing can be written to the run folder {self.path}: {error.strerror}.") from error


def mixture_of(path: str | Path) -> Path:
    """Return the folder of a run's mixture. `path`: the run, or that folder itself.

    Raises:
        UserError: There is no mixture yet.
    """
    folder = Path(path)
    folder = folder / "mixture" if (folder / "mixture").is_dir() else folder
    if (folder / "mixture.json").exists():
        files.refuse_odd_files(Path(path), NOT_OURS)
        return folder
    run, step = RunFolder.open(path), step_without_mixture(path)
    end = f"; with --budget {step}steps it ends where it stands" if step else ""
    raise UserError(f"there is no mixture in {path}: it is made when training ends. Resume it with `{run.again}`{end}.")


def mixture_version(path: str | Path) -> tuple[int, int]:
    """Return numbers that change if the mixture of a run is written again. `path`: as for `mixture_of`."""
    now = (mixture_of(path) / "mixture.json").stat()
    return now.st_mtime_ns, now.st_size


def refuse_changed_mixture(path: str | Path, version: tuple[int, int]) -> None:
    """Raise a `UserError` if the mixture of a run was written again since it had this version."""
    if mixture_version(path) != version:
        raise UserError(f"the mixture in {path} changed meanwhile, so the result was discarded: run the command again.")


def step_without_mixture(path: str | Path) -> int | None:
    """Return the step of the newest checkpoint of a run without a mixture; None if it has one, or no checkpoint."""
    run = RunFolder(path)
    has_mixture = any((folder / "mixture.json").exists() for folder in (run.mixture, run.path))
    return None if has_mixture else max(saved_steps(run.checkpoints), default=None)


def code_of(path: Path) -> list[str]:
    """Return the folders of the user's modules that a run's recipe lists as `code`; empty if `path` is not a run."""
    folder = RunFolder(path)
    return folder.recipe.code if folder.recipe_path.is_file() and folder.info_path.is_file() else []


def next_path(parent: Path, name: str) -> Path:
    """Return the path of a new numbered folder, such as runs/00001-digits-wcgan, without creating it."""
    matches = (re.match(r"(\d{5,})-", p.name, re.ASCII) for p in (parent.iterdir() if parent.is_dir() else ()))
    numbers = [int(match[1]) for match in matches if match]
    return parent / f"{max(numbers, default=0) + 1:05d}-{name}"


def saved_steps(checkpoints: Path) -> list[int]:
    """Return the steps that have a checkpoint in that folder, oldest first."""
    if not checkpoints.is_dir():
        return []
    return sorted(int(m[1]) for p in checkpoints.iterdir() if p.is_dir() and (m := _CHECKPOINT.fullmatch(p.name)))


def part_name(part: range) -> str:
    """Return the name of the folder of a part (a range of members that a separate job trains), such as 000-009."""
    return f"{part.start:03d}-{part.stop - 1:03d}"


def part_path(whole: RunFolder, part: range) -> Path:
    """Return the folder of a part of a run, such as RUN/parts/000-009."""
    return whole.path / "parts" / part_name(part)


def parts(whole: RunFolder) -> list[range]:
    """Return the parts of a run (ranges of members) that jobs have begun to train, in order."""
    names = (_PART.fullmatch(path.name) for path in (whole.path / "parts").glob("*"))
    return sorted((range(int(match[1]), int(match[2]) + 1) for match in names if match), key=lambda part: part.start)


def unfinished(whole: RunFolder) -> list[str]:
    """Return a phrase for each range of members that is not trained yet, such as `0-9 not begun`."""
    left, at = [], 0
    for part in parts(whole):
        if part.start > at:
            left.append(f"{at}-{part.start - 1} not begun")
        own = RunFolder(part_path(whole, part))
        if not own.info_path.exists() or own.info.state != "finished":  # no run.json: killed while it was created
            left.append(f"{part.start}-{part.stop - 1} not finished")
        at = part.stop
    members = whole.info.members
    if members is None:
        raise UserError(f"{whole.info_path} does not say how many members the run has.")
    return left + ([f"{at}-{members - 1} not begun"] if at < members else [])
