"""Data sets of Python: map-style ones become arrays, iterable ones shards; what is wrong is one sentence with the item."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_trees import refused
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import ganherd
from ganherd.data import from_dataset, load, prepare_dataset
from ganherd.data.arrays import tidy
from ganherd.data.samples.python_items import is_iterable_only, is_python_dataset
from ganherd.recipe.schema import DataConfig


class Photos(TorchDataset[Any]):
    """A data set whose items a function makes."""

    classes = ["ant", "bee", "cat"]

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


class Stream(IterableDataset[Any]):
    """The same as an iterable data set, which also knows its length."""

    classes = Photos.classes

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, range(self.count))


def values(number: int, *shape: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, shape or (3, 6, 6), np.uint8)


def picture(number: int, width: int = 6, height: int = 6) -> Image.Image:
    return Image.fromarray(values(number, height, width, 3))


# --- map-style ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda i: (Image.fromarray(values(i).transpose(1, 2, 0)), i % 3),
        lambda i: (values(i), np.int64(i % 3)),
        lambda i: (torch.from_numpy(values(i)), torch.tensor(i % 3)),
        lambda i: (torch.from_numpy(values(i)).float() / 255, i % 3),
        lambda i: (torch.from_numpy(values(i)).float() / 127.5 - 1, i % 3),
        lambda i: {"image": values(i).transpose(1, 2, 0), "label": i % 3, "id": i},
        lambda i: [values(i), Photos.classes[i % 3]],
    ],
    ids=["Pillow", "array", "tensor", "unit floats", "symmetric floats", "mapping", "names"],
)
def test_every_form_of_item_gives_the_same_data(make: Callable[[int], Any]) -> None:
    seen: list[tuple[int, int]] = []
    data = tidy(from_dataset(Photos(20, make), progress=lambda done, total: seen.append((done, total))), "photos")
    assert np.array_equal(data.x, np.stack([values(i) for i in range(20)]))
    assert data.labels == ("ant", "bee", "cat") and data.y.tolist() == [i % 3 for i in range(20)]
    assert seen == [(i, 20) for i in range(1, 21)]


def test_items_without_labels_and_points_are_read() -> None:
    assert from_dataset(Photos(5, picture)).y is None
    assert from_dataset(Photos(5, lambda i: (picture(i), None))).labels is None
    points = from_dataset([(torch.tensor([0.5 * i, 1.0]), i % 2) for i in range(6)])
    assert points.x.shape == (6, 2) and points.y is not None and points.y.tolist() == [0, 1, 0, 1, 0, 1]
    tensors = from_dataset(TensorDataset(torch.zeros(4, 1, 8, 8), torch.arange(4)))
    assert tensors.x.shape == (4, 1, 8, 8) and tensors.labels is None


def test_parts_of_data_sets_know_the_names_of_their_classes() -> None:
    whole = Photos(9, lambda i: (picture(i), i % 3))
    assert from_dataset(Subset(Subset(whole, [1, 2, 4]), [0, 1])).labels == ("ant", "bee", "cat")
    joined = from_dataset(ConcatDataset([whole, whole]))
    assert joined.labels == ("ant", "bee", "cat") and len(joined.x) == 18


def test_grey_pictures_become_rgb_if_others_have_colour() -> None:
    data = from_dataset(Photos(4, lambda i: picture(i).convert("L") if i != 2 else picture(i)))
    assert data.x.shape == (4, 3, 6, 6) and np.array_equal(data.x[2], np.asarray(picture(2)).transpose(2, 0, 1))
    assert (data.x[0] == np.asarray(picture(0).convert("L"))).all() and (data.x[3, 0] == data.x[3, 2]).all()


def test_pictures_of_any_size_are_cropped_and_resized() -> None:
    def make(number: int) -> Image.Image:
        return picture(number, 6 + number, 9)

    message = refused(lambda: from_dataset(Photos(4, make)))
    assert "item 0 of Photos is 9 × 6 and item 1 is 9 × 7" in message and "size=64" in message
    assert from_dataset(Photos(4, make), size=5).x.shape == (4, 3, 5, 5)


def test_an_item_that_raises_is_named() -> None:
    def make(number: int) -> Any:
        if number == 1234:
            raise OSError("broken pipe\nin detail")
        return values(number, 2, 2), 0

    assert refused(lambda: from_dataset(Photos(2000, make))) == (
        "item 1,234 of Photos cannot be read (OSError: broken pipe): correct the data set, or leave this item out."
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda i: ("text", 0), "the image of item 0 of Photos is of type str: give a Pillow image"),
        (lambda i: (np.array(["a"]), 0), "is of type array of <U1"),
        (lambda i: (values(i), [1, 0]), "item 0 of Photos has a label that cannot be used: its label is a list"),
        (lambda i: (values(i), torch.tensor([1, 0])), "its label is a Tensor"),
        (lambda i: (values(i), 0.5), "its label is a float"),
        (lambda i: (values(i), 0, 1), "item 0 of Photos has 3 entries: items must be (image, label)"),
        (lambda i: {"text": "a"}, "item 0 of Photos has the keys text and no image"),
        (lambda i: values(i) if i < 3 else values(i, 3, 7, 6), "item 0 of Photos is 3 × 6 × 6 and item 3 is 3 × 7 × 6"),
        (lambda i: values(i) if i < 3 else values(i) / 255, "item 0 of Photos is uint8 and item 3 is float64"),
        (lambda i: None, "is of type NoneType"),
    ],
)
def test_wrong_items_are_one_sentence(make: Callable[[int], Any], sentence: str) -> None:
    assert sentence in refused(lambda: from_dataset(Photos(6, make)))


def test_no_items_loaders_and_streams_are_one_sentence() -> None:
    empty = "Photos has no items; give a data set that is not empty."
    assert refused(lambda: from_dataset(Photos(0, picture))) == empty
    loader = DataLoader(Photos(4, values))
    assert "give its data set, loader.dataset" in refused(lambda: prepare_dataset(loader, "never"))
    assert "prepare_dataset" in refused(lambda: from_dataset(Stream(4, values)))


def test_kinds_of_data_are_told_apart() -> None:
    assert (
        is_iterable_only(Stream(1, values)) and is_iterable_only(iter([])) and not is_iterable_only(Photos(1, values))
    )
    assert is_python_dataset(Photos(1, values)) and is_python_dataset(Stream(1, values))
    for other in (np.zeros(3), torch.zeros(3), "digits", (np.zeros(3), np.zeros(3)), {"source": "digits"}, [[0, 1]], 5):
        assert not is_python_dataset(other)


def test_the_python_api_trains_on_a_data_set_and_refuses_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos = Photos(60, lambda i: (torch.from_numpy(values(i, 1, 8, 8)), i % 3))
    run = ganherd.train(data=photos, budget=2, run="run", quiet=True, finishers=())
    assert run.mixture.labels == ("ant", "bee", "cat")
    assert "prepare_dataset" in refused(lambda: ganherd.train(data=Stream(4, values), run="stream", quiet=True))


# --- iterable -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda i: (picture(i), i % 3),
        lambda i: (torch.from_numpy(np.asarray(picture(i)).transpose(2, 0, 1).astype(np.float32)) / 255, i % 3),
        lambda i: (torch.from_numpy(np.asarray(picture(i)).transpose(2, 0, 1).astype(np.float32)) / 127.5 - 1, i % 3),
        lambda i: (np.asarray(picture(i)), i % 3),
    ],
    ids=["Pillow", "unit floats", "symmetric floats", "array"],
)
def test_a_stream_becomes_a_prepared_folder(tmp_path: Path, make: Callable[[int], Any]) -> None:
    prepare_dataset(Stream(600, make), tmp_path / "out")
    data = load(DataConfig(source=str(tmp_path / "out"), holdout=0))
    assert data.labels == ("ant", "bee", "cat") and data.shape == (3, 6, 6)
    expected = [np.asarray(picture(i)).transpose(2, 0, 1) for k in range(3) for i in range(k, 600, 3)]
    assert np.array_equal(np.asarray(data.x), np.stack(expected))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_stream_is_not_held_in_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    prepare_dataset(Stream(3000, lambda i: np.full((64, 64), i % 256, np.uint8)), tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3000 * 64 * 64 / 2


def test_a_stream_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def make(number: int) -> Any:
        if number == 1234:
            raise ValueError("lost")
        return values(number, 4, 4)

    assert "item 1,234 of Stream cannot be read (ValueError: lost):" in refused(
        lambda: prepare_dataset(Stream(2000, make), tmp_path / "o")
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda i: values(i, 4, 6), "item 0 of Stream is 6 × 4, and shards hold squares; give size=64."),
        (
            lambda i: values(i, 5, 4, 4),
            "item 0 of Stream has shape (5, 4, 4), and shards hold images of 1 or 3 channels; convert it first.",
        ),
        (lambda i: np.full((4, 4), 0.5 if i < 300 else -1.0), "item 300 of Stream has values in [-1, -1]"),
        (lambda i: np.full((4, 4), np.nan), "Stream has float values in [nan, nan]"),
    ],
)
def test_wrong_items_of_a_stream_are_one_sentence(tmp_path: Path, make: Callable[[int], Any], sentence: str) -> None:
    assert sentence in refused(lambda: prepare_dataset(Stream(400, make), tmp_path / "out"))


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "exists already" in refused(lambda: prepare_dataset(Stream(4, values), tmp_path / "out"))
    empty = "Stream has no items; give a data set that is not empty."
    assert refused(lambda: prepare_dataset(Stream(0, values), tmp_path / "new")) == empty


def test_streams_of_any_size_are_cropped_and_resized(tmp_path: Path) -> None:
    index = prepare_dataset(Stream(5, lambda i: picture(i, 6 + i, 9)), tmp_path / "pictures", size=4)
    assert index.shape == (3, 4, 4)
    assert prepare_dataset(Stream(5, lambda i: values(i, 3, 6 + i, 9)), tmp_path / "arrays", size=4).shape == (3, 4, 4)
