"""Prepared folders: rows are read as they are asked for, from the shards that hold them and no others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import warm_python
from image_trees import COUNTS, prepared, refused

from ganherd.data.dataset import load
from ganherd.data.inspect import describe
from ganherd.data.shards import shards
from ganherd.data.shards.shards import ShardRows, load_shards, verify
from ganherd.recipe.schema import DataConfig


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return prepared(tmp_path)


def whole(out: Path) -> np.ndarray:
    return np.concatenate([np.load(path, mmap_mode="r") for path in sorted((out / "shards").iterdir())])


def test_rows_answer_as_an_array_does(out: Path) -> None:
    _, rows, y = load_shards(out)
    x = whole(out)
    assert np.bincount(y).tolist() == list(COUNTS.values())
    assert rows.shape == x.shape and rows.dtype == x.dtype and len(rows) == len(x) and rows.nbytes == x.nbytes
    mask = np.arange(len(x)) % 3 == 0
    mixed = np.random.default_rng(0).integers(0, len(x), (4, 7))
    keys: list[Any] = [
        0,
        np.int64(13),
        -1,
        slice(3, 20, 2),
        slice(0, 0),
        mask,
        mixed,
        [27, 0, 9, 9],
        np.arange(28)[::-1],
    ]
    for key in keys:
        assert np.array_equal(rows[key], x[key]), key
    assert np.array_equal(np.asarray(rows), x) and np.array_equal(rows.reshape(len(x), -1), x.reshape(len(x), -1))
    some = rows.pick(mask)
    assert isinstance(some, ShardRows) and np.array_equal(some[2:5], x[mask][2:5])
    with pytest.raises(IndexError):
        rows[len(x)]


def test_only_shards_of_wanted_rows_are_opened(out: Path) -> None:
    data = load(DataConfig(source=str(out), holdout=0.25))
    files = data.x.files  # type: ignore[attr-defined]
    assert data.digest and data.shape == (3, 6, 6) and files.opened == [] and files.bytes_read == 0
    own = np.flatnonzero(data.y == 1)
    assert len(data.x[own]) == len(own) and files.opened == ["shards/00001.npy"]
    assert files.bytes_read == len(own) * 3 * 6 * 6
    data.x_test[np.flatnonzero(data.y_test == 1)]
    assert files.opened == ["shards/00001.npy"], "held-out rows lie in the same shard"


def test_some_classes_alone(out: Path) -> None:
    index, rows, y = load_shards(out, [2, 0])
    assert index.labels == tuple(COUNTS) and np.bincount(y).tolist() == [9, 0, 14]
    x = whole(out)
    assert np.array_equal(rows[:], np.concatenate([x[:9], x[14:]]))
    assert "no class number 3" in refused(lambda: load_shards(out, [3]))


OF_ONE_PROCESS = """
import json, sys
import numpy as np, torch
from pathlib import Path
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from ganherd.data.partition import partition
from ganherd.data.dataset import load
from ganherd.herd.batch_feed import BatchPlan
from ganherd.herd.streamed_batch_feed import make_feed
from ganherd.recipe.schema import DataConfig
out, room, members = sys.argv[1], sys.argv[2], slice(1, 3)
settings = DataConfig(source=out, holdout=0.25)
data = load(settings)
cut = partition(data, settings, None, 4, 0)
index, count, base = cut.index[members], cut.count[members], np.array([5, 6])
room = int(room)
plan = BatchPlan(index, count, 4, 127.5, 127.5, torch.float32)
feed = make_feed(data.x, data.y, plan, torch.device("cpu"), room)
for c in range(6):
    x, y = feed.batch_at(slice(0, 2), base, c)
    assert y.tolist() == [[1] * 4, [2] * 4]
getattr(feed, "close", int)()
maps = Path("/proc/self/maps")
mapped = {line.split()[-1] for line in maps.read_text().splitlines() if line.endswith(".npy")} if maps.exists() else None
inside = sorted(Path(name).name for name in opened if name.startswith(out))
names = sorted(Path(name).name for name in mapped) if mapped is not None else ["00001.npy", "00002.npy"]
print(json.dumps([feed.resident, inside, names, data.x.files.bytes_read, int(count.sum())]))
"""


@pytest.mark.further(but=["streamed"])
@pytest.mark.parametrize("room", [1 << 30, 0], ids=["resident", "streamed"])
def test_a_process_touches_its_members_shards_and_the_index_only(out: Path, room: int) -> None:
    """Seen from outside: every file that the process opens, and every one that it has mapped."""
    words = [warm_python.python(), "-c", OF_ONE_PROCESS, str(out), str(room)]
    done = subprocess.run(words, env=processes.environment(), capture_output=True, check=True)
    resident, opened, mapped, read, rows = json.loads(done.stdout)
    assert resident is (room > 0)
    assert opened == ["00001.npy", "00002.npy", "index.json"] and mapped == ["00001.npy", "00002.npy"]
    bytes_a_row = 3 * 6 * 6
    if resident:
        assert read == rows * bytes_a_row
    else:
        assert 6 * 8 * bytes_a_row <= read <= 8 * 8 * bytes_a_row, "six batches of eight rows, and two ahead"


def test_few_files_are_open_at_a_time(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_most_open", lambda: 2)
    _, rows, _ = load_shards(out)
    x = whole(out)
    for row in (0, 27, 10, 1, 26, 11):
        assert np.array_equal(rows[row], x[row])
    assert len(rows.files.opened) == 6 and len(rows.files._maps) == 2


def test_the_digest_is_of_the_content_and_needs_no_reading(out: Path, tmp_path: Path) -> None:
    def digest(path: Path, holdout: float = 0.2) -> str:
        return load(DataConfig(source=str(path), holdout=holdout)).digest

    other = prepared(tmp_path / "other")
    assert digest(out) == digest(other) != digest(out, holdout=0.4)
    assert digest(prepared(tmp_path / "more", counts={**COUNTS, "dog": 3})) != digest(out)


def test_a_prepared_folder_can_be_inspected(out: Path) -> None:
    plain = describe(load(DataConfig(source=str(out.parent / "tree"), size=6)))
    ours = describe(load(DataConfig(source=str(out))))
    for key in ("classes", "train", "held_out", "range", "mean", "std", "shape"):
        assert ours[key] == plain[key], key


def test_settings_that_do_not_fit_are_refused(out: Path) -> None:
    assert "prepared at 6 pixels" in refused(lambda: load(DataConfig(source=str(out), size=8)))
    assert "data.points" in refused(lambda: load(DataConfig(source=str(out), points=8)))
    assert load(DataConfig(source=str(out), size=6)).shape == (3, 6, 6)


def test_damage_is_named(out: Path) -> None:
    verify(out)
    path = out / "shards" / "00001.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert "00001.npy is damaged" in refused(lambda: verify(out))
    path.write_bytes(good[:-1])
    assert "should have" in refused(lambda: load(DataConfig(source=str(out))).x[:])
    path.unlink()
    assert "cannot be read" in refused(lambda: load(DataConfig(source=str(out))).x[:])
    assert "cannot be read" in refused(lambda: verify(out))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"channels": 2},
        {"labels": ["ant"]},
        {"shards": [{"file": "../../etc/passwd", "label": 0, "count": 1}]},
        {"shards": [{"file": "shards/00000.npy", "label": 0, "count": -1}]},
        {"more": 1},
        None,
    ],
)
def test_an_index_that_says_what_it_should_not_is_refused(out: Path, change: dict[str, Any] | None) -> None:
    path = out / "index.json"
    path.write_text("{" if change is None else json.dumps(json.loads(path.read_text()) | change))
    assert "index.json is no index" in refused(lambda: load(DataConfig(source=str(out))))
