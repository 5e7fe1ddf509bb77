"""Named data that lies plain in its file is not copied: every process, feed and rank reads the file's own pages."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.data.dataset import Dataset, load
from ganherd.herd.batch_feed import BatchPlan
from ganherd.herd.streamed_batch_feed import make_feed
from ganherd.recipe import recipe_file
from ganherd.recipe.schema import DataConfig
from ganherd.training.setup.assemble import assemble
from ganherd.util.errors import UserError

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (40, 28, 28), dtype=np.uint8), np.arange(40, dtype=np.uint8) % 4
PARTS: dict[str, Any] = {"x_train": X[:30], "y_train": Y[:30], "x_test": X[30:], "y_test": Y[30:]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    return tmp_path


def is_mapped(array: np.ndarray | memoryview | mmap.mmap | None) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


def as_npz(home: Path) -> None:
    np.savez(home / "mnist.npz", **PARTS)


def as_idx(home: Path) -> None:
    (home / "mnist").mkdir()
    for name, array in zip(("train-images", "train-labels", "t10k-images", "t10k-labels"), PARTS.values(), strict=True):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (home / "mnist" / f"{name}-idx{array.ndim}-ubyte").write_bytes(head + array.tobytes())


def same(data: Dataset) -> bool:
    both = np.concatenate([data.x, data.x_test])[:, 0], np.concatenate([data.y, data.y_test])
    return np.array_equal(both[0], X) and np.array_equal(both[1], Y)


@pytest.mark.parametrize("written", [as_npz, as_idx])
def test_plain_files_are_mapped_and_never_written_to(home: Path, written: Callable[[Path], None]) -> None:
    written(home)
    data = load(DataConfig(source="mnist"))
    assert same(data) and is_mapped(data.x) and is_mapped(data.x_test)
    data.x[:] = 0  # of this process alone
    assert same(load(DataConfig(source="mnist")))


def test_a_feed_and_a_herd_read_the_same_pages(home: Path) -> None:
    as_npz(home)
    data = load(DataConfig(source="mnist"))
    index, count = np.arange(30)[None], np.array([30])
    feed = make_feed(data.x, data.y, BatchPlan(index, count, 5, 127.5, 127.5, torch.float32), torch.device("cpu"))
    assert feed.x.data_ptr() == data.x.ctypes.data
    settings = ["data.source=mnist", "nets.generator.hidden=[4]", "nets.discriminator.hidden=[4]", "engine.device=cpu"]
    assembly = assemble(recipe_file.load("mnist-cellular-4x4", settings))
    assert is_mapped(assembly.dataset.x) and assembly.herd.feed.x.data_ptr() == assembly.dataset.x.ctypes.data


@pytest.mark.parametrize(
    "parts",
    [
        {
            **PARTS,
            "x_train": PARTS["x_train"].astype(np.float64) / 255,
            "x_test": PARTS["x_test"].astype(np.float64) / 255,
        },
        {**PARTS, "x_train": np.asfortranarray(PARTS["x_train"])},
        {**PARTS, "x_train": PARTS["x_train"][..., None], "x_test": PARTS["x_test"][..., None]},
    ],
)
def test_what_does_not_lie_as_it_is_used_is_read(home: Path, parts: dict[str, Any]) -> None:
    np.savez(home / "mnist.npz", **parts)
    assert same(load(DataConfig(source="mnist")))
    np.savez_compressed(home / "mnist.npz", **parts)
    data = load(DataConfig(source="mnist"))
    assert same(data) and not is_mapped(data.x)


def test_a_file_of_the_users_own_may_be_written_anew_while_it_is_used(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **PARTS)
    data = load(DataConfig(source=str(tmp_path / "own.npz")))
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 28, 28), np.uint8))
    assert same(data) and not is_mapped(data.x)


@pytest.mark.parametrize("written", [as_npz, as_idx])
def test_damage_is_one_sentence(home: Path, written: Callable[[Path], None]) -> None:
    written(home)
    file = next(path for path in (home / "mnist.npz", home / "mnist" / "train-images-idx3-ubyte") if path.exists())
    whole = file.read_bytes()
    middle = whole.index(X[3].tobytes())
    broken = [whole[:middle]]
    if written is as_npz:  # it has checksums
        broken.append(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    for content in broken:
        file.write_bytes(content)
        with pytest.raises(
            UserError, match="cannot be read as.*; remove it, and `ganherd data get mnist` fetches it again"
        ):
            load(DataConfig(source="mnist"))


@pytest.mark.parametrize("content", [b"", b"hello" * 100])
def test_a_file_of_another_kind_is_not_taken_for_a_pickle(home: Path, content: bytes) -> None:
    (home / "mnist.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"numpy.savez did not write it; remove it"):
        load(DataConfig(source="mnist"))


@pytest.mark.parametrize("key", ["x_train", "x_test", "y_train"])
def test_objects_are_refused_by_name(home: Path, key: str) -> None:
    np.savez(home / "mnist.npz", **{**PARTS, key: PARTS[key].astype(object)})
    with pytest.raises(UserError, match=f"{key} holds Python objects, which are never loaded; save it as numbers"):
        load(DataConfig(source="mnist"))
