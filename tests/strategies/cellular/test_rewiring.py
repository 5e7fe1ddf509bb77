"""Neighbourhoods that change while a grid trains, and what a grid cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ganherd.recipe import recipe_file
from ganherd.training.setup.assemble import assemble
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.util.errors import UserError
from promises.test_cellular import SPAN, made, settings, train


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    torch.set_num_threads(1)
    yield


def test_neighbourhoods_change_on_schedule(tmp_path: Path) -> None:
    change = [{"at": 1, "topology": "isolated"}, {"at": 2, "topology": "full"}]
    for selection in (True, False):
        recipe = settings(tmp_path, grid=[3, 3], rewire=change, selection=selection, mixing={"samples": 20})
        _, strategy, events = train(recipe)
        told = [(facts["iteration"], facts["topology"]) for name, facts in events if name == "rewire"]
        assert told == [(1, "isolated 9"), (2, "full 9")]
        weights = strategy.state["meet.weights"]
        assert weights.shape == (9, 9) and (weights > 0).all()
        if selection:
            assert [facts["g"] for name, facts in events if name == "tournament"][1] == list(range(9))


def test_a_schedule_may_name_a_graph_and_leave_it_again(tmp_path: Path) -> None:
    """Whoever trains on a graph from the first iteration on meets the same cells as who comes to it on schedule."""
    star = [[1, 2, 3], [0], [0], []]
    change = [{"at": 1, "topology": "graph", "graph": star}, {"at": 2, "topology": "torus"}]
    _, strategy, events = train(settings(tmp_path, grid=[2, 2], rewire=change, mixing={"samples": 20}))
    told = [(facts["iteration"], facts["neighbours"]) for name, facts in events if name == "rewire"]
    assert told == [(1, star), (2, [[1, 2], [0, 3], [3, 0], [2, 1]])]
    won = [facts["g"] for name, facts in events if name == "tournament"]
    assert won[1][3] == 3 and all(winner in (cell, *star[cell]) for cell, winner in enumerate(won[1]))
    plan, first = strategy.rewiring, made(settings(tmp_path, topology="graph", graph=star))[1].rewiring
    assert plan.at(1) == first.at(0) and plan.widest == 4
    assert strategy.state["meet.weights"].shape == (4, 4)
    from_a_graph = [{"at": 1, "topology": "graph", "graph": [[1], [2], [3], [0]]}]
    _, strategy, events = train(settings(tmp_path, topology="graph", graph=star, rewire=from_a_graph))
    assert [facts["neighbours"] for name, facts in events if name == "rewire"] == [[[1], [2], [3], [0]]]


def test_a_rewiring_after_the_end_is_reported(tmp_path: Path) -> None:
    change = [{"at": at, "topology": "ring"} for at in (1, 2, 3, 7)]
    recipe = recipe_file.load(settings(tmp_path, grid=[2, 2], rewire=change))
    for steps, late in ((4 * SPAN, "7"), (3 * SPAN + 1, "7"), (3 * SPAN, "3, 7")):
        (told,) = recipe.strategy.settings.never_due({"iteration": SPAN}, steps)
        assert f"rewire at {late} is never reached" in told
    assert recipe.strategy.settings.never_due({"iteration": SPAN}, 8 * SPAN) == []


def test_a_function_of_the_users_own_may_choose_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_wiring.py").write_text(
        "def line(iteration, cells):\n    return [[(cell + iteration) % cells] for cell in range(cells)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = recipe_file.load(settings(tmp_path, grid=[2, 2], rewire_by="my_wiring:line"))
    with pytest.raises(UserError, match="function my_wiring:line is code that is not ganherd's: give --trust-code"):
        make_strategy(assemble(recipe), {"iteration": SPAN})
    assert "my_wiring" not in sys.modules
    strategy = make_strategy(assemble(recipe, trust_code=True), {"iteration": SPAN})
    events = [event for step in (0, SPAN, 2 * SPAN) for event in strategy.open(step)]
    told = [facts["neighbours"] for name, facts in events if name == "rewire"]
    assert told == [[[1], [2], [3], [0]], [[2], [3], [0], [1]]]


def test_a_function_that_answers_nonsense_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_wiring.py").write_text("def few(iteration, cells):\n    return [[0]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = recipe_file.load(settings(tmp_path, grid=[2, 2], rewire_by="odd_wiring:few"))
    with pytest.raises(UserError, match="odd_wiring:few returned 1 lists at iteration 0"):
        make_strategy(assemble(recipe, trust_code=True), {"iteration": SPAN})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rewire": [{"at": 1, "topology": "ring"}], "rewire_by": "a:b"}, "both choose the neighbours"),
        ({"iteration": "0"}, "strategy.cellular.iteration must be longer than 0"),
        ({"replacements": 2}, "more than the 1 individuals of a cell"),
        ({"staleness": 3}, "staleness has no effect with strategy.cellular.exchange sync"),
        ({"exchange": "async", "rewire": [{"at": 2, "topology": "ring"}]}, "ranks are not at the same one"),
        ({"topology": "graph"}, "give both or neither"),
        ({"topology": "graph", "graph": [[1], [2]]}, "cell 1 lists 2, and its cells are numbered from 0 to 1"),
        (
            {"topology": "graph", "graph": [[1], [-1]]},
            r"a graph lists the neighbours .* this is not one: \[\[1\], \[-1\]\]",
        ),
        ({"rewire": [{"at": 1, "topology": "graph"}]}, "rewire.topology graph: give both or neither"),
        ({"rewire": [{"at": 1, "topology": "full", "graph": [[0]]}]}, "rewire.topology graph: give both or neither"),
        (
            {"rewire": [{"at": 1, "topology": "graph", "graph": [[1], [2]]}]},
            "rewire.graph: cell 1 lists 2, and its cells are numbered from 0 to 1",
        ),
        (
            {"rewire": [{"at": 1, "topology": "graph", "graph": [[1], ["x"]]}]},
            r"a graph lists the neighbours .* this is not one: \[\[1\], \['x'\]\]",
        ),
        (
            {"rewire": [{"at": 4, "topology": "graph", "graph": [[1], [0]]}]},
            "rewire at 4: its graph lists the neighbours of 2 cells, and there are 9",
        ),
        (
            {"rewire": [{"at": 4, "topology": "ring"}, {"at": 2, "topology": "full"}, {"at": 4, "topology": "moore"}]},
            "rewire has two changes at iteration 4: leave one of them out",
        ),
        ({"neighbours": 2}, "neighbours 2 has no effect on the topology torus: it is for ring"),
        ({"rewire": [{"at": 1, "topology": "full", "neighbours": 3}]}, "3 has no effect on the topology full"),
        ({"selection": False, "tournament": 3}, "tournament has no effect with strategy.cellular.selection false"),
        ({"selection": False, "population": 2, "replacements": 2}, "replacements has no effect with"),
        ({"mutation": {"loss_each": "iteration"}}, "loss_each has no effect if no losses are drawn"),
        ({"grid": [0, 3]}, "must be rows and columns, two whole numbers of at least 1, such as .3, 3., not .0, 3."),
        ({"grid": [3]}, "must be rows and columns"),
        ({"mixing": {"keep": "best", "when": "end"}}, "needs a score of every iteration"),
        ({"mixing": {"keep": "best"}, "rewire": [{"at": 1, "topology": "ring"}]}, "the same neighbourhoods"),
    ],
)
def test_impossible_rewirings_are_refused(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        recipe_file.load(settings(tmp_path, **wrong))
