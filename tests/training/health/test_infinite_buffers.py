"""A buffer that is infinite on purpose, such as a mask of attention, does not make a member ill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from recipes import noise_recipe, tiny_data, tiny_recipe

import ganherd
from ganherd.herd.engine.engine_trials import memory_per_member
from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble


def test_a_net_with_a_causal_mask_trains_without_repairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)
    recipe = noise_recipe(tmp_path, "9steps")
    recipe["nets"]["discriminator"] = recipe["nets"]["generator"] = "promises.supported_nets:CausalMask"
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True, trust_code=True)
    assert not {"nan", "repair"} & {event["event"] for event in run.events()}


@pytest.mark.parametrize(
    ("name", "settings", "meeting"),
    [("gap", {"every": "2steps"}, "swap"), ("cellular", {"grid": [1, 2], "iteration": "2steps"}, "tournament")],
)
def test_nets_with_a_causal_mask_meet_and_are_finetuned(
    tmp_path: Path, name: str, settings: dict[str, Any], meeting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.skip_products(monkeypatch)
    mask = "promises.supported_nets:CausalMask"
    recipe = tiny_recipe(
        tiny_data(tmp_path / "data.npz"),
        data={"partition": "all"},
        herd={"members": 2},
        nets={"generator": mask, "discriminator": mask},
        strategy={"name": name, name: settings},
    )
    run = ganherd.train(recipe, run=tmp_path / "run", quiet=True, trust_code=True)
    events = run.events()
    assert not any(event.get("unwell") or event["event"] in ("nan", "repair") for event in events)
    assert meeting in {event["event"] for event in events}
    recipe["herd"]["start_from"] = str(tmp_path / "run")
    assert ganherd.train(recipe, run=tmp_path / "next", quiet=True, trust_code=True).events()[-1]["event"] == "finish"


def test_the_memory_of_a_net_that_uses_torch_func_is_measured(tmp_path: Path) -> None:
    recipe = noise_recipe(tmp_path)
    recipe["nets"]["discriminator"] = "promises.supported_nets:GradientOfAFunction"
    recipe["loss"] = {"name": "hinge"}
    herd = assemble(recipe_file.load(recipe), trust_code=True).herd
    assert memory_per_member(herd) > herd.d.num_params * 8
