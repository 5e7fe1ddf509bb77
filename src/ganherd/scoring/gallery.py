"""Draw the pictures of a run, which compare its samples with the data, as PNG and SVG in its folder.

`ganherd score` and `ganherd report` make them, and the report shows them. `about.json` records the captions, and
the step, the seed and the data of the mixture that the pictures show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ganherd.data.keyed_random import shuffle
from ganherd.features.material import DrawnSamples, MetricSkipped
from ganherd.util import files
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject, atomic_write
from ganherd.util.meter import Detail, Progress

if TYPE_CHECKING:
    from ganherd.data.dataset import Dataset
    from ganherd.features.real_features import RealFeatures
    from ganherd.mixture.mixture import Mixture
    from ganherd.viz.pictures import Picture

FOLDER, ABOUT = "pictures", "about.json"
MAPPED = 1000  # samples on a t-SNE map, and as many real rows; more would take minutes
PANELS = 8  # panels of a coverage picture: the mixture and its first members
POINTS = 2500
NAMES = ("map", "map-classes", "classes", "coverage", "neighbours")
LARGEST = 8 << 20  # bytes of a picture that a report accepts


@dataclass(frozen=True)
class GalleryPicture:
    """One picture with its caption."""

    name: str
    caption: str
    png: bytes


def make(
    run: Path,
    mixture: Mixture,
    dataset: Dataset,
    reference: RealFeatures | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    again: bool = False,
) -> list[Path]:
    """Draw the pictures that fit the data into RUN/pictures, unless those of this mixture are there, and return the new files.

    Args:
        run: The run folder.
        mixture: The mixture.
        dataset: Its data.
        reference: Features of the data; None: those of the default network for this data, which is quick.
        seed: The seed of the samples.
        progress: Receives lines about the progress.
        again: Draw all pictures anew, also those that exist.
    """
    from ganherd.viz.pictures import save

    folder = Path(run) / FOLDER
    key = {"step": int(mixture.step), "seed": seed, "data": dataset.digest}
    if not again and _about(folder).get("of") == key:
        return []
    tell = progress or (lambda line: None)
    captions: dict[str, str] = {}
    written: list[Path] = []
    with suppress(OSError):  # a run on a read-only disk can be scored too
        folder.mkdir(exist_ok=True)
        for name, caption, picture in _drawn(mixture, dataset, reference, seed, tell):
            captions[name] = caption
            for ending in (".png", ".svg"):
                with files.replacing(folder / f"{name}{ending}") as aside:
                    save(picture, aside)
                written.append(folder / f"{name}{ending}")
        for name in NAMES:
            for ending in (".png", ".svg") if name not in captions else ():
                (folder / f"{name}{ending}").unlink(missing_ok=True)  # a picture of an earlier mixture

        atomic_write(folder / ABOUT, json.dumps({"of": key, "captions": captions}, indent=1) + "\n")
        tell(Detail(f"pictures: {folder}"))
    return written


def read(run: Path, step: int | None) -> list[GalleryPicture]:
    """Return the pictures of the mixture of this step; none if they are of another step.

    Files are checked before they are read, because a run folder may come from other people.
    """
    folder = Path(run) / FOLDER
    about = _about(folder)
    captions = about.get("captions")
    of = about.get("of")
    if not isinstance(captions, dict) or not isinstance(of, dict) or step is None or of.get("step") != step:
        return []
    pictures = []
    for name in NAMES:
        path = folder / f"{name}.png"
        if name in captions and path.is_file() and path.stat().st_size < LARGEST:
            png = files.read(path, LARGEST)
            if png.startswith(b"\x89PNG\r\n\x1a\n"):
                pictures.append(GalleryPicture(name, str(captions[name]), png))
    return pictures


def _about(folder: Path) -> JsonObject:
    """Return the content of about.json; empty if it is missing or damaged."""
    try:
        content = files.read_json(folder / ABOUT)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _drawn(
    mixture: Mixture, dataset: Dataset, reference: RealFeatures | None, seed: int, tell: Progress
) -> Iterator[tuple[str, str, Picture]]:
    """Yield name, caption and picture of all that fit; what cannot be drawn is reported and left out."""
    ways: list[Callable[[], Iterator[tuple[str, str, Picture]]]]
    if dataset.kind == "points":
        ways = [lambda: _coverage(mixture, dataset, seed, tell)]
    else:
        n = min(MAPPED, len(dataset.x))
        tell(Detail(f"pictures: drawing {n:,} samples"))
        drawn = mixture.sample(n, seed=seed)
        ways = [lambda: _maps(drawn, dataset, reference, seed, tell)]
        if dataset.is_image:
            ways.append(lambda: _neighbours(drawn, dataset, seed, tell))
    for way in ways:
        try:
            yield from way()
        except (UserError, MetricSkipped) as why:
            tell(f"pictures: one is left out, {why}")


def _maps(
    drawn: DrawnSamples, dataset: Dataset, reference: RealFeatures | None, seed: int, tell: Progress
) -> Iterator[tuple[str, str, Picture]]:
    """Yield t-SNE maps of data and samples by their features, and the classes that the network predicts for the samples."""
    from ganherd.features.real_features import RealFeatures
    from ganherd.scoring import maps

    if reference is None or not _quick(reference):
        reference = RealFeatures(dataset, progress=tell)
    network, labels = reference.network, dataset.labels
    fake, real = reference.of(drawn, "samples for the map"), reference.real
    rows = np.sort(shuffle(len(real), "rows of a map", seed)[: len(fake)])
    some = real.rows(rows)
    tell(Detail(f"pictures: t-SNE of {len(some):,} real and {len(fake):,} generated, some seconds"))
    groups = {"data": some.x.cpu().numpy(), "generated": fake.x.cpu().numpy()}
    points = maps.embed(groups, seed, most=MAPPED)
    what = f"{len(some):,} of the data and {len(fake):,} samples, features of {network.name}, seed {seed}"
    yield (
        "map",
        f"t-SNE of {what}. Where grey shows alone, the samples miss data; blue alone is where no data is.",
        (maps.draw_map(points, f"{dataset.name}: data and samples")),
    )
    if len(labels) < 2:
        return
    seen = fake.logits.argmax(1).cpu().numpy() if fake.logits is not None else drawn.y
    if len(labels) <= 20 and (seen >= 0).all():
        how = "as the network sees them" if fake.logits is not None else "as they were asked for"
        classes = {"data": some.y, "generated": seen}
        caption = f"The same map by class: the data's own labels, and the samples' {how}."
        yield "map-classes", caption, maps.draw_class_map(points, classes, labels, f"{dataset.name}: by class")
    if fake.logits is not None and fake.logits.shape[1] == len(labels):
        shares = np.bincount(seen, minlength=len(labels)) / len(seen)
        own = dataset.y[dataset.y >= 0]
        expected = np.bincount(own, minlength=len(labels)) / len(own)
        caption = f"Classes that {network.name} sees in {len(seen):,} samples, seed {seed}; marks: shares of the data."
        yield "classes", caption, maps.draw_histograms({"generated": shares}, labels, expected, "classes seen")


def _quick(reference: RealFeatures) -> bool:
    """Return whether the network of the features is available, and either small or on a GPU; others take minutes."""
    import torch

    try:
        return not reference.network.heavy or torch.cuda.is_available()
    except MetricSkipped:
        return False


def _coverage(mixture: Mixture, dataset: Dataset, seed: int, tell: Progress) -> Iterator[tuple[str, str, Picture]]:
    """Yield the picture of the modes that the mixture and its members capture."""
    from ganherd.metrics.modes import modes_of
    from ganherd.scoring import maps

    modes = modes_of(dataset)
    if modes.means.shape[1] != 2:
        return
    tell(Detail(f"pictures: coverage of {len(modes.means)} modes"))
    groups = {"mixture": mixture.sample(POINTS, seed=seed).x}
    members = mixture.members if mixture.members > 1 else 0
    for m in range(min(members, PANELS - 1)):
        groups[f"member {m}"] = mixture.alone(m).sample(POINTS, seed=seed).x
    caption = f"{POINTS:,} samples of each panel, seed {seed}."
    if members > PANELS - 1:
        caption += f" The first {PANELS - 1} of {members} members are shown."
    yield "coverage", caption, maps.draw_coverage(groups, modes)


def _neighbours(drawn: DrawnSamples, dataset: Dataset, seed: int, tell: Progress) -> Iterator[tuple[str, str, Picture]]:
    """Yield the picture of the samples that look most like copies of training images."""
    from ganherd.metrics.memorisation import draw_neighbours, nearest

    if len(dataset.x) < 2:
        return
    tell(Detail(f"pictures: nearest of {len(dataset.x):,} training images"))
    neighbours = nearest(drawn.x, dataset.x, progress=tell)
    caption = (
        f"Of {len(drawn.x):,} samples (seed {seed}) those that look most like copies of one training image, by pixels; "
        "whether there are more of them than chance brings, `ganherd score --metrics memorisation` says."
    )
    yield "neighbours", caption, draw_neighbours(drawn.x, dataset.x, neighbours, rows=8)
