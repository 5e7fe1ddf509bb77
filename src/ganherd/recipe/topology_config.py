"""What a recipe may say about who is whose neighbour: a topology by name, a graph, and others from an iteration on."""

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
            "a graph lists the neighbours of each cell, cells being whole numbers from 0 on, as [[1, 2], [0], [0]]; "
            f"this is none: {reprlib.repr(value)}",
        )
    return value


TopologyName = Literal["torus", "moore", "ring", "isolated", "full", "graph"]  # isolated: no communication
Graph = Annotated[list[list[int]], BeforeValidator(_graph)]


class RewireConfig(Section):
    """Another neighbourhood from an iteration on."""

    at: int = Field(ge=1)  # iteration, counted from 0
    topology: TopologyName
    neighbours: int = Field(1, ge=1)  # ring: on each side
    graph: Graph = []  # topology graph: the neighbours of each cell

    @model_validator(mode="after")
    def _is_one(self) -> RewireConfig:
        refuse_topology("strategy.cellular.rewire", self.topology, self.neighbours, self.graph)
        return self


def refuse_topology(key: str, topology: str, neighbours: int, graph: list[list[int]]) -> None:
    """What does not fit together in a topology: the first, or one of the schedule."""

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
    """What does not fit together in a schedule: two changes at once, a graph of other cells."""
    seen: set[int] = set()
    for change in changes:
        if change.at in seen:
            raise refuse(
                f"{key}.rewire",
                f"{key}.rewire says twice what changes at iteration {change.at}: leave one of them out",
            )
        seen.add(change.at)
        if change.graph and len(change.graph) != cells:
            raise refuse(
                f"{key}.rewire {key}.grid {key}.graph",
                f"{key}.rewire at {change.at}: its graph lists the neighbours of {len(change.graph)} cells, and there "
                f"are {cells}",
            )
