"""The cellular recipes: what the papers say stands in them, and all of them train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.herd.engine.engines import Plan, make_engine, place_state
from ganherd.recipe.recipe_file import load, names, text
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import make_strategy

CELLULAR = [name for name, _ in names() if load(name).strategy.name == "cellular"]
MNIST = [name for name in CELLULAR if name.startswith("mnist-")]
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "celeba": (3, 64, 64)}
IMAGES = 24


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def made(folder: Path, name: str) -> list[str]:
    """A little data like what the recipe is for; digits and points are at hand."""
    kind = name.partition("-")[0]
    if kind not in SHAPES:
        return ["data.points=60"] if kind == "ring8" else []
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (IMAGES, *SHAPES[kind]), np.uint8)
    if kind == "celeba":  # images in one folder, without labels
        from PIL import Image

        folder = folder / "faces"
        folder.mkdir()
        for number, image in enumerate(x):
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number}.png")
        return [f"data.source={folder}"]
    y = np.arange(IMAGES) % 2
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return [f"data.source={folder / 'data.npz'}"]


def narrow(folder: Path, name: str, *more: str) -> Recipe:
    """The recipe on made data, with nets and batches that train in a blink; everything else is its own."""
    width = "hidden=[4]" if load(name).nets.generator.name == "mlp" else "width=2"
    return load(
        name,
        [
            *made(folder, name),
            f"nets.generator.{width}",
            f"nets.discriminator.{width}",
            "train.batch=4",
            "train.precision=float32",
            "strategy.cellular.fitness.samples=8",
            "strategy.cellular.mixing.samples=8",
            "strategy.cellular.mixing.network=pixels",
            *more,
        ],
    )


def trained(recipe: Recipe, steps: int) -> tuple[PreparedHerd, set[str], dict[str, Any], Any]:
    """One iteration of so many steps: the herd, who moved in it, its events, and the mixtures of its neighbourhoods."""
    assembly = assemble(recipe)
    before = {kind: assembly.herd.state[f"{kind}.params"].clone() for kind in ("g", "d")}
    plan = Plan("fused", assembly.herd.num_members, 1, "cpu")
    place_state(assembly.herd, plan)
    strategy = make_strategy(assembly, {"iteration": steps})
    events = dict(strategy.open(0))
    make_engine(assembly.herd, plan).advance(0, steps, assembly.herd.zero_sums())
    events |= dict(strategy.close(steps))
    moved = {kind for kind, first in before.items() if not torch.equal(assembly.herd.state[f"{kind}.params"], first)}
    return assembly, moved, events, strategy.neighbourhoods(steps)


def test_all_that_the_papers_ask_for_are_there() -> None:
    grids = {f"mnist-cellular-{n}x{n}" for n in (2, 3, 4, 5)}
    ablations = {f"mnist-cellular-4x4-{what}" for what in ("noselection", "isolated", "apart")}
    grids |= {f"{grid}-paper" for grid in grids}
    diets = {f"mnist-cellular-4x4-diet{share}" for share in (25, 50, 75)}
    others = {"mnist-mustangs-3x3"} | {f"{data}-cellular-3x3" for data in ("celeba", "cifar10", "digits", "ring8")}
    assert grids | ablations | diets | others <= set(CELLULAR)


@pytest.mark.further("celeba-cellular-3x3")
@pytest.mark.parametrize("name", CELLULAR)
def test_a_cellular_recipe_trains_an_iteration(tmp_path: Path, name: str) -> None:
    recipe = narrow(tmp_path, name)
    assembly, moved, events, found = trained(recipe, 3)
    settings = recipe.strategy.cellular
    assert ("tournament" in events and "replacement" in events) == settings.selection
    assert ("evaluation" in events) == (not settings.selection)
    assert ("mixture" in events) == (settings.mixing.when == "iteration")
    assert moved == {"g", "d"}
    assert all(bool(torch.isfinite(assembly.herd.state[f"{kind}.params"]).all()) for kind in moved)
    near = 1 if settings.topology == "isolated" else 3 if settings.grid == [2, 2] else 5
    classes = 10 if recipe.herd.per_class > 1 else 1  # each with a grid
    assert [len(mixture.members) for mixture in found.all] == [near] * settings.cells * classes


@pytest.mark.parametrize("name", MNIST)
def test_on_mnist_they_have_the_nets_and_rates_of_table_1(name: str) -> None:
    """And only what their names say differs from the 2 × 2 grid; without selection there is no penalty."""
    table = load("mnist-cellular-2x2-paper" if "paper" in name else "mnist-cellular-2x2")
    recipe, meets_unselected = load(name), "noselection" in name or "mustangs" in name
    assert (recipe.nets, recipe.optim) == (table.nets, table.optim)
    assert recipe.loss == table.loss.model_copy(update={"r1_weight": 0.0} if meets_unselected else {})
    assert recipe.train == table.train.model_copy(update={"budget": recipe.train.budget})
    assert recipe.nets.latent == 64 and recipe.optim.lr_g == 2e-4 and recipe.train.skip_d == 1
    free = {"grid"}
    free |= {"selection", "tournament"} if "noselection" in name or "apart" in name or "mustangs" in name else set()
    free |= {"topology"} if "isolated" in name or "apart" in name else set()
    free |= {"mixing"} if meets_unselected else set()
    free |= {"iteration", "mutation"} if "mustangs" in name else set()
    ours, theirs = (one.strategy.cellular.model_dump() for one in (recipe, table))
    assert {key for key in ours if ours[key] != theirs[key]} <= free


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_a_paper_grid_is_table_1_as_printed(n: int) -> None:
    recipe = load(f"mnist-cellular-{n}x{n}-paper")
    cellular = recipe.strategy.cellular
    assert (recipe.train.budget, recipe.train.batch, recipe.train.skip_d) == ("200epochs", 100, 1)
    assert (recipe.nets.latent, recipe.optim.lr_g, recipe.optim.lr_d) == (64, 2e-4, 2e-4)
    for net in (recipe.nets.generator, recipe.nets.discriminator):
        assert (net.name, net.settings["hidden"], net.settings["activation"]) == ("mlp", [256, 256], "tanh")
    assert (cellular.grid, cellular.population, cellular.tournament) == ([n, n], 1, 2)
    mutation = cellular.mutation
    assert (mutation.learning_rate, mutation.strength, mutation.probability) == ("reference", 1e-4, 0.5)
    assert (cellular.mixing.sigma, cellular.mixing.keep, recipe.loss.r1_weight) == (0.01, "last", 0.0)


def test_the_grids_have_the_penalty_that_ends_their_decay_and_keep_the_last_iteration() -> None:
    for n in (2, 3, 4, 5):
        recipe = load(f"mnist-cellular-{n}x{n}")
        assert recipe.loss.r1_weight == 1.0 and recipe.strategy.cellular.mixing.keep == "last"
        assert f"mnist-cellular-{n}x{n}-paper" in text(f"mnist-cellular-{n}x{n}")


def test_the_ablation_is_selection_times_communication() -> None:
    what = {}
    for name in ("", "-noselection", "-isolated", "-apart"):
        arm = load(f"mnist-cellular-4x4{name}").strategy.cellular
        what[name] = (arm.selection, arm.topology)
    assert what[""] == (True, "torus") and what["-noselection"] == (False, "torus")
    assert what["-isolated"] == (True, "isolated") and what["-apart"] == (False, "isolated")


@pytest.mark.parametrize(("share", "iterations"), [(25, 800), (50, 400), (75, 267)])
def test_every_diet_has_equally_many_batches(tmp_path: Path, share: int, iterations: int) -> None:
    name = f"mnist-cellular-4x4-diet{share}"
    kind, epochs = parse_budget(load(name).train.budget)
    assert (kind, epochs) == ("epochs", iterations)
    assert abs(epochs * 600 * share / 100 - 120_000) < 200
    assembly = assemble(narrow(tmp_path, name, "train.batch=1"))
    assert assembly.steps_per_epoch == IMAGES * share / 100  # an epoch is a cell's own share
    rows = [frozenset(assembly.herd.feed.member_rows(member).tolist()) for member in range(16)]
    assert len(set(rows)) > 8  # and the cells' shares differ


def test_mustangs_draws_two_to_one_and_judges_all_alike(tmp_path: Path) -> None:
    recipe = load("mnist-mustangs-3x3")
    mutation = recipe.strategy.cellular.mutation
    assert mutation.losses.count("non-saturating") == 2 and mutation.losses.count("least-squares-sigmoid") == 1
    assembly, *_ = trained(narrow(tmp_path, "mnist-mustangs-3x3"), 2)
    game = assembly.herd.rules.game
    assert game.names == tuple(mutation.losses) and game.d_name == "non-saturating"
    assert set(assembly.herd.state["set.loss"].tolist()) <= {0, 1, 2}
