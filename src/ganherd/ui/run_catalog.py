"""Find the runs that the page shows, and give each an id for addresses. Nothing outside of these folders is ever opened."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from ganherd.runs.folder import NOT_OURS, RunFolder
from ganherd.runs.run_list import run_paths
from ganherd.runs.series.metric_columns import MetricColumns
from ganherd.runs.series.record_file import RecordFile
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject

_CHECKED = 10.0  # seconds after which a folder is searched for links and pipes again
_LISTED = 2.0  # seconds for which the list of runs is remembered


class UnknownRun(UserError):
    """There is no run with this id."""


@dataclass
class LiveLook:
    """What the last look at a run that pages follow has seen, for the next look and for other pages. Times are monotonic."""

    looked: float  # when the version of the files was last compared
    read: float  # when the state was read
    version: str  # of the files that the state is from
    state: JsonObject


@dataclass
class ShownRun:
    """A run that the page shows, with its readers."""

    id: str
    path: Path
    folder: RunFolder = field(init=False)
    metrics: MetricColumns = field(init=False)
    metrics_file: RecordFile = field(init=False)
    events_file: RecordFile = field(init=False)
    checked: float = -1e9  # when the folder was last searched, on the monotonic clock
    summary: tuple[str, JsonObject] | None = None  # what the list shows, and the version of the files that it is from
    live: LiveLook | None = None

    def __post_init__(self) -> None:
        self.folder = RunFolder(self.path)
        self.metrics_file, self.events_file = RecordFile(self.folder.metrics_path), RecordFile(self.folder.events_path)
        self.metrics = MetricColumns(self.metrics_file)

    def version(self) -> str:
        """Return a text that changes whenever the run writes anything that the page shows."""
        folder = self.folder
        paths = (folder.info_path, folder.scores_path, folder.sprites, folder.mixture, folder.samples)
        return str([self.metrics_file.size(), self.events_file.size(), *map(mtime_ms, paths)])

    def check(self) -> None:
        """Refuse a folder with links or pipes; it is searched at most every few seconds.

        Raises:
            UserError: The folder is not a run that ganherd could have written.
        """
        if time.monotonic() - self.checked > _CHECKED:
            files.refuse_odd_files(self.path, NOT_OURS)
            self.checked = time.monotonic()

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of one of the run's files; links are not followed.

        Raises:
            OSError: It cannot be read, or has more than `most` bytes.
        """
        if any(folder.is_symlink() for folder in path.parents if folder.is_relative_to(self.path)):
            raise OSError(0, "it is in a folder that is a link", str(path))
        with open(files.open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as handle:
            if os.fstat(handle.fileno()).st_size > most:
                raise OSError(0, "it is too large", str(path))
            return handle.read()


class RunCatalog:
    """The runs in some folders. When the list is asked for, new runs appear, and those that were removed are forgotten."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Show these runs, and the runs in these folders; a folder that does not exist yet may appear later."""
        self._roots = [root.absolute() for root in roots]
        self._runs: dict[str, ShownRun] = {}  # by id
        self._ids: dict[Path, str] = {}
        self._lock = Lock()
        self._listed = -1e9

    def runs(self) -> list[ShownRun]:
        """Return all runs, in the order in which they were found."""
        with self._lock:
            if time.monotonic() - self._listed > _LISTED:
                self._forget_removed()
                for root in self._roots:
                    self._add(root)
                self._listed = time.monotonic()
            return [run for run in self._runs.values() if run.path.is_dir()]

    def _forget_removed(self) -> None:
        for run in [run for run in self._runs.values() if not run.path.is_dir()]:
            del self._runs[run.id], self._ids[run.path]

    def _add(self, root: Path) -> None:
        if not root.is_dir():
            return
        try:
            paths = run_paths(root)
        except OSError:
            return
        for path in paths:
            if path not in self._ids:
                own = _id(path, self._runs)
                self._ids[path] = own
                self._runs[own] = ShownRun(own, path)

    def run(self, run_id: str) -> ShownRun:
        """Return a run, after refusing folders with links or pipes.

        Raises:
            UnknownRun: There is no such run.
            UserError: The folder is not a run that ganherd could have written.
        """
        if run_id not in self._runs:
            self.runs()
        run = self._runs.get(run_id)
        if run is None or not run.path.is_dir() or run.path.is_symlink():
            raise UnknownRun("There is no such run here. Reload the list of runs.")
        run.check()
        return run


def mtime_ms(path: Path) -> int:
    """Return when a file was changed, in milliseconds; 0 if it does not exist."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1_000_000
    except OSError:
        return 0


def _id(path: Path, taken: dict[str, ShownRun]) -> str:
    """Return an id for a run: its folder's name if that is a plain word and free, otherwise a part of its digest, too.

    >>> _id(Path("runs/00001-digits"), {}), _id(Path("<b>"), {})[:4]
    ('00001-digits', 'run-')
    """
    name = path.name
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name) and name not in taken:
        return name
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"run-{digest}"
