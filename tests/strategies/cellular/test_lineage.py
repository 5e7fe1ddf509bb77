"""Whose genes a cell carries, from events alone: by hand, and against a grid that was trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.strategies.cellular.history import lineage_picture
from ganherd.strategies.cellular.history.lineage import drawn_losses, lineage, of_records
from ganherd.strategies.cellular.topology import torus
from ganherd.viz.pictures import svg
from promises.test_cellular import ITERATIONS, SPAN, made, settings, train

WON = {"event": "tournament", "iteration": 0, "g": [1, 1, 2, 0], "d": [0, 1, 2, 3]}
STAYED = {
    "event": "replacement", "iteration": 0,
    "g_new": [True, True, False, True], "g_after": [1.0, "nan", 3.0, 4.0],
    "d_new": [False] * 4, "d_after": [1.0] * 4,
}  # fmt: skip


def test_lineage_matches_one_computed_by_hand() -> None:
    second = [{**WON, "iteration": 1, "g": [2, 0, 3, 3]}, {**STAYED, "iteration": 1}]
    found = lineage([WON, STAYED, *second], "g", 4)
    assert found.iterations.tolist() == [0, 1]
    assert found.source.tolist() == [[1, 1, 2, 0], [2, 0, 2, 3]]  # the third was turned away, so it came from nowhere
    assert found.founder.tolist() == [[1, 1, 2, 0], [2, 1, 2, 0]]
    assert found.replaced.tolist() == [STAYED["g_new"]] * 2
    assert np.isnan(found.fitness[0, 1]) and found.fitness[0, [0, 2, 3]].tolist() == [1.0, 3.0, 4.0]
    assert lineage([WON, STAYED], "d", 4).founder.tolist() == [[0, 1, 2, 3]]


def test_replicas_and_populations_by_hand() -> None:
    """Two replicas of two cells with two individuals: the best comes first, wherever it was."""
    events = [
        {"event": "tournament", "g": [2, 0, 3, 3, 4, 5, 4, 7]},
        {
            "event": "replacement", "iteration": 0, "g_after": list(range(8)),
            "g_new": [True, False, False, True, False, True, True, True], "g_from": [1, 0, 3, 2, 5, 4, 6, 7],
        },
    ]  # fmt: skip
    first, second = (lineage(events, "g", 2, 2, replica) for replica in (0, 1))
    assert first.source.tolist() == [[0, 1]]  # the trained one in place 1 was a copy of 0; 3 is old
    assert second.source.tolist() == [[0, 0]]  # 5 is old and of cell 0; place 6 had a copy of 4
    assert first.fitness.tolist() == [[0, 2]] and second.fitness.tolist() == [[4, 6]]
    assert of_records([{"step": 1, "lr_g": list(range(8))}, {"step": 2}], "lr_g", 2, 2, 1) == [[4, 6]]
    assert drawn_losses([{"drawn_a": list(range(8))}, {"step": 2}], 2, 2, 1)["a"].tolist() == [[9, 13]]


@pytest.mark.parametrize("case", [{}, {"population": 2}])
def test_founders_are_those_whose_weights_are_there(tmp_path: Path, case: dict[str, Any]) -> None:
    """Nets that do not learn keep the weights of their founder, which are told apart."""
    recipe = settings(tmp_path, grid=[3, 3], mutation={"learning_rate": "off"}, **case)
    recipe["optim"] = {"lr_g": 0.0, "lr_d": 0.0}
    torch.set_num_threads(1)
    before = made(recipe)[0].herd.state["g.params"].clone()
    assembly, _, events = train(recipe)
    p = case.get("population", 1)
    found = lineage([{"event": name, **facts} for name, facts in events], "g", 9, p)
    assert found.iterations.tolist() == list(range(ITERATIONS)) and SPAN > 0
    now = assembly.herd.state["g.params"]
    for cell in range(9):
        same = (before == now[cell * p]).all(1).nonzero().flatten() // p
        assert same.tolist() == [found.founder[-1, cell]]


def test_pictures_of_a_grid_over_time() -> None:
    random = np.random.default_rng(0)
    events: list[dict[str, Any]] = []
    for iteration in range(500):
        won = [int(random.choice(torus(3, 3).members(cell))) for cell in range(9)]
        events.append({"event": "tournament", "iteration": iteration, "g": won})
        kept = {"g_new": [True] * 9, "g_after": random.random(9).tolist()}
        events.append({"event": "replacement", "iteration": iteration, **kept})
    found = lineage(events, "g", 9)
    grids = lineage_picture.draw_grids(found, torus(3, 3))
    assert [axes.get_title() for axes in grids.axes][::5] == ["start", "iteration 500"]
    numbers = re.findall(r">(\d+)</text>", svg(lineage_picture.draw_founders(found)))
    assert "500" in numbers and "8" in numbers
    (values, bar) = lineage_picture.draw_map(found.fitness, found.iterations, "fitness", log=True).axes
    assert values.images[0].get_array().shape == (9, 400) and bar.get_ylabel() == "fitness"
    broken = lineage_picture.draw_map(np.full((2, 9), np.nan), np.arange(2), "")
    assert len(broken.axes) == 2
    drawn = lineage_picture.draw_choices([["a", "b"], ["b", "b"]], np.arange(2))
    assert [text.get_text() for text in drawn.axes[0].get_legend().get_texts()] == ["a", "b"]  # type: ignore[union-attr]
    assert len({tuple(row) for row in lineage_picture.colours(144).round(6).tolist()}) == 144
