"""WebDataset tars: samples, labels and options, and one sentence for each thing that is wrong."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_trees import refused
from sample_files import labelled, pixels, png, write_tar

from ganherd.data.dataset import Dataset, load
from ganherd.recipe.schema import DataConfig


def read(source: object, **settings: object) -> Dataset:
    return load(DataConfig(source=str(source), **{"holdout": 0.0, **settings}))  # type: ignore[arg-type]


def test_a_tar_is_read_with_the_labels_of_its_cls_files(tmp_path: Path) -> None:
    data = read(write_tar(tmp_path / "a.tar", labelled(range(12))))
    assert data.labels == ("0", "1", "2") and data.y.tolist() == [i % 3 for i in range(12)]
    assert np.array_equal(data.x, np.stack([pixels(png(i)) for i in range(12)]))


def test_a_pattern_and_a_folder_of_tars_give_the_same_data(tmp_path: Path) -> None:
    for k in range(3):
        write_tar(tmp_path / "tars" / f"part-{k:02}.tar", labelled(range(10 * k, 10 * k + 10)))
    (tmp_path / "tars" / "README.md").write_text("about")
    by_pattern, by_folder = read(tmp_path / "tars" / "part-{00..02}.tar"), read(tmp_path / "tars")
    assert by_pattern.digest == by_folder.digest and len(by_pattern.x) == 30
    assert len(read(tmp_path / "tars" / "part-{00,02}.tar").x) == 20


@pytest.mark.parametrize("folder", ["train-{}.tar", "{}/images.tar"])
def test_train_and_test_tars_stay_apart(tmp_path: Path, folder: str) -> None:
    for split, numbers in (("train", range(10)), ("val", range(10, 14))):
        name = f"{split}-00.tar" if folder.startswith("train") else folder.format(split)
        write_tar(tmp_path / "tars" / name, labelled(numbers))
    data = read(tmp_path / "tars")
    assert (len(data.x), len(data.x_test)) == (10, 4) and data.split == "as the source has it"
    assert len(read(f"{tmp_path / 'tars'}#split=val").x) == 4
    assert refused(lambda: read(f"{tmp_path / 'tars'}#split=extra")) == (
        "tars has no split 'extra'; its splits are: train, val."
    )


@pytest.mark.parametrize(
    ("extension", "texts", "labels", "y"),
    [
        ("txt", ["dog", "cat\n", "dog"], ("cat", "dog"), [1, 0, 1]),
        ("cls", ["7", "3", "7"], ("3", "7"), [1, 0, 1]),
        ("json", [json.dumps({"label": name, "other": 1}) for name in ("x", "y", "x")], ("x", "y"), [0, 1, 0]),
        ("json", ["1", "0", "1"], ("0", "1"), [1, 0, 1]),
        ("json", [json.dumps({"size": 4})] * 3, (), [-1, -1, -1]),
    ],
)
def test_labels_come_from_cls_json_or_txt(
    tmp_path: Path, extension: str, texts: list[str], labels: tuple[str, ...], y: list[int]
) -> None:
    members = []
    for i, text in enumerate(texts):
        members += [(f"a/{i}.png", png(i)), (f"a/{i}.{extension}", text.encode())]
    data = read(write_tar(tmp_path / "a.tar", members))
    assert data.labels == labels and data.y.tolist() == y


def test_options_choose_the_image_and_a_key_of_the_json(tmp_path: Path) -> None:
    members = []
    for i in range(6):
        facts = json.dumps({"label": "all", "breed": f"breed {i % 2}"}).encode()
        members += [(f"{i}.left.png", png(i)), (f"{i}.right.png", png(i + 50)), (f"{i}.json", facts)]
    path = write_tar(tmp_path / "a.tar", members)
    assert "has several images (left.png, right.png); choose one with a.tar#image=left.png." in refused(
        lambda: read(path)
    )
    data = read(f"{path}#image=right.png,label=breed")
    assert data.labels == ("breed 0", "breed 1") and np.array_equal(data.x[2], pixels(png(52)))
    assert read(f"{path}#image=right.png,label=none").labels == ()
    assert "0.right.png (its .json has no 'bread')" in refused(lambda: read(f"{path}#image=right.png,label=bread"))


def test_captions_are_no_classes(tmp_path: Path) -> None:
    members = []
    for i in range(30):
        members += [(f"{i}.png", png(i)), (f"{i}.txt", f"a photo of thing {i}".encode())]
    path = write_tar(tmp_path / "a.tar", members)
    data = read(path)
    assert data.labels == () and any("captions" in note for note in data.notes)
    assert len(read(f"{path}#label=txt").labels) == 30


@pytest.mark.parametrize("cut", [100, 512 + 60, 700, 1024, 1536, 3000])
def test_a_truncated_tar_is_named(tmp_path: Path, cut: int) -> None:
    path = write_tar(tmp_path / "a.tar", labelled(range(8)))
    content = path.read_bytes()
    end = len(labelled(range(8))) * 1024  # a header and a block for each file
    path.write_bytes(content[: end - cut])
    message = refused(lambda: read(path))
    assert str(path) in message and "truncated" in message and "get it again" in message


def test_a_damaged_header_is_named_and_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", labelled(range(8)))
    content = bytearray(path.read_bytes())
    content[4096:4110] = b"\xff" * 14
    path.write_bytes(content)
    assert "damaged or truncated at byte 4,096" in refused(lambda: read(path))


def test_mixed_sizes_follow_the_rule_of_folders(tmp_path: Path) -> None:
    members = [("a.png", png(0)), ("b.png", png(1, 9, 6)), ("c.png", png(2, colour=False))]
    path = write_tar(tmp_path / "a.tar", members)
    message = refused(lambda: read(path))
    assert "a.tar/a.png is 6 × 6 and a.tar/b.png is 9 × 6" in message and "data.size=64" in message
    assert read(path, size=5).x.shape == (3, 3, 5, 5)


def test_what_is_no_image_is_refused_or_skipped(tmp_path: Path) -> None:
    members = [
        *labelled(range(3)),
        ("7.png", b"no image"),
        ("8.cls", b"1"),
        ("9.png", png(9)),
        ("9.json", b"[" * 100_000),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    message = refused(lambda: read(path))
    assert "3 files in a.tar" in message and "a.tar/7.png (no known image format)" in message
    assert "a.tar/8.… (no image: it has cls)" in message
    assert len(read(path, bad_images="skip").x) == 3


def test_a_huge_image_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 30)
    path = write_tar(tmp_path / "a.tar", labelled(range(3)))
    assert "exceeds limit of 30 pixels" in refused(lambda: read(path))


def test_names_that_climb_out_links_and_sparse_files_write_and_read_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.tar"
    write_tar(path, [("../../out.png", png(0)), ("/abs.png", png(1)), ("c.png", png(2))])
    with tarfile.open(path, "a") as archive:
        for kind, name in (
            (tarfile.SYMTYPE, "link.png"),
            (tarfile.LNKTYPE, "hard.png"),
            (tarfile.FIFOTYPE, "pipe.png"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    before = sorted(tmp_path.rglob("*"))
    assert len(read(path).x) == 3
    assert sorted(tmp_path.rglob("*")) == before


class Bomb:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def test_pickles_of_a_tar_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    members = []
    for i in range(3):
        members += [(f"{i}.png", png(i)), (f"{i}.pkl", pickle.dumps(Bomb())), (f"{i}.pyd", pickle.dumps(Bomb()))]
    path = write_tar(tmp_path / "a.tar", members)
    assert read(path).labels == () and len(read(f"{path}#label=pkl").labels) == 1
    assert "no known image format" in refused(lambda: read(f"{path}#image=pyd"))
    assert not Path("executed").exists()


def test_missing_and_strange_files_are_one_sentence(tmp_path: Path) -> None:
    write_tar(tmp_path / "a-0.tar", labelled(range(3)))
    assert f"there is no file {tmp_path / 'a-1.tar'}" in refused(lambda: read(tmp_path / "a-{0..1}.tar"))
    assert "names more than 100,000 files" in refused(lambda: read(tmp_path / "a-{0..999999999}.tar"))
    write_tar(tmp_path / "empty.tar", [])
    assert "empty.tar holds no files" in refused(lambda: read(tmp_path / "empty.tar"))
    (tmp_path / "noise.tar").write_bytes(bytes(range(256)) * 40)
    assert str(tmp_path / "noise.tar") in refused(lambda: read(tmp_path / "noise.tar"))
    assert "did you mean 'label'?" in refused(lambda: read(f"{tmp_path / 'a-0.tar'}#lable=cls"))


def test_a_folder_of_images_with_an_archive_stays_one(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(3):
            (root / name / f"{i}.png").write_bytes(png(i + 10 * len(name)))
    write_tar(root / "backup.tar", labelled(range(3)))
    assert read(root, bad_images="skip").labels == ("cat", "dog")
