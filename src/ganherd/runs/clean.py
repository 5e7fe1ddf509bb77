"""Remove the checkpoints of finished runs, which take most of their space.

Mixtures, pictures, scores and records stay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError


@dataclass(frozen=True)
class Removable:
    """Checkpoints of a run that can be removed, and their size."""

    folder: RunFolder
    checkpoints: tuple[Path, ...]
    bytes: int


def removable(run: Path, keep_last: bool = False) -> Removable:
    """Return the checkpoints of a finished run that can be removed.

    Args:
        keep_last: Leave out the newest one, and the one that repairs roll back to, so that the run can be trained
            further.

    Raises:
        UserError: The run is not finished, or it has no mixture, so that its checkpoints are its only result.
    """
    folder = RunFolder.open(run)
    if folder.info.state != "finished" or not (folder.mixture / "mixture.json").is_file():
        raise UserError(f"{folder.path} is not finished, and its checkpoints are all that it has: `{folder.again}`.")
    chosen = checkpoint.outdated(folder.checkpoints, keep=1 if keep_last else 0)
    return Removable(folder, tuple(chosen), sum(os.lstat(file).st_size for path in chosen for file in path.rglob("*")))


def remove(what: Removable) -> None:
    """Remove checkpoints. The run is locked meanwhile, so that no process trains it further.

    Raises:
        UserError: The run was resumed after its checkpoints were listed.
    """
    with what.folder.lock():
        if what.folder.info.state != "finished":
            raise UserError(f"{what.folder.path} was resumed in the meantime, so its checkpoints are kept.")
        for path in what.checkpoints:
            checkpoint.remove(path)
        checkpoint.sweep(what.folder.checkpoints)
