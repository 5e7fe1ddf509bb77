"""A data source: images of one bright blob, small or large."""

from pathlib import Path

import numpy as np
from pydantic import Field

import ganherd


class BlobSettings(ganherd.register.Settings):
    size: int = Field(16, ge=4, le=64)  # width and height, in pixels
    count: int = Field(1000, ge=10)  # number of images


@ganherd.register.data("blobs", settings=BlobSettings, about="images of one bright blob, small or large")
def blobs(settings: BlobSettings, folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    rng = np.random.default_rng(0)  # the same images in every run
    y = np.arange(settings.count) % 2
    centre = rng.uniform(0.3, 0.7, (2, settings.count, 1, 1)) * settings.size
    width = np.where(y == 0, 0.08, 0.2)[:, None, None] * settings.size
    rows, columns = np.indices((settings.size, settings.size))
    x = np.exp(-((rows - centre[0]) ** 2 + (columns - centre[1]) ** 2) / (2 * width**2))
    return (255 * x).astype(np.uint8), y, ["small", "large"]
