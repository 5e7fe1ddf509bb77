"""What can be asked of a finished grid: scores of its neighbourhoods, and ensembles out of all of its cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ganherd
from commands import Answer, shared
from ganherd import mixture
from ganherd.mixture_file import read_facts
from small import small_recipe

Cli = Callable[..., Answer]
CELLS, SEEDS = 4, 2


@pytest.fixture(scope="session")
def grid_run(tmp_path_factory: pytest.TempPathFactory, data: Path, own_cache: None) -> Path:
    """A finished run of two replicas of a 2 × 2 grid. Read it, or write beside what is there."""
    path = shared(tmp_path_factory) / "grid"
    if not path.exists():
        recipe = small_recipe(
            data,
            data={"partition": "all"},
            loss={"name": "non-saturating"},
            herd={"seeds": SEEDS},
            strategy={
                "name": "cellular",
                "cellular": {
                    "grid": [2, 2],
                    "iteration": "2steps",
                    "fitness": {"samples": 16},
                    "mixing": {"samples": 64, "sigma": 0.3},
                },
            },
            train={"budget": "8steps"},
        )
        torch.set_num_threads(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ganherd.run.finish.write_scores", lambda *arguments: {})
            ganherd.train(recipe, run=path, quiet=True)
    return path


# -- scores of neighbourhoods ---------------------------------------------------------------------------------------


def test_every_neighbourhood_has_its_score(cli: Cli, grid_run: Path) -> None:
    answer = cli("score", grid_run, "--per", "neighbourhood", "--metrics", "fid,histogram", "-n", 200, "--json", "-q")
    assert answer.code == 0, answer.err
    scores = json.loads(answer.out)["scores"]
    for name in ("fid", "histogram"):
        found = scores[name]["per_neighbourhood"]
        assert list(found) == [str(cell) for cell in range(CELLS)]
        assert len(scores[name]["per_seed"]) == SEEDS
        assert all(n <= 3 * 200 for n in scores[name]["per_neighbourhood_samples"].values())
    assert len(set(scores["fid"]["per_neighbourhood"].values())) == CELLS
    table = cli("score", grid_run, "--per", "neighbourhood", "--metrics", "fid", "-n", 50, "-q").out.splitlines()
    head = next(number for number, line in enumerate(table) if line.startswith("neighbourhood "))
    assert [line.split()[0] for line in table[head + 1 : head + 1 + CELLS]] == [str(cell) for cell in range(CELLS)]


def test_each_replica_has_the_weights_of_its_own_neighbourhoods(grid_run: Path) -> None:
    from ganherd.scores.groups import of_grid

    made = mixture.load(grid_run)
    for replica in range(SEEDS):
        found = of_grid(made, replica)
        assert found is not None and len(found) == CELLS
        for cell, one in enumerate(found):
            weights = made.neighbourhood(cell).weights_of(replica)
            assert one.weights is not None and weights[list(one.members)].tolist() == list(one.weights)
    first, second = (of_grid(made, replica) for replica in range(SEEDS))
    assert first != second


def test_a_run_without_neighbourhoods_has_no_score_of_them(cli: Cli, run: Path) -> None:
    assert "strategy.name cellular" in cli("score", run, "--per", "neighbourhood", "-q").sentence
    assert "class, member or neighbourhood" in cli("score", run, "--per", "cell", "-q").sentence


# -- ensembles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("--by", "fid"),
        ("--by", "tvd", "--search", "evolutionary", "--size", 2),
        ("--by", "fid", "--search", "neighbourhoods"),
    ],
)
def test_an_ensemble_is_a_mixture_like_any_other(cli: Cli, grid_run: Path, options: tuple[Any, ...]) -> None:
    answer = cli("ensemble", grid_run, "-n", 64, *options, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert (found["by"], found["samples"], found["generators"]) == (options[1], 64, CELLS)
    facts = read_facts(grid_run / "mixture-ensemble")
    assert facts.seeds == [0, 1] and facts.neighbourhoods is None
    for row, one in zip(facts.weights, found["ensembles"], strict=True):
        given = {m["member"]: m["weight"] for m in one["members"]}
        assert 1 <= len(given) <= (2 if "--size" in options else 5)
        assert isinstance(row, list) and row == [given.get(member, 0.0) for member in range(CELLS)]
        assert sum(given.values()) == pytest.approx(1)
        assert set(one["before"]) == set(one["after"]) == {"fid", "tvd"} and one["tried"] >= CELLS
        if "--search" not in options:  # which begins with the best of them; the other one draws its first ensembles
            assert one["searched"][1] < one["searched"][0] * 1.5
    assert cli("sample", grid_run / "mixture-ensemble", "-n", 9, "-o", "out.npz").code == 0
    with np.load("out.npz") as drawn:
        assert drawn["x"].shape == (9, 1, 8, 8)
        assert set(drawn["member"].tolist()) <= {m["member"] for m in found["ensembles"][0]["members"]}


def test_the_table_of_an_ensemble_says_what_it_was_before(cli: Cli, grid_run: Path) -> None:
    answer = cli("ensemble", grid_run, "-n", 64, "--size", 2, "--network", "pixels")
    assert answer.code == 0 and "seed 1: fid" in answer.out and "→" in answer.out and "pixels" in answer.out
    assert answer.out.rstrip().endswith("mixture-ensemble")


def test_the_search_never_loses_to_the_best_generator_alone(grid_run: Path) -> None:
    from ganherd import ensembles

    one = ensembles.find(grid_run, 1, samples=64).each[0]
    more = ensembles.find(grid_run, 4, samples=64).each[0]
    assert len(one.members) == 1 and more.searched[1] <= one.searched[1] and more.members[0] == one.members[0]


def test_a_generator_that_is_broken_is_nobodys_partner(grid_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ganherd import ensembles

    whole = mixture.load(grid_run)
    best = ensembles.find(grid_run, 1, samples=64).each[0].members[0]
    breed = whole.breeds[0]
    for value in breed.params.values():
        value[best] = torch.nan
    monkeypatch.setattr(mixture, "load", lambda *arguments: whole)
    found = ensembles.find(grid_run, 4, samples=64).each
    assert best not in found[0].members and found[0].members


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--by", "tvd", "--network", "pixels"), "tells classes"),
        (("--network", "lipizzaner-mnist"), "28 × 28"),
        (("--by", "is"), "--by"),
        (("--size", 0), "--size"),
    ],
)
def test_what_cannot_be_searched(cli: Cli, grid_run: Path, options: tuple[Any, ...], says: str) -> None:
    assert says in cli("ensemble", grid_run, "-n", 8, *options, "-q").sentence


def test_members_that_stand_for_classes_are_no_ensemble(cli: Cli, run: Path) -> None:
    assert "stand for classes" in cli("ensemble", run, "-q").sentence
