"""Sources by name, the held-out split, and what members see."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganherd.data.dataset import Dataset, hold_out, load
from ganherd.data.keyed_random import normal, raw, shuffle
from ganherd.data.partition import Partition, partition
from ganherd.recipe.schema import DataConfig
from ganherd.util.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


# --- digits and toys ------------------------------------------------------------------------------------------------


def test_digits_are_those_of_scikit_learn() -> None:
    """Their file is read without importing scikit-learn."""
    from sklearn.datasets import load_digits

    own, theirs = load(DataConfig(source="digits", holdout=0)), load_digits()
    assert np.array_equal(own.x[:, 0], np.rint(theirs.images * (255 / 16)).astype(np.uint8))
    assert np.array_equal(own.y, theirs.target)


def test_digits() -> None:
    data = load(DataConfig())
    assert data.name == "digits" and data.shape == (1, 8, 8) and data.labels == tuple("0123456789")
    assert len(data.x) + len(data.x_test) == 1797 and (data.x.min(), data.x.max()) == (0, 255)
    for y in (data.y, data.y_test):
        counts = np.bincount(y, minlength=10)
        assert counts.min() > 0.9 * counts.max()  # the digits are balanced, and so are both parts


@pytest.mark.parametrize(("name", "modes", "std", "near"), [("ring8", 8, 0.01, 0.765), ("grid25", 25, 0.05, 2.0)])
def test_toys_have_known_modes(name: str, modes: int, std: float, near: float) -> None:
    data = load(DataConfig(source=name))
    assert data.shape == (2,) and data.x.dtype == np.float32 and len(data.labels) == modes
    for x, y in ((data.x, data.y), (data.x_test, data.y_test)):
        assert np.ptp(np.bincount(y, minlength=modes)) <= 1
        centres = np.stack([x[y == k].mean(axis=0) for k in range(modes)])
        spread = np.concatenate([x[y == k] - centres[k] for k in range(modes)])
        assert np.isclose(spread.std(), std, rtol=0.1) and np.abs(spread).max() < 5.5 * std
        apart = np.linalg.norm(centres[:, None] - centres[None], axis=-1) + 99 * np.eye(modes)
        assert np.isclose(apart.min(), near, rtol=0.05)
    radius = np.linalg.norm(data.x, axis=1).max()
    assert np.isclose(radius, 1.0 if name == "ring8" else np.hypot(4, 4), rtol=0.06)
    both = np.concatenate([data.x, data.x_test])
    assert len(np.unique(both, axis=0)) == len(both)  # held-out points are fresh


def test_points_is_how_many_are_trained_on(tmp_path: Path) -> None:
    assert len(load(DataConfig(source="grid25", points=2500)).x) == 2500
    file = tmp_path / "r15.txt"
    file.write_text("".join(f"{i} {i % 7} {i % 15 + 1}\n" for i in range(600)))
    data = load(DataConfig(source=str(file), points=100))
    assert len(data.x) == 100 and len(data.x_test) == 120
    assert not {tuple(p) for p in data.x} & {tuple(p) for p in data.x_test}


def test_model_units_of_points_keep_proportions() -> None:
    data = load(DataConfig(source="ring8"))
    units = (data.x - data.offset) / data.scale
    assert np.abs(units).max() <= 1 + 1e-6 and np.isclose(np.ptp(units), 2, atol=1e-5)


def test_digest_names_the_content() -> None:
    data = load(DataConfig(source="ring8"))
    assert data.digest == load(DataConfig(source="ring8")).digest and len(data.digest) == 64
    changed = data.y.copy()
    changed[0] += 1
    others = [replace(data, y=changed), replace(data, labels=tuple("abcdefgh")), replace(data, x_test=data.x_test[1:])]
    assert len({data.digest, *(other.digest for other in others)}) == 4
    assert replace(data, name="other").digest == data.digest


# --- the held-out split ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=80), st.floats(0, 0.95))
def test_hold_out_is_a_fraction_of_each_class_and_never_all(labels: list[int], fraction: float) -> None:
    y = np.array(labels)
    held = hold_out(y, fraction, [])
    assert np.array_equal(held, hold_out(y, fraction, []))
    for k in np.unique(y):
        n, out = (y == k).sum(), held[y == k].sum()
        assert out < n
        assert out == 0 if fraction == 0 else abs(out - fraction * n) <= 1


def test_nothing_is_lost_and_nothing_is_in_both_parts(tmp_path: Path) -> None:
    x = np.arange(100, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(100) % 3)
    data = load(DataConfig(source=str(tmp_path / "a.npz"), holdout=0.3))
    train, held = set(data.x[:, 0, 0, 0].tolist()), set(data.x_test[:, 0, 0, 0].tolist())
    assert len(data.x_test) == 30 and not train & held and train | held == set(range(100))
    for part, y in ((data.x, data.y), (data.x_test, data.y_test)):
        assert np.array_equal(part[:, 0, 0, 0] % 3, y)


def test_the_sources_own_test_set_is_the_held_out_split(tmp_path: Path) -> None:
    x = np.zeros((10, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(10) % 2, x_test=x[:3] + 9, y_test=np.array([0, 1, 1]))
    data = load(DataConfig(source=str(tmp_path / "a.npz"), holdout=0.5))
    assert (
        len(data.x) == 10 and len(data.x_test) == 3 and (data.x_test == 9).all() and data.y_test.tolist() == [0, 1, 1]
    )


def test_no_holdout_is_an_empty_split() -> None:
    for source in ("digits", "ring8"):
        data = load(DataConfig(source=source, holdout=0))
        assert len(data.x_test) == len(data.y_test) == 0 and data.x_test.shape[1:] == data.x.shape[1:]


def test_a_single_row_is_trained_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 4, 4), np.uint8))
    data = load(DataConfig(source=str(tmp_path / "a.npz")))
    assert len(data.x) == 1 and len(data.x_test) == 0 and any("hold any out" in note for note in data.notes)


# --- keyed draws ----------------------------------------------------------------------------------------------------


def test_keyed_draws_are_fixed_for_ever() -> None:
    """Held-out rows must not change with a version of numpy: these numbers are part of the format."""
    assert raw(2, "hold out", 1).tolist() == [18106818128337384009, 802413251627114755]
    assert shuffle(8, "diet", 0, 3).tolist() == [4, 7, 3, 5, 0, 2, 6, 1]
    assert np.allclose(normal(3, "test"), [0.16832855018857307, 0.9053007973729608, 0.5305170338666841], atol=1e-12)


def test_keyed_normals_are_normal() -> None:
    x = normal(200_001, "test", 5)
    assert len(x) == 200_001 and abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01 and abs((x**4).mean() - 3) < 0.1


# --- partition ------------------------------------------------------------------------------------------------------


def rows(y: list[int], labels: tuple[str, ...] = ()) -> Dataset:
    x = np.zeros((len(y), 1, 4, 4), np.uint8)
    return Dataset("made", x, np.array(y, np.int64), x[:0], np.zeros(0, np.int64), labels, 127.5, 127.5)


def cut(data: Dataset, members: int | None = None, batch: int = 1, seed: int = 0, **settings: Any) -> Partition:
    return partition(data, DataConfig(**settings), members, batch, seed)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_by_class_gives_each_member_its_class_and_each_row_once(labels: list[int]) -> None:
    y = [0, 1, 2, 3, *labels]
    part = cut(rows(y, tuple("abcd")))
    assert part.label.tolist() == [0, 1, 2, 3] and part.index.dtype == part.count.dtype == part.label.dtype == np.int64
    seen: list[int] = []
    for k in range(4):
        own = part.index[k, : part.count[k]]
        assert (np.array(y)[own] == k).all()
        assert np.array_equal(part.index[k], np.resize(own, part.index.shape[1]))  # padded from the start of the row
        seen += own.tolist()
    assert sorted(seen) == list(range(len(y))) and part.index.shape[1] == part.count.max()


def test_by_class_refuses_what_cannot_be() -> None:
    with pytest.raises(UserError, match=r"no labels.*data.partition"):
        cut(rows([-1, -1]))
    with pytest.raises(UserError, match=r"herd\.members is 3.*2 classes"):
        cut(rows([0, 1], ("a", "b")), members=3)
    with pytest.raises(UserError, match="class 'b'"):
        cut(rows([0, 2], ("a", "b", "c")))
    assert cut(rows([0, 1], ("a", "b")), members=2).label.tolist() == [0, 1]


def test_rows_without_a_label_are_left_out_by_class_and_said() -> None:
    part = cut(rows([0, -1, 1], ("a", "b")))
    assert part.index.tolist() == [[0], [2]] and any("without a label" in note for note in part.notes)


def test_all_gives_every_member_every_row() -> None:
    data = rows([0, 1, 0, 1], ("a", "b"))
    assert cut(data, partition="all").index.tolist() == [[0, 1, 2, 3]]
    part = cut(data, members=1000, partition="all")
    assert part.index.shape == (1000, 4) and (part.count == 4).all() and (part.label == -1).all()
    assert part.index.strides[0] == 0  # one row in memory, however many members


def test_diets_belong_to_seed_and_member() -> None:
    data = rows([0] * 100, ("a",))
    part = cut(data, members=6, seed=4, partition="diet", diet=0.3)
    assert part.index.shape == (6, 30) and (part.count == 30).all() and (part.label == -1).all()
    assert all(len(set(row)) == 30 for row in part.index.tolist())
    assert len({tuple(row) for row in part.index.tolist()}) == 6
    assert np.array_equal(part.index[:2], cut(data, members=2, seed=4, partition="diet", diet=0.3).index)
    assert not np.array_equal(part.index, cut(data, members=6, seed=5, partition="diet", diet=0.3).index)
    assert cut(data, partition="diet", diet=0.001).count.tolist() == [1]


def test_members_smaller_than_a_batch_are_named() -> None:
    part = cut(rows([0] * 9 + [1] * 3, ("many", "few")), batch=4)
    assert len(part.notes) == 1 and "class 'few' has 3" in part.notes[0] and "many" not in part.notes[0]
    assert cut(rows([0] * 9 + [1] * 4, ("many", "few")), batch=4).notes == ()


def test_partition_does_not_touch_the_global_generator() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    cut(rows([0] * 50, ("a",)), members=3, partition="diet", diet=0.5)
    load(DataConfig(source="grid25"))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index,union-attr]


def test_data_needs_no_torch() -> None:
    code = (
        "import sys, ganherd.data.inspect, ganherd.data.partition; from ganherd.recipe.schema import DataConfig;"
        "ganherd.data.inspect.load(DataConfig(source='ring8')); sys.exit('torch' in sys.modules)"
    )
    path = [str(ROOT / "src"), *sys.path]
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


# --- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.data("mnist")
def test_real_mnist() -> None:
    data = load(DataConfig(source="mnist"))
    assert data.x.shape == (60000, 1, 28, 28) and data.x_test.shape == (10000, 1, 28, 28)
    assert data.labels == tuple("0123456789") and np.bincount(data.y)[1] == 6742


@pytest.mark.data("cifar10")
def test_real_cifar10() -> None:
    data = load(DataConfig(source="cifar10"))
    assert data.x.shape == (50000, 3, 32, 32) and (np.bincount(data.y) == 5000).all() and data.labels[0] == "airplane"
    part = partition(data, DataConfig(), None, 64, 0)
    assert part.index.shape == (10, 5000) and part.notes == ()


def test_r15_comes_with_the_package_as_it_was_published() -> None:
    data = load(DataConfig(source="r15", holdout=0))
    assert data.x.shape == (600, 2) and data.labels == tuple(str(k) for k in range(1, 16))
    assert data.digest == "3027206d3da244904ae9c51962a2dc8b03ec79d234e24b513d875b64dcce634d"  # of the published file


def test_a_hundred_points_of_r15_are_trained_on() -> None:
    data = load(DataConfig(source="r15", points=100))
    assert len(data.x) == 100 and len(data.labels) == 15 and len(data.x_test) == 120
