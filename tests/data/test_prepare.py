"""`ganherd data prepare`: every kind of file has its meaning or its reason, and a kill costs no more than a unit."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from commands import Answer, cli  # noqa: F401
from ganherd.data import prepare as preparing
from ganherd.data import prepare_unit
from ganherd.data.folder import decode
from ganherd.data.prepare import prepare
from ganherd.data.source import load
from ganherd.errors import Interrupted, UserError
from ganherd.recipe import Data
from trees import facts, shards, tree


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


# --- what comes out -------------------------------------------------------------------------------------------------


def test_prepared_rows_are_those_of_the_folder(tmp_path: Path) -> None:
    tree(tmp_path / "tree")
    prepare(tmp_path / "tree", tmp_path / "out", 6, jobs=2)
    for holdout in (0.0, 0.3):
        plain = load(Data(source=str(tmp_path / "tree"), size=6, holdout=holdout))
        ours = load(Data(source=str(tmp_path / "out"), holdout=holdout))
        assert ours.labels == plain.labels and ours.shape == plain.shape == (3, 6, 6)
        for mine, theirs in ((ours.x, plain.x), (ours.y, plain.y), (ours.x_test, plain.x_test)):
            assert np.array_equal(np.asarray(mine), theirs)


def test_any_number_of_processes_and_units_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "tree")
    prepare(tmp_path / "tree", tmp_path / "one", 6, "random", seed=3, jobs=1)
    monkeypatch.setattr(prepare_unit, "UNIT", 4)
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
    data = load(Data(source=str(tmp_path / "out")))
    assert np.bincount(data.y).tolist() == [5, 4] and np.bincount(data.y_test).tolist() == [2, 3]
    assert np.array_equal(data.x_test[:], load(Data(source=str(tmp_path / "tree"), size=6)).x_test)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    tree(tmp_path, {"flat": 7})
    prepare(tmp_path / "flat", tmp_path / "out", 6, jobs=1)
    data = load(Data(source=str(tmp_path / "out"), holdout=0))
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
    assert "floats" in why["odd/bad-float.tif"] and why["odd/bad-pipe.png"] == "it is no file"
    x = np.asarray(load(Data(source=str(root / "out"), holdout=0)).x)[: index.shards[index.labels.index("odd")].count]
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
    assert len(load(Data(source=str(tmp_path / "out"), holdout=0)).x[:]) == 3
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

    monkeypatch.setattr(prepare_unit, "decode", trap)
    index = prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=2)
    assert [shard.count for shard in index.shards] == [5, 5] and facts(index).keys() == {"a/03.png"}
    assert "crashes" in facts(index)["a/03.png"]


# --- killed and restarted -------------------------------------------------------------------------------------------


class Inline:
    """A pool that works at once, in this process."""

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shutdown(self, cancel_futures: bool) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


class Killed(BaseException):
    pass


def test_killed_at_any_moment_it_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state on disk that a kill can leave lies before or after a rename; each of them is tried."""
    tree(tmp_path / "tree", {"a": 5, "b": 3})
    tree(tmp_path / "tree", {"grey": 3}, colour=False)
    prepare(tmp_path / "tree", tmp_path / "whole", 4, jobs=1)
    monkeypatch.setattr(prepare_unit, "UNIT", 2)
    monkeypatch.setattr(preparing, "_pool", lambda jobs: Inline())
    read: list[str] = []

    def noted(path: Path, *rest: Any, **more: Any) -> Any:
        read.append(str(path))
        return decode(path, *rest, **more)

    monkeypatch.setattr(prepare_unit, "decode", noted)
    rename, moments = Path.replace, 0
    for moment in range(100):
        out, left = tmp_path / f"out-{moment}", moment
        read.clear()

        def deadly(path: Path, target: Path) -> Any:
            nonlocal left
            if left % 2 == 0 and left < 2:
                raise Killed
            found = rename(path, target)
            if left == 1:
                raise Killed
            left -= 2
            return found

        try:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", deadly)
                prepare(tmp_path / "tree", out, 4, jobs=1)
            break
        except Killed:
            moments += 1
        index = prepare(tmp_path / "tree", out, 4, jobs=1)
        assert shards(out) == shards(tmp_path / "whole") and not (out / "parts").exists()
        assert [s.count for s in index.shards] == [5, 3, 3]
        assert len(read) <= 11 + 2, "no more than the unit at hand is read again"
    assert moments > 20


SLOW = """
import sys, threading
from pathlib import Path
from ganherd.data import prepare, prepare_unit
prepare_unit.UNIT = 2
make = prepare_unit.make_part
def first_four(out, *rest):
    if len(list((out / "parts").glob("*.npz"))) >= 4:
        print("full", flush=True)
        threading.Event().wait()  # for ever: it is to be killed
    make(out, *rest)
prepare_unit.make_part = first_four
prepare.prepare(Path(sys.argv[1]), Path(sys.argv[2]), 4, jobs=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_kill_9_loses_nothing_that_was_done_and_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "tree", {"a": 20, "b": 10})
    words = [sys.executable, "-c", SLOW, str(tmp_path / "tree"), str(tmp_path / "out")]
    source = str(Path(prepare_unit.__file__).parents[2])
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() and process.stdout.readline()  # both workers are at it
        workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
    done = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "parts").glob("*.npz")}
    assert len(done) >= 4 and "run the same" in refused(lambda: load(Data(source=str(tmp_path / "out"))))
    while any(_alive(pid) for pid in workers):
        time.sleep(0.01)
    read: list[str] = []
    monkeypatch.setattr(prepare_unit, "UNIT", 2)
    monkeypatch.setattr(preparing, "_pool", lambda jobs: Inline())
    monkeypatch.setattr(prepare_unit, "decode", lambda path, *a, **k: read.append(path.name) or decode(path, *a, **k))
    seen: list[tuple[int, int]] = []
    prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=2, progress=lambda *at: seen.append(at))
    assert seen[0] == (2 * len(done), 30) and seen[-1] == (30, 30) and len(read) == 30 - 2 * len(done)
    monkeypatch.undo()
    prepare(tmp_path / "tree", tmp_path / "whole", 4, jobs=1)
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_is_answered_with_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "tree", {"a": 10})
    monkeypatch.setattr(prepare_unit, "UNIT", 2)

    def stop(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"stopped after (4|6|8|10) of 10 files; the same command goes on"):
        prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1, progress=stop)
    assert prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1).shards[0].count == 10


def test_settings_are_not_mixed(tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3})
    tree(tmp_path / "twin", {"a": 3})
    out = tmp_path / "out"
    prepare(tmp_path / "tree", out, 4, jobs=1)
    before = shards(out)
    prepare(tmp_path / "tree", out, 4, jobs=1)  # the same again is no work
    assert "--size 4, not 5" in refused(lambda: prepare(tmp_path / "tree", out, 5))
    assert "--crop centre, not random" in refused(lambda: prepare(tmp_path / "tree", out, 4, "random"))
    assert "the folder" in refused(lambda: prepare(tmp_path / "twin", out, 4))
    assert "--crop random" in refused(lambda: prepare(tmp_path / "tree", out, 4, seed=1))
    (tmp_path / "tree" / "a" / "new.png").write_bytes((tmp_path / "tree" / "a" / "00.png").read_bytes())
    assert "changed since" in refused(lambda: prepare(tmp_path / "tree", out, 4))
    assert shards(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    assert "not a prepared folder" in refused(lambda: prepare(tmp_path / "tree", tmp_path / "mine", 4))
    assert "no folder" in refused(lambda: prepare(tmp_path / "nowhere", tmp_path / "other", 4))


def test_two_processes_do_not_prepare_one_folder(tmp_path: Path) -> None:
    tree(tmp_path / "tree", {"a": 3})
    (tmp_path / "out" / "parts").mkdir(parents=True)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    words = [sys.executable, "-c", hold, str(tmp_path / "out" / "parts" / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        assert "another process" in refused(lambda: prepare(tmp_path / "tree", tmp_path / "out", 4))
        holder.stdin.close()
    assert prepare(tmp_path / "tree", tmp_path / "out", 4, jobs=1).shards[0].count == 3


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prepares_and_says_what(cli: Callable[..., Answer], tmp_path: Path) -> None:  # noqa: F811
    tree(tmp_path / "tree", {"a": 3, "b": 2})
    (tmp_path / "tree" / "a" / "bad.jpg").write_text("x")
    answer = cli("data", "prepare", tmp_path / "tree", "-o", tmp_path / "out", "--size", 8, "--jobs", 1)
    assert answer.code == 0 and "5 images of 3×8×8, 2 classes" in answer.out
    assert "bad.jpg" in answer.err and "index.json" in answer.err
    answer = cli("data", "prepare", tmp_path / "tree", "-o", tmp_path / "out", "--size", 8, "--json")
    assert json.loads(answer.out)["classes"] == {"a": 3, "b": 2} and answer.err == ""
    answer = cli("data", "inspect", tmp_path / "out", "--json", "-o", tmp_path / "sheet.png")
    assert json.loads(answer.out)["shape"] == [3, 8, 8] and (tmp_path / "sheet.png").stat().st_size > 1000
    assert "--size 8, not 9" in cli("data", "prepare", tmp_path / "tree", "-o", tmp_path / "out", "--size", 9).sentence
    assert "middle" in cli("data", "prepare", tmp_path / "tree", "-o", "x", "--crop", "middle").sentence
    assert "no folder" in cli("data", "prepare", "nowhere", "-o", "x").sentence
