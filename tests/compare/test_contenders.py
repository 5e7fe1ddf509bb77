"""What is compared: recipes with settings of their own, and settings of one recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from comparisons import METRICS, compared

from ganherd.compare import contenders


@pytest.mark.further
def test_settings_of_one_recipe_are_compared(cli, two) -> None:
    words = (
        "compare",
        "a.yaml",
        "--vary",
        "optim.lr_g=1e-4,5e-4",
        "--seeds",
        1,
        "--set",
        "train.budget=2steps",
        *METRICS,
    )
    facts = json.loads(cli(*words, "--json", "-q").out)
    assert list(facts["bases"]["budget"]["entries"]) == ["lr_g=1e-4", "lr_g=5e-4"]
    assert [recipe["optim"]["lr_g"] for recipe in facts["training"]["recipes"].values()] == [1e-4, 5e-4]
    assert facts["training"]["budget"] == "2steps"  # that of the recipe, because no other was given
    assert Path(facts["compare"]) == Path("comparisons/a,lr_g=1e-4-vs-lr_g=5e-4")
    assert facts["primary"] == "diversity" and "one seed decides nothing" in facts["answer"]


def test_recipes_have_overrides_of_their_own(cli, two) -> None:
    facts = compared(cli, "a.yaml:optim.lr_g=1e-4:train.batch=4", "b.yaml", "--budget", "1steps", "--seeds", 1)
    (name, first), (_, second) = facts["training"]["recipes"].items()
    assert name == "a,lr_g=1e-4,batch=4" and (first["optim"]["lr_g"], first["train"]["batch"]) == (1e-4, 4)
    assert second["train"]["batch"] == 8
    assert [row["images"] for row in facts["bases"]["budget"]["entries"].values()] == [4 * 3, 2 * 8 * 3]


def test_names_of_contenders_are_unique_and_fit_a_folder() -> None:
    combined = contenders.contenders(
        ["x/net.yaml:nets.generator=my.module:Class", "y/net.yaml"], ["optim.lr_g=1,2", "optim.lr_d=1,2"]
    )
    names = [one.name for one in combined]
    assert len(set(names)) == 8 and names[0] == "net,generator=my.module-Class,lr_g=1,lr_d=1"
    assert combined[0].overrides == ("nets.generator=my.module:Class", "optim.lr_g=1", "optim.lr_d=1")
    alike = contenders.contenders(["r:a.lr=1", "r:b.lr=1"])
    assert [one.name for one in alike] == ["a.lr=1", "b.lr=1"]
    many = contenders.contenders(["r"], [f"optim.lr_g={','.join(str(n) for n in range(100))}"])
    assert len(contenders.folder_name(many)) <= 120 and "/" not in contenders.folder_name(many)
