"""Read the items of a data set of Python, such as a `torch.utils.data.Dataset`: images with labels, one at a time.

An item is (image, label), {"image": …, "label": …} or an image: a Pillow image, a tensor or an array. A label is a whole number,
a name or None. PyTorch need not be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ganherd.data.arrays import Array
from ganherd.data.readers.class_folders import to_bytes
from ganherd.data.samples.image_sample import IMAGE_NAMES, LABEL_NAMES, Label, as_label
from ganherd.util.errors import UserError, with_type

_FORMS = "items must be (image, label), a mapping with image and label, or an image"


@dataclass(frozen=True)
class Item:
    """An item of a data set: an image or a point as an array, and its label."""

    number: int  # its position in the data set
    value: Array  # a Pillow image as uint8 [1 or 3, H, W]; a tensor or an array with its own shape and values
    label: Label
    is_picture: bool  # whether it was a Pillow image


def is_iterable_only(dataset: Any) -> bool:
    """Return whether a data set can only be read from its beginning, such as a `torch.utils.data.IterableDataset`."""
    torch = sys.modules.get("torch")  # If PyTorch is not imported, the object is not one of its data sets.
    if torch is not None and isinstance(dataset, torch.utils.data.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))


def is_python_dataset(data: Any) -> bool:
    """Return whether an object is a data set of items, map-style or iterable, and not an array, a list or a text."""
    if isinstance(data, str | bytes | tuple | list | Mapping) or hasattr(data, "__array__") or hasattr(data, "dtype"):
        return False
    return is_iterable_only(data) or hasattr(data, "__getitem__")


def name_of(dataset: Any) -> str:
    """Return what messages call a data set: the name of its class."""
    return type(dataset).__name__


def check_dataset(dataset: Any) -> None:
    """Raise a UserError if an object is not a data set whose items can be read, such as a DataLoader."""
    name = name_of(dataset)
    if name == "DataLoader":
        raise UserError("data is a DataLoader, which yields batches: give its data set, loader.dataset.")
    if not (is_iterable_only(dataset) or (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))):
        raise UserError(f"{name} is not a data set of items: give it __getitem__ and __len__, or __iter__.")


def class_names(dataset: Any) -> tuple[str, ...]:
    """Return the names of a data set's classes; () if they are unknown.

    They come from its attribute `classes`, from its features (as Hugging Face data sets have), or from the data set
    that it is a subset of.
    """
    for _ in range(10):  # a Subset of a Subset …
        names = getattr(dataset, "classes", None)
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
        features = getattr(dataset, "features", None)
        if isinstance(features, Mapping):
            named = [getattr(features[key], "names", None) for key in LABEL_NAMES if key in features]
            return next((tuple(map(str, names)) for names in named if names), ())
        parts = getattr(dataset, "datasets", None)  # of a ConcatDataset
        dataset = parts[0] if isinstance(parts, list) and parts else getattr(dataset, "dataset", None)
    return ()


def read_items(dataset: Any, size: int | None = None) -> Iterator[Item]:
    """Yield the items of a data set, each read once.

    Args:
        dataset: A map-style or an iterable data set.
        size: Width and height to which Pillow images are cropped and resized; None: leave them as they are.

    Raises:
        UserError: An item raises, or is neither an image nor a point with a label; the message has its number.
    """
    check_dataset(dataset)
    name = name_of(dataset)
    iterator = None if not is_iterable_only(dataset) else iter(dataset)
    number = 0
    while iterator is not None or number < len(dataset):
        where = f"item {number:,} of {name}"
        try:
            item = dataset[number] if iterator is None else next(iterator)
        except StopIteration:
            if iterator is not None:
                return
            raise UserError(
                f"{where} raised StopIteration, but its length is {len(dataset):,}: correct its __len__."
            ) from None
        except UserError:
            raise
        except Exception as error:  # whatever a user's data set raises
            raise UserError(
                f"{where} cannot be read ({with_type(error)}): correct the data set, or leave this item out."
            ) from error
        yield _as_item(item, number, where, size)
        number += 1


def _as_item(item: Any, number: int, where: str, size: int | None) -> Item:
    """Convert what a data set returned as an item; `where` names it in messages, and `size` is that of `read_items`."""
    image, label = _image_and_label(item, where)
    try:
        label = as_label(label.item() if hasattr(label, "item") and getattr(label, "ndim", 1) == 0 else label)
    except ValueError as error:
        raise UserError(f"{where} has a label that cannot be used: {error}.") from None
    if hasattr(image, "has_transparency_data"):  # a Pillow image
        try:
            values, _ = to_bytes(image, size)
        except Exception as error:  # a file that is read now may be damaged
            raise UserError(f"the image of {where} cannot be read: {with_type(error)}.") from error
        return Item(number, values[None] if values.ndim == 2 else values.transpose(2, 0, 1), label, True)
    if hasattr(image, "detach"):  # a tensor
        image = image.detach().cpu()
        image = (image.float() if image.is_floating_point() else image).numpy()
    if not isinstance(image, np.ndarray) or image.dtype.kind not in "buif" or image.ndim == 0:
        kind = f"array of {image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise UserError(
            f"the image of {where} is of type {kind}: give a Pillow image, a tensor or an array of numbers."
        )
    return Item(number, image, label, False)


def _image_and_label(item: Any, where: str) -> tuple[Any, Any]:
    """Return the image and the label of what a data set returned as an item; None as the label if it has none."""
    if isinstance(item, Mapping):
        image = next((item[key] for key in IMAGE_NAMES if key in item), None)
        if image is None:
            raise UserError(f"{where} has the keys {', '.join(map(str, item))} and no image: {_FORMS}.")
        return image, next((item[key] for key in LABEL_NAMES if key in item), None)
    if isinstance(item, tuple | list):
        if len(item) not in (1, 2):
            raise UserError(f"{where} has {len(item)} entries: {_FORMS}.")
        return item[0], item[1] if len(item) == 2 else None
    return item, None
