"""Units of the data and of the nets: each column of a table is standardised, and constant columns stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ganherd.data.dataset import Dataset, load
from ganherd.data.units import column_units, comparable, main_plane, projected, to_data, to_model
from ganherd.recipe.schema import DataConfig


@pytest.fixture(scope="module")
def wine() -> Dataset:
    return load(DataConfig(source="wine"))


@pytest.mark.parametrize("name", ["wine", "breast_cancer"])
def test_embedded_tables_are_those_of_scikit_learn(name: str) -> None:
    from sklearn import datasets

    original = getattr(datasets, f"load_{name}")()
    data = load(DataConfig(source=name, holdout=0))
    assert np.array_equal(data.x, original.data.astype(np.float32)) and np.array_equal(data.y, original.target)
    assert data.columns == tuple(original.feature_names) and data.labels == tuple(original.target_names)


def test_columns_are_standardised_by_the_training_rows(wine: Dataset) -> None:
    x = to_model(torch.from_numpy(wine.x), wine)
    assert torch.allclose(x.mean(0), torch.zeros(13), atol=1e-5)
    assert torch.allclose(x.std(0, unbiased=False), torch.ones(13), atol=1e-5)
    assert np.allclose(comparable(wine.x, wine), x.numpy(), atol=1e-5)


def test_units_are_those_of_the_data_again(wine: Dataset) -> None:
    x = torch.from_numpy(wine.x)
    assert torch.allclose(to_data(to_model(x, wine), wine), x, rtol=1e-5, atol=1e-5)


def test_constant_columns_are_reported_and_come_back_exactly(tmp_path) -> None:  # type: ignore[no-untyped-def]
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    x[:, 2] = 0.1
    np.save(tmp_path / "t.npy", x)
    data = load(DataConfig(source=str(tmp_path / "t.npy")))
    assert any("1 column never changed" in note and "x3" in note for note in data.notes)
    assert (to_model(torch.from_numpy(data.x), data)[:, 2].abs() < 1e-6).all()
    generated = to_data(torch.randn(100, 4), data)
    assert (generated[:, 2] == np.float32(0.1)).all() and generated[:, 0].std() > 0.5


def test_a_column_that_varies_by_rounding_only_is_constant() -> None:
    x = np.full((10, 3), 1e6, np.float32)
    x[::2, 1] += 0.0625
    x[::2, 2] += 1e3
    assert [scale > 0 for scale in column_units(x)[1]] == [False, False, True]  # type: ignore[union-attr]


def test_the_plane_holds_most_of_the_variance(wine: Dataset) -> None:
    points = projected(wine.x, wine, wine.plane)
    assert points.shape == (len(wine.x), 2)
    values = np.linalg.eigvalsh(np.cov(comparable(wine.x, wine), rowvar=False))
    assert np.allclose(points.var(0, ddof=1), values[::-1][:2], rtol=1e-4)
    one = main_plane(np.arange(5.0)[:, None])
    assert one == ((1.0,), (0.0,))
    assert np.array_equal(np.abs(main_plane(np.ones((1, 3)))), np.eye(3)[::-1][:2])  # one row: any two columns


def test_points_keep_their_proportions() -> None:
    r15 = load(DataConfig(source="r15"))
    assert r15.kind == "points" and isinstance(r15.scale, float) and r15.plane == () and r15.columns == ()
    assert comparable(r15.x, r15) is r15.x


def test_members_get_standardised_batches(wine: Dataset) -> None:
    from ganherd.herd.batch_feed import BatchPlan, Feed

    index = np.arange(6).reshape(1, 6)
    plan = BatchPlan(index, np.array([6]), 3, wine.offset, wine.scale, torch.float64)
    x, y = Feed(torch.from_numpy(wine.x), torch.from_numpy(wine.y), plan).gather(torch.tensor([[0, 5]]))
    expected = (wine.x[[0, 5]].astype(np.float64) - np.array(wine.offset)) / np.array(wine.scale)
    assert np.allclose(x[0].numpy(), expected, atol=1e-12) and y.tolist() == [wine.y[[0, 5]].tolist()]
