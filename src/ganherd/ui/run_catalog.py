"""Find the runs that the page shows, and give each an id for use in URLs.

Nothing outside of their folders is opened.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from ganherd.runs.run_list import run_paths
from ganherd.util.errors import UserError
from ganherd.web.shown_run import ShownRun

_LISTED = 2.0  # seconds for which the list of runs is cached


class UnknownRun(UserError):
    """Raised if there is no run with a requested id."""


class RunCatalog:
    """The runs in some folders.

    New and removed runs are noticed when the list is requested, at most every two seconds.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        """Create the catalog.

        Args:
            roots: Run folders, and folders that contain runs; they may be created later.
        """
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
        """Add the runs at or in a folder that are not known yet, each with an id."""
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
        """Return the run with this id, after a check of its folder for links and pipes.

        Raises:
            UnknownRun: There is no such run.
            UserError: The folder contains something that ganherd does not write.
        """
        if run_id not in self._runs:
            self.runs()
        run = self._runs.get(run_id)
        if run is None or not run.path.is_dir() or run.path.is_symlink():
            raise UnknownRun("There is no such run here. Reload the list of runs.")
        run.check()
        return run


def _id(path: Path, taken: dict[str, ShownRun]) -> str:
    """Return an id for a run: its folder's name if that is a simple word and not taken, otherwise `run-DIGEST`.

    >>> _id(Path("runs/00001-digits"), {}), _id(Path("<b>"), {})[:4]
    ('00001-digits', 'run-')
    """
    name = path.name
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name) and name not in taken:
        return name
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"run-{digest}"
