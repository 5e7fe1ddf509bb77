"""`ganherd data prepare` of tars and tables: the same rows as read directly, resumable, and nothing lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_trees import facts, refused, shards
from run_fixtures import Answer
from sample_files import NAMES, hub_parquet, labelled, png, write_tar

from ganherd.data.dataset import Dataset, load
from ganherd.data.readers import class_folders
from ganherd.data.samples import image_sample, image_tables, tar_files
from ganherd.data.samples.open_samples import open_samples
from ganherd.data.shards import prepare_samples as preparing
from ganherd.data.shards import sample_parts
from ganherd.data.shards.prepare_samples import prepare_samples
from ganherd.data.shards.shards import Index
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import Interrupted


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (image_sample, tar_files, image_tables):
        monkeypatch.setattr(module, "UNIT", 4)


def prepare(source: Path | str, out: Path, size: int = 6, **options: Any) -> Index:
    return prepare_samples(open_samples(str(source)), str(source), out, size, **{"jobs": 1, **options})


def tars(root: Path, count: int = 30) -> Path:
    for k in range(2):
        numbers = range(k * count // 2, (k + 1) * count // 2)
        write_tar(root / f"part-{k}.tar", labelled(numbers, width=9, colour=k > 0))
    return root


def by_class(data: Dataset) -> list[Any]:
    return [np.asarray(data.x)[data.y == k].tolist() for k in range(len(data.labels))]


def test_prepared_rows_are_those_of_the_tars(tmp_path: Path) -> None:
    source = tars(tmp_path / "tars")
    index = prepare(source, tmp_path / "out", jobs=2)
    plain, ours = load(DataConfig(source=str(source), size=6)), load(DataConfig(source=str(tmp_path / "out")))
    assert ours.labels == plain.labels == ("0", "1", "2") and ours.shape == plain.shape == (3, 6, 6)
    assert by_class(ours) == by_class(plain) and np.bincount(ours.y_test).tolist() == np.bincount(plain.y_test).tolist()
    assert index.converted["grey images became RGB, like the others"] == 15
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.json", "shards"]


def test_prepared_rows_are_those_of_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow (extra parquet)")
    hub_parquet(tmp_path / "t" / "train-0.parquet", range(23), group=9)
    hub_parquet(tmp_path / "t" / "test-0.parquet", range(23, 30), group=9)
    prepare(tmp_path / "t", tmp_path / "out")
    plain, ours = load(DataConfig(source=str(tmp_path / "t"))), load(DataConfig(source=str(tmp_path / "out")))
    assert ours.labels == NAMES and by_class(ours) == by_class(plain)
    assert np.array_equal(np.sort(np.asarray(ours.x_test), axis=0), np.sort(plain.x_test, axis=0))


def test_any_number_of_processes_and_units_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tars(tmp_path / "tars")
    prepare(source, tmp_path / "one", crop="random", seed=3)
    monkeypatch.setattr(tar_files, "UNIT", 7)
    prepare(source, tmp_path / "other", crop="random", seed=3, jobs=2)
    assert shards(tmp_path / "one") == shards(tmp_path / "other")
    prepare(source, tmp_path / "seed", crop="random", seed=4)
    assert shards(tmp_path / "one") != shards(tmp_path / "seed")


def test_an_interrupted_call_continues_and_reads_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, seen = tars(tmp_path / "tars"), []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="the same command continues"):
        prepare(source, tmp_path / "out", progress=stop)
    assert "not prepared to its end" in refused(lambda: load(DataConfig(source=str(tmp_path / "out"))))
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "parts").glob("*.npz")}
    assert len(parts) >= 3 and seen[0] == (0, 30)
    assert "begun with --size 6, not 8" in refused(lambda: prepare(source, tmp_path / "out", 8))
    times: dict[Path, int] = {}
    join = sample_parts.join_parts

    def watched(*words: Any) -> Index:
        times.update({path: path.stat().st_mtime_ns for path in parts})
        return join(*words)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "join_parts", watched)
        prepare(source, tmp_path / "out")
    prepare(source, tmp_path / "whole")
    assert times == parts and shards(tmp_path / "out") == shards(tmp_path / "whole")


def test_a_join_that_was_killed_and_a_damaged_part_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tars(tmp_path / "tars")
    with monkeypatch.context() as patch:
        patch.setattr(sample_parts, "write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Interrupted):
            prepare(source, tmp_path / "out")
    part = sorted((tmp_path / "out" / "parts").glob("*-*.npz"))[1]
    part.write_bytes(part.read_bytes()[:100])
    prepare(source, tmp_path / "out")
    prepare(source, tmp_path / "whole")
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


def test_what_cannot_be_read_is_skipped_and_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [*labelled(range(5)), ("7.png", b"no image"), ("8.cls", b"0")])
    index = prepare(tmp_path / "a.tar", tmp_path / "out")
    assert facts(index) == {"a.tar/7.png": "no known image format", "a.tar/8.…": "no image: it has cls"}
    assert sum(shard.count for shard in index.shards) == 5
    write_tar(tmp_path / "b.tar", [("7.png", b"no image")])
    assert "holds no image to train on that can be read: b.tar/7.png" in refused(
        lambda: prepare(tmp_path / "b.tar", tmp_path / "none")
    )


def test_a_sample_that_kills_its_reader_is_found_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, fatal, decode = tars(tmp_path / "tars"), png(17, width=9), class_folders.decode

    def dying(file: Any, *words: Any, **options: Any) -> Any:
        if file.getvalue() == fatal:
            os._exit(1)
        return decode(file, *words, **options)

    monkeypatch.setattr(class_folders, "decode", dying)
    index = prepare(source, tmp_path / "out")
    assert facts(index) == {"part-1.tar, sample 2": "the process that reads it crashes"}
    assert sum(shard.count for shard in index.shards) == 29


def test_a_truncated_file_loses_nothing(tmp_path: Path) -> None:
    source = tars(tmp_path / "tars")
    broken = source / "part-1.tar"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:5000])
    assert "part-1.tar" in refused(lambda: prepare(source, tmp_path / "out"))
    broken.write_bytes(whole)
    assert sum(shard.count for shard in prepare(source, tmp_path / "out").shards) == 30


def test_changed_files_are_refused(tmp_path: Path) -> None:
    source = tars(tmp_path / "tars")
    first = prepare(source, tmp_path / "out")
    assert prepare(source, tmp_path / "out") == first
    write_tar(source / "part-1.tar", labelled(range(40, 70)))
    assert "have changed since" in refused(lambda: prepare(source, tmp_path / "out"))


def test_the_command_prepares_and_trains_from_it(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tars(tmp_path / "tars")
    answer: Answer = cli("data", "prepare", "tars/part-{0..1}.tar", "--size", "8", "--json")
    assert answer.code == 0 and json.loads(answer.out)["path"] == "part-8" and json.loads(answer.out)["images"] == 30
    assert json.loads(Path("part-8/index.json").read_text())["settings"]["source"] == str(
        tmp_path / "tars/part-{0..1}.tar"
    )
    assert cli("data", "inspect", "part-8").code == 0
    assert cli("data", "prepare", "tars/part-{0..2}.tar").code == 2
