"""Looking at data and getting it: the description, the contact sheet, the list, and checked downloads."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ganherd.data.dataset import Dataset, load
from ganherd.data.inspect import _summary, contact_sheet, describe, inspect, text
from ganherd.data.readers.download import DOWNLOADS, Download, get, list_sources
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError
from ganherd.util.registry import DATA_SOURCES


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def made(n: int, shape: tuple[int, ...], classes: int) -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    y = np.arange(n) % classes if classes else np.full(n, -1)
    labels = tuple(f"class {k}" for k in range(classes))
    return Dataset("made", x, y.astype(np.int64), x[:2], y[:2].astype(np.int64), labels, 127.5, 127.5)


# --- the description ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_images_that_are_nowhere_bright_get_a_note(dtype: type, tmp_path: Path) -> None:
    images = np.arange(40 * 16).reshape(40, 4, 4) % 17
    np.savez(tmp_path / "dark.npz", x=images.astype(dtype))
    np.savez(tmp_path / "bright.npz", x=(images * 15).astype(dtype))
    notes = [inspect(DataConfig(source=str(tmp_path / name)))["notes"] for name in ("dark.npz", "bright.npz")]
    dark, bright = (any("the brightest value is 16 of 255" in note for note in each) for each in notes)
    assert dark and not bright


def test_the_description_is_plain_and_adds_up() -> None:
    found = inspect(DataConfig(source="digits"))
    assert json.loads(json.dumps(found)) == found
    assert found["kind"] == "images" and found["shape"] == [1, 8, 8] and found["range"] == [0, 255]
    assert [row["name"] for row in found["classes"]] == list("0123456789")
    assert sum(row["train"] for row in found["classes"]) == found["train"]
    assert sum(row["held_out"] for row in found["classes"]) == found["held_out"]
    x = load(DataConfig(source="digits")).x
    assert np.isclose(found["mean"], x.mean(), atol=1e-3) and np.isclose(found["std"], x.std(), atol=1e-3)


def test_points_and_unlabelled_data_are_described() -> None:
    assert inspect(DataConfig(source="ring8"))["kind"] == "points"
    found = describe(made(5, (3, 4, 4), 0))
    assert found["classes"] == [] and found["train"] == 5 and json.dumps(found)


def test_totals_are_said_and_whose_split_it_is(tmp_path: Path) -> None:
    digits = load(DataConfig(source="digits"))
    told = text(describe(digits))
    assert told.startswith("digits: 1,797 images of 1×8×8\nwith data.holdout 0.2: 1,438 to train on, 359 held out\n")
    assert "  0      178 (142 / 36)" in told
    assert "1,797 images  ·  with data.holdout 0.2: 1,438 to train on, 359 held out" in _summary(digits)
    assert "\nwith data.holdout 0.5: " in text(inspect(DataConfig(source="digits", holdout=0.5)))
    assert "\nwith data.holdout 0.2: " in text(inspect(DataConfig(source="ring8")))
    x, y = np.zeros((6, 4, 4), np.uint8), np.arange(6) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    own = load(DataConfig(source=str(tmp_path / "own.npz")))
    assert "own.npz: 8 images of 1×4×4\nas the source has it: 6 to train on, 2 held out" in text(describe(own))
    assert "2 classes  ·  8 images  ·  as the source has it: 6 to train on, 2 held out" in _summary(own)


# --- the contact sheet ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [0, 1, 10, 25, 100, 130])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 20)])
def test_sheets_stay_readable_for_any_number_of_classes(tmp_path: Path, classes: int, shape: tuple[int, ...]) -> None:
    path = contact_sheet(made(260, shape, classes), tmp_path / "new" / "sheet.png")
    with Image.open(path) as image:
        assert image.format == "PNG" and 400 <= image.width <= 2400 and 150 <= image.height <= 2000
        assert len(np.unique(np.asarray(image.convert("L")))) > 50  # not a blank page


def test_sheets_take_large_images_few_images_and_long_names(tmp_path: Path) -> None:
    data = replace(made(3, (3, 300, 200), 3), labels=("x" * 300, "ü ∂", "c"))
    with Image.open(contact_sheet(data, tmp_path / "a.png")) as image:
        assert image.width < 2400
    one = replace(data, y=np.array([0, 0, 0]))  # two classes without images
    assert contact_sheet(one, tmp_path / "b.png").exists()


def test_a_label_with_a_line_break_stays_on_its_line_and_can_be_drawn(tmp_path: Path) -> None:
    data = replace(made(80, (1, 8, 8), 2), name="d\nd", labels=("a\nb", "c\r\td"))
    facts = describe(data)
    assert facts["classes"][0]["name"] == "a\nb" and "\n  a�b    " in text(facts)
    assert contact_sheet(data, tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("source", ["ring8", "grid25"])
def test_points_are_plotted(tmp_path: Path, source: str) -> None:
    data = load(DataConfig(source=source))
    for k, each in enumerate((data, replace(data, y=data.y * 0 - 1, labels=()), replace(data, x_test=data.x[:0]))):
        with Image.open(contact_sheet(each, tmp_path / f"{k}.png")) as image:
            assert image.width > 600 and len(np.unique(np.asarray(image.convert("L")))) > 20


def test_the_same_data_gives_the_same_sheet(tmp_path: Path) -> None:
    data = made(40, (1, 8, 8), 4)
    first, second = (contact_sheet(data, tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second and sorted(os.listdir(tmp_path)) == ["a.png", "b.png"]


def test_a_sheet_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        contact_sheet(made(4, (1, 4, 4), 2), tmp_path / "file" / "sheet.png")


# --- list and get ---------------------------------------------------------------------------------------------------


def test_the_list_says_what_is_here(home: Path) -> None:
    rows = {row["name"]: row for row in list_sources()}
    assert set(rows) == set(DATA_SOURCES)
    assert all(rows[name]["present"] for name in ("digits", "ring8", "grid25", "r15"))
    assert not any(rows[name]["present"] for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"))
    assert rows["mnist"]["where"] == str(home / "mnist.npz") and all(row["about"] for row in rows.values())
    home.mkdir()
    np.savez(home / "mnist.npz", x=np.zeros((2, 4, 4), np.uint8))
    assert next(row for row in list_sources() if row["name"] == "mnist")["present"]


def test_official_addresses_are_safe_and_checked() -> None:
    for items in DOWNLOADS.values():
        for item in items:
            assert item.url.startswith("https://") and len(item.md5) == 32
            assert ".." not in item.path and not os.path.isabs(item.path)
    assert set(DOWNLOADS) == {source.made_of or name for name, source in DATA_SOURCES.items() if source.places}


def test_builtin_sources_need_no_getting(home: Path) -> None:
    for name in ("digits", "ring8", "grid25", "r15"):
        assert get(name, {})["fetched"] == []
    assert not home.exists()
    with pytest.raises(UserError, match="did you mean 'mnist"):
        get("mnsit")


def offer(folder: Path) -> tuple[Download, ...]:
    """A small MNIST on this disk, offered like the official one."""
    folder.mkdir()
    items = []
    for split, n in (("train", 6), ("t10k", 4)):
        for kind, shape in (("images-idx3", (n, 5, 5)), ("labels-idx1", (n,))):
            head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
            content = gzip.compress(head + bytes(i % 2 for i in range(int(np.prod(shape)))))
            file = folder / f"{split}-{kind}-ubyte.gz"
            file.write_bytes(content)
            items.append(Download(file.as_uri(), f"mnist/{file.stem}", hashlib.md5(content).hexdigest()))
    return tuple(items)


def test_get_fetches_checks_and_then_leaves_alone(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = offer(tmp_path / "server")
    done = get("mnist", {"mnist": items})
    assert len(done["fetched"]) == 4 and done["where"] == str(home / "mnist") and json.dumps(done)
    assert "train-images" in capsys.readouterr().err
    data = load(DataConfig(source="mnist"))
    assert data.x.shape == (6, 1, 5, 5) and len(data.x_test) == 4
    assert get("mnist", {"mnist": items})["fetched"] == []
    (home / "mnist" / items[1].path.split("/")[1]).unlink()
    assert len(get("mnist", {"mnist": items})["fetched"]) == 1
    assert not [name for name in os.listdir(home / "mnist") if name.startswith(".")]


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, home: Path) -> None:
    items = [replace(item, md5="0" * 32) for item in offer(tmp_path / "server")]
    with pytest.raises(UserError, match=r"checksum differs.*by hand"):
        get("mnist", {"mnist": tuple(items)})
    assert os.listdir(home / "mnist") == []


def test_a_failed_download_says_where_to_put_the_file(tmp_path: Path, home: Path) -> None:
    for url in ((tmp_path / "nothing.gz").as_uri(), "nonsense"):
        with pytest.raises(UserError) as error:
            get("cifar10", {"cifar10": (Download(url, "cifar-10-binary.tar.gz", "0" * 32),)})
        assert url in str(error.value) and str(home / "cifar-10-binary.tar.gz") in str(error.value)
        assert "\n" not in str(error.value) and os.listdir(home) == []
