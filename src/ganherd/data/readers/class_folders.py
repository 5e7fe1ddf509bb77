"""Read a folder of images: one folder per class, or flat without labels. Other files are reported, and refused or skipped.

Images stay grey if all of them are grey (1-bit, 16-bit and grey palettes included); otherwise all become RGB. 16-bit grey is
scaled to 8 bits, CMYK becomes RGB, transparency is replaced by white, the first frame of an animation is taken, and the
orientation that a camera recorded is applied.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.data.arrays import Array, RawData
from ganherd.recipe import schema
from ganherd.util.errors import UserError, counted, few

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no others: Pillow runs a program to read EPS
CLUTTER = {"thumbs.db", "desktop.ini", "__macosx"}  # left behind by file managers and archivers
SPLITS = {"train", "test", "val", "valid", "validation"}
CENTRE = (0.5, 0.5)
TURNS = {  # the operation that undoes each recorded orientation
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
    6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip


def read_folder(root: Path, settings: schema.DataConfig) -> RawData:
    """Read the images of a folder; folders `train` and `test` (or `val`) in it are its split."""
    names = {entry.name.lower(): entry for entry in _entries(root) if entry.is_dir()}
    others = [names[k] for k in ("test", "val", "valid", "validation") if k in names]
    reader = _Reader(root, settings)
    if "train" not in names or not others or set(names) - SPLITS:
        x, y, labels = reader.read(root, None)
        return RawData(reader.stack(x), y, labels=labels or None, notes=reader.notes(), skipped=len(reader.bad))
    x, y, labels = reader.read(names["train"], None)
    x_test, y_test, _ = reader.read(others[0], labels)
    note = f"trained on {names['train'].name}/, held out {others[0].name}/"
    raw = RawData(reader.stack(x), y, reader.stack(x_test), y_test, labels or None)
    return replace(raw, notes=(note, *reader.notes()), skipped=len(reader.bad))


def resized(x: Array, size: int) -> Array:
    """Return images uint8 [n, C, H, W] cropped to the centre square and resized to [n, C, size, size]."""
    from PIL import Image

    out = np.empty((len(x), x.shape[1], size, size), np.uint8)
    for i, image in enumerate(x):
        planes = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        small = np.asarray(_square(Image.fromarray(np.ascontiguousarray(planes)), size))
        out[i] = small[None] if small.ndim == 2 else small.transpose(2, 0, 1)
    return out


def _square(image: Any, size: int, place: tuple[float, float] = CENTRE, whole: tuple[int, int] | None = None) -> Any:
    """Return the square of an image, resized.

    Args:
        whole: The size of the image, if it was decoded at a fraction of it.
    """
    from PIL import Image

    width, height = whole or image.size
    shrunk = next(by for by in (1, 2, 4, 8) if -(-width // by) == image.width)
    side = min(width, height)
    left, top = int((width - side) * place[0]), int((height - side) * place[1])
    box = [edge / shrunk for edge in (left, top, left + side, top + side)]
    hull = [math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])]
    square = image.crop(hull)  # first, or the border would blend with pixels outside
    inside = (box[0] - hull[0], box[1] - hull[1], box[2] - hull[0], box[3] - hull[1])
    return square.resize((size, size), Image.Resampling.LANCZOS, inside)


def decode(
    path: Path, size: int | None = None, place: tuple[float, float] = CENTRE, draft: bool = False
) -> tuple[Array, set[str]]:
    """Return an image as uint8 [H, W] (grey) or [H, W, 3], and what was converted.

    `place` is where the square is cut for `size`, from (0, 0) for left and top to (1, 1). With `draft` a JPEG that is much
    larger is decoded at a half, a quarter or an eighth of its size: much faster, and about half a grey level away.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # a small file that unpacks to gigabytes
        with Image.open(path, formats=FORMATS) as file:
            whole, turn = file.size, file.getexif().get(0x0112)
            if draft and size is not None:
                file.draft(None, (2 * size, 2 * size))  # no smaller than this: the resizing still does the work
            file.load()
            image: Any = file
    done: set[str] = set()
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its values do not fit 16 bits")
        image = Image.fromarray(np.rint(values / 257).astype(np.uint8))
        done.add("16-bit images scaled to 8 bits")
    elif image.mode == "F":
        raise ValueError("its values are floats without a known range")
    elif image.has_transparency_data:
        grey = image.mode in ("1", "L", "LA", "La")
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema()[0] < 255:
            done.add("images with transparency laid on white")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("L" if grey else "RGB")
    elif image.mode == "P":
        image = image.convert("RGB")
        values = np.asarray(image)
        if (values == values[..., :1]).all():
            image = image.convert("L")
        done.add("palette images converted")
    elif image.mode not in ("1", "L", "RGB"):
        done.add(f"{image.mode} images converted to RGB")
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    if size is not None and image.size != (size, size):
        image = _square(image, size, place, whole)
        done.add(f"images cropped to {'the centre' if place == CENTRE else 'a'} square and resized to {size} × {size}")
    if turn in TURNS:
        image = image.transpose(Image.Transpose[TURNS[turn]])
    return np.asarray(image), done


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder in order, without hidden ones."""
    try:
        visible = [p for p in folder.iterdir() if not p.name.startswith(".") and p.name.lower() not in CLUTTER]
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read: {error.strerror}.") from None
    return sorted(visible, key=lambda p: p.name)


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


@dataclass
class _Reader:
    """Read the images below one folder. All must have one size; skipped files are counted."""

    root: Path
    settings: schema.DataConfig
    first: tuple[Path, tuple[int, ...]] | None = None
    colour: bool = False
    grey: int = 0
    bad: list[tuple[Path, str]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    files: Counter[tuple[int, int]] = field(default_factory=Counter)  # by identity: links to a file are that file

    def read(self, folder: Path, labels: tuple[str, ...] | None) -> tuple[list[Array], Array | None, tuple[str, ...]]:
        """Return images, labels and class names; for a second split the names are given."""
        seen = {_identity(self.root), _identity(folder)}
        inside = _entries(folder)
        classes = [p for p in inside if p.is_dir() and _identity(p) not in seen]  # a link to the root is not a class
        classes.sort(key=lambda p: (0, int(p.name), "") if p.name.isdecimal() else (1, 0, p.name))
        names = tuple(p.name for p in classes)
        files = [p for p in inside if not p.is_dir()]
        images: list[Array] = []
        y: list[int] = []
        if not classes:
            images = self._images(files)
        else:
            self.bad += [(p, "it is next to the class folders") for p in files]
        if labels is not None and (bool(labels) != bool(names) or not set(names) <= set(labels)):
            strange = ", ".join(name for name in names if name not in labels) or "no class folders"
            raise UserError(f"{folder} has {strange}, unlike the training folder next to it.")
        known = labels or names
        for path in classes:
            before = len(self.bad)
            read = self._images(self._walk(path, {*seen, _identity(path)}))
            if not read and len(self.bad) == before:
                raise UserError(f"the class folder {path} is empty; add images or remove the folder.")
            if not read and self.settings.bad_images == "skip":
                raise UserError(
                    f"the class folder {path} has no file that is an image; add images or remove the folder."
                )
            images += read
            y += [known.index(path.name)] * len(read)
        if self.bad and self.settings.bad_images == "refuse":
            raise UserError(f"{self._named()}; remove what is no image, or skip it with --set data.bad_images=skip.")
        if not images:
            raise UserError(f"{folder} holds no images ({', '.join(FORMATS)}).")
        return images, np.array(y, np.int64) if known else None, known

    def _walk(self, folder: Path, seen: set[tuple[int, int]]) -> list[Path]:
        """Return all files below a class folder; links back to a folder that was entered before are not followed."""
        files: list[Path] = []
        for path in _entries(folder):
            if not path.is_dir():
                files.append(path)
            elif (this := _identity(path)) not in seen:
                seen.add(this)
                files += self._walk(path, seen)
        return files

    def _images(self, files: list[Path]) -> list[Array]:
        images = []
        for path in files:
            if not path.is_file():  # a pipe would block, and a broken link has no content
                self.bad.append((path, "it is no file"))
                continue
            try:
                image, done = decode(path, self.settings.size)
            except Exception as error:  # a corrupt file can make a decoder fail in nearly any way
                unknown = type(error).__name__ == "UnidentifiedImageError"
                self.bad.append((path, "no known image format" if unknown else str(error) or type(error).__name__))
                continue
            if self.first is None:
                self.first = (path, image.shape[:2])
            elif image.shape[:2] != self.first[1]:
                self._mixed(path, image.shape[:2])
            self.colour |= image.ndim == 3
            self.grey += image.ndim == 2
            self.done.update(done)
            self.files[_identity(path)] += 1
            images.append(image)
        return images

    def _mixed(self, path: Path, shape: tuple[int, ...]) -> None:
        assert self.first is not None
        other, (height, width) = self.first
        raise UserError(
            f"images differ in size: {other} is {width} × {height} and {path} is {shape[1]} × {shape[0]}; "
            "bring them to one size with --set data.size=64, or --size 64 for data inspect."
        )

    def stack(self, images: list[Array]) -> Array:
        """Return images as one array [n, C, H, W]; grey images repeat their channel if others have colour."""
        channels = 3 if self.colour else 1
        out = np.empty((len(images), channels, *images[0].shape[:2]), np.uint8)
        for i, image in enumerate(images):
            out[i] = image if image.ndim == 2 else image.transpose(2, 0, 1)
        return out

    def notes(self) -> tuple[str, ...]:
        notes = [f"{n:,} {what}" for what, n in sorted(self.done.items())]
        if self.colour and self.grey:
            notes.append(f"{self.grey:,} grey images became RGB, like the others")
        if links := sum(self.files.values()) - len(self.files):
            link, count = ("links", "counts") if links == 1 else ("link", "count")
            notes.append(f"{counted(links, 'files')} here {link} to an image that is here already, and {count} again")
        if self.bad:
            notes.append(f"skipped: {self._named()}")
        return tuple(notes)

    def _named(self) -> str:
        names = few([f"{path.relative_to(self.root)} ({why})" for path, why in self.bad], 5)
        count = f"{len(self.bad):,} file" + "s" * (len(self.bad) > 1)
        return f"{count} in {self.root} cannot be used as images: {names}"
