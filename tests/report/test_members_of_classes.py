"""Reports and the page show several members of each class: their names, their weights in the class, and their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ganherd.mixture.mixture_files import Neighbourhood, Neighbourhoods
from ganherd.recipe.recipe_file import load
from ganherd.report.gather import MemberStory, RunStory
from ganherd.report.grid_section import cells
from ganherd.report.score_section import classes
from ganherd.report.story_section import summary
from ganherd.runs.models import RunInfo
from ganherd.web.run_facts import layout

NAMES = ["cat.0", "cat.1", "dog.0", "dog.1"]


def story(recipe: str, *overrides: str, **changes: Any) -> RunStory:
    weights = [0.6, 0.2, 0.05, 0.15]
    members = [
        MemberStory(number, 0, name, weight, None, None, 0, of_class=name.partition(".")[0])
        for number, (name, weight) in enumerate(zip(NAMES, weights, strict=True))
    ]
    settings = load(recipe, ["herd.per_class=2", *overrides]).model_dump(mode="json")
    ifid = {"value": 3.5, "per_class": {"cat": 3.0, "dog": 4.0}}
    return RunStory(
        name="classes", info=RunInfo(), recipe=settings, metrics=[], events=[], scores={"ifid": ifid}, members=members, **changes
    )  # fmt: skip


def test_the_table_of_classes_has_the_members_of_each_with_their_weights() -> None:
    html = str(classes(story("digits-per-class-gap")))
    assert "cat.0 75%, cat.1 25%" in html and "dog.0 25%, dog.1 75%" in html
    assert "FID within the class" in html and "members and their weights in the class" in html
    assert "Four members, 2 for each class of" in summary(story("digits-per-class-gap"))


def test_mixtures_of_grids_are_listed_class_by_class() -> None:
    grids = Neighbourhoods(
        by="fid",
        network="pixels",
        samples=10,
        best=[1, 2],
        classes=2,
        all=[
            Neighbourhood(cell=cell, members=[cell, cell ^ 1], weights=[0.5, 0.5], fid=fid)
            for cell, fid in enumerate([9.0, 8.0, 1.0, 2.0])
        ],
    )
    grids.refuse_misfits(members=4, replicas=1)
    html = str(cells(story("digits-per-class-torus", "strategy.cellular.grid=[1,2]", grid=grids)))
    table = html[html.index("members and their weights") :]
    assert [table.index(f"{name} (50%), ") for name in ("cat.1", "cat.0", "dog.0", "dog.1")] == sorted(
        table.index(f"{name} (50%), ") for name in NAMES
    )
    assert table.count("the result") == 2


def test_lines_that_are_left_are_counted_in_the_grid_of_every_class() -> None:
    alone = [Neighbourhood(cell=cell, members=[cell], weights=[1.0], fid=1.0) for cell in range(4)]
    grids = Neighbourhoods(by="fid", network="pixels", samples=10, best=[0, 2], classes=2, all=alone)
    event = {"iteration": 0, "step": 1}
    events: list[Any] = [
        {**event, "event": "tournament", "g": [0, 1, 3, 3], "d": [0, 1, 2, 3]},
        {**event, "event": "replacement", "g_after": [1.0] * 4, "d_after": [1.0] * 4},
    ]
    selected = replace(story("digits-per-class-torus", "strategy.cellular.grid=[1,2]", grid=grids), events=events)
    html = str(cells(selected))
    assert "2 of 2 lines are left" in html and "the grid of class cat" in html
    assert "1 in class dog" in html


def test_the_page_lays_members_of_a_class_next_to_each_other() -> None:
    assert layout(load("digits-wcgan")) == {"kind": "flat"}
    assert layout(load("digits-per-class-gap")) == {"kind": "gap", "per_class": 4, "torus_of_class": None}
    assert layout(load("digits-per-class-torus")) == {"kind": "flat", "per_class": 4, "torus_of_class": [2, 2]}
    assert layout(load("digits-cellular-3x3"))["kind"] == "torus"
