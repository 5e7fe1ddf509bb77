"""Parquet files: columns, class names and splits, and one sentence for each thing that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from image_trees import refused
from sample_files import NAMES, hub_parquet, pixels, png, write_parquet

from ganherd.data.dataset import Dataset, load
from ganherd.recipe.schema import DataConfig

pytest.importorskip("pyarrow", reason="needs pyarrow (extra parquet)")


def read(source: object, **settings: object) -> Dataset:
    return load(DataConfig(source=str(source), **{"holdout": 0.0, **settings}))  # type: ignore[arg-type]


def test_a_table_of_the_hub_has_named_classes(tmp_path: Path) -> None:
    data = read(hub_parquet(tmp_path / "a.parquet", range(25), group=7))
    assert data.labels == NAMES and data.y.tolist() == [i % 3 for i in range(25)]
    assert np.array_equal(data.x, np.stack([pixels(png(i)) for i in range(25)]))
    assert "images of column 'image', labels of column 'label'" in data.notes


def test_splits_of_a_folder_are_those_of_the_hub(tmp_path: Path) -> None:
    for split, numbers in (("train", range(9)), ("test", range(9, 13)), ("validation", range(13, 15))):
        hub_parquet(tmp_path / "hub" / "data" / f"{split}-00000-of-00001.parquet", numbers)
    (tmp_path / "hub" / "README.md").write_text("about")
    data = read(tmp_path / "hub")
    assert (len(data.x), len(data.x_test)) == (9, 4)
    assert len(read(f"{tmp_path / 'hub'}#split=validation").x) == 2


def test_a_table_without_notes_of_the_hub_is_understood_by_types_and_names(tmp_path: Path) -> None:
    names = ["dog", "cat", None, "dog"]
    columns = {"id": [1, 2, 3, 4], "picture": [png(i) for i in range(4)], "category": names, "thumb": [b"x"] * 4}
    data = read(write_parquet(tmp_path / "a.parquet", columns))
    assert data.labels == ("cat", "dog") and data.y.tolist() == [1, 0, -1, 1]
    assert read(f"{tmp_path / 'a.parquet'}#label=id").labels == ("1", "2", "3", "4")
    assert read(f"{tmp_path / 'a.parquet'}#label=none").labels == ()


def test_columns_that_could_be_labels_are_offered(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": [png(i) for i in range(3)], "breed": ["a", "b", "a"]})
    assert any("a.parquet#label=NAME takes those of a column: breed" in note for note in read(path).notes)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("image=imgae", "has no column 'imgae'; did you mean 'image'?"),
        ("label=zzz", "has no column 'zzz'; its columns are image, label, boxes, other."),
        ("image=label", "the column 'label' of a.parquet is int64, and images are bytes of image files"),
        (
            "label=boxes",
            "the column 'boxes' of a.parquet is list<element: double>, and labels are whole numbers or names",
        ),
    ],
)
def test_a_wrong_column_is_one_sentence(tmp_path: Path, option: str, sentence: str) -> None:
    columns = {"image": [png(0)], "label": [0], "boxes": [[1.0]], "other": ["x"]}
    path = write_parquet(tmp_path / "a.parquet", columns)
    assert sentence in refused(lambda: read(f"{path}#{option}"))


def test_no_column_and_several_columns_of_images_are_refused(tmp_path: Path) -> None:
    none = write_parquet(tmp_path / "none.parquet", {"text": ["a"], "label": [1]})
    assert "has no column of images" in refused(lambda: read(none))
    several = write_parquet(tmp_path / "several.parquet", {"left": [png(0)], "right": [png(1)]})
    assert "several columns of images (left, right); choose one with several.parquet#image=left." in refused(
        lambda: read(several)
    )


def test_files_with_other_columns_are_named(tmp_path: Path) -> None:
    hub_parquet(tmp_path / "t" / "a.parquet", range(4))
    write_parquet(tmp_path / "t" / "b.parquet", {"image": [png(0)]})
    assert "b.parquet has no column 'label', unlike a.parquet" in refused(lambda: read(tmp_path / "t"))


def test_a_truncated_or_damaged_table_is_named(tmp_path: Path) -> None:
    path = hub_parquet(tmp_path / "a.parquet", range(40), group=10)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:3], b"", content[:600] + b"\xff" * 200 + content[800:]):
        path.write_bytes(damaged)
        message = refused(lambda: read(path))
        assert str(path) in message or "a.parquet" in message


def test_mixed_sizes_follow_the_rule_of_folders(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": [png(0), png(1, 9, 6)]})
    message = refused(lambda: read(path))
    assert "a.parquet, row 0 is 6 × 6 and a.parquet, row 1 is 9 × 6" in message and "data.size=64" in message
    assert read(path, size=4).x.shape == (2, 3, 4, 4)


def test_rows_without_an_image_or_with_a_path_are_listed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(7))
    images = [{"bytes": png(0), "path": None}, {"bytes": None, "path": str(secret)}, {"bytes": None, "path": None}]
    path = write_parquet(tmp_path / "a.parquet", {"image": images})
    message = refused(lambda: read(path))
    assert "row 1 (it names a file and holds no image)" in message and "row 2 (it holds no image)" in message
    assert len(read(path, bad_images="skip").x) == 1


def test_a_label_beyond_the_names_is_refused(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a", "b"]}}
    path = write_parquet(tmp_path / "a.parquet", {"image": [png(0), png(1)], "label": [0, 5]}, hub=features)
    assert "has label 5, but `labels` names 2 classes" in refused(lambda: read(path))


def test_without_pyarrow_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub_parquet(tmp_path / "a.parquet", range(4))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert refused(lambda: read(path)) == (
        "reading a.parquet needs the package pyarrow: run `pip install 'ganherd[parquet]'`."
    )
