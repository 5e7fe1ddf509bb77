"""A run that a page shows, with the readers of its files. Links are not followed: the folder may come from a stranger."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from ganherd.runs.folder import NOT_OURS, RunFolder
from ganherd.runs.series.metric_columns import MetricColumns
from ganherd.runs.series.record_file import RecordFile
from ganherd.util import files
from ganherd.util.files import JsonObject

_CHECKED = 10.0  # seconds after which a folder is searched for links and pipes again


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


def mtime_ms(path: Path) -> int:
    """Return when a file was changed, in milliseconds; 0 if it does not exist."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1_000_000
    except OSError:
        return 0
