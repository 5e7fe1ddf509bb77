"""An image folder: classes from folders, a defined meaning for every kind of file, and bad files named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ganherd import recommend
from ganherd.data.dataset import Dataset, load
from ganherd.data.readers.class_folders import NO_FLOATS, decode
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError


def save(path: Path, value: int = 100, size: tuple[int, int] = (6, 6), mode: str = "L", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour: Any = value if mode in ("L", "1", "P", "F", "I;16") else (value,) * len(Image.new(mode, (1, 1)).getbands())
    Image.new(mode, size, colour).save(path, **options)
    return path


def folder(path: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source=str(path), **{"holdout": 0, **settings}))


def refused(path: Path, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        folder(path, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_one_folder_per_class(tmp_path: Path) -> None:
    for k, name in enumerate(["cat", "ant", "bee"]):
        for i in range(3):
            save(tmp_path / name / f"{i}.png", 10 * k + i)
    save(tmp_path / "ant" / "deeper" / "more.png", 50)
    data = folder(tmp_path)
    assert data.labels == ("ant", "bee", "cat") and np.bincount(data.y).tolist() == [4, 3, 3]
    assert data.shape == (1, 6, 6) and sorted(data.x[data.y == 2, 0, 0, 0].tolist()) == [0, 1, 2] and data.notes == ()


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for k in (10, 9, 2):
        save(tmp_path / str(k) / "a.png")
    assert folder(tmp_path).labels == ("2", "9", "10")


@pytest.mark.parametrize("around", ["train", "pets"])
def test_folders_in_the_only_class_folder_are_noted(tmp_path: Path, around: str) -> None:
    """An archive may unpack to a folder around those of the classes; they would be one class without a word."""
    for name in ("cats", "dogs"):
        save(tmp_path / around / name / "1.png")
    data = folder(tmp_path)
    assert data.labels == (around,)
    assert data.notes[0].startswith(f"the only class is {around}, whose folder holds the folders cats, dogs")
    assert data.notes[0].endswith(f"name {tmp_path / around}")
    save(tmp_path / around / "2.png")
    assert not any("the only class" in note for note in folder(tmp_path).notes)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for i in range(4):
        save(tmp_path / f"{i}.png", i)
    data = folder(tmp_path)
    assert data.labels == () and (data.y == -1).all() and data.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_train_and_test_folders_are_the_sources_own_split(tmp_path: Path) -> None:
    for split, n in (("train", 3), ("test", 2)):
        for name in ("a", "b"):
            for i in range(n):
                save(tmp_path / split / name / f"{i}.png")
    data = folder(tmp_path, holdout=0.5)
    assert len(data.x) == 6 and len(data.x_test) == 4 and data.labels == ("a", "b")
    save(tmp_path / "test" / "c" / "0.png")
    assert "has c, unlike" in refused(tmp_path)


def test_a_second_folder_of_held_out_images_is_noted_as_unused(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        save(tmp_path / split / "a" / "0.png")
    data = folder(tmp_path)
    assert len(data.x) == len(data.x_test) == 1
    assert data.notes[0] == "trained on train/, held out test/, val/ is not used"


def test_hidden_files_and_clutter_are_not_seen(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png")
    for name in (".DS_Store", "a/.hidden.png", "a/Thumbs.db"):
        (tmp_path / name).write_bytes(b"junk")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    data = folder(tmp_path)
    assert data.labels == ("a",) and len(data.x) == 1 and data.notes == ()


@pytest.mark.parametrize("bad", ["text", "truncated", "empty", "eps", "broken link"])
def test_files_that_are_no_images_are_named_then_refused_or_skipped(tmp_path: Path, bad: str) -> None:
    for i in range(2):
        save(tmp_path / "a" / f"{i}.png", i)
    whole = save(tmp_path / "whole.png", size=(64, 64)).read_bytes()
    (tmp_path / "whole.png").unlink()
    path = tmp_path / "a" / "broken.png"
    contents = {
        "text": b"hello",
        "truncated": whole[:60],
        "empty": b"",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }
    if bad == "broken link":
        path.symlink_to(tmp_path / "nowhere.png")
    else:
        path.write_bytes(contents[bad])
    message = refused(tmp_path)
    assert os.path.join("a", "broken.png") in message and "--set data.bad_images=skip" in message
    data = folder(tmp_path, bad_images="skip")
    assert len(data.x) == 2 and any("broken.png" in note for note in data.notes)


def test_files_beside_class_folders_count_as_bad(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png")
    (tmp_path / "README.txt").write_text("about")
    assert "README.txt" in refused(tmp_path)
    assert len(folder(tmp_path, bad_images="skip").x) == 1


def test_many_bad_files_are_counted_and_some_named(tmp_path: Path) -> None:
    save(tmp_path / "a" / "ok.png")
    for i in range(40):
        (tmp_path / "a" / f"{i:02}.txt").write_text("x")
    message = refused(tmp_path)
    assert "40 files in" in message and "00.txt" in message and "35 more" in message


def test_mixed_sizes_name_two_files_and_the_setting(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png", size=(6, 6))
    save(tmp_path / "b" / "1.png", size=(6, 8))
    message = refused(tmp_path)
    assert "0.png" in message and "1.png" in message and "6 × 8" in message and "data.size" in message
    assert folder(tmp_path, size=4).shape == (1, 4, 4)


def test_resizing_takes_the_centre_square(tmp_path: Path) -> None:
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 200  # only the middle third is bright
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    data = folder(tmp_path, size=5)
    assert data.shape == (1, 5, 5) and (data.x == 200).all()


def test_empty_classes_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png")
    (tmp_path / "b").mkdir()
    assert str(tmp_path / "b") in refused(tmp_path) and "empty" in refused(tmp_path)
    (tmp_path / "b" / "x.txt").write_text("no image")
    assert str(tmp_path / "b") in refused(tmp_path, bad_images="skip")


def test_images_of_floats_are_named_as_the_reason(tmp_path: Path) -> None:
    classes, flat = (save(tmp_path / place / "0.tif", mode="F").parent for place in ("classes/a", "flat"))
    for path in (classes.parent, flat):
        for policy in ("refuse", "skip"):
            said = refused(path, bad_images=policy)
            assert "0.tif" in said and NO_FLOATS in said
        with pytest.raises(UserError, match=NO_FLOATS):
            recommend.choose_for(str(path))


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    assert "no images" in refused(tmp_path)
    (tmp_path / "x.txt").write_text("no image")
    assert "no images" in refused(tmp_path, bad_images="skip")


def test_links_that_lead_back_do_no_harm(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png")
    save(tmp_path / "b" / "0.png")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a")
    (tmp_path / "b" / "ring").symlink_to(tmp_path / "b" / "ring")
    data = folder(tmp_path, bad_images="skip")
    assert data.labels == ("a", "b") and len(data.x) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_does_not_hang_the_reader(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    assert "pipe.png" in refused(tmp_path)


# --- what kinds of files mean ---------------------------------------------------------------------------------------


def test_grey_stays_grey_only_if_all_are_grey(tmp_path: Path) -> None:
    save(tmp_path / "0.png", 7)
    save(tmp_path / "1.png", 255, mode="1")
    data = folder(tmp_path)
    assert data.shape == (1, 6, 6) and data.x[:, 0, 0, 0].tolist() == [7, 255]
    save(tmp_path / "2.png", 9, mode="RGB")
    data = folder(tmp_path)
    assert data.shape == (3, 6, 6) and data.x[0, :, 0, 0].tolist() == [7, 7, 7]
    assert any("2 grey images became RGB" in note for note in data.notes)


def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 257, 65535]], np.uint16)).save(tmp_path / "a.png")
    image, done = decode(tmp_path / "a.png")
    assert image.tolist() == [[0, 1, 255]] and any("16-bit" in what for what in done)


def test_palettes_are_grey_or_colour_by_their_pixels(tmp_path: Path) -> None:
    for name, rgb, expected in (("grey", (80, 80, 80), 80), ("red", (200, 0, 0), [200, 0, 0])):
        image = Image.new("P", (2, 2), 1)
        image.putpalette([0, 0, 0, *rgb])
        image.save(tmp_path / f"{name}.png")
        assert decode(tmp_path / f"{name}.png")[0][0, 0].tolist() == expected


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 0, 0, 0)).save(tmp_path / "a.jpg")
    image, _ = decode(tmp_path / "a.jpg")
    assert image.shape == (8, 8, 3) and image.min() > 250


def test_what_is_transparent_lies_on_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (10, 20, 30, 0)).save(tmp_path / "a.png")
    Image.new("LA", (2, 2), (10, 0)).save(tmp_path / "b.png")
    Image.new("RGBA", (2, 2), (10, 20, 30, 255)).save(tmp_path / "c.png")
    assert decode(tmp_path / "a.png")[0][0, 0].tolist() == [255, 255, 255]
    assert decode(tmp_path / "b.png")[0].tolist() == [[255, 255]] * 2
    assert decode(tmp_path / "c.png")[0][0, 0].tolist() == [10, 20, 30] and decode(tmp_path / "c.png")[1] == set()


def test_orientation_is_followed_and_the_first_picture_counts(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (8, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert decode(tmp_path / "a.jpg")[0].shape[:2] == (8, 4)
    frames = [Image.new("L", (3, 3), v) for v in (40, 200)]
    frames[0].save(tmp_path / "b.gif", save_all=True, append_images=frames[1:])
    assert decode(tmp_path / "b.gif")[0].tolist() == [[40] * 3] * 3


def test_a_small_file_that_unpacks_to_gigabytes_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a" / "0.png", size=(6, 6))
    save(tmp_path / "a" / "bomb.png", size=(400, 400))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100 * 100)
    assert "bomb.png" in refused(tmp_path)
