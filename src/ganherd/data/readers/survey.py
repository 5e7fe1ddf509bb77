"""Survey the images of a data source by the headers of their files: sizes, colours and counts. No image is decoded."""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from ganherd.data.readers import files_by_format
from ganherd.data.readers.class_folders import FORMATS, NO_FLOATS, TURNS, why_unreadable
from ganherd.data.readers.image_tree import list_tree
from ganherd.data.samples.image_sample import SampleSource, are_captions, number_labels
from ganherd.data.samples.open_samples import is_sample_source, open_samples
from ganherd.data.shards import shards
from ganherd.recipe.plugins.recipe_plugins import is_named_source
from ganherd.util.errors import counted, few
from ganherd.util.files import JsonObject
from ganherd.util.paths import expanded

_TURNED = [turn for turn in TURNS if turn >= 5]  # recorded orientations that exchange width and height
_GREY = ("1", "L", "LA", "La", "I")  # modes of Pillow, in addition to 16-bit ones


@dataclass
class ImageSurvey:
    """Sizes, colours and counts of images, from the headers of their files."""

    classes: dict[str, int] = field(default_factory=dict)  # number of training images by class; empty: no labels
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # number of images by width and height
    kinds: Counter[str] = field(default_factory=Counter)  # number of images by what they are: grey, colour, CMYK, …
    train: int = 0  # number of images of the train split
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # files without a header that can be read, and why

    def add(self, name: str, source: Path | IO[bytes], problem: str = "") -> bool:
        """Count an image by its header; return False if it cannot be read.

        Args:
            name: What the list of unreadable images calls it.
            source: The image file, or its content.
            problem: Why it cannot be used, if that is known already.
        """
        try:
            if problem:
                raise ValueError(problem)
            size, kinds = _header(source)
        except Exception as error:  # a corrupt file can make a decoder fail in nearly any way
            self.unreadable.append((name, why_unreadable(error)))
            return False
        self.sizes[size] += 1
        self.kinds.update(kinds)
        return True

    @property
    def images(self) -> int:
        """The number of files with a header that can be read."""
        return sum(self.sizes.values())

    @property
    def is_varied(self) -> bool:
        """Whether the images have different sizes."""
        return len(self.sizes) > 1

    @property
    def side(self) -> int:
        """The median of the images' shorter sides, in pixels: in at least half of them both sides are this large."""
        sides = sorted(min(size) for size in self.sizes.elements())
        return sides[(len(sides) - 1) // 2]

    def facts(self) -> JsonObject:
        """Return what `ganherd data inspect --json` prints about the files."""
        widths, heights = zip(*self.sizes, strict=True)
        return {
            "images": self.images,
            "sizes": len(self.sizes),
            "width": [min(widths), max(widths)],
            "height": [min(heights), max(heights)],
            "side": self.side,
            "kinds": dict(self.kinds),
            "classes": self.classes,
            "unreadable": [{"file": file, "why": why} for file, why in self.unreadable],
        }

    def text(self, skipped: bool = True) -> str:
        """Return the facts as lines of text for a terminal; with `skipped`, also about files that cannot be read."""
        widths, heights = (_range(values) for values in zip(*self.sizes, strict=True))
        sizes = f"{counted(len(self.sizes), 'sizes')}, {widths} wide and {heights} high" if self.is_varied else ""
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in self.kinds.most_common())
        lines = [f"files: {self.images:,} images ({kinds}), {sizes or f'all {widths} × {heights} pixels'}"]
        if self.is_varied:
            lines.append(f"half of them have a shorter side of at least {self.side} pixels")
        if self.unreadable and skipped:
            lines.append(f"{counted(len(self.unreadable), 'files')} cannot be read as images: {self.broken_files}")
        return "\n".join(lines)

    @property
    def broken_files(self) -> str:
        """The first few files that cannot be read, and why; empty if there are none."""
        return few([f"{file} ({why})" for file, why in self.unreadable], 5)


def holds_image_files(source: str) -> bool:
    """Return whether `data.source` can be surveyed: it is a folder of image files, or tars or tables that hold some."""
    path = expanded(source)
    others = (shards.is_prepared, files_by_format.is_idx, files_by_format.is_cifar)
    if is_named_source(source) or (path.is_dir() and any(is_other(path) for is_other in others)):
        return False
    return path.is_dir() or is_sample_source(source)


def survey(source: str) -> ImageSurvey:
    """Read the headers of all images of a source for which `holds_image_files` is true, and return the survey."""
    return _survey_samples(open_samples(source)) if is_sample_source(source) else survey_folder(expanded(source))


def survey_folder(root: Path) -> ImageSurvey:
    """Read the headers of all files below a folder, and return the survey."""
    tree = list_tree(root, allow_empty=True)
    result = ImageSurvey({label: 0 for label in tree.labels})
    result.unreadable += [(name, "it is next to the class folders") for name in tree.unclassified]
    for group in tree.groups:
        for name in group.files:
            file = os.path.join(group.folder, name)
            problem = "" if os.path.isfile(root / file) else "it is no file"  # a pipe would block
            is_counted = result.add(file, root / file, problem)
            if is_counted and group.split == "train":
                result.train += 1
                if group.label >= 0:
                    result.classes[tree.labels[group.label]] += 1
    return result


def _survey_samples(source: SampleSource) -> ImageSurvey:
    """Read the headers of all images of a source of samples, and return the survey."""
    result, labels = ImageSurvey(), []
    for unit in source.units():
        for sample in source.read(unit):
            if result.add(sample.name, io.BytesIO(sample.image), sample.problem) and unit.split == "train":
                result.train += 1
                labels.append(sample.label)
    if source.guesses_labels and are_captions(labels):
        return result
    y, names = number_labels(labels, source.labels)
    number, counts = np.unique(y[y >= 0], return_counts=True)
    if names is not None and len(number) and number[-1] >= len(names):
        names = None  # refused when the images are read
    result.classes = {str(k) if names is None else names[k]: int(n) for k, n in zip(number, counts, strict=True)}
    return result


def _header(source: Path | IO[bytes]) -> tuple[tuple[int, int], list[str]]:
    """Return width and height of an image, turned as its camera recorded, and words for its kind, such as `grey`.

    Args:
        source: The image file, or its content.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(source, formats=FORMATS) as file:
            if file.mode == "F":
                raise ValueError(NO_FLOATS)
            width, height = file.size
            is_16_bit = file.mode == "I" or file.mode.startswith("I;16")
            kinds = ["grey" if file.mode in _GREY or is_16_bit else "colour"]
            kinds += ["16-bit"] * is_16_bit + ["CMYK"] * (file.mode == "CMYK")
            kinds += ["with a palette"] * (file.mode == "P") + ["with transparency"] * file.has_transparency_data
            # Not `file.getexif()`, which would decode a PNG.
            is_turned = Image.Image.getexif(file).get(0x0112) in _TURNED
    return ((height, width) if is_turned else (width, height)), kinds


def _range(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"
