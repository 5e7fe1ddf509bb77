"""Start processes, and let them die: for real, or in the middle of a file operation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import run_files

import ganherd
from ganherd.util.errors import Interrupted, UserError


class Killed(BaseException):
    """Stands for SIGKILL inside a process: ganherd does not know it, so nothing is cleaned up."""


class _Death:
    """An audit hook, which Python cannot remove: it does nothing unless a folder is set."""

    def __init__(self) -> None:
        self.folder, self.left, self.installed = "", 0, False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder and event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"):
            path = arguments[0]
            reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder) and not reads:
                self.left -= 1
                if self.left < 0:  # the dead do nothing more
                    raise Killed


_DEATH = _Death()


@contextmanager
def dying_after(operations: int, folder: Path) -> Iterator[None]:
    """Raise `Killed` instead of the next change to files of the folder, after this many operations."""
    if not _DEATH.installed:
        sys.addaudithook(_DEATH)
        _DEATH.installed = True
    _DEATH.folder, _DEATH.left = str(folder), operations
    try:
        yield
    finally:
        _DEATH.folder = ""


def environment(**changes: str) -> dict[str, str]:
    """Return the environment for a process: the package that is tested here, one thread."""
    source = os.pathsep.join(filter(None, (str(Path(ganherd.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **changes}


def wait_until_underway(process: subprocess.Popen[str], run: Path, *files: Path) -> None:
    """Wait until a job has saved its run twice and these files exist."""
    while not run.is_dir() or len(run_files.steps(run)) < 2 or not all(file.is_file() for file in files):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def kill_rank(process: subprocess.Popen[str], run: Path, rank: int) -> None:
    """End one rank of a job by SIGKILL once the job is under way."""
    beat = run / "ranks" / f"rank-{rank:03}.json"
    wait_until_underway(process, run, beat)
    os.kill(json.loads(beat.read_text())["pid"], signal.SIGKILL)


def run_main(main: Callable[..., None]) -> None:
    """Call the main function of a program; it fails with the messages and exit codes of the `ganherd` command."""
    try:
        main(*sys.argv[1:])
    except (UserError, Interrupted) as error:
        print(f"ganherd: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 75)
