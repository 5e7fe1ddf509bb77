"""Read a folder of images: one folder per class, or flat without labels. Other files are refused or skipped.

Images stay grey if all of them are grey (1-bit, 16-bit and grey palettes included); otherwise all become RGB. 16-bit grey is
scaled to 8 bits, CMYK becomes RGB, transparency is replaced by white, the first frame of an animation is taken, and the
orientation that a camera recorded is applied.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from ganherd.data.arrays import Array, RawData
from ganherd.data.readers.image_tree import Tree, identity, list_tree
from ganherd.recipe import schema
from ganherd.util.errors import UserError, counted, few

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no others: e.g. for EPS Pillow would run a program
NO_FLOATS = "floating-point pixels are not supported: convert the image to 8 bits"
CENTRE = (0.5, 0.5)  # place of a crop: half of the way from left to right, and from top to bottom
TURNS = {  # the operation of Pillow that undoes each orientation that a camera recorded
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
    6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip


def read_folder(root: Path, settings: schema.DataConfig) -> RawData:
    """Read the images of a folder; folders `train` and `test` (or `val`) in it hold training and held-out images.

    Args:
        root: The folder.
        settings: The section `data` of the recipe: the size of images, and what to do with files that are no images.

    Raises:
        UserError: There are no images, they differ in size, or files that are no images are refused.
    """
    tree = list_tree(root)
    reader = ImageReader(root, settings.size)
    reader.skipped += [(name, "it is next to the class folders") for name in tree.unclassified]
    images: dict[str, list[Array]] = {group.split: [] for group in tree.groups}
    y: dict[str, list[int]] = {split: [] for split in images}
    for group in tree.groups:
        before = len(reader.skipped)
        own = reader.read(group.folder, group.files)
        if not own and group.label >= 0 and settings.bad_images == "skip":
            first = reader.skipped[before : before + 1]
            why = f" ({Path(first[0][0]).name}: {first[0][1]})" if first else ""
            raise UserError(
                f"the class folder {root / group.folder} has no file that can be used as an image{why}; add images or remove "
                "the folder."
            )
        images[group.split] += own
        y[group.split] += [group.label] * len(own)
    bad = reader.bad_images(str(root), settings.bad_images)
    for group in tree.groups:
        if not images[group.split]:
            raise UserError(f"{root / group.folder} holds no images ({', '.join(FORMATS)}){f'; {bad}' if bad else ''}.")
    x = {split: reader.stack(own) for split, own in images.items()}
    labels = {split: np.array(own, np.int64) if tree.labels else None for split, own in y.items()}
    notes = [*reader.notes(), *_nested_notes(tree, root), *([f"skipped: {bad}"] if bad else [])]
    if "test" in x:
        train, test = (group.folder.split(os.sep)[0] for group in (tree.groups[0], tree.groups[-1]))
        unused = "".join(f", {name}/ is not used" for name in tree.unused)
        notes.insert(0, f"trained on {train}/, held out {test}/{unused}")
    arrays = (x["train"], labels["train"], x.get("test"), labels.get("test"))
    return RawData(*arrays, tree.labels or None, tuple(notes), len(reader.skipped))


def _nested_notes(tree: Tree, root: Path) -> list[str]:
    """Return a note, in a list, if the only class folder holds several folders, which could be the classes.

    Archives often unpack to one folder around those of the classes.
    """
    folders = {group.folder for group in tree.groups}
    inner = sorted({Path(file).parts[0] for group in tree.groups for file in group.files if len(Path(file).parts) > 1})
    is_flat = any(os.sep not in file for group in tree.groups for file in group.files)
    if len(tree.labels) != 1 or len(folders) != 1 or is_flat or len(inner) < 2:
        return []
    folder = next(iter(folders))
    return [
        f"the only class is {tree.labels[0]}, whose folder holds the folders {few(inner, 5)}: if these are the classes, name "
        f"{root / folder}"
    ]


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
    """Return the largest square at a place of an image, resized.

    Args:
        image: An image of Pillow.
        size: Width and height of the result in pixels.
        place: Position of the square, from (0, 0) for left and top to (1, 1) for right and bottom.
        whole: Width and height of the image file, if it was decoded at a fraction of that.
    """
    from PIL import Image

    width, height = whole or image.size
    shrunk = next(by for by in (1, 2, 4, 8) if -(-width // by) == image.width)
    side = min(width, height)
    left, top = int((width - side) * place[0]), int((height - side) * place[1])
    box = [edge / shrunk for edge in (left, top, left + side, top + side)]
    hull = [math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])]
    square = image.crop(hull)  # before the resizing, which would otherwise blend the border with pixels outside
    inside = (box[0] - hull[0], box[1] - hull[1], box[2] - hull[0], box[3] - hull[1])
    return square.resize((size, size), Image.Resampling.LANCZOS, inside)


def decode(
    source: Path | IO[bytes], size: int | None = None, place: tuple[float, float] = CENTRE, draft: bool = False
) -> tuple[Array, set[str]]:
    """Decode an image, and return it as uint8 [H, W] (grey) or [H, W, 3], and phrases about what was converted.

    Args:
        source: An image file, or its content.
        size: Width and height to which the image is cropped and resized; None: leave it as it is.
        place: Position of the square, from (0, 0) for left and top to (1, 1) for right and bottom.
        draft: Decode a JPEG that is much larger than `size` at a half, a quarter or an eighth of its size. This is much
            faster, and pixels differ by about half a grey level.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # a small file that unpacks to gigabytes
        with Image.open(source, formats=FORMATS) as file:
            whole, turn = file.size, file.getexif().get(0x0112)
            if draft and size is not None:
                file.draft(None, (2 * size, 2 * size))  # at least twice the size, for the quality of the resizing
            file.load()
            return to_bytes(file, size, place, whole, turn)


def to_bytes(
    image: Any,
    size: int | None = None,
    place: tuple[float, float] = CENTRE,
    whole: tuple[int, int] | None = None,
    turn: int | None = None,
) -> tuple[Array, set[str]]:
    """Return an image of Pillow as uint8 [H, W] or [H, W, 3], and phrases about what was converted, like `decode`.

    Args:
        image: The image.
        size: Width and height to which it is cropped and resized; None: leave it as it is.
        place: Position of the square, from (0, 0) for left and top to (1, 1) for right and bottom.
        whole: Width and height of the image file, if it was decoded at a fraction of that.
        turn: The orientation that a camera recorded, as EXIF numbers it.

    Raises:
        ValueError: Its pixels are floats or do not fit 16 bits.
    """
    from PIL import Image

    done: set[str] = set()
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its values do not fit 16 bits")
        image = Image.fromarray(np.rint(values / 257).astype(np.uint8))
        done.add("16-bit images scaled to 8 bits")
    elif image.mode == "F":
        raise ValueError(NO_FLOATS)
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


@dataclass
class ImageReader:
    """Decode images, which must all have one size, and collect what was converted or skipped."""

    root: Path  # folder of the images
    size: int | None  # width and height to which images are cropped and resized; None: leave them as they are
    first: tuple[str, tuple[int, ...]] | None = None  # the first image, and its height and width
    colour: bool = False  # whether any image has colour
    grey: int = 0  # number of grey images
    skipped: list[tuple[str, str]] = field(default_factory=list)  # files that are no images, and why
    converted: Counter[str] = field(default_factory=Counter)  # number of images by kind of conversion
    # how often each file was read, by its identity, so that links to a file count as that file
    files: Counter[tuple[int, int]] = field(default_factory=Counter)

    def read(self, folder: str, names: Sequence[str], **options: Any) -> list[Array]:
        """Decode files in a folder below the root, and return the images; `options` are those of `decode`."""
        images = []
        for name in names:
            path = Path(self.root, folder, name)
            problem = (
                "" if os.path.isfile(path) else "it is no file"
            )  # a pipe would block, and a broken link has no content
            image = self.take(path, os.path.join(folder, name), str(path), problem, **options)
            if image is not None:
                self.files[identity(path)] += 1
                images.append(image)
        return images

    def take(
        self, source: Path | IO[bytes], name: str, where: str = "", problem: str = "", **options: Any
    ) -> Array | None:
        """Decode one image and return it; None if it cannot be used, which is added to `skipped`.

        Args:
            source: An image file, or its content.
            name: What the list of skipped images calls it.
            where: What other messages call it; default: `name`.
            problem: Why it cannot be used, if that is known already.
            options: Those of `decode`.
        """
        try:
            if problem:
                raise ValueError(problem)
            image, done = decode(source, self.size, **options)
        except Exception as error:  # a corrupt file can make a decoder fail in nearly any way
            self.skipped.append((name, why_unreadable(error)))
            return None
        self.first = self.first or (where or name, image.shape[:2])
        if image.shape[:2] != self.first[1]:
            raise UserError(
                f"images differ in size: {_with_size(*self.first)} and {_with_size(where or name, image.shape)}; "
                "bring them to one size with --set data.size=64, or --size 64 for data inspect; for score, name a run that "
                "trained on them."
            )
        self.colour |= image.ndim == 3
        self.grey += image.ndim == 2
        self.converted.update(done)
        return image

    def stack(self, images: list[Array]) -> Array:
        """Return decoded images as one array, uint8 [n, C, H, W].

        If any image that was read has colour, C is 3, and grey images repeat their channel.
        """
        height, width = (self.size, self.size) if self.size else images[0].shape[:2]
        out = np.empty((len(images), 3 if self.colour else 1, height, width), np.uint8)
        for i, image in enumerate(images):
            out[i] = image if image.ndim == 2 else image.transpose(2, 0, 1)
        return out

    def bad_images(self, name: str, policy: Literal["refuse", "skip"]) -> str:
        """Return a text about the skipped files; "" if there are none.

        Args:
            name: What messages call the place of the images.
            policy: What to do about skipped files.

        Raises:
            UserError: There are some, and the policy is to refuse them.
        """
        if not self.skipped:
            return ""
        listed = few([f"{file} ({why})" for file, why in self.skipped], 5)
        bad = f"{counted(len(self.skipped), 'files')} in {name} cannot be used as images: {listed}"
        if policy == "refuse":
            raise UserError(f"{bad}; remove what is no image, or skip it with --set data.bad_images=skip.")
        return bad

    def notes(self) -> list[str]:
        """Return notes for the user: what was converted, and how many files are links to others."""
        notes = [f"{n:,} {what}" for what, n in sorted(self.converted.items())]
        if self.colour and self.grey:
            notes.append(f"{self.grey:,} grey images became RGB, like the others")
        if links := sum(self.files.values()) - len(self.files):
            link, count = ("links", "counts") if links == 1 else ("link", "count")
            notes.append(f"{counted(links, 'files')} here {link} to an image that is here already, and {count} again")
        return notes


def why_unreadable(error: Exception) -> str:
    """Return why a file cannot be used as an image, in words, from the error of its decoder."""
    if type(error).__name__ == "UnidentifiedImageError":
        return "no known image format"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _with_size(name: str, shape: tuple[int, ...]) -> str:
    return f"{name} is {shape[1]} × {shape[0]}"
