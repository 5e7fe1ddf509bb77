"""`ganherd data prepare`: every kind of file has its meaning or its reason."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_trees import facts, refused, shards, tree
from PIL import Image
from run_fixtures import Answer

from ganherd.data.dataset import load
from ganherd.data.readers import class_folders
from ganherd.data.readers.class_folders import decode
from ganherd.data.shards import worker
from ganherd.data.shards.prepare import prepare
from ganherd.recipe.schema import DataConfig


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


# --- what comes out -------------------------------------------------------------------------------------------------


def test_prepared_rows_are_those_of_the_folder(tmp_path: Path) -> None:
    tree(tmp_path / "tree")
    prepare(tmp_path / "tree", tmp_path / "out", 6, jobs=2)
    for holdout in (0.0, 0.3):
        plain = load(DataConfig(source=str(tmp_path / "tree"), size=6, holdout=holdout))
        ours = load(DataConfig(source=str(tmp_path / "out"), holdout=holdout))
        assert ours.labels == plain.labels and ours.shape == plain.shape == (3, 6, 6)
        for mine, theirs in ((ours.x, plain.x), (ours.y, plain.y), (ours.x_test, plain.x_test)):
            assert np.array_equal(np.asarray(mine), theirs)


def test_any_number_of_processes_and_units_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "tree")
    prepare(tmp_path / "tree", tmp_path / "one", 6, "random", seed=3, jobs=1)
    monkeypatch.setattr(worker, "UNIT", 4)
    prepare(tmp_path / "tree", tmp_path / "other", 6, "random", seed=3, jobs=3)
    assert shards(tmp_path / "one") == shards(tmp_path / "other")
    prepare(tmp_path / "tree", tmp_path / "seed", 6, "random", seed=4, jobs=1)
    assert shards(tmp_path / "one") != shards(tmp_path / "seed")


def test_a_random_square_lies_anywhere_along_the_longer_side(tmp_path: Path) -> None:
    wide = Image.fromarray(np.repeat(np.arange(200, dtype=np.uint8)[None], 10, axis=0))  # dark left, bright right
    for i in range(30):
        save(tmp_path / "tree" / "a" / f"{i}.png", wide)
    prepare(tmp_path / "tree", tmp_path / "out", 4, "random", jobs=1)
    means = np.load(tmp_path / "out" / "shards" / "00000.npy").mean((1, 2, 3))
    assert means.min() < 60 and means.max() > 140 and len(set(means.tolist())) > 20


def test_large_jpegs_are_decoded_small_and_hardly_differ(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rough = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
    path = save(tmp_path / "a.jpg", rough.resize((301, 215), Image.Resampling.BICUBIC), quality=95)
    whole, fast = (decode(path, 16, draft=draft)[0].astype(int) for draft in (False, True))
    assert not np.array_equal(whole, fast)
    assert abs(whole - fast).mean() < 1 and abs(whole - fast).max() < 12


def test_train_and_test_stay_apart(tmp_path: Path) -> None:
    tree(tmp_path / "tree" / "train", {"a": 5, "b": 4})
    tree(tmp_path / "tree" / "val", {"a": 2, "b": 3})
    prepare(tmp_path / "tree", tmp_path / "out", 6, jobs=1)
    data = load(DataConfig(source=str(tmp_path / "out")))
    assert np.bincount(data.y).tolist() == [5, 4] and np.bincount(data.y_test).tolist() == [2, 3]
    assert np.array_equal(data.x_test[:], load(DataConfig(source=str(tmp_path / "tree"), size=6)).x_test)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    tree(tmp_path, {"flat": 7})
    prepare(tmp_path / "flat", tmp_path / "out", 6, jobs=1)
    data = load(DataConfig(source=str(tmp_path / "out"), holdout=0))
    assert data.labels == () and len(data.x) == 7 and (data.y == -1).all()


# --- what comes in --------------------------------------------------------------------------------------------------


def test_every_kind_of_file_is_handled_or_named(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    odd, grey = root / "odd", Image.new("L", (9, 9), 100)
    save(odd / "01-grey.png", grey)
    save(odd / "02-sixteen.png", Image.fromarray(np.full((9, 9), 257 * 30, np.uint16)))
    save(odd / "03-cmyk.jpg", Image.new("CMYK", (9, 9), (0, 0, 0, 0)))
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([0, 0, 0, 200, 0, 0])
    save(odd / "04-palette.png", palette)
    save(odd / "05-one-pixel.png", Image.new("RGB", (1, 1), (1, 2, 3)))
    save(odd / "06-moving.gif", grey, save_all=True, append_images=[Image.new("L", (9, 9), 7)])
    save(odd / "07-alpha.png", Image.new("RGBA", (9, 9), (10, 20, 30, 0)))
    save(odd / "08-no-extension", grey, format="PNG")
    save(odd / "09-猫-кот-🐈.png", grey)
    save(odd / "deeper" / "10.png", grey)
    turned = Image.new("RGB", (8, 8))
    turned.paste((255, 255, 255), (0, 0, 8, 4))  # bright above; noted as turned by a half
    exif = Image.Exif()
    exif[0x0112] = 3
    save(odd / "z-turned.png", turned, exif=exif)
    whole = save(tmp_path / "whole.png", Image.effect_noise((64, 64), 50)).read_bytes()
    (odd / "bad-cut.png").write_bytes(whole[: len(whole) // 2])
    (odd / "bad-text.jpg").write_text("hello")
    (odd / "bad-empty.png").write_bytes(b"")
    save(odd / "bad-float.tif", Image.fromarray(np.ones((4, 4), np.float32)))
    (odd / "bad-channels.tif").write_bytes(tiff(channels=5))
    (odd / "bad-link.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(odd / "bad-pipe.png")
    (odd / ".hidden").write_text("x")
    (odd / "Thumbs.db").write_text("x")
    (odd / "round").symlink_to(odd)
    (odd / "bad-ring").symlink_to(odd / "bad-ring")
    (root / "loop").symlink_to(root)
    (root / "beside.txt").write_text("about")
    for name in ("日本", "кошки"):
        save(root / name / "0.png", grey)
    index = prepare(root, root / "out", 8, jobs=2)  # what it makes lies inside, and is no class
    assert sorted(index.labels) == sorted(["odd", "日本", "кошки"]) and index.channels == 3
    why = facts(index)
    assert {Path(name).name for name in why} == {
        *(f"bad-{name}" for name in ("cut.png", "text.jpg", "empty.png", "float.tif", "link.png", "pipe.png", "ring")),
        "bad-channels.tif",
        "beside.txt",
    }
    assert "truncated" in why["odd/bad-cut.png"] and why["odd/bad-text.jpg"] == "no known image format"
    assert "floating-point" in why["odd/bad-float.tif"] and why["odd/bad-pipe.png"] == "it is no file"
    x = np.asarray(load(DataConfig(source=str(root / "out"), holdout=0)).x)[
        : index.shards[index.labels.index("odd")].count
    ]
    first = [tuple(image[:, 0, 0].tolist()) for image in x]
    expected = [
        (100,) * 3,
        (30,) * 3,
        None,
        (200, 0, 0),
        (1, 2, 3),
        (100,) * 3,
        (255,) * 3,
        *[(100,) * 3] * 3,
        (0,) * 3,
    ]
    assert [a for a, b in zip(first, expected, strict=True) if b is not None and a != b] == []
    assert first[2][0] > 250 and x[-1, 0, -1, 0] == 255
    assert index.converted["16-bit images scaled to 8 bits"] == 1 and any("grey" in key for key in index.converted)


def tiff(channels: int, side: int = 4) -> bytes:
    """A plain image of bytes with so many channels, as instruments write them."""
    pixels = bytes(side * side * channels)
    shorts = {256: side, 257: side, 258: 8, 259: 1, 262: 2, 273: 8, 277: channels, 278: side, 279: len(pixels)}
    tags = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in shorts.items())
    head = b"II*\0" + struct.pack("<I", 8 + len(pixels))
    return head + pixels + struct.pack("<H", len(shorts)) + tags + struct.pack("<I", 0)


def test_names_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "tree")
    os.makedirs(root + b"/caf\xe9")
    Image.new("L", (4, 4)).save(os.fsdecode(root + b"/caf\xe9/\xff.png"))
    with open(root + b"/caf\xe9/\xfe.png", "w") as file:
        file.write("x")
    index = prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1)
    assert index.labels == ("caf?",) and index.shards[0].count == 1 and list(facts(index)) == ["caf?/?.png"]


def test_grey_stays_grey_only_where_all_classes_are(tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3, "b": 2}, colour=False)
    assert prepare(tmp_path / "tree", tmp_path / "grey", 4, jobs=1).shape == (1, 4, 4)
    tree(tmp_path / "tree", {"c": 1})
    index = prepare(tmp_path / "tree", tmp_path / "colour", 4, jobs=1)
    assert index.shape == (3, 4, 4) and index.converted["grey images became RGB, like the others"] == 5
    grey, colour = (np.load(tmp_path / name / "shards" / "00000.npy") for name in ("grey", "colour"))
    assert np.array_equal(np.repeat(grey, 3, axis=1), colour)


def test_an_empty_class_is_named_before_anything_is_done(tmp_path: Path) -> None:
    tree(tmp_path / "tree")
    (tmp_path / "tree" / "dog").mkdir()
    sentence = refused(lambda: prepare(tmp_path / "tree", tmp_path / "out", 6))
    assert str(tmp_path / "tree" / "dog") in sentence and "empty" in sentence
    assert not (tmp_path / "out" / "shards").exists()


def test_a_class_of_which_nothing_can_be_read_is_no_end(tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3})
    (tmp_path / "tree" / "b").mkdir()
    (tmp_path / "tree" / "b" / "x.png").write_text("no image")
    index = prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1)
    assert [shard.count for shard in index.shards] == [3, 0] and "b/x.png" in facts(index)
    assert len(load(DataConfig(source=str(tmp_path / "out"), holdout=0)).x[:]) == 3
    (tmp_path / "bad" / "b").mkdir(parents=True)
    (tmp_path / "bad" / "b" / "x.png").write_text("no image")
    assert "no image that can be read" in refused(lambda: prepare(tmp_path / "bad", tmp_path / "none", 4, jobs=1))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone, and inherit the trap")
def test_a_file_that_crashes_its_reader_is_found_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "tree", {"a": 6, "b": 5})

    def trap(path: Path, *rest: Any, **more: Any) -> Any:
        if path.parts[-2:] == ("a", "03.png"):
            os._exit(11)  # as a decoder in C may
        return decode(path, *rest, **more)

    monkeypatch.setattr(class_folders, "decode", trap)
    index = prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=2)
    assert [shard.count for shard in index.shards] == [5, 5] and facts(index).keys() == {"a/03.png"}
    assert "crashes" in facts(index)["a/03.png"]


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prepares_and_says_what(cli: Callable[..., Answer], tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3, "b": 2})
    (tmp_path / "tree" / "a" / "bad.jpg").write_text("x")
    answer = cli("data", "prepare", tmp_path / "tree", "-o", tmp_path / "out", "--size", 8, "--jobs", 1)
    assert answer.code == 0 and "5 images of 3×8×8, 2 classes" in answer.out
    assert answer.err.count("bad.jpg") == 1
    answer = cli("data", "prepare", tmp_path / "tree", "-o", tmp_path / "out", "--size", 8, "--json")
    assert json.loads(answer.out)["classes"] == {"a": 3, "b": 2} and answer.err == ""
    answer = cli("data", "inspect", tmp_path / "out", "--json", "-o", tmp_path / "sheet.png")
    assert json.loads(answer.out)["shape"] == [3, 8, 8] and (tmp_path / "sheet.png").stat().st_size > 1000
    assert "--size 8, not 9" in cli("data", "prepare", tmp_path / "tree", "-o", tmp_path / "out", "--size", 9).sentence
    assert "middle" in cli("data", "prepare", tmp_path / "tree", "-o", "x", "--crop", "middle").sentence
    assert "no folder" in cli("data", "prepare", "nowhere", "-o", "x").sentence
    assert cli("data", "prepare", tmp_path / "tree", "--size", 8, "--jobs", 1).out.startswith("tree-8: 5 images")
