"""Read all samples of a source (tars, tables, or the Hugging Face Hub) into arrays."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from ganherd.data.arrays import Array, RawData
from ganherd.data.readers.class_folders import ImageReader
from ganherd.data.samples.image_sample import CAPTIONS, Label, SampleSource, are_captions, number_labels
from ganherd.recipe import schema
from ganherd.util.errors import UserError
from ganherd.util.memory import require_memory


def read_samples(source: SampleSource, settings: schema.DataConfig) -> RawData:
    """Decode all images of a source, number their labels, and return them as arrays.

    Args:
        source: The source of samples.
        settings: The section `data` of the recipe: the size of images, and what to do with files that are no images.

    Raises:
        UserError: There are no training images, they differ in size, or do not fit into memory.
    """
    reader = ImageReader(Path(source.name), settings.size)
    images: dict[str, list[Array]] = {"train": [], "test": []}
    labels: dict[str, list[Label]] = {"train": [], "test": []}
    units = list(source.units())
    for unit in units:
        for sample in source.read(unit):
            image = reader.take(io.BytesIO(sample.image), sample.name, problem=sample.problem)
            if image is None:
                continue
            if not images["train"]:
                _check_memory(source, image, sum(each.count for each in units))
            images[unit.split].append(image)
            labels[unit.split].append(sample.label)
    bad = reader.bad_images(source.name, settings.bad_images)
    if not images["train"]:
        raise UserError(f"{source.name} holds no images to train on{f': {bad}' if bad else ''}.")
    notes = [*source.notes(), *reader.notes(), *([f"skipped: {bad}"] if bad else [])]
    both = [*labels["train"], *labels["test"]]
    if source.guesses_labels and are_captions(both):
        both = [None] * len(both)
        notes.append(CAPTIONS)
    y, names = number_labels(both, source.labels)
    has_labels = bool((y >= 0).any())
    n, has_test = len(images["train"]), bool(images["test"])
    return RawData(
        reader.stack(images["train"]),
        y[:n] if has_labels else None,
        reader.stack(images["test"]) if has_test else None,
        y[n:] if has_labels and has_test else None,
        names if has_labels else None,
        tuple(notes),
        len(reader.skipped),
    )


def _check_memory(source: SampleSource, image: Array, count: int) -> None:
    """Raise a UserError if `count` images of the size of this one do not fit into memory."""
    way_out = "Prepare it once with `ganherd data prepare`, and train from that folder, which is read as it is needed"
    require_memory(2 * int(np.prod(image.shape)) * count, f"the {count:,} images of {source.name}", way_out)
