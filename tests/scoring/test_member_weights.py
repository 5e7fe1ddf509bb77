"""Members of a class share its weight by a score: a good member gets more than a bad one, and classes keep their proportions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import recipes
import tiny_runs
import torch

import ganherd
from ganherd.api.products import MemberWeightFinisher
from ganherd.data.dataset import Dataset, load
from ganherd.mixture.mixture import Mixture
from ganherd.recipe.schema import Recipe
from ganherd.runs.folder import RunFolder
from ganherd.scoring.member_weights import weigh_members
from ganherd.util.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mixture, Dataset]:
    """Two members of each of three classes; the second one of each class generates noise of another scale."""
    folder = tmp_path_factory.mktemp("weighed")
    settings = recipes.tiny_recipe(
        recipes.tiny_data(folder / "data.npz"), herd={"per_class": 2}, train={"budget": "60steps"}
    )
    tiny_runs.train(folder / "run", settings)
    mixture = ganherd.load(folder / "run")
    for breed in mixture.breeds:
        for value in breed.params.values():
            value[1::2] = 3 * torch.randn(value[1::2].shape, generator=torch.Generator().manual_seed(0))
    return mixture, load(RunFolder.open(folder / "run").recipe.data)


@pytest.mark.parametrize("by", ["fid", "kid"])
def test_good_members_get_the_weight_of_their_class(trained: tuple[Mixture, Dataset], by: str) -> None:
    mixture, dataset = trained
    weighed = weigh_members(mixture, dataset, by, samples=100)
    before, after = (np.bincount(mixture.label_of, one.weights) for one in (mixture, weighed.mixture))
    assert mixture.label_of.tolist() == [0, 0, 1, 1, 2, 2] and before[0] > before[1]
    np.testing.assert_allclose(after, before)
    assert (weighed.mixture.weights[::2] > weighed.mixture.weights[1::2]).all()
    assert weighed.after < weighed.before


def test_a_broken_member_gets_no_weight(trained: tuple[Mixture, Dataset]) -> None:
    mixture, dataset = trained
    value = next(iter(mixture.breeds[0].params.values()))
    finite = value[0].clone()
    value[0] = torch.nan
    weighed = weigh_members(mixture, dataset, "fid", samples=50).mixture
    value[0] = finite
    assert weighed.weights[0] == 0.0 and weighed.weights[1] == pytest.approx(mixture.weights[:2].sum())


@pytest.mark.further
def test_a_run_saves_the_weights_unless_they_are_equal_by_the_recipe(tmp_path: Path) -> None:
    data = recipes.tiny_data(tmp_path / "data.npz")
    weights = {}
    for how in ("fid", "equal"):
        settings = recipes.tiny_recipe(
            data, herd={"per_class": 2}, train={"budget": "4steps"}, run={"member_weights": how}
        )
        run = ganherd.train(settings, run=tmp_path / how, quiet=True, finishers=[MemberWeightFinisher()])
        weights[how] = ganherd.load(run.path).weights
    assert np.allclose(weights["equal"][::2], weights["equal"][1::2])
    assert not np.allclose(weights["fid"], weights["equal"])


def few(path: Path, *each: int) -> Dataset:
    """Return the data with this many rows of each class."""
    return load(Recipe.model_validate(recipes.tiny_recipe(recipes.tiny_data(path, each=each))).data)


@pytest.mark.usefixtures("brief_classifier")
@pytest.mark.parametrize(("by", "rows"), [("fid", 1), ("kid", 1), ("coverage", 5)])
def test_a_class_with_too_few_rows_keeps_equal_weights(
    trained: tuple[Mixture, Dataset], tmp_path: Path, by: str, rows: int
) -> None:
    weighed = weigh_members(trained[0], few(tmp_path / "few.npz", 40, 20, rows), by, samples=100)
    weights = weighed.mixture.weights
    assert np.isfinite(weights).all() and weights[4] == weights[5] > 0
    assert np.isfinite(weighed.after)
    assert by == "coverage" or weights[0] != weights[1]  # of these samples none is covered


def test_the_message_about_too_few_rows_names_the_setting(trained: tuple[Mixture, Dataset], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^run\.member_weights coverage needs at least 6 samples of a class"):
        weigh_members(trained[0], few(tmp_path / "few.npz", 5, 4, 3), "coverage", samples=50)
    with pytest.raises(UserError, match=r"^run\.member_weights coverage needs more than 5 samples"):
        weigh_members(*trained, "coverage", samples=5)
