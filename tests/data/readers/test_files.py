"""Data files: what people save is read as they meant it, and what cannot be meant is one clear sentence."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.data.dataset import Dataset, load
from ganherd.recipe.schema import DataConfig
from ganherd.util import memory
from ganherd.util.errors import UserError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 3, 6, 5), dtype=np.uint8)
LABELS = np.arange(20) % 4


def npz(path: Path, **arrays: Any) -> Dataset:
    np.savez(path / "data.npz", **arrays)
    return load(DataConfig(source=str(path / "data.npz"), holdout=0))


def refused(path: Path, **arrays: Any) -> str:
    with pytest.raises(UserError) as error:
        npz(path, **arrays)
    message = str(error.value)
    assert "data.npz" in message and "\n" not in message
    return message


# --- .npz: layout, range, labels ------------------------------------------------------------------------------------


def test_nchw_nhwc_and_grey_stacks_mean_the_same_images(tmp_path: Path) -> None:
    assert np.array_equal(npz(tmp_path, x=IMAGES).x, IMAGES)
    assert np.array_equal(npz(tmp_path, x=IMAGES.transpose(0, 2, 3, 1)).x, IMAGES)
    assert np.array_equal(npz(tmp_path, x=IMAGES[:, 0]).x, IMAGES[:, :1])
    data = npz(tmp_path, x=IMAGES)
    assert data.x.dtype == np.uint8 and data.x.flags.c_contiguous and data.is_image and data.shape == (3, 6, 5)
    assert (data.offset, data.scale) == (127.5, 127.5)


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (IMAGES.astype(np.float32) / 255, "0 … 1"),
        (IMAGES.astype(np.float64) / 127.5 - 1, "-1 … 1"),
        (IMAGES.astype(np.float32), "0 … 255"),
        (IMAGES.astype(np.int32), "0 … 255"),
    ],
)
def test_every_usual_range_gives_the_same_bytes_and_is_stated(tmp_path: Path, saved: np.ndarray, words: str) -> None:
    data = npz(tmp_path, x=saved)
    assert np.array_equal(data.x, IMAGES)
    assert any(words in note for note in data.notes)


def test_one_range_holds_for_both_sets(tmp_path: Path) -> None:
    train, test = IMAGES[:15] / 127.5 - 1, np.abs(IMAGES[15:] / 127.5 - 1)  # the test set alone would look like 0 … 1
    data = npz(tmp_path, x_train=train, x_test=test)
    assert np.array_equal(data.x_test, np.rint((test + 1) * 127.5).astype(np.uint8))


def test_bad_pixels_are_refused(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf):
        x = IMAGES / 255
        x[7, 0, 0, 0] = bad
        assert "NaN or infinite" in refused(tmp_path, x=x) and "row 7" in refused(tmp_path, x=x)
    assert "[-3, 0.5]" in refused(tmp_path, x=np.array([[[-3.0, 0.5]]]))
    assert "0 … 255" in refused(tmp_path, x=IMAGES.astype(np.int64) * 10)
    assert "type" in refused(tmp_path, x=np.full((3, 4, 4), "a"))
    assert "type" in refused(tmp_path, x_train=IMAGES, x_test=IMAGES / 255)


def test_shapes_that_are_no_images_are_refused(tmp_path: Path) -> None:
    assert "no images" in refused(tmp_path, x=IMAGES[:0])
    assert "(20, 90, 1, 1, 1)" in refused(tmp_path, x=IMAGES.reshape(20, 90, 1, 1, 1))
    assert "1 or 3 channels" in refused(tmp_path, x=np.zeros((4, 5, 8, 8), np.uint8))
    assert "without pixels" in refused(tmp_path, x=np.zeros((4, 3, 0, 8), np.uint8))
    assert "test rows of shape" in refused(tmp_path, x_train=IMAGES, x_test=IMAGES[:, :, :4])
    assert "x_train" in refused(tmp_path, pictures=IMAGES)
    assert "both" in refused(tmp_path, x=IMAGES, x_train=IMAGES)


def test_labels_become_indices_into_names(tmp_path: Path) -> None:
    data = npz(tmp_path, x=IMAGES, y=LABELS * 3 + 1)
    assert data.labels == ("1", "4", "7", "10") and np.array_equal(data.y, LABELS) and data.y.dtype == np.int64
    names = np.array(["ant", "bee", "cat", "dog"])
    assert npz(tmp_path, x=IMAGES, y=LABELS, labels=names).labels == tuple(names)
    by_name = npz(tmp_path, x=IMAGES, y=names[LABELS])
    assert by_name.labels == tuple(names) and np.array_equal(by_name.y, LABELS)
    column = npz(tmp_path, x=IMAGES, y=LABELS[:, None].astype(np.float32))
    assert np.array_equal(column.y, LABELS)


def test_data_without_labels_has_none(tmp_path: Path) -> None:
    for data in (npz(tmp_path, x=IMAGES), npz(tmp_path, x=IMAGES, y=np.full(20, -1), labels=np.array([], "U1"))):
        assert data.labels == () and (data.y == -1).all() and len(data.y) == 20
    some = npz(tmp_path, x=IMAGES, y=np.where(LABELS == 0, -1, LABELS))
    assert some.labels == ("1", "2", "3") and set(some.y) == {-1, 0, 1, 2}
    assert any("no label" in note for note in some.notes)
    single = npz(tmp_path, x=IMAGES, y=np.where(np.arange(len(LABELS)) == 3, -1, LABELS))
    assert "1 training row has no label (-1)" in single.notes


def test_bad_labels_are_refused(tmp_path: Path) -> None:
    assert "20 rows but 19 labels" in refused(tmp_path, x=IMAGES, y=LABELS[:19])
    assert "label 3" in refused(tmp_path, x=IMAGES, y=LABELS, labels=np.array(["a", "b", "c"]))
    assert "label -2" in refused(tmp_path, x=IMAGES, y=LABELS - 2)
    assert "whole" in refused(tmp_path, x=IMAGES, y=LABELS + 0.5)
    assert "shape (20, 4)" in refused(tmp_path, x=IMAGES, y=np.eye(4)[LABELS])
    assert "twice" in refused(tmp_path, x=IMAGES, y=LABELS, labels=np.array(["a", "b", "a", "c"]))
    assert "class names" in refused(tmp_path, x=IMAGES, labels=LABELS)
    assert "label 9" in refused(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:1], y_test=np.array([9]))
    assert "y_test is missing" in refused(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES)


def test_what_sample_writes_can_be_read(tmp_path: Path) -> None:
    """Samples of one label only: the other classes have no rows, and that is fine until someone trains by class."""
    names = np.array(list("abcd"))
    data = npz(tmp_path, x=IMAGES, y=np.full(20, 2), member=np.zeros(20, int), labels=names)
    assert data.labels == tuple("abcd") and set(data.y) == {2} and data.notes == ()


def test_two_columns_are_points(tmp_path: Path) -> None:
    points = RNG.normal(3, 2, (50, 2))
    data = npz(tmp_path, x=points, y=np.arange(50) % 5)
    assert data.shape == (2,) and data.x.dtype == np.float32 and not data.is_image
    units = (data.x - data.offset) / data.scale
    assert np.isclose(units.min(), -1, atol=1e-6) and np.isclose(units.max(), 1, atol=1e-6)
    assert "NaN" in refused(tmp_path, x=np.array([[0.0, np.nan]]))


def test_settings_that_do_not_fit_the_data_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "i.npz", x=IMAGES)
    np.savez(tmp_path / "p.npz", x=np.zeros((5, 2)))
    for source, setting in (("i.npz", {"points": 3}), ("p.npz", {"size": 8}), ("p.npz", {"points": 50})):
        with pytest.raises(UserError, match=f"data.{next(iter(setting))}"):
            load(DataConfig(source=str(tmp_path / source), **setting))


def test_arrays_can_be_resized(tmp_path: Path) -> None:
    np.savez(tmp_path / "i.npz", x=np.full((4, 20, 10), 77, np.uint8))
    data = load(DataConfig(source=str(tmp_path / "i.npz"), size=5))
    assert data.shape == (1, 5, 5) and (data.x == 77).all() and any("resized" in note for note in data.notes)


class Bomb:
    """A pickle of this runs a command when it is loaded carelessly."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_pickled_arrays_in_an_npz_are_refused_and_run_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert "plain arrays" in refused(tmp_path, x=np.array([Bomb(mark)], dtype=object))
    (tmp_path / "data.npz").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(UserError, match="plain arrays"):
        load(DataConfig(source=str(tmp_path / "data.npz")))
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing", b"\x93NUMPY"])
def test_broken_npz_files_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"data\.npz cannot be read"):
        load(DataConfig(source=str(tmp_path / "data.npz")))


def test_truncated_npz_is_one_sentence(tmp_path: Path) -> None:
    npz(tmp_path, x=IMAGES, y=LABELS)
    whole = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be read"):
        load(DataConfig(source=str(tmp_path / "data.npz")))


def test_a_single_array_is_no_npz(tmp_path: Path) -> None:
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(UserError, match="one array without a name"):
        load(DataConfig(source=str(tmp_path / "data.npz")))


# --- sources that are not there -------------------------------------------------------------------------------------


def test_missing_sources_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        with pytest.raises(UserError, match=f"ganherd data get {name}.*{tmp_path}"):
            load(DataConfig(source=name))
    with pytest.raises(UserError, match="did you mean 'digits"):
        load(DataConfig(source="digit"))
    with pytest.raises(UserError, match="neither a known name nor a file"):
        load(DataConfig(source=str(tmp_path / "nothing.npz")))
    (tmp_path / "data.feather").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="no data that ganherd reads"):
        load(DataConfig(source=str(tmp_path / "data.feather")))


# --- idx ------------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_mnist(folder: Path, *, zipped: bool = False, dot: bool = False) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = IMAGES[:, 0], LABELS
    for split, cut in (("train", slice(15)), ("t10k", slice(15, 20))):
        for kind, array in (("images-idx3", x[cut]), ("labels-idx1", y[cut])):
            name = f"{split}-{kind}-ubyte"
            name = name.replace("-idx", ".idx") if dot else name
            data = idx(array)
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)
    return x, y


@pytest.mark.parametrize(("zipped", "dot"), [(False, False), (True, False), (False, True)])
def test_four_idx_files_are_a_training_set_and_a_test_set(tmp_path: Path, zipped: bool, dot: bool) -> None:
    x, y = write_mnist(tmp_path, zipped=zipped, dot=dot)
    data = load(DataConfig(source=str(tmp_path)))
    assert np.array_equal(data.x[:, 0], x[:15]) and np.array_equal(data.x_test[:, 0], x[15:])
    assert np.array_equal(data.y, y[:15]) and np.array_equal(data.y_test, y[15:]) and data.labels == tuple("0123")


def test_mnist_by_name_is_found_as_npz_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    x, y = write_mnist(tmp_path / "mnist", zipped=True)
    from_folder = load(DataConfig(source="mnist"))
    np.savez(tmp_path / "mnist.npz", x_train=x[:15, None], y_train=y[:15], x_test=x[15:, None], y_test=y[15:])
    from_npz = load(DataConfig(source="mnist"))
    assert from_folder.digest == from_npz.digest and from_npz.name == "mnist"


def test_fashion_mnist_has_names_of_clothes_once_its_four_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    write_mnist(tmp_path / "fashion-mnist", zipped=True)
    data = load(DataConfig(source="fashion-mnist"))
    assert data.labels[:2] == ("T-shirt/top", "Trouser") and data.labels[-1] == "Ankle boot" and len(data.labels) == 10
    (tmp_path / "fashion-mnist/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="ganherd data get fashion-mnist"):
        load(DataConfig(source="fashion-mnist"))


def test_one_idx_file_brings_its_labels(tmp_path: Path) -> None:
    x, _ = write_mnist(tmp_path)
    data = load(DataConfig(source=str(tmp_path / "train-images-idx3-ubyte"), holdout=0))
    assert np.array_equal(data.x[:, 0], x[:15]) and data.labels == tuple("0123")


def test_broken_idx_files_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for broken in (
        b"",
        whole[:3],
        whole[:10],
        whole[:-1],
        whole + b"x",
        b"\0\0\x0d" + whole[3:],
        b"\0\0\x08\x03" + b"\xff" * 12,
    ):
        file.write_bytes(broken)
        with pytest.raises(UserError, match="train-images-idx3-ubyte cannot be read as an idx file"):
            load(DataConfig(source=str(tmp_path)))
    file.write_bytes(idx(IMAGES[:14, 0]))
    with pytest.raises(UserError, match="14 rows but 15 labels"):
        load(DataConfig(source=str(tmp_path)))
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="lacks the file train-labels"):
        load(DataConfig(source=str(tmp_path)))


def test_broken_gzip_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path, zipped=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    for broken in (b"not gzip", file.read_bytes()[:-20]):
        file.write_bytes(broken)
        with pytest.raises(UserError, match="cannot be read as an idx file"):
            load(DataConfig(source=str(tmp_path)))


# --- points in text -------------------------------------------------------------------------------------------------


def test_text_points_with_and_without_labels(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("# x y label\n1.5 2 1\r\n3\t4\t2\n\n5, 6, 2\n")
    data = load(DataConfig(source=str(file), holdout=0))
    assert data.x.tolist() == [[1.5, 2], [3, 4], [5, 6]] and data.labels == ("1", "2") and data.y.tolist() == [0, 1, 1]
    file.write_text("1 2\n3 4\n")
    assert load(DataConfig(source=str(file), holdout=0)).labels == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2\n1 b\n", "line 2"),
        ("1 2 3\n1 2\n", "line 2"),
        ("1\n1 2\n", "line 2"),
        ("", "no rows"),
        ("1 nan\n", "missing"),
    ],
)
def test_bad_text_points_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(UserError, match=words):
        load(DataConfig(source=str(tmp_path / "p.txt")))


# --- more than fits into memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.csv", "p.npy", "train-images-idx3-ubyte"])
def test_a_file_that_exceeds_memory_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / name
    np.save(tmp_path / "p.npy", IMAGES)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(IMAGES[:, 0]))
    (tmp_path / "p.csv").write_text("1 2\n" * 100)
    monkeypatch.setattr(memory, "available_memory", lambda with_swap: 100)
    with pytest.raises(
        UserError, match=r"need .* are available\. Use a part of the data, or a machine with more memory\."
    ):
        load(DataConfig(source=str(file)))


def test_memory_that_runs_out_while_reading_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise MemoryError

    (tmp_path / "p.csv").write_text("1 2\n")
    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(UserError, match="cannot be read as text: out of memory; use a part of the data"):
        load(DataConfig(source=str(tmp_path / "p.csv")))


def test_an_archive_of_zeros_is_refused_without_reading_all_of_them(tmp_path: Path) -> None:
    with (tmp_path / "x.tar").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="holds no files"):
        load(DataConfig(source=str(tmp_path / "x.tar")))
