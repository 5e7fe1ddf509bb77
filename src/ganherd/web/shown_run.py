"""Hold a run that a page shows and read its files.

Links are not followed, because the folder may come from a stranger.
"""

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

_CHECKED = 10.0  # a folder is searched for links and pipes at most once in this many seconds


@dataclass
class LiveLook:
    """The last state of a run that was sent to open pages, cached for the next poll and for other pages.

    Times are those of `time.monotonic`.
    """

    looked: float  # when the files were last checked for changes
    read: float  # when the state was read
    version: str  # `ShownRun.version` of the files from which the state was read
    state: JsonObject


@dataclass
class ShownRun:
    """A run that a page shows, with readers of its files and cached facts."""

    id: str
    path: Path
    folder: RunFolder = field(init=False)
    metrics: MetricColumns = field(init=False)
    metrics_file: RecordFile = field(init=False)
    events_file: RecordFile = field(init=False)
    checked: float = -1e9  # when the folder was last searched, on the monotonic clock
    summary: tuple[str, JsonObject] | None = None  # `version()` of the files, and what the list showed for it
    live: LiveLook | None = None

    def __post_init__(self) -> None:
        self.folder = RunFolder(self.path)
        self.metrics_file, self.events_file = RecordFile(self.folder.metrics_path), RecordFile(self.folder.events_path)
        self.metrics = MetricColumns(self.metrics_file)

    def version(self) -> str:
        """Return a text that changes whenever the run writes anything that a page shows: sizes and times of files."""
        folder = self.folder
        paths = (folder.info_path, folder.scores_path, folder.sprites, folder.mixture, folder.samples)
        return str([self.metrics_file.size(), self.events_file.size(), *map(mtime_ms, paths)])

    def check(self) -> None:
        """Raise an error if the folder contains links or pipes; it is searched at most every few seconds.

        Raises:
            UserError: The folder contains something that ganherd does not write.
        """
        if time.monotonic() - self.checked > _CHECKED:
            files.refuse_odd_files(self.path, NOT_OURS)
            self.checked = time.monotonic()

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of one of the run's files.

        Raises:
            OSError: The file cannot be read, is behind a link, or has more than `most` bytes.
        """
        if any(folder.is_symlink() for folder in path.parents if folder.is_relative_to(self.path)):
            raise OSError(0, "it is in a folder that is a link", str(path))
        with open(files.open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as handle:
            if os.fstat(handle.fileno()).st_size > most:
                raise OSError(0, "it is too large", str(path))
            return handle.read()


def mtime_ms(path: Path) -> int:
    """Return when a file was last changed, in milliseconds since 1970; 0 if it does not exist."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1_000_000
    except OSError:
        return 0
