"""Promises 1 and 3 for grids: fused cells equal cells trained one by one; a stop within an iteration is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_files
import tiny_runs
import torch

import ganherd
from ganherd.herd.engine.engines import Plan, make_engine, place_state
from ganherd.recipe import recipe_file
from ganherd.strategies.cellular.cellular import Cellular
from ganherd.training.setup.assemble import PreparedHerd, assemble
from ganherd.training.setup.build_strategy import make_strategy
from promises.plain_grid import PlainGrid
from promises.test_resume import ask_to_stop

SPAN, ITERATIONS = 5, 3


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    torch.set_num_threads(1)
    yield


def settings(
    folder: Path, *, nets: dict[str, Any] | None = None, seed: int = 3, seeds: int = 1, **cellular: Any
) -> dict[str, Any]:
    """A little grid on random images, whose learning rates wander much further than anybody would want."""
    path = folder / "data.npz"
    if not path.exists():
        np.savez(path, x=np.random.default_rng(0).integers(0, 256, (60, 1, 6, 6), np.uint8))
    mutation = {"strength": 0.3, **cellular.pop("mutation", {})}
    small: dict[str, Any] = {
        "latent": 3,
        "generator": {"name": "small", "width": 5, "batch_norm": True},
        "discriminator": {"name": "small", "width": 5},
    }
    return {
        "data": {"source": str(path), "partition": "diet", "diet": 0.5},
        "herd": {"seeds": seeds},
        "nets": nets or small,
        "loss": {"name": "non-saturating"},
        "optim": {"lr_g": 0.02, "lr_d": 0.01},
        "train": {
            "batch": 4,
            "order": "g-d",
            "skip_d": 1,
            "precision": "float64",
            "budget": f"{SPAN * ITERATIONS}steps",
        },
        "strategy": {
            "name": "cellular",
            "cellular": {
                "iteration": f"{SPAN}steps",
                "fitness": {"samples": 16},
                "mixing": {"when": "off"},
                "mutation": mutation,
                **cellular,
            },
        },
        "run": {"seed": seed},
    }


def made(recipe: dict[str, Any], engine: str = "fused", chunk: int = 100) -> tuple[PreparedHerd, Cellular, Any]:
    assembly = assemble(recipe_file.load(recipe))
    plan = Plan(engine, min(chunk, assembly.herd.num_members), 1, "cpu")
    place_state(assembly.herd, plan)
    strategy = make_strategy(assembly, {"iteration": SPAN})
    assert isinstance(strategy, Cellular)
    return assembly, strategy, make_engine(assembly.herd, plan)


Trained = tuple[PreparedHerd, Cellular, list[Any]]
_TRAINED: dict[str, Trained] = {}


def train(recipe: dict[str, Any], **how: Any) -> Trained:
    """As the loop does it, without anything that is written. Trained once for all tests, which must not change it."""
    key = repr(({**recipe, "data": {**recipe["data"], "source": Path(recipe["data"]["source"]).name}}, how))
    if key not in _TRAINED:
        assembly, strategy, engine = made(recipe, **how)
        sums, events = assembly.herd.zero_sums(), []
        for step in range(0, SPAN * ITERATIONS, SPAN):
            events += list(strategy.open(step))
            engine.advance(step, step + SPAN, sums)
            events += list(strategy.close(step + SPAN))
        _TRAINED[key] = assembly, strategy, events
    return _TRAINED[key]


# -- fused equals separate ----------------------------------------------------------------------------------------------

MUSTANGS = ["non-saturating", "least-squares-sigmoid"]
CASES: dict[str, dict[str, Any]] = {
    "2x2": {"grid": [2, 2]},
    "3x3": {"grid": [3, 3]},
    "3x3, no selection": {"grid": [3, 3], "selection": False},
    "2x2, no selection": {"grid": [2, 2], "selection": False},
    "isolated": {"grid": [1, 2], "topology": "isolated"},
    "worst opponent, large tournaments": {"grid": [2, 2], "tournament": 3, "fitness": {"samples": 16, "over": "worst"}},
    "log-normal learning rates, once an iteration": {
        "grid": [2, 2],
        "mutation": {"learning_rate": "lognormal", "each": "iteration"},
    },
    "no mutation": {"grid": [2, 2], "mutation": {"learning_rate": "off"}},
    "losses by batch": {"grid": [2, 2], "mutation": {"losses": MUSTANGS}},
    "losses by iteration": {
        "grid": [2, 2],
        "mutation": {"losses": MUSTANGS, "loss_each": "iteration", "d_loss": "non-saturating"},
    },
    "losses at creation": {"grid": [2, 2], "mutation": {"losses": MUSTANGS, "loss_each": "creation"}},
    "population of 2": {"grid": [2, 2], "population": 2},
    "population of 2, both replaced": {"grid": [2, 2], "population": 2, "replacements": 2, "tournament": 3},
    "population of 2, no selection": {"grid": [2, 2], "population": 2, "selection": False},
    "fresh opponents": {"grid": [3, 3], "opponents": "neighbourhood"},
    "population of 2, fresh opponents": {"grid": [2, 2], "population": 2, "opponents": "neighbourhood"},
    "population of 2, partners": {"grid": [2, 2], "population": 2, "opponents": "partner"},
    "(1,1)": {"grid": [2, 2], "survival": "comma"},
    "(1,4)": {"grid": [2, 2], "offspring": 4, "survival": "comma", "opponents": "partner"},
    "(2,3), losses at creation": {
        "grid": [2, 2],
        "population": 2,
        "offspring": 3,
        "survival": "comma",
        "mutation": {"losses": MUSTANGS, "loss_each": "creation"},
    },
    "(1+3), fresh opponents": {"grid": [2, 2], "offspring": 3, "opponents": "neighbourhood"},
    "ageing": {"grid": [3, 3], "max_age": 1, "tournament": 1, "fitness": {"samples": 16, "over": "worst"}},
    "population of 2, ageing": {"grid": [2, 2], "population": 2, "replacements": 2, "max_age": 1},
}


@pytest.mark.further(
    "3x3",
    "3x3, no selection",
    "population of 2",
    "population of 2, no selection",
    "population of 2, fresh opponents",
    "population of 2, partners",
    "(2,3), losses at creation",
    "(1+3), fresh opponents",
    "population of 2, ageing",
)
@pytest.mark.parametrize("case", CASES)
def test_fused_cells_equal_cells_trained_one_by_one(tmp_path: Path, case: str) -> None:
    recipe = settings(tmp_path, **CASES[case])
    plain = PlainGrid(made(recipe)[0], *CASES[case]["grid"])
    plain.run(ITERATIONS, SPAN)
    assembly, strategy, _ = train(recipe)
    found = {**assembly.herd.state, "fitness.g": strategy.fitness[:, 0], "fitness.d": strategy.fitness[:, 1]}
    individuals = np.arange(len(strategy.cells.own)) % strategy.cells.rows < strategy.cells.population
    for name, wanted in plain.state().items():
        torch.testing.assert_close(
            found[name][individuals], wanted, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
    if "creation" in case:  # else it is drawn anew before it is used again
        names = assembly.herd.rules.game.names
        assert [names[i] for i in found["set.loss"][individuals].tolist()] == plain.losses()


@pytest.mark.parametrize(
    ("how", "case"),
    [
        ({"engine": "loop"}, "2x2"),
        ({"chunk": 3}, "3x3, no selection"),
        ({"chunk": 3}, "(1,4)"),
        ({"engine": "loop"}, "fresh opponents"),
    ],
)
def test_engines_give_the_same_grid(tmp_path: Path, how: dict[str, Any], case: str) -> None:
    recipe = settings(tmp_path, **CASES[case])
    one, other = (train(recipe, **each)[0].herd.state for each in ({}, how))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-9, atol=1e-9)


def test_compared_grids_include_all_outcomes_of_tournaments_and_replacements(tmp_path: Path) -> None:
    """In the grids above some genes come from neighbours, some trained ones are kept and some are rejected."""
    _, _, events = train(settings(tmp_path, **CASES["3x3"]))
    won = np.array([facts["g"] for name, facts in events if name == "tournament"])
    new = np.array([facts["g_new"] for name, facts in events if name == "replacement"])
    assert (won != np.arange(9)).any() and (won == np.arange(9)).any()
    assert new.any() and not new.all()


def test_a_comma_replaces_every_net_and_ageing_those_that_survived_once(tmp_path: Path) -> None:
    for case in ("(1,1)", "ageing"):
        _, _, events = train(settings(tmp_path, **CASES[case]))
        ends = [facts for name, facts in events if name == "replacement"]
        new, before, after = (
            np.array([[facts[f"{kind}_{name}"] for kind in ("g", "d")] for facts in ends])  # [T, 2, C]
            for name in ("new", "before", "after")
        )
        assert (new & (after > before)).any()  # a worse one stays
        assert new.all() if case == "(1,1)" else not new.all() and (new[1:] | new[:-1]).all()


def test_the_best_offspring_becomes_the_individual(tmp_path: Path) -> None:
    _, _, events = train(settings(tmp_path, **CASES["(1,4)"]))
    for facts in (facts for name, facts in events if name == "replacement"):
        for kind in ("g", "d"):
            trained = np.array(facts[f"{kind}_trained"]).reshape(-1, 4)
            assert facts[f"{kind}_after"][::4] == trained.min(1).tolist()
            assert facts[f"{kind}_from"][::4] == (trained.argmin(1) + np.arange(0, 16, 4)).tolist()
            assert len({*trained[0]}) == 4  # batches and noise make them different


def test_a_broken_offspring_changes_no_individual_of_other_cells_and_never_becomes_one(tmp_path: Path) -> None:
    states = []
    for broken in (False, True):
        assembly, strategy, engine = made(settings(tmp_path, **CASES["(1,4)"]))
        list(strategy.open(0))
        engine.advance(0, SPAN, assembly.herd.zero_sums())
        if broken:  # three of the four generators of the first cell
            assembly.herd.state["g.params"][:3] = torch.nan
        list(strategy.close(SPAN))
        states.append(assembly.herd.state)
    healthy, other = ({name: value[::4] for name, value in state.items()} for state in states)
    assert all(torch.isfinite(value).all() for name, value in other.items() if name.startswith(("g.", "d.")))
    for name, value in healthy.items():
        assert torch.equal(value[1:], other[name][1:]), name


# -- replicas are runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["2x2", "2x2, no selection", "population of 2", "(1,4)", "(1+3), fresh opponents"])
def test_a_replica_equals_the_grid_with_its_seed(tmp_path: Path, case: str) -> None:
    both = train(settings(tmp_path, seeds=2, **CASES[case]))[0].herd.state
    for number, seed in enumerate((3, 4)):
        alone = train(settings(tmp_path, seed=seed, **CASES[case]))[0].herd.state
        size = len(alone["set.seed"])
        for name, value in alone.items():
            torch.testing.assert_close(both[name][number * size : (number + 1) * size], value, rtol=1e-9, atol=1e-9)


# -- resume is exact ----------------------------------------------------------------------------------------------------


def running(folder: Path, **cellular: Any) -> dict[str, Any]:
    recipe = settings(folder, **{"mixing": {"samples": 20, "generations": 3}, **cellular})
    recipe["train"]["precision"] = "float32"
    recipe["engine"] = {"name": "fused", "threads": 1, "device": "cpu"}
    recipe["run"] |= {"record_every": 2, "checkpoint_every": 4, "sample_every": 0, "watch": {"every": 0}}
    return recipe


KEPT = {"mixing": {"samples": 20, "generations": 3, "keep": "best"}}


@pytest.mark.further(but=["2x2-more0"])
@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("2x2", {}),
        ("losses by batch", {}),
        ("2x2, no selection", {}),
        ("population of 2", KEPT),
        ("losses at creation", {}),
        ("fresh opponents", {}),
        ("(2,3), losses at creation", KEPT),
        ("ageing", {}),
    ],
)
def test_a_stop_within_an_iteration_or_between_two_is_exact(
    tmp_path: Path, case: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.skip_products(monkeypatch)
    recipe = running(tmp_path, **CASES[case], **more)
    tiny_runs.train(tmp_path / "whole", recipe)
    for step in (3, 5, 6):  # within, between, right after
        with monkeypatch.context() as patch:
            ask_to_stop(patch, step)
            with pytest.raises(ganherd.Interrupted):
                tiny_runs.train(tmp_path / f"stopped-{step}", recipe)
        tiny_runs.resume(tmp_path / f"stopped-{step}")
        run_files.assert_same_run(tmp_path / f"stopped-{step}", tmp_path / "whole")


def test_a_longer_budget_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the shorter run ended in the middle of an iteration."""
    tiny_runs.skip_products(monkeypatch)
    change = [{"at": 2, "topology": "ring"}]
    recipe = running(tmp_path, grid=[2, 2], rewire=change)
    tiny_runs.train(tmp_path / "whole", recipe)
    recipe["train"]["budget"] = "7steps"
    tiny_runs.train(tmp_path / "longer", recipe)
    tiny_runs.resume(tmp_path / "longer", f"{SPAN * ITERATIONS}steps")
    run_files.assert_same_run(tmp_path / "longer", tmp_path / "whole")
    told = [line for line in run_files.json_lines(tmp_path / "whole" / "events.jsonl") if line["event"] == "rewire"]
    assert [(line["step"], line["iteration"]) for line in told] == [(2 * SPAN, 2)]
