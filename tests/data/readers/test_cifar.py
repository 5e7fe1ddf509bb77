"""CIFAR in its published forms, and the reader of pickles that executes nothing."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.data.dataset import load
from ganherd.data.readers.pickles import read_pickle
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError

RNG = np.random.default_rng(0)
CIFAR = RNG.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
FINE = np.arange(12) % 10


def cifar_files(kind: str) -> dict[str, bytes]:
    """Small files in each of the four published forms."""
    flat = CIFAR.reshape(12, 3072)

    def rows(part: slice, *heads: np.ndarray) -> bytes:
        return np.column_stack([*(h[part].astype(np.uint8) for h in heads), flat[part]]).tobytes()

    def batch(part: slice, key: bytes) -> bytes:
        content = {b"data": flat[part], key: FINE[part].tolist(), b"filenames": [b"a.png"] * len(flat[part])}
        return pickle.dumps(content, protocol=2)

    names = [f"name{k}" for k in range(10)]
    train, test = [slice(2 * i, 2 * i + 2) for i in range(5)], slice(10, 12)
    if kind == "10-bin":
        files = {f"data_batch_{i + 1}.bin": rows(part, FINE) for i, part in enumerate(train)}
        return {**files, "test_batch.bin": rows(test, FINE), "batches.meta.txt": "\n".join([*names, ""]).encode()}
    if kind == "100-bin":
        files = {"train.bin": rows(slice(10), FINE * 0, FINE), "test.bin": rows(test, FINE * 0, FINE)}
        return {**files, "fine_label_names.txt": "\n".join(names).encode()}
    if kind == "10-py":
        files = {f"data_batch_{i + 1}": batch(part, b"labels") for i, part in enumerate(train)}
        return {**files, "test_batch": batch(test, b"labels"), "batches.meta": pickle.dumps({b"label_names": names}, 2)}
    files = {"train": batch(slice(10), b"fine_labels"), "test": batch(test, b"fine_labels")}
    return {**files, "meta": pickle.dumps({b"fine_label_names": names}, 2)}


@pytest.mark.parametrize("kind", ["10-bin", "100-bin", "10-py", "100-py"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_of_cifar_is_the_same_data(tmp_path: Path, kind: str, packed: bool) -> None:
    files, path = cifar_files(kind), tmp_path / ("cifar.tar.gz" if packed else "cifar")
    if packed:
        with tarfile.open(path, "w:gz") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(f"cifar/{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
    data = load(DataConfig(source=str(path)))
    assert np.array_equal(data.x, CIFAR[:10]) and np.array_equal(data.x_test, CIFAR[10:])
    assert np.array_equal(data.y, FINE[:10]) and np.array_equal(data.y_test, FINE[10:])
    assert data.labels == tuple(f"name{k}" for k in range(10))
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]  # an archive is not unpacked


def test_truncated_and_empty_cifar_are_named(tmp_path: Path) -> None:
    for name, content in cifar_files("10-bin").items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "data_batch_3.bin").write_bytes(b"x" * 3000)
    with pytest.raises(UserError, match=r"data_batch_3\.bin has 3,000 bytes"):
        load(DataConfig(source=str(tmp_path)))
    (tmp_path / "other.tar.gz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be read as CIFAR data"):
        load(DataConfig(source=str(tmp_path / "other.tar.gz")))
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz"):
        pass
    with pytest.raises(UserError, match="holds no CIFAR data.* a .tar that is not compressed"):
        load(DataConfig(source=str(tmp_path / "other.tar.gz")))


# --- pickles ---------------------------------------------------------------------------------------------------------


class Bomb:
    """A pickle of this runs a command when it is loaded carelessly."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_safe_reader_rebuilds_arrays_of_every_protocol(protocol: int, order: Any) -> None:
    array = np.asarray(RNG.integers(0, 9, (3, 4)), dtype=">i4", order=order)
    found = read_pickle(pickle.dumps({b"data": array, "n": [1, 2], b"b": b"\xff\0"}, protocol), "here")
    assert np.array_equal(found["data"], array) and found["n"] == [1, 2] and found["b"] == b"\xff\0"


def test_hostile_pickles_run_nothing(tmp_path: Path) -> None:
    """In each place of a CIFAR folder, in every protocol: refused by name, and the command is not run."""
    mark = tmp_path / "mark"
    for name in ("data_batch_2", "test_batch", "batches.meta"):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            folder = tmp_path / f"{name}-{protocol}"
            folder.mkdir()
            for other, content in cifar_files("10-py").items():
                (folder / other).write_bytes(content)
            (folder / name).write_bytes(pickle.dumps({b"data": Bomb(mark)}, protocol))
            with pytest.raises(UserError, match=r"nothing of it was run: it names .*system"):
                load(DataConfig(source=str(folder)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(S'1/0'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__class__\x93.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00rotttR.",
        b"\x80\x02}(U\x01ar\xff\xff\xff\xffK\x01u.",  # a memo slot far away: must not reserve memory
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"Pname\n.",
        b"(lp0\n.",
        b"",
    ],
)
def test_odd_pickle_programs_end_in_one_sentence_or_plain_data(program: bytes) -> None:
    try:
        found = read_pickle(program, "here")
    except UserError as error:
        assert "binary version" in str(error)
    else:
        assert found == {"a": 1}


def test_a_pickle_cannot_change_the_reader() -> None:
    """BUILD on a name that the reader lends must not set attributes on it."""
    for lent in (
        b"c_codecs\nencode\n",
        b"cnumpy\ndtype\n",
        b"cnumpy\nndarray\n",
        b"cnumpy.core.numeric\n_frombuffer\n",
    ):
        with pytest.raises(UserError):
            read_pickle(lent + b"(N(dS'__doc__'\nS'changed'\nstb.", "here")
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(read_pickle(pickle.dumps({"data": array}, 2), "here")["data"], array)


def test_pickled_arrays_must_fit_their_bytes() -> None:
    good = pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, 2)
    assert b"K\x02K\x03\x86" in good
    for wrong in (b"K\x02K\x04\x86", b"K\x63K\x63\x86"):
        with pytest.raises(UserError, match="do not fit"):
            read_pickle(good.replace(b"K\x02K\x03\x86", wrong), "here")
    with pytest.raises(UserError):
        read_pickle(pickle.dumps({"data": np.array([{}], dtype=object)}, 2), "here")
