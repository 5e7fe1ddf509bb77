"""Runs of GAP from end to end: their recipes, their judges, their page, and what a swap costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
import torch
from PIL import Image
from recipes import tiny_data, tiny_recipe

import ganherd
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.mixture import mixture
from ganherd.recipe import recipe_file
from ganherd.report.gather import MemberStory, RunStory
from ganherd.report.herd_section import meetings
from ganherd.scoring.best_member import choose_best
from ganherd.scoring.several_runs import score_runs
from ganherd.training.setup.assemble import assemble
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.util.errors import UserError

GAP_RECIPES = [name for name, _ in recipe_file.names() if "-gap" in name]
SINGLE = {"r15-gan", "grid25-gan", "ring8-gan", "mnist-gan-d", "mnist-gan-g", "cifar10-gan-d", "cifar10-gan-g",
          "lsun-gan-d", "lsun-gan-g", "stacked-mnist-gan"}  # fmt: skip


def test_every_recipe_of_the_paper_has_its_single_counterpart() -> None:
    names = {name for name, _ in recipe_file.names()}
    assert {"r15-gap4", "grid25-gap4", "ring8-gap4", "stacked-mnist-gap4"} <= set(GAP_RECIPES)
    assert {"mnist-gap-d2", "mnist-gap-d4", "mnist-gap-g2", "mnist-gap-g4"} <= set(GAP_RECIPES)
    assert {"cifar10-gap-d4", "cifar10-gap-g4", "lsun-gap-d4", "lsun-gap-g4"} <= set(GAP_RECIPES)
    assert names >= SINGLE


VARIANTS = [
    *(f"{data}-gap-{what}" for data in ("mnist", "cifar10") for what in ("d2", "d4", "g2", "g4", "c4")),
    *(f"lsun-gap-{what}" for what in ("d4", "g4", "c4")),
]


def test_every_variant_of_table_1_has_a_recipe_as_described() -> None:
    assert {f"{name}-paper" for name in VARIANTS} | {"cifar10-gap-f4", "mnist-gap-f4", "r15-gap4-paper"} <= set(
        GAP_RECIPES
    )
    assert set(VARIANTS) <= set(GAP_RECIPES)


@pytest.mark.parametrize("name", VARIANTS)
def test_members_differ_as_the_paper_describes(name: str, made: dict[Any, Path]) -> None:
    recipe, plain = recipe_file.load(f"{name}-paper"), recipe_file.load(name)
    assert sorted(set(recipe.nets.prior)) == ["normal", "uniform"] and len(recipe.nets.prior) == recipe.members
    assert recipe.members == plain.members and recipe.optim.grad_clip == plain.optim.grad_clip is not None
    train = recipe.train
    assert (train.input_noise, train.input_noise_decay, train.input_noise_on) == (0.3, "steps", "real")
    images = {"mnist": 60_000, "cifar10": 50_000, "lsun": 0.98 * 126_227}[name.split("-")[0]]
    steps = float(train.budget.removesuffix("epochs")) * -(-images // train.batch)
    assert train.input_noise_steps == pytest.approx(steps / 2, rel=0.01)


@pytest.mark.parametrize(
    "name", ["mnist-gap-d4", "mnist-gap-g4", "cifar10-gap-d4", "cifar10-gap-g4", "lsun-gap-d4", "r15-gap4"]
)
def test_what_a_gap_of_the_paper_is_compared_with_differs_in_swaps_alone(name: str) -> None:
    gap, apart = (recipe_file.load(f"{one}-paper") for one in (name, name.replace("-gap", "-apart")))
    changed = {line.split(":")[0] for line in recipe_file.difference(gap, apart)}
    assert apart.strategy.name == "independent"
    assert all(key in ("about", "strategy.name") or key.startswith("strategy.") for key in changed), changed


@pytest.mark.parametrize("single", sorted(SINGLE))
def test_the_arms_differ_in_members_and_swaps_alone(single: str) -> None:
    stem = single.replace("-gan", "-gap")
    arms = [
        stem + "4",
        *([single.replace("-gan", "-apart4")] if stem in ("r15-gap", "grid25-gap", "ring8-gap") else []),
    ]
    for arm in arms:
        changed = {
            line.split(":")[0] for line in recipe_file.difference(recipe_file.load(single), recipe_file.load(arm))
        }
        allowed = ("about", "herd.members", "strategy.name", "strategy.gap", "strategy.share")
        assert all(key in allowed or key.startswith("strategy.gap.") for key in changed), changed
        assert recipe_file.load(arm).herd.members == 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """Random images by (channels, size); those of 64 pixels as a folder of files."""
    folder, random = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    out = {}
    for channels, size in ((1, 28), (3, 28), (3, 32)):
        out[channels, size] = folder / f"{channels}-{size}.npz"
        np.savez(out[channels, size], x=random.integers(0, 256, (24, channels, size, size), np.uint8))
    out[3, 64] = folder / "churches"
    out[3, 64].mkdir()
    for i in range(24):
        Image.fromarray(random.integers(0, 256, (70, 80, 3), np.uint8)).save(out[3, 64] / f"{i}.png")
    return out


@pytest.mark.parametrize("name", [n for n in GAP_RECIPES if n.startswith(("mnist-gap-", "cifar10", "lsun", "stacked"))])
def test_an_image_recipe_trains_and_swaps_with_narrow_nets_on_made_data(name: str, made: dict[Any, Path]) -> None:
    shape = {"m": (1, 28), "s": (3, 28), "c": (3, 32), "l": (3, 64)}[name[0]]
    narrow = [
        "nets.discriminator.width=2",
        "train.batch=4",
        "nets.latent=3",
        f"data.source={made[shape]}",
        "engine.device=cpu",
    ]
    recipe = recipe_file.load(name)
    if recipe.train.schedules:
        narrow.append("train.schedules=[]")
    if recipe.nets.breeds or isinstance(recipe.herd.members, list):
        pytest.skip("breeds and fine-tuning have tests of their own")
    narrow += ["nets.generator.width=2", *(["nets.generator.first=2"] if shape[1] == 64 else [])]
    assembly = assemble(recipe_file.load(name, narrow))
    engine, strategy = (
        Engine(assembly.herd, Plan("fused", 4, 1, "cpu")),
        make_strategy(assembly, {"every": 2, "warmup": 0}),
    )
    engine.advance(0, 2, assembly.herd.zero_sums())
    before = assembly.herd.state["d.params"].clone()
    ((_, event),) = strategy.open(2)
    a, b = event["pairs"][0]
    assert torch.equal(assembly.herd.state["d.params"][a], before[b])
    engine.advance(2, 3, assembly.herd.zero_sums())
    assert all(torch.isfinite(value).all() for value in assembly.herd.state.values() if value.is_floating_point())


# -- judges -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["non-saturating", "wasserstein"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One GAN, and three that swap."""
    folder = tmp_path_factory.mktemp(request.param)
    data = tiny_data(folder / "data.npz", each=(60, 60, 60))
    sections: dict[str, Any] = {"data": {"partition": "all"}, "loss": {"name": request.param}}
    gap = {"strategy": {"name": "gap", "gap": {"every": "2steps"}}, "herd": {"members": 3}}
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        ganherd.train(tiny_recipe(data, **sections), run=folder / "single", quiet=True)
        ganherd.train(tiny_recipe(data, **sections, **gap), run=folder / "gap", quiet=True)
    return [folder / "single", folder / "gap"]


def test_gam2_judges_a_gap_run_by_discriminators_that_it_did_not_meet(runs: list[Path]) -> None:
    found = score_runs(runs, ["gam2"], samples=200)
    single, gap = (found.runs[str(run)]["gam2"] for run in runs)
    assert single["judges"] == [3] and gap["judges"] == [1, 1, 1]
    assert len(gap["real_errors"]) == 3 and all(0 <= error <= 1 for error in gap["real_errors"])
    critic = "wasserstein" in str(runs[0])
    assert gap["threshold_rule"].startswith("midpoint" if critic else "probability 0.5")
    assert all(
        re.search(
            rf"gap (strongly helps|helps|does not help|is undecided) against single \({m}, best members differ by [+-]",
            found.contest,
        )
        for m in ("avg", "worst")
    )
    winner = mixture.load(runs[1]).winner
    best = gap["best_member"]
    assert (winner is None) == (best is None) and (winner is None or winner.member == best)
    with pytest.raises(UserError, match="have met all its discriminators: name another run"):
        score_runs(runs[1:], ["gam2"], samples=200)
    if winner is None:
        with pytest.raises(UserError, match="finds no best generator"):
            choose_best(runs[1], "gam2", 200, judges=runs[:1])
    else:
        chosen = choose_best(runs[1], "gam2", 200, judges=runs[:1])
        alone = mixture.load(runs[1]).alone(best).sample(8, seed=3).x
        assert chosen.facts()["member"] == best
        assert np.array_equal(mixture.load(chosen.folder).sample(8, seed=3).x, alone)
    with pytest.raises(UserError, match="--judges is for --by gam2"):
        choose_best(runs[1], "fid", judges=runs[:1])
    again = mixture.load(runs[1]).winner
    assert (again is None) == (winner is None)  # a contest that could not be held takes no mark away


# -- the page -----------------------------------------------------------------------------------------------------------


def test_the_page_draws_who_met_whom_of_the_first_replica() -> None:
    members = [MemberStory(i % 2, i // 2, "", None, None, None, 0) for i in range(4)]
    swap = {"step": 10, "event": "swap", "number": 1, "what": "discriminators", "pairs": [[0, 1], [2, 3]]}
    story = RunStory("a", {}, {}, [{"step": 40}], [swap], {}, members)
    page = meetings(story)
    assert "One swap of discriminators, from step 10 to 10" in page and "of the first replica" in page
    assert page.count(">25<") == page.count(">75<") == 2  # percent
    assert meetings(RunStory("a", {}, {}, [{"step": 40}], [], {}, members)) == ""


# -- the bench ----------------------------------------------------------------------------------------------------------


def test_the_cost_of_a_swap_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path))
    monkeypatch.setattr("ganherd.herd.engine.autotune._SECONDS", 0.02)
    words = ("bench", "exchange", "--cases", "small", "--members", "3", "--seconds", "0.05", "--device", "cpu", "-q")
    assert tiny_runs.command(*words, "--json") == 0
    weights, everything = json.loads(capsys.readouterr().out)["rows"]
    assert (weights["travels"], everything["travels"]) == ("weights", "all")
    assert 0 < weights["bytes"] < everything["bytes"] and weights["swaps"] >= 5
    for row in (weights, everything):
        epoch = row["steps_per_epoch"] * row["step_microseconds"]
        assert (row["images"], row["steps_per_epoch"]) == (50_000, 782)  # batches of 64: each member sees all data
        assert row["swaps_per_epoch"] == [0.5, 2]
        assert row["share_of_epoch"] == pytest.approx([each * row["microseconds"] / epoch for each in (0.5, 2)])
        assert row["below_1_percent"] == [share < 0.01 for share in row["share_of_epoch"]]
    assert tiny_runs.command(*words, "--images", "640", "-o", str(tmp_path / "kept" / "swaps.json")) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("steps an epoch  at 0.5 swaps an epoch  at 2 swaps  below 1 %")
    assert all(line.endswith(("both", "at 0.5", " no")) for line in out[1:3])
    assert "each member sees all 640 images" in out[3] and "one every 2 epochs" in out[3]
    kept = json.loads((tmp_path / "kept" / "swaps.json").read_text())
    assert [row["steps_per_epoch"] for row in kept["rows"]] == [10, 10]
    assert kept["command"].startswith("ganherd bench exchange") and kept["torch"]
    assert tiny_runs.command("bench", "exchange", "--members", "1") == 2
    assert tiny_runs.command("bench", "exchange", "--images", "0") == 2
