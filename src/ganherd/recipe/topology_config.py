"""Settings of the neighbourhoods of cells: a topology by name or a graph, and changes of it during a run."""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ganherd.recipe.base import Section, refuse


def _graph(value: Any) -> Any:
    def is_cell(one: Any) -> bool:
        return isinstance(one, int) and not isinstance(one, bool) and one >= 0

    if not isinstance(value, list) or not all(isinstance(own, list) and all(map(is_cell, own)) for own in value):
        raise refuse(
            "",
            "a graph lists the neighbours of each cell, with cells as whole numbers from 0 on, such as [[1, 2], [0], [0]]; "
            f"this is not one: {reprlib.repr(value)}",
        )
    return value


TopologyName = Literal["torus", "moore", "ring", "isolated", "full", "graph"]  # isolated: no communication
Graph = Annotated[list[list[int]], BeforeValidator(_graph)]


class RewireConfig(Section):
    """A topology that replaces the previous one from an iteration on."""

    at: int = Field(ge=1)  # first iteration of the topology, counted from 0
    topology: TopologyName
    neighbours: int = Field(1, ge=1)  # number of neighbours on each side (topology ring)
    graph: Graph = []  # neighbours of each cell (topology graph)

    @model_validator(mode="after")
    def _is_one(self) -> RewireConfig:
        refuse_topology("strategy.cellular.rewire", self.topology, self.neighbours, self.graph)
        return self


def refuse_topology(key: str, topology: str, neighbours: int, graph: list[list[int]]) -> None:
    """Refuse settings of a topology that do not fit together."""

    def keys(*names: str) -> str:
        return key if key.endswith("rewire") else " ".join(f"{key}.{name}" for name in names)

    if (topology == "graph") != bool(graph):
        raise refuse(
            keys("graph", "topology"),
            f"{key}.graph lists the neighbours of each cell and belongs to {key}.topology graph: give both or neither",
        )
    if neighbours != 1 and topology != "ring":
        raise refuse(
            keys("neighbours", "topology"),
            f"{key}.neighbours {neighbours} has no effect on the topology {topology}: it is for ring, on each side; "
            "leave it out",
        )
    for cell, listed in enumerate(graph):
        if max(listed, default=0) >= len(graph):
            raise refuse(
                keys("graph"),
                f"{key}.graph: cell {cell} lists {max(listed)}, and its cells are numbered from 0 to {len(graph) - 1}",
            )


def refuse_schedule(key: str, changes: list[RewireConfig], cells: int) -> None:
    """Refuse a schedule with two changes at one iteration, or with a graph of another number of cells."""
    seen: set[int] = set()
    for change in changes:
        if change.at in seen:
            raise refuse(
                f"{key}.rewire",
                f"{key}.rewire has two changes at iteration {change.at}: leave one of them out",
            )
        seen.add(change.at)
        if change.graph and len(change.graph) != cells:
            raise refuse(
                f"{key}.rewire {key}.grid {key}.graph",
                f"{key}.rewire at {change.at}: its graph lists the neighbours of {len(change.graph)} cells, and there "
                f"are {cells}",
            )
