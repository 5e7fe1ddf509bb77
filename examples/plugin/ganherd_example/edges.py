"""A metric: whether generated images have as many edges as real ones."""

import numpy as np
from pydantic import Field

import ganherd


class EdgeSettings(ganherd.register.Settings):
    distance: int = Field(1, ge=1)  # between the two pixels that are compared


def strength(images: np.ndarray, distance: int) -> np.ndarray:
    """Return the mean difference of pixels of each image that lie this far from each other, along rows and columns."""
    pixels = images.astype(float)
    right, down = (
        pixels[..., distance:] - pixels[..., :-distance],
        pixels[..., distance:, :] - pixels[..., :-distance, :],
    )
    return np.abs(right).mean((1, 2, 3)) + np.abs(down).mean((1, 2, 3))


@ganherd.register.metric("edges", direction="nearest", best=1.0, title="edge strength", settings=EdgeSettings)
def edges(real: np.ndarray, generated: np.ndarray, settings: EdgeSettings) -> dict[str, object]:
    """the strength of edges in generated images, as a ratio to that in real ones"""
    ratios = strength(generated, settings.distance) / strength(real, settings.distance).mean()
    error = 1.96 * ratios.std() / len(ratios) ** 0.5
    return {"value": ratios.mean(), "interval": (ratios.mean() - error, ratios.mean() + error)}
