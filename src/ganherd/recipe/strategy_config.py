"""What a recipe may say about who meets whom: the settings of `gap` and `cellular`, and what members share."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ganherd.recipe.base import LossName, Section, parse_budget, refuse
from ganherd.recipe.mixture_scores import known_score
from ganherd.recipe.topology_config import Graph, RewireConfig, TopologyName, refuse_schedule, refuse_topology

_OF_RUN = re.compile(r"\s*(\d*\.?\d+)\s*run\s*")


def parse_span(text: str) -> tuple[Literal["steps", "epochs", "run"], float]:
    """A stretch of training: a kind and an amount; `run` counts in fractions of the whole run.

    >>> parse_span("300steps"), parse_span("0.5epochs"), parse_span("0.1run")
    (('steps', 300.0), ('epochs', 0.5), ('run', 0.1))
    """
    if match := _OF_RUN.fullmatch(text):
        if 0 < float(match[1]) <= 1:
            return "run", float(match[1])
    else:
        try:
            kind, amount = parse_budget(text)
        except ValueError:
            kind = "seconds"
        if kind != "seconds":
            return kind, amount
    raise ValueError("must be steps, epochs or a fraction of the run, as 300steps, 0.5epochs or 0.1run")


def in_steps(span: str, steps_per_epoch: float, steps: int = 0) -> int:
    """A span of a run of so many steps; "0" is none.

    >>> in_steps("0.5epochs", 30.0), in_steps("0.1run", 30.0, 200), in_steps("0", 30.0)
    (15, 20, 0)
    """
    if span == "0":
        return 0
    kind, amount = parse_span(span)
    return max(1, round(amount * {"steps": 1, "epochs": steps_per_epoch, "run": steps}[kind]))


def _span(value: str) -> str:
    if value != "0":
        parse_span(value)
    return value


Span = Annotated[str, AfterValidator(_span)]


class GapConfig(Section):
    """Members swap discriminators in random pairs."""

    every: Span = "0.5epochs"  # from one swap to the next; 0.5epochs: twice an epoch, as the paper's "0.5"
    warmup: Span = "0"  # no swap before
    swap: Literal["discriminators", "generators"] = "discriminators"
    # what goes along: the weights alone, as in the authors' code, where Adam's moments stay with the slot; or everything
    travels: Literal["weights", "all"] = "weights"
    smoothing: Span = (
        "0"  # after a swap the generator's learning rate is raised, the discriminator's lowered, for so long
    )
    stay: list[Annotated[int, Field(ge=0)]] = []  # slots that never swap
    # members at their own pace: a speed for each, the fastest making one step per step of the run; they swap when two are ready
    pace: list[Annotated[float, Field(gt=0, le=1)]] = []

    @model_validator(mode="before")
    @classmethod
    def _swaps_in_step(cls, given: Any) -> Any:
        if isinstance(given, dict) and "exchange" in given:
            raise refuse(
                "strategy.gap.exchange",
                "strategy.gap has no exchange: a swap takes two, so whoever comes first waits for the other; for members of "
                "unlike speed set strategy.gap.pace",
            )
        return given

    @model_validator(mode="after")
    def _the_fastest_keeps_step(self) -> GapConfig:
        if self.pace and max(self.pace) < 1:
            raise refuse(
                "strategy.gap.pace",
                f"strategy.gap.pace is {max(self.pace):g} for the fastest member, which makes every step of the run: its pace is 1",
            )
        return self

    @model_validator(mode="after")
    def _smoothing_is_short(self) -> GapConfig:
        if self.smoothing.strip().endswith("run"):
            raise refuse("strategy.gap.smoothing", "strategy.gap.smoothing must be steps or epochs, as 0.05epochs")
        return self


class FitnessConfig(Section):
    """How the individuals of a neighbourhood are compared: every generator against every discriminator."""

    samples: int = Field(1000, ge=2)
    over: Literal["average", "worst", "best"] = "average"  # opponents
    loss: LossName = "non-saturating"  # judged by the same for all, whatever each of them is trained with


class MutationConfig(Section):
    """Changes of an individual's settings between its updates."""

    # reference: Lipizzaner's Gaussian, which drifts down slowly; lognormal: a factor around 1, which explores
    learning_rate: Literal["off", "reference", "lognormal"] = "reference"
    strength: float = Field(1e-4, gt=0)  # reference: alpha; lognormal: the standard deviation of the factor's logarithm
    probability: float = Field(0.5, ge=0, le=1)
    each: Literal["batch", "iteration"] = "batch"
    losses: list[LossName] = []  # Mustangs: the generators' losses that are drawn from; none: loss.name stays
    loss_each: Literal["batch", "iteration", "creation"] = "batch"
    d_loss: LossName | None = None  # of the discriminators, whatever is drawn; none: the game of the drawn loss

    @model_validator(mode="after")
    def _has_losses_to_draw(self) -> MutationConfig:
        key = "strategy.cellular.mutation"
        if not self.losses and self.loss_each != "batch":
            raise refuse(
                f"{key}.loss_each {key}.losses",
                f"{key}.loss_each has no effect where no losses are drawn: list some in {key}.losses, or leave it out",
            )
        return self


def _score(value: str) -> str:
    try:
        return known_score(value)
    except ValueError as why:
        raise refuse("", f"strategy.cellular.mixing.score: {why}") from why


class MixingConfig(Section):
    """(1+1)-ES on the weights of each neighbourhood's generators."""

    when: Literal["iteration", "end", "off"] = "iteration"
    generations: int = Field(1, ge=1)  # steps of the ES each time
    sigma: float = Field(0.01, gt=0)
    # of a mixture's samples against the data: fid, tvd, kid, ifid (less is better), classifier_score, precision, density,
    # coverage, label_accuracy, modes, stacked_modes (more is), or package.module:function of your own (less is)
    score: Annotated[str, AfterValidator(_score)] = "fid"
    network: str = "auto"  # of features: auto takes the data's own classifier, or pixels for points
    samples: int = Field(1000, ge=2)  # of each generator
    # what the run ends with: the generators of its last iteration, or those of the iteration whose mixture scored best
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
    whole = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not whole or len(value) != 2 or min(value) < 1:
        raise ValueError("must be rows and columns, two whole numbers of at least 1, as [3, 3]")
    return value


class CellularConfig(Section):
    """Cells on a graph coevolve with their neighbours."""

    topology: TopologyName = "torus"
    grid: Annotated[list[int], BeforeValidator(_grid)] = [3, 3]  # rows, columns
    neighbours: int = Field(1, ge=1)  # ring: on each side
    graph: Graph = []  # topology graph: the neighbours of each cell
    rewire: list[RewireConfig] = []  # neighbourhoods that change while it trains; any topology, a graph too
    rewire_by: str | None = (
        None  # package.module:function of your own: (iteration, cells) -> the neighbours of each cell
    )
    population: int = Field(1, ge=1)  # individuals per cell
    iteration: Span = "1epochs"  # from one gathering to the next
    # on: tournaments, and trained ones stay only if they are better; off: a random neighbour as opponent at each batch
    selection: bool = True
    tournament: int = Field(2, ge=1)
    replacements: int = Field(1, ge=1)  # at most so many of a cell's individuals give way
    fitness: FitnessConfig = FitnessConfig()
    mutation: MutationConfig = MutationConfig()
    mixing: MixingConfig = MixingConfig()
    # over ranks: sync, all wait for the slowest; async, each takes its neighbours' newest nets and waits only for those that
    # are too far behind: for machines of unlike speed, and no two runs are the same
    exchange: Literal["sync", "async"] = "sync"
    staleness: int = Field(2, ge=0)  # async: iterations that a neighbour's nets may be behind; 0: none, which is sync
    rejoin: int = Field(10, ge=1)  # async: iterations after which all ranks are together, for records and checkpoints

    @property
    def cells(self) -> int:
        return len(self.graph) if self.topology == "graph" else self.grid[0] * self.grid[1]

    @model_validator(mode="after")
    def _fits(self) -> CellularConfig:
        key = "strategy.cellular"
        refuse_topology(key, self.topology, self.neighbours, self.graph)
        refuse_schedule(key, self.rewire, self.cells)
        for name in ("tournament", "replacements"):
            if not self.selection and getattr(self, name) != type(self).model_fields[name].default:
                raise refuse(
                    f"{key}.{name} {key}.selection",
                    f"{key}.{name} has no effect with {key}.selection false: set that to true, or leave it out",
                )
        if self.rewire and self.rewire_by:
            raise refuse(
                f"{key}.rewire {key}.rewire_by",
                f"{key}.rewire and {key}.rewire_by both say who meets whom: give one of them",
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
        for name in ("staleness", "rejoin"):
            if self.exchange == "sync" and getattr(self, name) != type(self).model_fields[name].default:
                raise refuse(
                    f"{key}.{name} {key}.exchange",
                    f"{key}.{name} has no effect with {key}.exchange sync: set {key}.exchange to async, or leave it out",
                )
        if self.iteration == "0":
            raise refuse(f"{key}.iteration", f"{key}.iteration must be longer than 0, as 1epochs")
        if self.replacements > self.population:
            raise refuse(
                f"{key}.replacements {key}.population",
                f"{key}.replacements {self.replacements} is more than the {self.population} individuals of a cell",
            )
        return self


def _layers(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(layer, str | int) for layer in value):
        raise ValueError("must be a list of layers by their names, as [first, blocks.0]")
    return value


Layers = Annotated[list[str], BeforeValidator(_layers)]


class ShareConfig(Section):
    """Layers that members have in common: averaged over all of them now and then."""

    generator: Layers = []  # names of parameters, or how they begin: `blocks.0` is all of the first block
    discriminator: Layers = []
    every: Span = "1epochs"  # from one averaging to the next

    @model_validator(mode="after")
    def _says_what_and_when(self) -> ShareConfig:
        if not self.layers and self.every != "1epochs":
            raise refuse(
                "strategy.share.every",
                "strategy.share.every has no effect where no layers are shared: name some in strategy.share.generator "
                "or strategy.share.discriminator",
            )
        if self.layers and self.every == "0":
            raise refuse("strategy.share.every", "strategy.share.every 0 is never: give steps or epochs, as 100steps")
        return self

    @property
    def layers(self) -> bool:
        """Whether any are shared."""
        return bool(self.generator or self.discriminator)


class StrategyConfig(Section):
    """Who meets whom. The settings of the other strategies must be left alone."""

    name: Literal["independent", "gap", "cellular"] = "independent"
    share: ShareConfig = ShareConfig()  # independent members, but for the layers that are named here
    gap: GapConfig = GapConfig()
    cellular: CellularConfig = CellularConfig()

    @property
    def meets(self) -> bool:
        """Whether members ever take anything of each other: nets, or layers."""
        return self.name != "independent" or self.share.layers

    @model_validator(mode="after")
    def _only_its_own(self) -> StrategyConfig:
        for other, untouched in (("gap", GapConfig()), ("cellular", CellularConfig())):
            if self.name != other and getattr(self, other) != untouched:
                raise refuse(
                    f"strategy.{other} strategy.name",
                    f"strategy.{other} has no effect with strategy.name {self.name}: "
                    f"set strategy.name to {other}, or leave it out",
                )
        if self.share.layers and self.name != "independent":
            raise refuse(
                "strategy.share strategy.name",
                f"strategy.share is for members that are otherwise independent, and strategy.name is {self.name}: "
                "leave one of them out",
            )
        return self


__all__ = ["CellularConfig", "GapConfig", "ShareConfig", "StrategyConfig", "in_steps", "parse_span"]
