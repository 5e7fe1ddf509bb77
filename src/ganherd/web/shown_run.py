"""A run that a page shows, with the readers of its files. Links are not followed: the folder may come from a stranger."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ganherd.runs.folder import RunFolder
from ganherd.runs.series.metric_columns import MetricColumns
from ganherd.runs.series.record_file import RecordFile
from ganherd.util import files
from ganherd.util.files import JsonObject


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

    def __post_init__(self) -> None:
        self.folder = RunFolder(self.path)
        self.metrics_file, self.events_file = RecordFile(self.folder.metrics_path), RecordFile(self.folder.events_path)
        self.metrics = MetricColumns(self.metrics_file)

    def version(self) -> str:
        """Return a text that changes whenever the run writes anything that the page shows."""
        folder = self.folder
        paths = (folder.info_path, folder.scores_path, folder.sprites, folder.mixture, folder.samples)
        return str([self.metrics_file.size(), self.events_file.size(), *map(mtime_ms, paths)])

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
