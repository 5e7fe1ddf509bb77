"""Settings of `cellular`, a strategy in which cells coevolve with their neighbours (Lipizzaner, Mustangs)."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ganherd.recipe.base import LossName, Section, Span, refuse
from ganherd.recipe.mixture_scores import known_score
from ganherd.recipe.strategy.strategy_settings import MutationConfig, StrategySettings

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe

_KEY = "strategy.cellular"


class FitnessConfig(Section):
    """How the individuals of a neighbourhood are compared: every generator against every discriminator."""

    samples: int = Field(1000, ge=2)
    over: Literal["average", "worst", "best"] = "average"  # how losses against several opponents become one number
    loss: LossName = "non-saturating"  # loss that is compared, the same for all, whichever loss each is trained with


def _score(value: str) -> str:
    try:
        return known_score(value)
    except ValueError as why:
        raise refuse("", f"strategy.cellular.mixing.score: {why}") from why


class MixingConfig(Section):
    """The search for the weights of each neighbourhood's generators: a (1+1)-ES (evolution strategy)."""

    when: Literal["iteration", "end", "off"] = "iteration"
    generations: int = Field(1, ge=1)  # steps of the ES in each iteration
    sigma: float = Field(0.01, gt=0)
    # score of a mixture's samples: fid, tvd, kid, ifid (lower is better), classifier_score, precision, coverage,
    # label_accuracy, modes, stacked_modes (higher is better), density (1 is best), or package.module:function of your own
    # (lower is better)
    score: Annotated[str, AfterValidator(_score)] = "fid"
    network: str = "auto"  # network of the features; auto: a classifier of the data, or coordinates for points
    samples: int = Field(1000, ge=2)  # samples of each generator that a mixture is scored on
    # the result of the run: the generators of its last iteration, or of the iteration whose mixture scored best
    keep: Literal["last", "best"] = "last"

    @model_validator(mode="after")
    def _best_is_known(self) -> MixingConfig:
        if self.keep == "best" and self.when != "iteration":
            raise refuse(
                "strategy.cellular.mixing.keep strategy.cellular.mixing.when",
                "strategy.cellular.mixing.keep best needs a score of every iteration: set mixing.when to iteration",
            )
        return self


def _grid(value: Any) -> Any:
    whole = isinstance(value, list) and all(type(n) is int for n in value)
    if not whole or len(value) != 2 or min(value) < 1:
        raise ValueError("must be rows and columns, two whole numbers of at least 1, such as [3, 3]")
    return value


def _graph(value: Any) -> Any:
    lists = isinstance(value, list) and all(isinstance(own, list) for own in value)
    if not lists or not all(type(cell) is int and cell >= 0 for own in value for cell in own):
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
    """Raise an error if the settings of a topology do not fit together.

    Args:
        key: The section that holds them, for messages.
        topology: The name of the topology.
        neighbours: The number of neighbours on each side (ring only).
        graph: The neighbours of each cell (graph only).
    """

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
    """Raise an error if a schedule has two changes at one iteration, or a graph of another number of cells.

    Args:
        key: The section that holds the schedule, for messages.
        changes: The changes of the topology.
        cells: The number of cells of the grid.
    """
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


class CellularConfig(StrategySettings):
    """Cells on a graph coevolve with their neighbours."""

    topology: TopologyName = "torus"
    grid: Annotated[list[int], BeforeValidator(_grid)] = [3, 3]  # rows, columns
    neighbours: int = Field(1, ge=1)  # number of neighbours on each side (topology ring)
    graph: Graph = []  # neighbours of each cell (topology graph)
    rewire: list[RewireConfig] = []  # other topologies from an iteration on
    # package.module:function of your own: (iteration, cells) -> the neighbours of each cell
    rewire_by: str | None = None
    population: int = Field(1, ge=1)  # individuals per cell
    # nets of each kind that a cell trains in an iteration, all fused; default: as many as it has individuals
    offspring: int | None = Field(None, ge=1, le=64)
    iteration: Span = "1epochs"  # length of an iteration: from one exchange of nets with the neighbours to the next
    # true: tournaments, and trained nets stay only if they are better; false: a random neighbour as opponent at each batch
    selection: bool = True
    tournament: int = Field(2, ge=1)
    # better: a trained net stays only if it is better than the cell's worst old one; comma: the best trained nets replace all old
    # ones, (μ,λ) with μ = population and λ = offspring
    survival: Literal["better", "comma"] = "better"
    replacements: int = Field(1, ge=1)  # better: most individuals of a cell that are replaced in an iteration
    # better: iterations after which an old net gives way to a trained one, even if that is worse; 0: never
    max_age: int = Field(0, ge=0)
    # with selection, the opponents of a net in training: winners: its partner, or any winner of its cell if that trains several
    # nets; partner: always its partner; neighbourhood: at each batch its partner or a random net of the neighbourhood
    opponents: Literal["winners", "partner", "neighbourhood"] = "winners"
    fitness: FitnessConfig = FitnessConfig()
    mutation: MutationConfig = MutationConfig()
    mixing: MixingConfig = MixingConfig()
    # over ranks: with sync all wait for the slowest; with async each takes its neighbours' newest nets and waits only for
    # those that are too far behind. async is for machines of different speed, and no two runs are the same
    exchange: Literal["sync", "async"] = "sync"
    staleness: int = Field(2, ge=0)  # async: iterations that a neighbour's nets may be behind; 0 is the same as sync
    rejoin: int = Field(10, ge=1)  # async: iterations after which all ranks synchronise, for records and checkpoints

    @property
    def cells(self) -> int:
        return len(self.graph) if self.topology == "graph" else self.grid[0] * self.grid[1]

    @model_validator(mode="after")
    def _fits(self) -> CellularConfig:
        key = _KEY
        refuse_topology(key, self.topology, self.neighbours, self.graph)
        refuse_schedule(key, self.rewire, self.cells)
        needs_selection = ("tournament", "survival", "replacements", "max_age", "opponents", "offspring")
        self._refuse_without_effect(needs_selection, "selection", False, True)
        self._refuse_without_effect(("replacements", "max_age"), "survival", "comma", "better")
        self._refuse_without_effect(("staleness", "rejoin"), "exchange", "sync", "async")
        if self.rewire and self.rewire_by:
            raise refuse(
                f"{key}.rewire {key}.rewire_by",
                f"{key}.rewire and {key}.rewire_by both choose the neighbours: give one of them",
            )
        if self.mixing.keep == "best" and (self.rewire or self.rewire_by):
            raise refuse(
                f"{key}.mixing.keep {key}.rewire {key}.rewire_by",
                f"{key}.mixing.keep best compares iterations with the same neighbourhoods: leave out {key}.rewire, or keep last",
            )
        if self.exchange == "async" and (self.rewire or self.rewire_by):
            raise refuse(
                f"{key}.exchange {key}.rewire {key}.rewire_by",
                f"{key}.rewire changes neighbourhoods between two iterations, and with {key}.exchange async ranks are not at "
                "the same one: leave one of them out",
            )
        if self.iteration == "0":
            raise refuse(f"{key}.iteration", f"{key}.iteration must be longer than 0, such as 1epochs")
        if self.group_size < self.population:
            raise refuse(
                f"{key}.offspring {key}.population",
                f"{key}.offspring {self.offspring} is fewer than the {self.population} individuals of a cell: give at least "
                "as many",
            )
        if self.replacements > self.population:
            raise refuse(
                f"{key}.replacements {key}.population",
                f"{key}.replacements {self.replacements} is more than the {self.population} individuals of a cell",
            )
        return self

    def _refuse_without_effect(self, names: tuple[str, ...], switch: str, off: object, on: object) -> None:
        """Raise an error if the setting `switch` is `off` and one of these settings, which need it, is not its default.

        `on` is the value of the switch with which the settings have an effect, for the message.
        """
        for name in names:
            if getattr(self, switch) == off and getattr(self, name) != type(self).model_fields[name].default:
                was, wanted = str(off).lower(), str(on).lower()
                raise refuse(
                    f"{_KEY}.{name} {_KEY}.{switch}",
                    f"{_KEY}.{name} has no effect with {_KEY}.{switch} {was}: set that to {wanted}, or leave it out",
                )

    @property
    def unsynced_key(self) -> str:
        return f"{_KEY}.exchange async" if self.exchange == "async" else ""

    @property
    def replaces_generators(self) -> str:
        return "strategy.name cellular"

    @property
    def num_members(self) -> int | None:
        return self.cells * self.group_size

    @property
    def group_size(self) -> int:
        return self.offspring or self.population

    @property
    def torus(self) -> tuple[int, int] | None:
        is_torus = self.topology in ("torus", "moore") and not self.rewire and self.rewire_by is None
        return (self.grid[0], self.grid[1]) if is_torus else None

    @property
    def mutation_rules(self) -> MutationConfig:
        return self.mutation

    @property
    def spans(self) -> Mapping[str, str]:
        return {"iteration": self.iteration}

    @property
    def networks(self) -> Mapping[str, str]:
        return {f"{_KEY}.mixing.network": self.mixing.network}

    @property
    def own_code(self) -> list[str]:
        return [name for name in (self.rewire_by or "", self.mixing.score, self.mixing.network) if ":" in name]

    def with_absolute_paths(self, absolute: Callable[[str], str]) -> CellularConfig:
        path, mark, digest = self.mixing.network.partition("#")  # FILE#sha256=…
        if not Path(path).suffix:  # a name, such as inception
            return self
        network = f"{absolute(path)}{mark}{digest}"
        return self.model_copy(update={"mixing": self.mixing.model_copy(update={"network": network})})

    def check(self, recipe: Recipe) -> None:
        if recipe.train.fakes == "shared":
            raise refuse(
                "train.fakes strategy.name",
                "train.fakes shared shows a discriminator its partner's samples, and with strategy.name cellular it meets "
                "others: set train.fakes to fresh",
            )
        if recipe.data.partition == "by-class" and recipe.herd.per_class != self.num_members:
            raise refuse(
                f"herd.per_class {_KEY}.grid {_KEY}.population {_KEY}.offspring",
                f"herd.per_class {recipe.herd.per_class} is not the {self.cells} cells × {self.group_size} nets in training of "
                f"{_KEY}: set it to {self.num_members}, or change the grid",
            )
        if recipe.data.partition != "by-class" and recipe.herd.count not in (None, self.num_members):
            raise refuse(
                f"herd.members {_KEY}.grid {_KEY}.population {_KEY}.offspring",
                f"herd.members {recipe.herd.count} is not the {self.cells} cells × {self.group_size} nets in training of "
                f"{_KEY}: leave herd.members out",
            )

    def never_due(self, spans: Mapping[str, int], steps: int) -> list[str]:
        iterations = -(-steps // max(1, spans["iteration"]))
        late = sorted({change.at for change in self.rewire if change.at >= iterations})
        message = (
            f"{_KEY}.rewire at {', '.join(map(str, late))} is never reached: the run has {iterations:,} iterations, "
        )
        return [f"{message}counted from 0"] if late else []
