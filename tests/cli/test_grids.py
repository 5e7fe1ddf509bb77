"""What can be asked of a finished grid: scores of its neighbourhoods, and ensembles out of all of its cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import tiny_recipe
from run_fixtures import Answer, shared

import ganherd
from ganherd.mixture import mixture
from ganherd.mixture.mixture_files import read_facts
from ganherd.scoring import ensembles

Cli = Callable[..., Answer]
CELLS, SEEDS = 4, 2


@pytest.fixture(scope="session")
def grid_run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A finished run of two replicas of a 2 × 2 grid. Read it, or write beside what is there."""
    path = shared(tmp_path_factory) / "grid"
    if not path.exists():
        recipe = tiny_recipe(
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
        ganherd.train(recipe, ["run.scores=false"], run=path, quiet=True)
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
    from ganherd.metrics.groups import of_grid

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


@pytest.mark.further("options2", "options1")
@pytest.mark.parametrize(
    "options",
    [
        ("--by", "fid"),
        ("--by", "kid", "--search", "evolutionary", "--size", 2),
        ("--by", "tvd", "--search", "evolutionary", "--size", 2),
        ("--by", "fid", "--search", "neighbourhoods"),
        ("--by", "classifier_score"),
        ("--by", "coverage", "--search", "neighbourhoods"),
        ("--by", "density"),
    ],
)
def test_an_ensemble_is_a_mixture_like_any_other(
    cli: Cli, grid_run: Path, options: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensembles, "_GENERATIONS", 200)
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
        assert set(one["before"]) == set(one["after"]) == {"fid", "tvd", options[1]} and one["tried"] >= CELLS
        assert set(one["verdicts"].values()) <= {"better", "worse", "undecided"}
        if ends := one["intervals"]["fid"]:
            assert ends["low"] < one["after"]["fid"] - one["before"]["fid"] < ends["high"]
        if options[1] == "density":  # shown as it is, while the search minimises its distance from 1
            assert abs(one["searched"][1] - 1) <= abs(one["searched"][0] - 1)
        elif "--search" not in options:  # which begins with the best of them; the other one draws its first ensembles
            assert one["searched"][1] < one["searched"][0] * 1.5
    assert cli("sample", grid_run / "mixture-ensemble", "-n", 9, "-o", "out.npz").code == 0
    with np.load("out.npz") as drawn:
        assert drawn["x"].shape == (9, 1, 8, 8)
        assert set(drawn["member"].tolist()) <= {m["member"] for m in found["ensembles"][0]["members"]}


def test_the_table_of_an_ensemble_says_what_it_was_before(cli: Cli, grid_run: Path) -> None:
    answer = cli("ensemble", grid_run, "-n", 64, "--size", 2, "--network", "pixels")
    assert answer.code == 0 and "seed 1: fid" in answer.out and "→" in answer.out and "pixels" in answer.out
    assert any(f"({verdict}, difference " in answer.out for verdict in ("better", "worse", "undecided"))
    assert answer.out.rstrip().endswith("mixture-ensemble")


def test_the_search_never_loses_to_the_best_generator_alone(grid_run: Path) -> None:
    one = ensembles.find(grid_run, 1, samples=64).each[0]
    more = ensembles.find(grid_run, 4, samples=64).each[0]
    assert len(one.members) == 1 and more.searched[1] <= one.searched[1] and more.members[0] == one.members[0]


def test_a_generator_that_is_broken_is_nobodys_partner(grid_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ganherd.scoring import ensembles

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
        (("--by", "tvd", "--network", "pixels"), "predicts classes"),
        (("--network", "lipizzaner-mnist"), "28 × 28"),
        (("--by", "recall"), "recall is no score to weigh generators by"),
        (("--by", "ifid"), "--by ifid needs generators that take a label"),
        (("--size", 0), "--size"),
    ],
)
def test_what_cannot_be_searched(cli: Cli, grid_run: Path, options: tuple[Any, ...], says: str) -> None:
    assert says in cli("ensemble", grid_run, "-n", 8, *options, "-q").sentence


@pytest.mark.further
@pytest.mark.parametrize("search", ["greedy", "evolutionary", "neighbourhoods"])
def test_a_score_that_is_no_number_chooses_nobody(
    cli: Cli, grid_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    (tmp_path / "no_number.py").write_text("def never(features, weights, real):\n    return float('nan')\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = cli(
        "ensemble", grid_run, "-n", 8, "--by", "no_number:never", "--search", search, "--trust-code", "-q"
    ).sentence
    assert "--by no_number:never: the score is not finite for any mixture of seed" in said


def test_members_that_stand_for_classes_are_no_ensemble(cli: Cli, run: Path) -> None:
    assert "generates one class" in cli("ensemble", run, "-q").sentence


# -- what is refused before a run folder is founded -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mixing", "says"),
    [
        ({"network": "gone.npz"}, "mixing.network gone.npz: there is no file gone.npz"),
        ({"network": "gone.pt"}, "mixing.network: the network gone.pt cannot be read: No such file"),
        (
            {"network": "lipizzaner-mnist"},
            "mixing.network lipizzaner-mnist: the network lipizzaner-mnist looks at grey",
        ),
        ({"network": "pixel"}, "did you mean 'pixels"),
        ({"network": "my_net:Wide"}, "mixing.network my_net:Wide cannot process data of shape (1, 8, 8): RuntimeError"),
        ({"network": "my_net:Flat"}, "mixing.network my_net:Flat returned (1, 128) for 2 samples"),
        ({"network": "pixels", "score": "tvd"}, "score tvd needs a network that predicts classes, and pixels does not"),
    ],
)
def test_a_network_that_cannot_look_is_told_before_anything_is_trained(
    cli: Cli, data: Path, monkeypatch: pytest.MonkeyPatch, mixing: dict[str, str], says: str
) -> None:
    Path("my_net.py").write_text(
        "import torch\n"
        "class Wide(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(99, 2)\n"
        "class Flat(torch.nn.Module):\n    def forward(self, x):\n        return x.reshape(1, -1)\n"
    )
    monkeypatch.syspath_prepend(Path.cwd())
    cellular = {"grid": [2, 2], "iteration": "2steps", "mixing": mixing}
    strategy = {"name": "cellular", "cellular": cellular}
    loss = {"name": "non-saturating"}
    Path("mine.yaml").write_text(json.dumps(tiny_recipe(data, data={"partition": "all"}, loss=loss, strategy=strategy)))
    for more in ((), ("--dry-run",)):
        assert says in cli("train", "mine.yaml", "--run", "new", "--quiet", *more).sentence
        assert not Path("new").exists()


@pytest.mark.further
def test_a_run_whose_network_has_gone_is_not_left_running(
    cli: Cli, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ganherd.features.lipizzaner import LipizzanerNet

    random = np.random.default_rng(0)
    np.savez("mnist.npz", x=random.integers(0, 256, (40, 1, 28, 28), np.uint8), y=np.arange(40) % 2)
    np.savez("net.npz", **{name: p.detach().numpy() for name, p in LipizzanerNet().named_parameters()})
    cellular = {"grid": [1, 2], "iteration": "2steps", "mixing": {"network": "net.npz", "samples": 8}}
    strategy = {"name": "cellular", "cellular": cellular | {"fitness": {"samples": 8}}}
    nets = {"generator": {"name": "mlp", "hidden": [4]}, "discriminator": {"name": "mlp", "hidden": [4]}, "latent": 2}
    recipe = tiny_recipe("mnist.npz", data={"partition": "all"}, nets=nets, strategy=strategy)
    Path("mine.yaml").write_text(json.dumps(recipe | {"loss": {"name": "non-saturating"}}))
    assert cli("train", "mine.yaml", "--run", "new", "--set", "run.scores=false", "--quiet").code == 0
    Path("net.npz").unlink()
    again = ("train", "--resume", "new", "--budget", "8steps", "--quiet")
    assert f"there is no file {Path('net.npz').absolute()}" in cli(*again).sentence
    assert json.loads(cli("status", "new", "--json").out)["state"] == "finished"


def test_a_run_that_a_users_function_ends_can_be_gone_on_with(
    cli: Cli, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("late_wiring.py").write_text(
        "def late(iteration, cells):\n    return [[[0]] * cells, [[9]] * cells][iteration]\n"
    )
    monkeypatch.syspath_prepend(Path.cwd())
    cellular = {"grid": [1, 2], "iteration": "2steps", "rewire_by": "late_wiring:late", "mixing": {"when": "off"}}
    strategy = {"name": "cellular", "cellular": cellular | {"fitness": {"samples": 8}}}
    recipe = tiny_recipe(data, data={"partition": "all"}, loss={"name": "non-saturating"}, strategy=strategy)
    Path("mine.yaml").write_text(json.dumps(recipe))
    assert "late_wiring:late" in cli("train", "mine.yaml", "--run", "new", "--quiet").sentence
    assert json.loads(cli("status", "new", "--json").out)["state"] == "interrupted"


def test_a_graph_that_names_cells_that_are_not_there(cli: Cli) -> None:
    words = ("--set", "strategy.cellular.topology=graph", "--set", "strategy.cellular.graph=[[1], [0, 7]]")
    told = cli("train", "digits-cellular-3x3", *words).sentence
    assert "--set strategy.cellular.graph" in told and "cell 1 lists 7, and its cells are numbered from 0 to 1" in told
