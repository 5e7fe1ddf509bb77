"""A metric: whether generated images have as many edges as real ones."""

import numpy as np

import ganherd


def strength(images: np.ndarray) -> np.ndarray:
    """Return the mean difference of neighbouring pixels of each image."""
    pixels = images.astype(float)
    return np.abs(np.diff(pixels)).mean((1, 2, 3)) + np.abs(np.diff(pixels, axis=2)).mean((1, 2, 3))


@ganherd.register.metric("edges", direction="nearest", best=1.0, title="edge strength")
def edges(real: np.ndarray, generated: np.ndarray) -> dict[str, object]:
    """the strength of edges in generated images, as a ratio to that in real ones"""
    ratios = strength(generated) / strength(real).mean()
    error = 1.96 * ratios.std() / len(ratios) ** 0.5
    return {"value": ratios.mean(), "interval": (ratios.mean() - error, ratios.mean() + error)}
