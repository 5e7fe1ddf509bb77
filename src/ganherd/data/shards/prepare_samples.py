"""Prepare tars, tables and data sets of the Hugging Face Hub for training: write their images to shards.

The samples are divided into units. Worker processes decode a unit and write it to a file, a part. At the end, all parts
are joined to shards, one file for each class. If the command is killed, the same command continues from the parts that
exist.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Literal

import numpy as np

from ganherd.data.samples.image_sample import SampleSource, SampleUnit
from ganherd.data.shards.prepare import Progress, preparing, resumable_work, shard_settings, worker_pool
from ganherd.data.shards.sample_parts import SamplePart, SamplePiece, join_parts, read_unit, write_piece
from ganherd.data.shards.shards import INDEX, PARTS, Index, ShardSettings, read_index
from ganherd.data.shards.worker import joined
from ganherd.util.errors import UserError
from ganherd.util.host import cores


def prepare_samples(
    source: SampleSource,
    place: str,
    out: Path,
    size: int,
    crop: Literal["centre", "random"] = "centre",
    seed: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Index:
    """Decode all samples of a source, write them as shards, and return the index of the shards.

    Args:
        source: The samples.
        place: The source as the user names it, with an absolute path, which the index records.
        out: The folder to write; if an interrupted call has begun it, it is continued.
        size: Width and height to which images are cropped and resized.
        crop: Which square of an image is taken.
        seed: Seed of random crops.
        jobs: Number of processes that decode; default: one per core.
        progress: Called with the number of finished samples and of all samples.

    Raises:
        UserError: `out` was made with other settings or of other files, or there are no images.
    """
    settings = shard_settings(place, size, crop, seed)
    with preparing(out, settings):
        listing = source.digest()
        if (out / INDEX).is_file():
            index = read_index(out)
            if any(shard.listing != listing for shard in index.shards):
                raise UserError(f"{out} is prepared, and the files of {place} have changed since; choose another -o.")
            return index
        work = _Units(source, settings, out, listing, progress or (lambda done, total: None))
        with resumable_work(out, settings, lambda: f"{work.count_done():,} of {work.total:,} images"):
            work.make_parts(jobs or cores())
            return join_parts(out, settings, work.parts(), source.labels, source.guesses_labels, listing)


class _Units:
    """The units of a source, and the path of each one's part; `make_parts` writes the parts that are missing."""

    def __init__(
        self, source: SampleSource, settings: ShardSettings, out: Path, listing: str, progress: Progress
    ) -> None:
        self._source, self._settings, self._out, self._progress = source, settings, out, progress
        self._units = list(source.units())
        self._paths = []
        for number, unit in enumerate(self._units):
            words = f"{listing} {settings.model_dump_json()} {unit.file.name} {unit.start} {unit.count}"
            digest = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:16]
            # The digest keeps a part of other samples or settings from being used.
            self._paths.append(out / PARTS / f"{number:06d}-{digest}.npz")
        self.total = sum(unit.count for unit in self._units)

    def count_done(self) -> int:
        """Return the number of samples whose part exists."""
        return sum(unit.count for unit, path in zip(self._units, self._paths, strict=True) if path.exists())

    def parts(self) -> list[SamplePart]:
        """Return the parts of all units, in order."""
        return [
            SamplePart(path, unit.split, functools.partial(self._make, unit, path))
            for unit, path in zip(self._units, self._paths, strict=True)
        ]

    def _make(self, unit: SampleUnit, path: Path) -> None:
        write_piece(path, _carefully(self._source, self._settings, unit))

    def make_parts(self, jobs: int) -> None:
        """Write the parts that are missing, in `jobs` processes.

        If a process crashes, the units that it may have worked on are decoded with care: divided until the sample that
        causes the crash is found and skipped.
        """
        missing = [(u, path) for u, path in zip(self._units, self._paths, strict=True) if not path.exists()]
        self._progress(self.count_done(), self.total)
        while missing:
            with worker_pool(jobs) as pool:
                try:
                    self._run(pool, missing)
                except BrokenProcessPool:
                    pass
                except BaseException:
                    pool.shutdown(cancel_futures=True)  # finish the current units, drop the waiting ones
                    raise
            missing = [(unit, path) for unit, path in missing if not path.exists()]
            for unit, path in missing[:jobs]:  # Units are begun in order, so the one that crashed is among the first.
                self._make(unit, path)
            missing = missing[jobs:]

    def _run(self, pool: ProcessPoolExecutor, missing: Sequence[tuple[SampleUnit, Path]]) -> None:
        done = self.count_done()
        futures = [pool.submit(_make_part, self._source, self._settings, unit, path) for unit, path in missing]
        for (unit, _), future in zip(missing, futures, strict=True):
            future.result()
            done += unit.count
            self._progress(done, self.total)


def _make_part(source: SampleSource, settings: ShardSettings, unit: SampleUnit, path: Path) -> None:
    write_piece(path, read_unit(source, settings, unit))


def _carefully(source: SampleSource, settings: ShardSettings, unit: SampleUnit) -> SamplePiece:
    """Decode a unit of which a sample may crash its process: halve the unit until that sample is found; skip it."""
    try:
        with worker_pool(1) as pool:
            return pool.submit(read_unit, source, settings, unit).result()
    except BrokenProcessPool:
        if unit.count == 1:
            nothing = np.empty((0, 1, settings.size, settings.size), np.uint8)
            name = f"{unit.file.name}, sample {unit.start:,}"
            return SamplePiece(nothing, skipped=[(name, "the process that reads it crashes")])
    halves = [_carefully(source, settings, half) for half in unit.halves()]
    whole = joined(list(halves))
    labels = [label for half in halves for label in half.labels]
    return SamplePiece(whole.x, whole.grey, whole.skipped, whole.converted, labels)
