"""Draw samples of runs for the page, one request at a time; the number and the sizes of requests are limited."""

from __future__ import annotations

import base64
import io
import math
import shlex
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ganherd.runs.folder import mixture_of, step_without_mixture
from ganherd.util import files
from ganherd.util.errors import UserError, counted
from ganherd.util.files import JsonObject
from ganherd.web.shown_run import ShownRun

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture
    from ganherd.mixture.samples import Samples

MOST_SHOWN = 400  # largest number of samples on the page
MOST_SAMPLES = 10_000  # largest number of samples in a download
MOST_FRAMES = 120  # largest number of frames of a walk between two seeds
_MOST_WAITING = 16  # largest number of requests, the one that draws included
_MOST_BYTES = 96 << 20  # largest number of values in the samples of one request; bytes for images
_MOST_UNFINISHED = 64  # samples of a running training can be drawn if it has at most this many members
_REMEMBERED = 3  # number of mixtures that are cached
T = TypeVar("T")


class Busy(Exception):
    """Raised if too many requests wait for samples already."""


@dataclass(frozen=True)
class SampleRequest:
    """Which samples to draw from a mixture (the trained generators of a run)."""

    n: int = 64  # number of samples
    label: str | None = None  # by name or number; None: any
    seed: int = 0
    truncation: float = 1.0  # factor by which the noise is scaled
    replica: int = 0
    member: int | None = None  # draw from this member only
    to_seed: int | None = None  # walk from the noise of `seed` to that of this seed, in n frames

    def draw(self, mixture: Mixture) -> Samples:
        """Draw and return the samples; raise a `UserError` if they are too large."""
        if self.n * math.prod(mixture.shape) > _MOST_BYTES:
            most = max(1, _MOST_BYTES // math.prod(mixture.shape))
            raise UserError(f"n: these samples are too large for one request; ask for at most {most:,}.")
        source = mixture if self.member is None else mixture.alone(self.member)
        if self.to_seed is not None:
            seeds = (self.seed, self.to_seed)
            return source.walk(self.n, seeds, self.label, self.replica, self.truncation)
        return source.sample(self.n, self.label, self.seed, self.replica, truncation=self.truncation)


class SampleService:
    """Load mixtures on first use and draw samples, one request at a time on one core, to spare running trainings."""

    def __init__(self, trust_code: bool = False) -> None:
        self._trust_code = trust_code
        self._one = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._mixtures: dict[tuple[str, int], Mixture] = {}

    def facts(self, run: ShownRun) -> JsonObject:
        """Return what can be requested of a run: labels, replicas, members, shape and kind of samples; and the step."""
        return self._with_mixture(run, _facts)

    def show(self, run: ShownRun, request: SampleRequest) -> JsonObject:
        """Draw samples and return them as JSON for the page: a picture of all, or points, with labels and members."""

        def draw(mixture: Mixture) -> JsonObject:
            samples = request.draw(mixture)
            return {"step": mixture.step, **shown(samples)}

        return self._with_mixture(run, draw)

    def file(self, run: ShownRun, request: SampleRequest, kind: str) -> bytes:
        """Draw samples and return them as the content of a file.

        Args:
            kind: `png` (with a title), `npz`, `csv`, or `zip` with a folder of images for each label.
        """

        def write(mixture: Mixture) -> bytes:
            from ganherd.mixture import sample_files

            samples = request.draw(mixture)
            if kind == "zip":
                return zipped(samples)
            number = counted(request.n, "samples") + (f" of {request.label}" if request.label is not None else "")
            above = sample_files.heading(run.folder, mixture, number, request.seed, request.replica)
            with tempfile.TemporaryDirectory() as folder:
                path = sample_files.write(samples, str(Path(folder) / f"samples.{kind}"), heading=above)
                return path.read_bytes()

        return self._with_mixture(run, write)

    def _with_mixture(self, run: ShownRun, work: Callable[[Mixture], T]) -> T:
        """Wait for this request's turn, and return the result of `work` on the mixture of the run."""
        with self._turn():
            from ganherd.util.host import torch_threads

            mixture = self._load(run)
            with torch_threads(1):
                return work(mixture)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other request draws, and hold the turn inside the block; raise `Busy` if too many wait."""
        if not self._waiting.acquire(blocking=False):
            raise Busy
        try:
            with self._one:
                yield
        finally:
            self._waiting.release()

    def _load(self, run: ShownRun) -> Mixture:
        """Return the mixture of a run, or one of its newest checkpoint if it has none yet; cached until it changes."""
        step = step_without_mixture(run.path)
        if step is None:
            version = (mixture_of(run.path) / "mixture.json").stat().st_mtime_ns
        else:
            members = run.folder.info.members or 1
            if members > _MOST_UNFINISHED:
                raise UserError(
                    f"the mixture of {members:,} members is made when training ends; until then, look at the sprites of the herd."
                )
            version = step
        key = (run.id, version)
        if key not in self._mixtures:
            self._mixtures = {other: value for other, value in self._mixtures.items() if other[0] != run.id}
            while len(self._mixtures) >= _REMEMBERED:
                self._mixtures.pop(next(iter(self._mixtures)))
            self._mixtures[key] = self._read(run, step)
        return self._mixtures[key]

    def _read(self, run: ShownRun, step: int | None) -> Mixture:
        """Load the mixture of a run; if `step` is not None, make one of its newest checkpoint, which has this step."""
        if step is None:
            from ganherd.mixture import mixture

            return mixture.load(run.path, self._trust_code)
        if not self._trust_code and not files.is_locked(run.path / ".lock"):
            raise UserError(
                f"{run.path.name} is neither finished nor training on this machine, and its data would have to be opened to draw "
                f"samples. Run `ganherd sample {shlex.quote(str(run.path))} -o samples.png` instead, if you trust its recipe."
            )
        from ganherd.training.variants.unfinished import load_unfinished

        return load_unfinished(run.path, self._trust_code)


def _facts(mixture: Mixture) -> JsonObject:
    """Return what can be requested of a mixture; labels are empty if none can be chosen."""
    can_choose = mixture.takes_label or bool((mixture.label_of >= 0).all())
    return {
        "labels": list(mixture.labels) if can_choose else [],
        "replicas": mixture.replicas,
        "members": mixture.members,
        "shape": list(mixture.shape),
        "step": mixture.step,
        "kind": mixture.kind,
    }


def shown(samples: Samples) -> JsonObject:
    """Return samples as JSON: a PNG of all images in a grid, or a list of points; rows are projected to a plane."""
    facts: JsonObject = {"y": samples.y.tolist(), "member": samples.member.tolist(), "labels": list(samples.labels)}
    if samples.x.ndim == 2:
        at = samples.x if samples.points is None else samples.points
        points = [[round(float(v), 4) for v in point] if np.isfinite(point).all() else None for point in at]
        return {"kind": "points", "points": points, **facts}
    from PIL import Image

    from ganherd.viz.sprite_sheet import SheetLayout, draw_sprites

    n, _, height, width = samples.x.shape
    layout = SheetLayout(1, height, width, max(1, math.ceil(math.sqrt(n))))
    out = io.BytesIO()
    Image.fromarray(draw_sprites(samples.x[:, None], layout)).save(out, "PNG", compress_level=6)
    image = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return {"kind": "images", "image": image, "columns": layout.columns, "tile": [height, width], **facts}


def zipped(samples: Samples) -> bytes:
    """Return a zip archive with a PNG file for each image, in a folder for each label.

    `ganherd train` can train on the unpacked folder.
    """
    from ganherd.mixture import image_folder

    if samples.x.ndim == 2:
        raise UserError("points and rows cannot be saved as images: download the csv or the npz instead.")
    if samples.x.shape[1] not in (1, 3):
        raise UserError("images of this kind are no PNG files that can be read again: download the npz instead.")
    names = image_folder.folder_names(samples.labels)
    numbers: dict[int, int] = {}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for label, content in zip(samples.y.tolist(), image_folder.encode(samples.x), strict=True):
            number = numbers[label] = numbers.get(label, -1) + 1
            folder = f"{names[label]}/" if label >= 0 else ""
            # a fixed date, so that equal samples give equal files
            archive.writestr(zipfile.ZipInfo(f"{folder}{number:06d}.png", (1980, 1, 1, 0, 0, 0)), content)
    return out.getvalue()
