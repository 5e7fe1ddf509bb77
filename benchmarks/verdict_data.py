"""Make the data sets that verdicts are tested on, as .npz files: digits, points, patches of photographs, letters and shapes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn import datasets

FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Oblique", "cmr10", "cmss10")


@dataclass(frozen=True)
class Rows:
    """Training rows and held-out rows; y is -1 if there are no labels."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def save(self, path: Path) -> Path:
        """Write the rows as an .npz file that a recipe can name; other processes see all of it or nothing."""
        labels: dict[str, Any] = {} if (self.y < 0).all() else {"y_train": self.y, "y_test": self.y_test}
        unfinished = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(unfinished, x_train=self.x, x_test=self.x_test, **labels)
        return unfinished.replace(path)


def _split(x: np.ndarray, y: np.ndarray) -> Rows:
    """Hold out every fifth row of a fixed random order."""
    order = np.random.default_rng(0).permutation(len(x))
    held = order[::5]
    training = np.setdiff1d(order, held)
    return Rows(x[training], y[training], x[held], y[held])


def digits() -> Rows:
    """Return scikit-learn's digits, ten classes of 8 × 8 pixels."""
    raw = datasets.load_digits()
    return _split(np.round(raw.images * (255 / 16)).astype(np.uint8)[:, None], raw.target.astype(np.int64))


def blobs() -> Rows:
    """Return points in the plane: five Gaussians of different widths."""
    random = np.random.default_rng(1)
    centre = np.array([[0, 0], [3, 1], [-2.5, 2], [1, -3], [-2, -2.5]])
    width = np.array([0.6, 0.5, 0.7, 0.6, 0.5])
    y = np.arange(1500) % 5
    x = centre[y] + width[y, None] * random.standard_normal((len(y), 2))
    return _split(x.astype(np.float32), y.astype(np.int64))


def patches() -> Rows:
    """Return patches of scikit-learn's two photographs, 8 × 8 pixels, grey and without labels; flat ones are left out."""
    parts = []
    for name in ("china.jpg", "flower.jpg"):
        image = Image.fromarray(datasets.load_sample_image(name)).convert("L")
        pixels = np.asarray(image)
        rows, columns = pixels.shape[0] // 8, pixels.shape[1] // 8
        cut = pixels[: rows * 8, : columns * 8].reshape(rows, 8, columns, 8)
        parts.append(cut.swapaxes(1, 2).reshape(-1, 1, 8, 8))
    x = np.concatenate(parts)
    x = x[x.reshape(len(x), -1).std(1) > 20]
    return _split(x, np.full(len(x), -1, np.int64))


def letters() -> Rows:
    """Return ten letters of 10 × 10 pixels, drawn in several fonts, sizes, places and shades."""
    random = np.random.default_rng(2)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    x, y = [], []
    for k, letter in enumerate("ABCEHKRSTX"):
        for i in range(180):
            font = ImageFont.truetype(str(folder / f"{FONTS[i % len(FONTS)]}.ttf"), int(random.integers(30, 40)))
            sheet = Image.new("L", (40, 40))
            at = (20 + int(random.integers(-3, 4)), 20 + int(random.integers(-3, 4)))
            ImageDraw.Draw(sheet).text(at, letter, int(random.integers(190, 256)), font, anchor="mm")
            sheet = sheet.rotate(float(random.uniform(-8, 8)), Image.Resampling.BILINEAR)
            x.append(np.asarray(sheet.resize((10, 10), Image.Resampling.BOX)))
            y.append(k)
    return _split(np.stack(x)[:, None], np.array(y, np.int64))


def shapes() -> Rows:
    """Return six shapes of 12 × 12 pixels in several sizes, places, angles and shades."""
    random = np.random.default_rng(3)
    corners = {"square": 4, "triangle": 3}
    x, y = [], []
    for k, shape in enumerate(("disc", "ring", "square", "triangle", "cross", "bars")):
        for _ in range(250):
            sheet = Image.new("L", (48, 48))
            pen = ImageDraw.Draw(sheet)
            half, shade = float(random.uniform(13, 18)), int(random.integers(170, 256))
            box = (24 - half, 24 - half, 24 + half, 24 + half)
            if shape in corners:
                pen.regular_polygon((24, 24, half), corners[shape], fill=shade)
            elif shape == "disc":
                pen.ellipse(box, shade)
            elif shape == "ring":
                pen.ellipse(box, outline=shade, width=6)
            elif shape == "cross":
                pen.rectangle((24 - half, 21, 24 + half, 27), shade)
                pen.rectangle((21, 24 - half, 27, 24 + half), shade)
            else:
                for middle in (24 - half / 2, 24 + half / 2):
                    pen.rectangle((middle - 3, 24 - half, middle + 3, 24 + half), shade)
            place = (int(random.integers(-3, 4)), int(random.integers(-3, 4)))
            turned = sheet.rotate(float(random.uniform(-10, 10)), Image.Resampling.BILINEAR, translate=place)
            x.append(np.asarray(turned.resize((12, 12), Image.Resampling.BOX)))
            y.append(k)
    return _split(np.stack(x)[:, None], np.array(y, np.int64))


def half_contrast(x: np.ndarray) -> np.ndarray:
    """Return data whose range was halved, as by a generator whose output is in 0 to 1 instead of -1 to 1."""
    return (x / 2 + 127.5).round().astype(np.uint8) if x.dtype == np.uint8 else (x / 2 + 6).astype(np.float32)


def inverted(x: np.ndarray) -> np.ndarray:
    """Return images as negatives, or points three times as far apart."""
    return 255 - x if x.dtype == np.uint8 else (3 * x).astype(np.float32)


def dark(x: np.ndarray) -> np.ndarray:
    """Return images of 40 % of their brightness, or points that are shifted."""
    return (x.astype(np.float64) * 0.4).astype(np.uint8) if x.dtype == np.uint8 else (x + 4).astype(np.float32)


DATA = {"digits": digits, "blobs": blobs, "patches": patches, "letters": letters, "shapes": shapes}
UNSEEN = "shapes"  # used for nothing else: no limit was tuned on it
