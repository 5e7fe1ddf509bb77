"""Change the topology (which cells are neighbours) during training, by a schedule or by a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ganherd import nets
from ganherd.recipe.strategy.cellular_config import CellularConfig
from ganherd.strategies.cellular import topology
from ganherd.strategies.cellular.topology import Topology
from ganherd.util.errors import UserError

Rule = Callable[[int, int], Sequence[Sequence[int]]]  # (iteration, cells) -> the neighbours of each cell


class Rewiring:
    """The topology of every iteration: that of the recipe, and those of its schedule or of the user's function.

    >>> plan = Rewiring(CellularConfig(grid=[2, 3], rewire=[{"at": 5, "topology": "ring"}]))
    >>> plan.at(4).name, plan.at(5).name, plan.widest
    ('torus 2×3', 'ring 6, 1 on each side', 4)
    """

    def __init__(self, settings: CellularConfig, trust_code: bool = False) -> None:
        rows, columns = settings.grid
        first = topology.build(settings.topology, rows, columns, settings.neighbours, settings.graph)
        self._cells = len(first)
        self._planned = [(0, first)]
        for change in sorted(settings.rewire, key=lambda one: one.at):
            shape = (rows, columns) if settings.topology != "graph" else (1, self._cells)
            changed = topology.build(change.topology, *shape, change.neighbours, change.graph)
            self._planned.append((change.at, changed))
        self._name, self._rule = settings.rewire_by, None
        if self._name is not None:
            self._rule = nets.load_own(self._name, "function", trust_code)
            if not callable(self._rule):
                raise UserError(f"strategy.cellular.rewire_by {self._name} is not a function.")

    def at(self, iteration: int) -> Topology:
        """Return the topology of an iteration.

        Raises:
            UserError: The user's function fails, or does not return the neighbours of each cell.
        """
        if self._rule is None:
            return [planned for start, planned in self._planned if start <= iteration][-1]
        try:
            lists = [[int(other) for other in neighbours] for neighbours in self._rule(iteration, self._cells)]
        except Exception as error:  # A user's function may raise anything.
            why = f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
            raise UserError(
                f"strategy.cellular.rewire_by {self._name} failed at iteration {iteration}: {why}"
            ) from error
        if len(lists) != self._cells:
            raise UserError(
                f"strategy.cellular.rewire_by {self._name} returned {len(lists)} lists at iteration {iteration}; "
                f"return the neighbours of each of the {self._cells} cells."
            )
        try:
            return topology.graph(lists)
        except UserError as why:
            raise UserError(f"strategy.cellular.rewire_by {self._name} at iteration {iteration}: {why}") from why

    @property
    def widest(self) -> int:
        """Return the number of cells in the largest neighbourhood of all iterations, its centre included."""
        return self._cells if self._rule else max(planned.widest for _, planned in self._planned)
