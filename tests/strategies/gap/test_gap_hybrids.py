"""GAP across breeds and on trained members: the recipes -c4 and -f4 train on made data, and GAM-II judges kind by kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
import torch

import ganherd
from ganherd.herd.engine.engines import Engine, Plan
from ganherd.metrics.gam import gam, gam_table
from ganherd.metrics.gam.gam import Player, met_matrix
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.scoring.several_runs import score_runs
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.util.errors import UserError

CPU = ["engine.device=cpu", "engine.name=fused", "engine.threads=1", "engine.chunk=4"]
NARROW = [
    "nets.latent=3",
    "nets.discriminator.width=2",
    "train.batch=4",
    "run.watch.every=0",
    "run.sample_every=0",
    *CPU,
]
KINDS = {"d": "dcgan5", "g": "gran"}


def images(path: Path, channels: int, size: int) -> Path:
    np.savez(path, x=np.random.default_rng(0).integers(0, 256, (24, channels, size, size), np.uint8))
    return path


def narrow_breeds(name: str) -> list[dict[str, Any]]:
    """The breeds of a recipe with nets of two channels."""
    breeds = [breed.model_dump() for breed in recipe_file.load(name).nets.breeds]
    for breed in breeds:
        breed["generator"]["settings"]["width"] = 2
    return breeds


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Made images, and short runs on them: each kind alone, each kind that swaps, both kinds, and both kinds fine-tuned."""
    folder = tmp_path_factory.mktemp("hybrids")
    made = {"data": images(folder / "made.npz", 1, 28)}
    short = [f"data.source={made['data']}", "train.budget=4steps", "run.record_every=2", "run.checkpoint_every=4"]
    swaps = ["strategy.gap.every=2steps"]
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        patch.setattr("ganherd.mixture.recalibration.NOISES", 512)  # what batch norm is re-estimated from
        for kind in KINDS:
            alone = [*NARROW, *short, "nets.generator.width=2"]
            for name, more in ((f"mnist-gan-{kind}", ["herd.members=2"]), (f"mnist-gap-{kind}2", swaps)):
                ganherd.train(name, [*alone, *more], run=folder / name, quiet=True)
                made[name] = folder / name
        both = [*NARROW, *short, *swaps, f"nets.breeds={narrow_breeds('mnist-gap-c4')}"]
        ganherd.train("mnist-gap-c4", both, run=folder / "mnist-gap-c4", quiet=True)
        tuned = recipe_file.load(
            "mnist-gap-f4", [*short, *swaps, *CPU, "train.batch=4", "run.watch.every=0"]
        ).model_dump()
        for origin in tuned["herd"]["members"]:
            origin["from"] = str(folder / Path(origin["from"]).name)
        ganherd.train(tuned, run=folder / "mnist-gap-f4", quiet=True)
    return made | {name: folder / name for name in ("mnist-gap-c4", "mnist-gap-f4")}


@pytest.mark.parametrize("name", ["mnist-gap-c4", "cifar10-gap-c4"])
def test_a_hybrid_recipe_has_the_settings_of_both_kinds(name: str) -> None:
    recipe, d, g = (recipe_file.load(one) for one in (name, name[:-2] + "d4", name[:-2] + "g4"))
    assert [(breed.generator, breed.members) for breed in recipe.nets.breeds] == [
        (d.nets.generator, 2),
        (g.nets.generator, 2),
    ]
    assert recipe.nets.discriminator == d.nets.discriminator == g.nets.discriminator
    for key in ("lr_g", "lr_d", "beta1"):
        own = [getattr(one.optim, key) for one in (d, g)]
        assert getattr(recipe.optim, key) == [own[0], own[0], own[1], own[1]]
    assert (recipe.members, recipe.strategy.gap) == (4, d.strategy.gap)
    assert recipe.train == d.train == g.train


def test_all_arms_on_the_same_data_clip_gradients_alike() -> None:
    """The authors' code clips both nets at 5, and at 7 on LSUN."""
    clips: dict[str, set[Any]] = {"mnist": set(), "cifar10": set(), "lsun": set()}
    for name, _ in recipe_file.names():
        data = name.split("-")[0]
        if data in clips and ("-gap-" in name or "-gan-" in name):
            clips[data].add(recipe_file.load(name).optim.grad_clip)
    assert clips == {"mnist": {5}, "cifar10": {5}, "lsun": {7}}


def test_fine_tuning_without_its_runs_says_what_trains_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match="`ganherd train mnist-gan-d --set herd.members=2 --run runs/mnist-gan-d` makes it"
    ):
        ganherd.train("mnist-gap-f4", quiet=True)


def swapped(assembly: PreparedHerd, meetings: int) -> list[tuple[int, int]]:
    """Trains a step or two before each swap and checks that two discriminators changed places; all pairs."""
    herd = assembly.herd
    engine, strategy = Engine(herd, Plan("fused", 4, 1, "cpu")), make_strategy(assembly, {"every": 2, "warmup": 0})
    met = []
    for meeting in range(1, meetings + 1):
        engine.advance(2 * meeting - 2, 2 * meeting, herd.zero_sums())
        before = herd.state["d.params"].clone()
        ((_, event),) = strategy.open(2 * meeting)
        for a, b in event["pairs"]:
            assert torch.equal(herd.state["d.params"][a], before[b]) and torch.equal(
                herd.state["d.params"][b], before[a]
            )
            met.append((a, b))
    assert all(torch.isfinite(value).all() for value in herd.state.values() if value.is_floating_point())
    return met


@pytest.mark.parametrize(("name", "channels", "size"), [("mnist-gap-c4", 1, 28), ("cifar10-gap-c4", 3, 32)])
def test_a_hybrid_recipe_trains_on_made_data_and_swaps_across_kinds(
    name: str, channels: int, size: int, tmp_path: Path
) -> None:
    data = images(tmp_path / "made.npz", channels, size)
    recipe = recipe_file.load(name, [*NARROW, f"data.source={data}", f"nets.breeds={narrow_breeds(name)}"])
    met = swapped(assemble(recipe), meetings=3)
    assert any(a < 2 <= b for a, b in met)  # a DCGAN's with a GRAN's


def test_fine_tuning_starts_from_finished_runs_of_both_kinds(mnist: dict[str, Path]) -> None:
    folder = RunFolder.open(mnist["mnist-gap-f4"])
    recipe = folder.recipe
    assert [(breed.generator.name, breed.members) for breed in recipe.nets.breeds] == [("dcgan5", 2), ("gran", 2)]
    assert recipe_file.load("mnist-gap-f4").train.budget == "5epochs"
    assert recipe_file.load("mnist-gap-f4").optim == recipe_file.load("mnist-gap-c4").optim
    pairs = [pair for event in folder.events() if event["event"] == "swap" for pair in event["pairs"]]
    assert pairs
    started = [(Path(one.path).name, one.member) for one in folder.info.origins]
    assert started == [(name, member) for name in ("mnist-gan-d", "mnist-gan-g") for member in (0, 1)]


# -- judged kind by kind --------------------------------------------------------------------------------------------------


def test_the_papers_two_tables_have_six_judges_and_eight_of_the_same_kind() -> None:
    d, g = ([("single-" + kind, kind, 4), (f"gap-{kind}4", kind, 4), ("c4", kind, 2)] for kind in "dg")
    players = [Player(group, i, kind=kind) for group, kind, count in (*d, *g) for i in range(count)]
    met = met_matrix(players, other_runs=True, swaps=[True] * len(players))
    assert (~met).sum(0).tolist() == ([6] * 8 + [8] * 2) * 2
    kinds = np.array([player.kind for player in players])
    assert not (~met)[kinds[:, None] != kinds].any()


def test_gam2_of_a_run_of_two_kinds_is_a_table_of_each(mnist: dict[str, Path]) -> None:
    names = ["mnist-gan-d", "mnist-gap-d2", "mnist-gap-c4", "mnist-gan-g", "mnist-gap-g2"]
    found = score_runs([mnist[name] for name in names], ["gam2"], samples=64)
    judges = {name: found.runs[str(mnist[name])]["gam2"]["judges"] for name in names}
    assert judges == {name: [4] * 4 if name == "mnist-gap-c4" else [4, 4] for name in names}
    lines = [line.split("  ")[0] for line in found.contest.splitlines()]
    rows = [
        f"{name} ({kind})" for kind in KINDS.values() for name in names if name[-2:-1] == "c" or _kind(name) == kind
    ]
    assert [line for line in lines if line in rows] == rows
    assert "mnist-gap-c4 (gran)" in found.contest and "against mnist-gap-c4 (gran) (avg" in found.contest
    assert "mnist-gap-c4 (dcgan5)" in found.contest and "within a kind" in found.contest
    assert "against mnist-gan-d (dcgan5) (worst" in found.contest
    assert "*" not in str(found)  # none is the better one across kinds
    held = found.facts()["gam2"]
    assert held["table"] == found.contest and [(row["kind"], row["run"]) for row in held["rows"]] == [
        (kind, name) for kind in KINDS.values() for name in names if name[-2:-1] == "c" or _kind(name) == kind
    ]
    for row in held["rows"]:
        values = found.runs[str(mnist[row["run"]])]["gam2"]["per_member"].values()
        assert min(values) <= row["avg"]["least"] <= row["avg"]["largest"] <= max(values)
        first = row["run"] in ("mnist-gan-d",) or (row["kind"], row["run"]) == ("gran", "mnist-gap-c4")
        assert ("words" in row) != first


def _kind(name: str) -> str:
    return KINDS["d" if "-d" in name else "g"]


def test_a_kind_that_no_other_run_has_is_not_judged(mnist: dict[str, Path]) -> None:
    found = score_runs([mnist["mnist-gap-d2"], mnist["mnist-gap-f4"]], ["gam2"], samples=64)
    entry = found.runs[str(mnist["mnist-gap-f4"])]["gam2"]
    assert entry["judges"] == [2, 2, 0, 0] and list(entry["per_member"].values())[2:] == [None, None]
    assert "mnist-gap-f4 (gran)" in found.contest


def test_a_run_is_not_judged_by_those_that_it_began_with(mnist: dict[str, Path]) -> None:
    runs = [mnist[name] for name in ("mnist-gan-d", "mnist-gap-d2", "mnist-gap-f4")]
    found = score_runs(runs, ["gam2", "gam"], samples=64)
    judges = {run.name: set(found.runs[str(run)]["gam2"]["by_judge"]) for run in runs}
    others = {f"member {m} of mnist-gap-d2" for m in (0, 1)}
    assert judges["mnist-gan-d"] == judges["mnist-gap-f4"] == others
    assert judges["mnist-gap-d2"] == {f"member {m} of {run}" for run in ("mnist-gan-d", "mnist-gap-f4") for m in (0, 1)}
    assert "mnist-gan-d and mnist-gap-f4 do not judge each other: one began with the other's members" in found.contest
    fought = found.runs[str(runs[0])]["gam"]
    assert fought["won"] + fought["tied"] + fought["lost"] == 2 * 2  # against the two of mnist-gap-d2 alone
    with pytest.raises(UserError, match="name another run to judge them"):
        score_runs([runs[0], runs[2]], ["gam2"], samples=64)


def test_without_kinds_nothing_changes() -> None:
    players = [Player("a", 0), Player("b", 0)]
    verdict = gam.gam2(np.array([[0.1, 0.4], [0.3, 0.2]]), met_matrix(players, True, [False, False]))
    text = gam_table.table(players, verdict, np.zeros(2), 10_000, 10)
    assert "the best by avg is member 0 of b" in text and "(" not in text.splitlines()[1]
