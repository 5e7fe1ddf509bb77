"""Recipes with several members per class: what is refused, and how members are counted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ganherd.comm.placement import place
from ganherd.recipe import recipe_file
from ganherd.strategies.share import Share
from ganherd.strategies.strategy import Strategy
from ganherd.strategies.with_share import WithShare
from ganherd.util.errors import UserError

BREEDS = [{"generator": "mlp", "members": 1}, {"generator": "small", "members": 1}]
GRID = {"name": "cellular", "cellular": {"grid": [2, 2]}}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"strategy": {"name": "gap"}},
            "set herd.per_class to several members of each class, or data.partition to all",
        ),
        ({"herd": {"per_class": 2}, "data": {"partition": "all"}}, "herd.per_class 2 needs members of one class each"),
        (
            {"herd": {"per_class": 3}, "strategy": GRID},
            "herd.per_class 3 is not the 4 cells × 1 nets in training.*set it to 4",
        ),
        (
            {"herd": {"per_class": 4}, "strategy": {"name": "cellular", "cellular": {"grid": [2, 2], "offspring": 3}}},
            "herd.per_class 4 is not the 4 cells × 3 nets in training of strategy.cellular: set it to 12",
        ),
        (
            {"herd": {"per_class": 2}, "strategy": {"name": "gap", "gap": {"pace": [1, 0.5, 0.5]}}},
            "lists 3 speeds, but 2 members meet",
        ),
        ({"herd": {"per_class": 2}, "strategy": {"name": "gap", "gap": {"stay": [2]}}}, "slots 0 to 1"),
        ({"herd": {"per_class": 0}}, "herd.per_class"),
        (
            {"herd": {"per_class": 2}, "nets": {"breeds": BREEDS}},
            "herd.per_class gives all members the same nets",
        ),
        ({"run": {"member_weights": "ifid"}}, "run.member_weights"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        recipe_file.load({"data": {"source": "digits"}, **settings})


def test_the_data_decides_the_number_of_members_and_the_recipe_that_of_a_class() -> None:
    recipe = recipe_file.load("digits-per-class-torus")
    assert (recipe.members, recipe.meeting_members, recipe.torus) == (None, 4, None)
    assert recipe.strategy.settings.torus == (2, 2)
    assert recipe_file.load("digits-cellular-3x3").torus == (3, 3)


def test_classes_are_placed_in_order_and_few_of_them_are_cut() -> None:
    """Ten tori of four cells on three ranks: two classes are cut, and no rank has more than 14 cells."""
    placement = place(4, 3, replicas=10, grid=(2, 2))
    assert [len(own) for own in placement.ranks] == [14, 13, 13]
    homes = {
        k: {rank for rank, own in enumerate(placement.ranks) if set(range(4 * k, 4 * k + 4)) & set(own)}
        for k in range(10)
    }
    assert sum(len(ranks) > 1 for ranks in homes.values()) == 2


@pytest.mark.parametrize("name", ["digits-per-class-gap", "digits-per-class-share", "mnist-per-class-gap"])
def test_layers_can_be_shared_with_every_strategy(name: str) -> None:
    recipe = recipe_file.load(name, ["strategy.share.discriminator=[layers.0]", "strategy.share.every=7steps"])
    is_gap = recipe.strategy.name == "gap"
    assert recipe.strategy.meets and recipe.strategy.spans["share" if is_gap else "every"] == "7steps"
    assert recipe.strategy.added_share.layers == is_gap
    again = recipe_file.load(recipe.model_dump())
    assert again == recipe


@pytest.mark.parametrize("name", ["gap", "cellular"])
def test_layers_cannot_be_shared_if_ranks_are_at_different_steps(name: str) -> None:
    settings = {"exchange": "async", **({"grid": [2, 2]} if name == "cellular" else {})}
    strategy = {"name": name, name: settings, "share": {"discriminator": ["layers.0"]}}
    recipe = {"data": {"source": "digits"}, "herd": {"per_class": 4}, "strategy": strategy}
    with pytest.raises(UserError, match=f"with strategy.{name}.exchange async ranks are not at the same step"):
        recipe_file.load(recipe)


@pytest.mark.parametrize("synced", [{"staleness": 0}, {"replay": "runs/old"}])
def test_layers_can_be_shared_if_asynchronous_swaps_keep_ranks_in_step(synced: dict[str, Any]) -> None:
    strategy = {"name": "gap", "gap": {"exchange": "async", **synced}, "share": {"discriminator": ["layers.0"]}}
    recipe = recipe_file.load({"data": {"source": "digits"}, "herd": {"per_class": 4}, "strategy": strategy})
    assert recipe.strategy.added_share.layers


def test_a_strategy_of_your_own_that_is_not_in_step_cannot_share_layers() -> None:
    strategy = Strategy()
    strategy.max_unsynced_steps = 10
    with pytest.raises(
        UserError, match=r"with strategy.mine async they do not: leave strategy.share out, or set exchange"
    ):
        WithShare("mine", strategy, cast(Share, None))
