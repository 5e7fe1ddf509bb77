"""Prepare a folder of images for training: decode them on all cores, and write them to shards, one file for each class.

The files of a class are divided into units of at most 256. Worker processes decode a unit and write its images to a
temporary file, a part. When all parts of a class exist, a worker joins them to the shard of the class. Every file
appears complete or not at all, so that the same command, run again after it was killed, continues with what is missing.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

import numpy as np

from ganherd.data.readers.image_tree import Tree, list_tree
from ganherd.data.shards import worker as unit_work
from ganherd.data.shards.shards import INDEX, PARTS, SHARDS, Index, Shard, ShardSettings, Skipped, read_index
from ganherd.data.shards.worker import ClassFiles, Piece
from ganherd.util import files
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.host import cores

Progress = Callable[[int, int], None]  # called with the number of finished files, and of all files
Task = tuple[ClassFiles, int]  # a class, and the number of the unit to decode; -1: join its shard


def prepare(
    folder: Path,
    out: Path,
    size: int,
    crop: Literal["centre", "random"] = "centre",
    seed: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Index:
    """Decode the images below a folder, write them as shards, and return the index of the shards.

    Args:
        folder: The images, in one folder per class or flat.
        out: The folder to write; if an interrupted call has begun it, it is continued.
        size: Width and height to which images are cropped and resized.
        crop: Which square of an image is taken.
        seed: Seed of random crops.
        jobs: Number of processes that decode; default: one per core.
        progress: Called with the number of finished files and of all files.

    Raises:
        UserError: The folder does not exist, holds no images, or `out` was made with other settings or of other files.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}.")
    settings = shard_settings(plain_text(str(folder.resolve())), size, crop, seed)
    with preparing(out, settings):
        tree = list_tree(folder, out)
        sources = _sources(tree, settings)
        if (out / INDEX).is_file():
            return _prepared_before(out, sources)
        rest = (folder, out, settings, sources, jobs or cores(), progress or (lambda done, total: None))
        work = _Work(*rest)
        with resumable_work(out, settings, lambda: f"{_Work(*rest).done:,} of {work.total:,} files"):
            work.run()
            return work.index(tree)


@contextmanager
def preparing(out: Path, settings: ShardSettings) -> Iterator[None]:
    """Lock the folder of prepared data for the block, and remove temporary files if the block succeeds.

    Raises:
        UserError: The folder was made with other settings, or another process is writing it.
    """
    refuse_others(out, settings)
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    with lock_folder(out):
        yield
        shutil.rmtree(out / PARTS, ignore_errors=True)


@contextmanager
def resumable_work(out: Path, settings: ShardSettings, done: Callable[[], str]) -> Iterator[None]:
    """Record the settings of the work, and explain how to continue it if the block is interrupted or cannot write.

    Args:
        out: The folder of prepared data.
        settings: The settings, by which a later call recognises the work.
        done: Function that returns what is finished so far in words, e.g. "12 of 40 files".
    """
    (out / PARTS / "settings.json").write_text(settings.model_dump_json())
    (out / SHARDS).mkdir(exist_ok=True)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped after {done()}; the same command continues from there.") from None
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}; run the same command to continue.") from error


def shard_settings(source: str, size: int, crop: Literal["centre", "random"], seed: int | None) -> ShardSettings:
    """Return the settings of prepared data; raise a UserError for a seed that has no effect.

    Args:
        source: The original images, as the index records them.
        size: Width and height of the images.
        crop: Which square of an image is taken.
        seed: Seed of random crops; None: 0.
    """
    if seed is not None and crop != "random":
        raise UserError("--seed places random crops, and the crop is centre; leave it out, or take --crop random.")
    return ShardSettings(source=source, size=size, crop=crop, seed=(seed or 0) if crop == "random" else None)


class _Work:
    """The units and shards that are missing; `run` makes them in several processes."""

    def __init__(
        self, folder: Path, out: Path, settings: ShardSettings, sources: list[ClassFiles], jobs: int, progress: Progress
    ) -> None:
        self.folder, self.out, self.settings, self.sources, self.jobs = folder, out, settings, sources, jobs
        self.total, self.done = sum(len(source.files) for source in sources), 0
        self._progress = progress
        self._todo: deque[Task] = deque()
        self._left: Counter[int] = Counter()  # number of units that are missing, by the number of the shard
        for source in sources:
            if unit_work.read_record(out, source) is not None:
                self.done += len(source.files)
                continue
            missing = [unit for unit in source.units if not unit_work.part_path(out, source, unit).exists()]
            self.done += len(source.files) - sum(len(source.files_of(unit)) for unit in missing)
            self._left[source.number] = len(missing)
            self._todo += [(source, unit) for unit in missing] or [(source, -1)]

    def run(self) -> None:
        """Do all tasks. If a process crashes, start new ones, and find and skip the file that caused it."""
        self._progress(self.done, self.total)
        while self._todo:
            with worker_pool(self.jobs) as pool:
                try:
                    broken = self._run_in(pool)
                except BaseException:
                    pool.shutdown(cancel_futures=True)  # finish the current tasks, drop the waiting ones
                    raise
            for source, unit in broken:  # a file of one of these units may crash its decoder
                if unit < 0:
                    self._todo.append((source, unit))
                    continue
                piece = _carefully(self.folder, self.settings, source, source.files_of(unit))
                unit_work.write_part(unit_work.part_path(self.out, source, unit), piece)
                self._finished(source, unit)

    def _run_in(self, pool: ProcessPoolExecutor) -> list[Task]:
        """Run tasks until all are done or a process dies; return the tasks that may have killed it."""
        running: dict[Future[None], Task] = {}
        broken: list[Task] = []
        while (self._todo and not broken) or running:
            while self._todo and not broken and len(running) < 4 * self.jobs:
                source, unit = task = self._todo.popleft()
                try:
                    if unit < 0:
                        future = pool.submit(unit_work.make_shard, self.out, self.folder, self.settings, source)
                    else:
                        future = pool.submit(unit_work.make_part, self.out, self.folder, self.settings, source, unit)
                except BrokenProcessPool:
                    broken.append(task)
                else:
                    running[future] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    future.result()
                except BrokenProcessPool:
                    broken.append(task)
                else:
                    self._finished(*task)
        return broken

    def _finished(self, source: ClassFiles, unit: int) -> None:
        """Count a finished unit, and schedule the shard of a class whose last unit it was."""
        if unit < 0:
            return
        self.done += len(source.files_of(unit))
        self._left[source.number] -= 1
        if not self._left[source.number]:
            self._todo.appendleft((source, -1))
        self._progress(self.done, self.total)

    def index(self, tree: Tree) -> Index:
        """Convert all shards to one number of channels, write the index, and return it; `tree` lists the classes."""
        records = [unit_work.read_record(self.out, source) for source in self.sources]
        colour = any(record and record["count"] and record["channels"] == 3 for record in records)
        shards: list[Shard] = []
        skipped = [Skipped(file=plain_text(name), why="it is next to the class folders") for name in tree.unclassified]
        converted: Counter[str] = Counter()
        grey = 0
        for source, record in zip(self.sources, records, strict=True):
            assert record is not None
            if colour and record["count"] and record["channels"] == 1:
                unit_work.make_colour(self.out, source, record)
                record = unit_work.read_record(self.out, source) or record
            shards.append(
                Shard(
                    file=unit_work.shard_file(source),
                    label=source.label,
                    split=source.split,
                    count=record["count"],
                    sha256=record["sha256"],
                    listing=source.listing,
                )
            )
            skipped += [
                Skipped(file=plain_text(os.path.join(source.folder, f)), why=plain_text(why))
                for f, why in record["skipped"]
            ]
            converted.update(record["converted"])
            grey += record["grey"]
        if not any(shard.count for shard in shards):
            few = ", ".join(f"{one.file} ({one.why})" for one in skipped[:3])
            raise UserError(f"{self.folder} holds no image that can be read: {few}.")
        if colour and grey:
            converted["grey images became RGB, like the others"] = grey
        index = Index(
            settings=self.settings,
            channels=3 if colour else 1,
            labels=tree.labels,
            shards=tuple(shards),
            converted=dict(converted),
            skipped=tuple(skipped),
        )
        return write_index(self.out, index)


def write_index(out: Path, index: Index) -> Index:
    """Write the index of a prepared folder, and return it; shards that it does not list are removed before."""
    known = {shard.file for shard in index.shards if shard.count}
    for path in (out / SHARDS).iterdir():  # left by a process that was killed, or that knew other files
        if f"{SHARDS}/{path.name}" not in known:
            path.unlink()
    text = json.dumps(index.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    files.atomic_write(out / INDEX, text)
    return index


# --- processes ------------------------------------------------------------------------------------------------------


def worker_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of worker processes. They are forked on Linux, so that they start at once."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)


def _begin() -> None:
    """Set up a worker process: it ignores Ctrl-C, which its parent handles, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # silence C libraries' warnings on stderr; the index lists problems
    end_with_parent()


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent process ends, even if that was killed."""
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _carefully(folder: Path, settings: ShardSettings, source: ClassFiles, files: tuple[str, ...]) -> Piece:
    """Decode files of which one may crash its process: halve the list until that file is found, and skip it.

    Args:
        folder: The root of the images.
        settings: The settings of prepared data.
        source: The class of the files.
        files: Their paths, relative to the folder of the class.
    """
    try:
        with worker_pool(1) as pool:
            return pool.submit(unit_work.read_piece, folder, settings, source.folder, files).result()
    except BrokenProcessPool:
        if len(files) == 1:
            nothing = np.empty((0, 1, settings.size, settings.size), np.uint8)
            return Piece(nothing, skipped=[(files[0], "the process that reads it crashes")])
    middle = len(files) // 2
    halves = [_carefully(folder, settings, source, part) for part in (files[:middle], files[middle:])]
    return unit_work.joined(halves)


# --- what is there already ------------------------------------------------------------------------------------------


def refuse_others(out: Path, settings: ShardSettings) -> None:
    """Raise a UserError if a folder was prepared with other settings, or holds other files."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; choose another -o.")
    begun = out / PARTS / "settings.json"
    if (out / INDEX).is_file():
        before = read_index(out).settings
    elif begun.is_file():
        try:
            before = ShardSettings.model_validate_json(begun.read_bytes())
        except ValueError:
            raise UserError(f"{begun} cannot be read; remove {out} and start again.") from None
    elif any(path.name != PARTS for path in out.iterdir()):
        raise UserError(f"{out} exists already and is not a prepared folder; choose another -o.")
    else:
        return
    for name, words in (("source", "the data"), ("size", "--size"), ("crop", "--crop"), ("seed", "--seed")):
        then, now = getattr(before, name), getattr(settings, name)
        if then != now:
            raise UserError(f"{out} was begun with {words} {then}, not {now}; give the same, or choose another -o.")


def _sources(tree: Tree, settings: ShardSettings) -> list[ClassFiles]:
    """Return the files of each class and split, with the number of their shard and a digest of settings and names."""
    sources = []
    for number, group in enumerate(tree.groups):
        names = "\0".join((settings.model_dump_json(), group.folder, *group.files)).encode("utf-8", "surrogateescape")
        listing = hashlib.sha256(names).hexdigest()[:32]
        sources.append(ClassFiles(**vars(group), number=number, listing=listing))
    return sources


def _prepared_before(out: Path, sources: list[ClassFiles]) -> Index:
    """Return the index of a finished folder, or raise a UserError if it was made of other files than `sources`."""
    index = read_index(out)
    if [shard.listing for shard in index.shards] != [source.listing for source in sources]:
        raise UserError(
            f"{out} is prepared, and the files of {index.settings.source} have changed since; choose another -o."
        )
    return index


def lock_folder(out: Path) -> TextIO:
    """Lock the folder for this process, and return the open lock file.

    Workers do not inherit the lock, so it ends with this process.

    Raises:
        UserError: Another process holds the lock.
    """
    try:
        return files.lock(out / PARTS / ".lock", children_hold_it=False)
    except BlockingIOError:
        raise UserError(f"another process is preparing {out}; wait for it, or choose another -o.") from None


def plain_text(name: str) -> str:
    """Return a file name as valid UTF-8, which JSON requires; other bytes become question marks."""
    return name.encode("utf-8", "replace").decode()
