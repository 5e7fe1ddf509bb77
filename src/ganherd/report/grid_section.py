"""Render the section about a grid of coevolving cells (the cellular strategy).

It shows the topology, how nets spread from cell to cell, the scores of neighbourhoods (a cell and its neighbours), and
how much time each routine took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from ganherd.metrics.metric_registry import metric_of
from ganherd.recipe.mixture_scores import FIELDS
from ganherd.recipe.strategy.cellular_config import CellularConfig
from ganherd.recipe.strategy_config import settings_of
from ganherd.report.gather import RunStory
from ganherd.report.templating import Cell, count, duration, number, percent, render, svg
from ganherd.runs import profile
from ganherd.runs.run_status import staleness
from ganherd.runs.status_text import staleness_in_words
from ganherd.strategies.cellular import topology
from ganherd.strategies.cellular.history import lineage, lineage_picture
from ganherd.strategies.cellular.history.topology_picture import draw_topology
from ganherd.strategies.cellular.topology import Topology
from ganherd.util.errors import few
from ganherd.util.files import JsonObject

_MOST_TOPOLOGIES = 4
_MOST_LINES = 150  # largest number of rows of a table
_ABOUT = {  # the routines of an iteration, as in Table IV of the Lipizzaner paper
    "gather": "snapshots of the neighbourhoods",
    "evaluate": "fitness, all against all",
    "update": "the training steps",
    "train": "records, looks, pictures and checkpoints between them",
    "mutate": "what mutates once an iteration",
    "replace": "tournaments, copies, and who gives way",
    "mixture": "samples, features, and the weights' evolution",
}


@dataclass(frozen=True)
class GridBlock:
    """A title, a caption, and below them charts as SVG, one below the other."""

    title: str
    figures: list[Markup]
    caption: str = ""


def cells(story: RunStory) -> Markup:
    """Return the section about the grid as HTML; empty for runs of other strategies."""
    settings = settings_of(story.recipe)
    if not isinstance(settings, CellularConfig):
        return Markup()
    wirings = list(_wirings(story, settings))
    shown = _topologies(story, wirings)
    return render(
        "cells",
        wirings=shown,
        more_wirings=len(wirings) - len(shown),
        stale=_stale(story),
        genes=_genes(story, settings),
        mixtures=_neighbourhoods(story),
        profile=_profile(story),
    )


def _stale(story: RunStory) -> list[str]:
    """Return a sentence about how stale the neighbours' nets were, in a list; empty if ranks waited for each other."""
    if not (found := staleness(story.events)):
        return []
    return [f"Ranks did not wait for each other: {staleness_in_words(found)}. Genes are drawn as if they had."]


def _topologies(story: RunStory, wirings: Sequence[tuple[str, Topology]]) -> list[Markup]:
    """Draw the first topologies of the run as SVG; if there is only one, the best cell's neighbourhood is coloured."""
    best = story.grid.best[0] if story.grid and story.grid.classes == 1 and len(wirings) < 2 else None
    return [
        svg(draw_topology(wiring, best if best is not None and best < len(wiring) else None, title), f"wire{i}")
        for i, (title, wiring) in enumerate(wirings[:_MOST_TOPOLOGIES])
    ]


def _wirings(story: RunStory, settings: CellularConfig) -> Iterator[tuple[str, Topology]]:
    """Yield the first topology and the one after each rewiring, each with a title."""
    rows, columns = settings.grid
    if settings.rewire_by is None:  # a user's function is not called, because a report executes no code: use its events
        yield "", _first_wiring(settings)
    for event in story.events:
        if event.get("event") == "rewire":
            name = str(event.get("topology", ""))
            on_grid = name.startswith(("torus", "moore", "isolated")) and settings.topology != "graph"
            shape = (rows, columns) if on_grid else (0, 0)
            title = f"from iteration {number(event.get('iteration', 0) + 1)}: {name}"
            yield title, topology.from_lists(name, event["neighbours"], *shape)


def _first_wiring(settings: CellularConfig) -> Topology:
    rows, columns = settings.grid
    return topology.build(settings.topology, rows, columns, settings.neighbours, settings.graph)


def _genes(story: RunStory, settings: CellularConfig) -> list[GridBlock]:
    """Draw the grid over its iterations: which cell each net descends from, fitness, learning rates and losses.

    Return an empty list if no iteration has ended.
    """
    n, p = settings.cells, settings.group_size
    g, d = (lineage.lineage(story.events, kind, n, p) for kind in ("g", "d"))
    if not len(g.iterations):
        return []
    genes = []
    if settings.selection:
        genes.append(svg(lineage_picture.draw_grids(g, _first_wiring(settings)), "genes"))
        genes.append(svg(lineage_picture.draw_founders(g), "founders"))
    blocks = [GridBlock("Genes of the generators", genes, _summary(story, g, settings))]
    maps = [
        ("fitness of the generators", g.fitness, g.iterations),
        ("fitness of the discriminators", d.fitness, d.iterations),
    ]
    for name, kind in (("lr_g", "generators"), ("lr_d", "discriminators")):
        rates = np.array(lineage.of_records(story.events, name, n, p), np.float64)
        if len(rates) and np.ptp(rates) > 0:  # constant rates are not drawn
            maps.append((f"learning rates of the {kind}", rates, _at(story, name)))
    for i, (title, values, at) in enumerate(maps):
        drawn = lineage_picture.draw_map(values, at, "", log="fitness" in title)
        about = "A loss against the nets of the neighbourhood: lower, which is lighter, is better." if i < 2 else ""
        blocks.append(GridBlock(title, [svg(drawn, f"map{i}")], about))
    if chosen := lineage.of_records(story.events, "loss", n, p):
        drawn = lineage_picture.draw_choices(chosen, _at(story, "loss"))
        blocks.append(GridBlock("losses of the generators", [svg(drawn, "losses-drawn")]))
    if counts := lineage.drawn_losses(story.events, n, p):
        about = "Drawn for every batch. The line is the whole grid, a dot one cell."
        drawn = lineage_picture.draw_shares(counts, g.iterations[-len(next(iter(counts.values()))) :])
        blocks.append(GridBlock("losses of the generators", [svg(drawn, "losses-drawn")], about))
    return blocks


def _summary(story: RunStory, ancestry: lineage.Lineage, settings: CellularConfig) -> str:
    """Return sentences about how generators spread: iterations, remaining founders, how often cells took over."""
    times = count(len(ancestry.iterations), "iteration")
    of_class = story.members[0].of_class if story.grid and story.grid.classes > 1 and story.members else ""
    first = f" This is the grid of class {of_class}.{_other_classes(story, settings)}" if of_class else ""
    first += " This is the first replica." if story.replicas > 1 else ""
    if not settings.selection:
        return f"{times.capitalize()} without selection: every cell keeps its own nets.{first}"
    left = len(np.unique(ancestry.founder[-1]))
    moved = float((ancestry.source != np.arange(settings.cells)).mean())
    return (
        f"{times.capitalize()}. The number and colour of a cell name the one in which the genes of its generator began: "
        f"{left} of {settings.cells} lines are left. {percent(moved)} of the time a cell's generator came from a "
        f"neighbour, {percent(float(ancestry.replaced.mean()))} of the time the one that was trained stayed."
        f"{_takeover(ancestry)}{first}"
    )


def _other_classes(story: RunStory, settings: CellularConfig) -> str:
    """Return a sentence about the grids of all classes but the first, whose lines of descent are drawn above it.

    For each it says how many of the cells at the start still have descendants. Empty if the run selects nothing.
    """
    if not settings.selection or story.grid is None:
        return ""
    cells, size = settings.cells, settings.cells * settings.group_size
    left = []
    for grid in range(1, story.grid.classes):  # in events, the grid of each class is numbered like a replica
        ancestry = lineage.lineage(story.events, "g", cells, settings.group_size, grid)
        left.append(f"{len(np.unique(ancestry.founder[-1]))} in class {story.members[grid * size].of_class}")
    return f" Of the {cells} lines of the other grids are left: {few(left, _MOST_LINES)}."


def _takeover(ancestry: lineage.Lineage) -> str:
    """Return a sentence about the first iteration at which all cells descend from one founder; empty if none is."""
    lines = [len(np.unique(founders)) for founders in ancestry.founder]
    if len(lines) < 2 or lines[-1] > 1 or lines[0] == 1:
        return ""
    return f" From iteration {lines.index(1)} on all cells descend from one: the grid has no other line to choose from."


def _at(story: RunStory, name: str) -> np.ndarray:
    """Return the iteration, int64 [n], of each event that has a (non-empty) value of this name."""
    return np.array([int(event["iteration"]) for event in story.events if event.get(name)], np.int64)


def _neighbourhoods(story: RunStory) -> JsonObject:
    """Return the variables of a table of the mixtures of all cells, the best first; empty if they were not scored."""
    if story.grid is None:
        return {}
    grid, worst = story.grid, float("inf")
    own = [one for one in grid.all if one.replica == 0]
    metric = metric_of(grid.by)
    cells = grid.cells // grid.classes
    own.sort(
        key=lambda one: (
            one.cell // cells,
            worst if (value := grid.judged(one)) is None else metric.cost(value),
        )
    )
    rows, names = [], [member.label for member in story.members] if grid.classes > 1 else []
    third = "KID" if any(one.kid is not None for one in own) else "" if grid.by in FIELDS else grid.by
    for one in own[:_MOST_LINES]:
        cell = names[one.members[0]] if one.members[0] < len(names) else one.cell
        name = Cell("the result", "pill good", before=cell) if one.cell in grid.best_of(0) else cell
        mixed = ", ".join(
            f"{names[member] if member < len(names) else member} ({weight:.0%})"
            for member, weight in zip(one.members, one.weights, strict=True)
            if weight > 0.005
        )
        more = [number(one.kid, 5) if third == "KID" else number(one.value)] if third else []
        rows.append([name, number(one.fid), number(one.tvd), *more, mixed])
    seen = f"{number(story.grid.samples)} samples of each generator, seen by {story.grid.network}"
    text = f"Chosen by {grid.by} ({metric.goal}), on {seen}." + (" Of the first replica." if story.replicas > 1 else "")
    head = ("cell", "FID", "TVD", *([third] if third else []), "members and their weights")
    right = (1, 2, 3) if third else (1, 2)
    return {"caption": text, "head": head, "rows": rows, "right": right, "more": len(own) - len(rows)}


def _profile(story: RunStory) -> JsonObject:
    """Return the variables of a table of the time that each routine took; empty if times were not recorded."""
    spent = profile.total(story.metrics)
    if not spent:
        return {}
    ends, about = _iterations(story), ""
    if ends:
        about = f"Over {ends:,.4g} iterations, up to step {number(story.metrics[-1]['step'])}; on the right the mean of one."
    whole = sum(spent.values()) or 1.0
    rows: list[list[Any]] = [
        [name, _ABOUT.get(name, ""), duration(s), percent(s / whole), _brief(s / ends) if ends else "–"]
        for name, s in spent.items()
    ]
    rows.append([Cell("all", tag="b"), "", duration(whole), percent(1.0), _brief(whole / ends) if ends else "–"])
    return {"captions": [about] if about else [], "rows": rows}


def _iterations(story: RunStory) -> float:
    """Return how many iterations the records cover, in general not a whole number; 0 if no iteration has ended."""
    ends = [e for e in story.events if e.get("event") in ("replacement", "evaluation")]
    if not ends:
        return 0.0
    span = ends[-1]["step"] / (ends[-1]["iteration"] + 1)
    return float(story.metrics[-1]["step"] / span)


def _brief(seconds: float) -> str:
    """Return a duration in seconds or milliseconds.

    >>> _brief(0.0123), _brief(2.5), _brief(0.000012)
    ('12.3 ms', '2.50 s', '0.0 ms')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
