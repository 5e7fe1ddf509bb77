"""List the runs in a folder with their recipe, state, step, FID, age and size, from files that may come from a stranger.

Nothing of a run is executed, no link is followed, and the size of every file is checked before it is read. A run that cannot be
read is listed with the reason.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ganherd.runs.folder import NOT_OURS, RunFolder, saved_steps
from ganherd.runs.json_lines import read_last
from ganherd.runs.models import MetricsRecord, RunInfo
from ganherd.runs.run_status import current_state, current_verdict
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.util.paths import RUNS

_MOST_BYTES = 4 << 20  # larger files run.json and scores.json are not read
_MOST_FILES = 20_000  # a run with more files than this is not listed


@dataclass(frozen=True)
class RunSummary:
    """What the list shows about one run. A run that cannot be read has a `problem` and nothing else."""

    name: str  # relative to the listed folder
    path: str
    age: float = 0.0  # seconds since run.json was written: at the start, a resume or the end
    problem: str = ""
    recipe: str | None = None
    changes: tuple[str, ...] = ()
    state: str = ""
    step: int | None = None
    steps: int | None = None
    seconds: float | None = None  # of training, if it is finished
    memory: int | None = None  # the most bytes of memory that the training used, if it is finished
    verdict: str | None = None
    fid: float | None = None
    samples: int | None = None  # the number of samples with which the FID was measured
    bytes: int = 0  # the size of all files of the run; 0 if sizes are not added up
    checkpoint_bytes: int = 0  # … of which checkpoints take this many

    def as_json(self) -> JsonObject:
        """Return what `ganherd runs --json` prints about the run."""
        return asdict(self)


def list_runs(folder: Path, sizes: bool = True) -> list[RunSummary]:
    """Return summaries of the runs in a folder and in its subfolders, with the most recently active one last.

    Args:
        folder: The folder, which may also be a run itself.
        sizes: Whether to add up the sizes of the files of each run, which takes time on a slow disk.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; `ganherd train` makes runs in the folder runs.")
    now, paths = time.time(), run_paths(folder)
    if paths == [folder]:
        return [summarise(folder, folder.name or str(folder), now, sizes)]
    runs = [summarise(path, str(path.relative_to(folder)), now, sizes) for path in paths]
    return sorted(runs, key=lambda run: (-run.age, run.name))


def run_paths(folder: Path) -> list[Path]:
    """Return the paths of the runs in a folder and its subfolders, and of links; only `folder` if it is a run itself.

    Links are included without following them, so that they can be listed with a note.
    """
    return [folder] if _is_run(folder) else list(_run_folders(folder))


def list_own_runs(sizes: bool = True) -> list[RunSummary]:
    """Return summaries of the runs in the folder `runs` and of those in the current folder, e.g. from `--run first`."""
    now, runs = time.time(), list_runs(RUNS, sizes) if RUNS.is_dir() else []
    runs += [summarise(path, str(path), now, sizes) for path in _runs_here()]
    return sorted(runs, key=lambda run: (-run.age, run.name))


def newest_run(folder: Path = RUNS) -> Path | None:
    """Return the run, in this folder or in the current one, whose run.json was written last; None without any run."""
    inside = _run_folders(folder) if folder.is_dir() else ()
    runs = [path for path in (*inside, *_runs_here()) if not path.is_symlink()]
    return max(runs, key=lambda path: (os.lstat(path / "run.json").st_mtime, path.name), default=None)


def summarise(path: Path, name: str, now: float, sizes: bool = True) -> RunSummary:
    """Return the summary of one run; if the run cannot be read, a summary that names the problem.

    Args:
        path: The run folder.
        name: The name of the run in the list.
        now: The current time, in seconds since 1970.
        sizes: Whether to add up the sizes of its files.
    """
    age = 0.0
    try:
        age = max(0.0, now - os.lstat(path if path.is_symlink() else path / "run.json").st_mtime)
        return _summarise(path, name, age, sizes)
    except UserError as error:
        problem = str(error)
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        problem = f"its records are not what ganherd writes ({error})"
    return RunSummary(name, str(path), age, problem)


def _summarise(path: Path, name: str, age: float, sizes: bool) -> RunSummary:
    """Return the summary of a run, or raise an error if its files cannot be read."""
    if path.is_symlink():
        raise UserError("a link, which is not followed")
    total, checkpoints = _size(path) if sizes else (0, 0)  # first, because it refuses links
    folder = RunFolder(path)
    info, scores = RunInfo.parse(_read(folder.info_path)), {}
    if folder.scores_path.exists():
        scores = _read(folder.scores_path)
    state, step = info.state or "unknown", info.step
    if state not in ("finished", "parts"):
        last = read_last(folder.metrics_path, MetricsRecord, 1)
        state, step = current_state(folder, state, last), max([0, *(one.step for one in last)])
        step = max([step, *saved_steps(folder.checkpoints)])  # a run stopped between two records has a newer checkpoint
    verdict = current_verdict(folder, step) if state == "finished" else None
    fid = (scores.get("scores") or {}).get("fid") or {}
    value, samples = fid.get("value"), fid.get("samples")
    return RunSummary(
        name,
        str(path),
        age,
        recipe=info.recipe,
        changes=tuple(info.changes or ()),
        state=state,
        step=step,
        steps=max(info.budget.steps, step or 0) if info.budget and info.budget.steps else None,
        seconds=info.seconds if state == "finished" else None,
        memory=info.memory if state == "finished" else None,
        verdict=verdict.word if verdict else None,
        fid=float(value) if isinstance(value, int | float) else None,
        samples=samples if type(samples) is int else None,
        bytes=total,
        checkpoint_bytes=checkpoints,
    )


def _is_run(folder: Path) -> bool:
    """Return whether a folder has a run.json."""
    return os.path.lexists(folder / "run.json")


def _runs_here() -> list[Path]:
    """Return the runs directly in the current folder."""
    return [path.parent for path in Path().glob("*/run.json") if path.parent != RUNS]


def _run_folders(folder: Path, deeper: int = 2) -> Iterator[Path]:
    """Yield the runs in a folder, and those in its subfolders, such as comparisons, down to this depth; links, too."""
    with os.scandir(folder) as entries:
        for entry in [one for one in entries if not one.name.startswith(".")]:
            path = Path(entry.path)
            if entry.is_symlink():
                if deeper:
                    yield path
            elif entry.is_dir():
                if _is_run(path):
                    yield path
                elif deeper:
                    try:
                        yield from _run_folders(path, deeper - 1)
                    except OSError:  # a folder that this user may not read
                        continue


def _read(path: Path) -> JsonObject:
    """Return the JSON object that a file holds."""
    content = files.read_json(path, _MOST_BYTES)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return content


def _size(run: Path) -> tuple[int, int]:
    """Return (bytes of all files of a run, bytes of its checkpoints); hard links count once.

    Raises:
        UserError: The run holds a link, a pipe or a device, or too many files.
    """
    total = checkpoints = count = 0
    seen: set[tuple[int, int]] = set()
    folders = [run]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > _MOST_FILES:
                    raise UserError(f"it holds more than {_MOST_FILES:,} files")
                try:
                    kind = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # a run that trains replaces its files
                    continue
                if stat.S_ISDIR(kind.st_mode):
                    if folder != run or entry.name not in NOT_OURS:
                        folders.append(Path(entry.path))
                elif not stat.S_ISREG(kind.st_mode):
                    what = "a link" if stat.S_ISLNK(kind.st_mode) else "neither a file nor a folder"
                    raise UserError(f"{Path(entry.path).relative_to(run)} is {what}, which a run may not hold")
                elif (kind.st_dev, kind.st_ino) not in seen:
                    seen.add((kind.st_dev, kind.st_ino))
                    total += kind.st_size
                    checkpoints += kind.st_size * ((run / "checkpoints") in Path(entry.path).parents)
    return total, checkpoints
