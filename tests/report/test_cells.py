"""The section about grids: topology, genes, neighbourhoods and profile; empty for other runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.mixture.mixture_files import Neighbourhood, Neighbourhoods
from ganherd.recipe.recipe_file import load
from ganherd.report.gather import MemberStory, RunStory
from ganherd.report.grid_section import cells
from ganherd.report.herd_section import events as told_events
from ganherd.report.story_section import summary
from ganherd.runs import run_status, status_text
from ganherd.runs.models import EngineRecord, EventRecord, MetricsRecord, RunInfo
from ganherd.runs.profile import ROUTINES
from ganherd.strategies.cellular.history.lineage_picture import draw_map
from ganherd.viz.pictures import svg

CELLS = 4


def story(**changes: Any) -> RunStory:
    recipe = load("mnist-cellular-2x2", changes.pop("overrides", [])).model_dump(mode="json")
    selection = recipe["strategy"]["cellular"]["selection"]
    events: list[dict[str, Any]] = []
    rates = {"lr_g": [1e-4, 2e-4, 3e-4, 4e-4], "lr_d": [2e-4, 2e-4, 2e-4, 3e-4]}
    for iteration in range(3):
        step, numbers = 600 * (iteration + 1), list(np.linspace(0.1, 0.4, CELLS))
        if selection:
            events.append(
                {
                    "step": step - 600,
                    "event": "tournament",
                    "iteration": iteration,
                    "g": [1, 1, 3, 2],
                    "d": [0, 1, 2, 3],
                }
            )
        facts: dict[str, Any] = {f"{kind}_after": numbers for kind in ("g", "d")}
        facts |= {f"{kind}_new": [True, False, True, True] for kind in ("g", "d")} if selection else {}
        kind = "replacement" if selection else "evaluation"
        events.append({"step": step, "event": kind, "iteration": iteration, **facts, **rates})
    spent = dict.fromkeys(ROUTINES, 0.5) | {"update": 7.0}
    metrics = [{"step": 600 * i, "profile": spent} for i in (1, 2, 3)]
    found = {"info": RunInfo(), "recipe": recipe, "metrics": metrics, "events": events, "scores": {}, "members": []}
    told = {"name": "grid", **found, **changes}
    told["metrics"] = [MetricsRecord.parse(line) for line in told["metrics"]]
    told["events"] = [EventRecord.parse(line) for line in told["events"]]
    return RunStory(**told)  # type: ignore[arg-type]


def grid(best: int) -> Neighbourhoods:
    own = [
        Neighbourhood(cell=cell, members=[cell, (cell + 1) % CELLS], weights=[0.25, 0.75], fid=10.0 - cell, tvd=None)
        for cell in range(CELLS)
    ]
    return Neighbourhoods(by="fid", network="classifier", samples=1000, best=[best], all=own)


def test_grid_section_shows_topology_genes_and_mixtures() -> None:
    page = cells(story(grid=grid(3)))
    assert "Cells and their neighbours" in page and "cell 3 meets 2 and 1" in page  # the best is in colour
    assert "3 of 4 lines are left" in page and "Three iterations" in page
    for part in ("fitness of the generators", "learning rates of the generators", "learning rates of the disc"):
        assert part in page
    order = re.findall(r"<tr><td>(\d)", page)
    assert order == ["3", "2", "1", "0"] and page.count("the result") == 1
    assert "0 (75%)" in page


def test_profile_has_the_routines_of_table_4() -> None:
    page = cells(story())
    rows = dict(re.findall(r"<tr><td>(\w+)</td><td>[^<]*</td><td class=\"num\">([^<]*)</td>", page))
    assert list(rows) == list(ROUTINES) and rows["update"] == "21 s" and rows["gather"] == "1.5 s"
    assert "7.00 s" in page and "500.0 ms" in page  # an iteration
    assert "Over 3 iterations, up to step 1,800" in page


def test_the_profile_is_per_iteration_whenever_records_are_written() -> None:
    """Three iterations of 600 steps are over, and the last of the records is of step 1,500."""
    spent = dict.fromkeys(ROUTINES, 0.0) | {"update": 5.0}
    page = cells(story(metrics=[{"step": step, "profile": spent} for step in (500, 1000, 1500)]))
    assert "Over 2.5 iterations, up to step 1,500" in page and "6.00 s" in page and "5.00 s" not in page


def test_without_selection_nothing_moves() -> None:
    page = cells(story(overrides=["strategy.cellular.selection=false"]))
    assert "without selection" in page and "lines are left" not in page and "fitness of the generators" in page


def test_rewired_topologies_are_drawn_in_order() -> None:
    rewired = {
        "step": 600,
        "event": "rewire",
        "iteration": 1,
        "topology": "ring 4, 1 on each side",
        "neighbours": [[3, 1], [0, 2], [1, 3], [2, 0]],
    }
    whole = story()
    page = cells(story(events=[*whole.events, rewired]))
    assert page.index("torus 2×2") < page.index("from iteration 2: ring 4")


def test_scheduled_graph_is_drawn_like_other_topologies() -> None:
    wired = {"iteration": 2, "topology": "graph 4", "neighbours": [[1, 2, 3], [0], [0], []]}
    page = cells(story(events=[*story().events, {"step": 1200, "event": "rewire", **wired}]))
    assert "from iteration 3: graph 4" in page and "cell 0 meets 1, 2 and 3" in page


@pytest.mark.further
def test_mixtures_are_sorted_by_the_score_that_chose_them() -> None:
    own = [one.model_copy(update={"value": 0.2 * one.cell}) for one in grid(3).all]
    for by, order, goal in (("coverage", "3210", "higher is better"), ("my_scores:far", "0123", "lower is better")):
        chosen = grid(3).model_copy(update={"by": by, "all": own, "best": [int(order[0])]})
        page = cells(story(grid=chosen))
        assert "".join(re.findall(r"<tr><td>(\d)", page)) == order and f">{by}</th>" in page
        assert f"Chosen by {by} ({goal})" in page and ">0.600<" in page


def test_mixtures_that_density_chose_are_in_the_order_of_their_distance_from_1() -> None:
    values = (0.7, 0.9, 1.15, 1.4)
    own = [one.model_copy(update={"value": values[one.cell]}) for one in grid(3).all]
    page = cells(story(grid=grid(3).model_copy(update={"by": "density", "all": own, "best": [1]})))
    assert "".join(re.findall(r"<tr><td>(\d)", page)) == "1203" and "Chosen by density (1 is best)" in page
    assert all(f">{value:.3f}<" in page for value in values)


def test_losses_that_are_drawn_are_shown() -> None:
    page = cells(story(events=[{**event, "loss": ["minimax", "hinge"] * 2} for event in story().events]))
    assert "losses of the generators" in page and ">minimax<" in page and ">hinge<" in page


@pytest.mark.further
def test_losses_that_are_drawn_for_every_batch_are_counted() -> None:
    counts = {"drawn_minimax": [200, 210, 190, 205], "drawn_hinge": [400, 390, 410, 395]}
    ends = [{**event, **counts} if event["event"] == "replacement" else event for event in story().events]
    page = cells(story(events=ends))
    assert "Drawn for every batch" in page
    assert ">minimax, 2,415 times<" in page and ">hinge, 4,785 times<" in page  # in three iterations of four cells


@pytest.mark.parametrize(
    ("losses", "each", "says"),
    [
        ("[]", "batch", "with the non-saturating loss"),
        ("[hinge, minimax]", "iteration", "with losses that are drawn from hinge and minimax in every iteration"),
        ("[hinge, minimax, hinge]", "batch", "drawn from hinge (2 of 3) and minimax (1 of 3) for every batch, up"),
    ],
)
def test_summary_names_the_losses_that_are_drawn(losses: str, each: str, says: str) -> None:
    key = "strategy.cellular.mutation"
    member = MemberStory(number=0, replica=0, label="", weight=1.0, loss_g=1.0, loss_d=1.0, troubles=0)
    told = summary(story(overrides=[f"{key}.losses={losses}", f"{key}.loss_each={each}"], members=[member] * CELLS))
    assert says in told and (losses == "[]" or "non-saturating" not in told)


def test_numbers_of_a_colour_bar_are_short() -> None:
    """Learning rates have one power of ten for all, beside the bar, and room at the right."""
    rates = 2e-4 * (1 + 1e-3 * np.arange(24.0).reshape(6, 4))
    drawn = svg(draw_map(rates, np.arange(6), ""))
    assert ">× 10⁻⁴<" in drawn and ">2.00" in drawn and ">0.000" not in drawn


def test_a_run_that_has_just_begun_and_one_without_a_grid() -> None:
    assert "No iteration is over yet" in cells(story(events=[], metrics=[]))
    assert cells(story(recipe=load("digits-wcgan").model_dump(mode="json"))) == ""


def test_tournaments_are_counted_and_not_listed() -> None:
    page = told_events(story())
    assert "tournament × 3" in page and "<table" not in page


def test_status_shows_the_time_of_each_routine(tmp_path: Path) -> None:
    from ganherd.runs.profile import total

    facts = run_status.RunStatus(
        run="runs/grid", state="finished", step=1800, steps=1800, rate=10.0, seconds_left=None, members=4, ranks=[],
        engine=EngineRecord(name="fused", chunk=4, threads=1, device="cpu"), host="here", heartbeat=None, losses={},
        profile=total(story().metrics), staleness={}, alarms=[], alarms_before=0, active_alarms=[],
    )  # fmt: skip
    assert "of its time: update 21.0 s (70%), gather 1.5 s (5%)" in status_text.text(facts)
    assert "of its time" not in status_text.text(replace(facts, profile={}))
