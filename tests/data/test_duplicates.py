"""Images that occur more than once are counted, and those on both sides of the split are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ganherd.data import duplicates
from ganherd.data.dataset import Dataset, load
from ganherd.data.inspect import describe, text
from ganherd.data.shards.prepare import prepare
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 1, 6, 6), dtype=np.uint8)


def data(path: Path, **arrays: np.ndarray) -> Dataset:
    np.savez(path / "made.npz", **arrays)
    return load(DataConfig(source=str(path / "made.npz")))


def test_copies_on_both_sides_of_the_split_are_said_at_load_and_by_inspect(tmp_path: Path) -> None:
    made = data(tmp_path, x=np.repeat(IMAGES, 5, 0))
    facts = describe(made)
    assert facts["copies"] == 160 and facts["held_out_and_trained_on"] > 0
    assert any("160 images of 200 are exact copies of others" in note for note in made.notes)
    assert any("held-out images are trained on too" in note for note in made.notes)
    assert text(facts).count("are exact copies") == 1


def test_copies_are_said_at_load_if_the_source_has_its_own_test_part(tmp_path: Path) -> None:
    made = data(tmp_path, x_train=IMAGES[:30], x_test=IMAGES[25:])
    assert any("5 images of 45 are exact copies of others" in note for note in made.notes)
    assert any("5 of the 15 held-out images are trained on too" in note for note in made.notes)
    assert data(tmp_path, x_train=IMAGES[:30], x_test=IMAGES[30:]).notes == ()


@pytest.mark.parametrize("shape", [(2,), (1, 1, 1), (1, 3, 3), (1, 4, 4), (3, 5, 5)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("held", [0, 30])
def test_copies_are_counted_as_by_comparing_whole_rows(shape: tuple[int, ...], dtype: type, held: int) -> None:
    distinct = RNG.integers(0, 3, (40, *shape)).astype(dtype)
    x, x_test = distinct[RNG.integers(0, 40, 50)], distinct[RNG.integers(0, 40, held)]
    train, test = ([row.tobytes() for row in rows] for rows in (x, x_test))
    copies, across = len(train + test) - len({*train, *test}), sum(row in train for row in test)
    assert duplicates.find(x, x_test) == duplicates.Duplicates(50 + held, copies, across, held)


def test_rows_that_agree_in_a_sum_only_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_sums", lambda x: np.zeros(len(x), np.uint64))
    assert duplicates.find(IMAGES[:30], IMAGES[28:]) == duplicates.Duplicates(42, 2, 2, 12)


def test_data_without_copies_has_no_note(tmp_path: Path) -> None:
    made = data(tmp_path, x=IMAGES)
    assert made.notes == () and describe(made)["copies"] == 0


def test_images_that_are_all_equal_are_said(tmp_path: Path) -> None:
    made = data(tmp_path, x=np.full((10, 1, 4, 4), 7, np.uint8) * 9)
    assert "all 10 images are equal: there is nothing to learn from them" in made.notes


def test_links_to_an_image_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "pictures" / "cat"
    folder.mkdir(parents=True)
    for k in range(4):
        Image.fromarray(IMAGES[k, 0]).save(folder / f"{k}.png")
    (folder / "link.png").symlink_to(folder / "0.png")
    made = load(DataConfig(source=str(tmp_path / "pictures")))
    assert "1 file here links to an image that is here already, and counts again" in made.notes


def test_one_image_and_one_class_are_singular(tmp_path: Path) -> None:
    told = text(describe(data(tmp_path, x=IMAGES[:1], y=np.array([3]))))
    assert "1 image of 1×6×6" in told and "1 class, with all its images" in told
    assert "the only label is the number 3" in told and "3 … 3" not in told


def test_floats_are_described_in_the_range_of_their_file(tmp_path: Path) -> None:
    x = IMAGES / 255
    x[0, 0, 0, :2] = 0, 1
    facts = describe(data(tmp_path, x=x))
    assert facts["source_range"] == [0, 1] and facts["range"] == [0, 255]
    assert "range 0 to 1, kept as bytes 0 to 255" in text(facts)


def test_a_plain_array_is_data_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "made.npy", IMAGES)
    made = load(DataConfig(source=str(tmp_path / "made.npy"), holdout=0))
    assert np.array_equal(made.x, IMAGES) and made.labels == ()
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match="numpy.save did not write it"):
        load(DataConfig(source=str(tmp_path / "bad.npy")))


@pytest.mark.parametrize("labels", [np.arange(40) % 3, np.array(["a", "b"] * 20)])
def test_images_and_labels_are_read_as_x_and_y(tmp_path: Path, labels: np.ndarray) -> None:
    made = data(tmp_path, images=IMAGES, labels=labels)
    assert made.labels == tuple(str(one) for one in np.unique(labels)) and len(made.x) + len(made.x_test) == 40
    named = data(tmp_path, images=IMAGES, y=np.arange(40) % 2, labels=np.array(["cat", "dog"]))
    assert named.labels == ("cat", "dog")


def test_copies_among_prepared_images_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "pictures" / "cat"
    folder.mkdir(parents=True)
    for k in range(6):
        Image.fromarray(IMAGES[k % 4, 0]).save(folder / f"{k}.png")
    prepare(tmp_path / "pictures", tmp_path / "out", 6, "centre", None, 1)
    facts = describe(load(DataConfig(source=str(tmp_path / "out"))))
    assert facts["copies"] == 2 and any("2 images of 6 are exact copies of others" in note for note in facts["notes"])
