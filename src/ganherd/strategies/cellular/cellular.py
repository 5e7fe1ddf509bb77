"""Cellular coevolution as in Lipizzaner and Mustangs: cells on a graph compete with their neighbours.

A cell is a group of members; a member is a generator, a discriminator and their optimisers. The individuals of a cell
are the members that it keeps from one iteration to the next. All cells make an iteration at once, as index operations
on tensors that hold one row for each member:

1. Gather a frozen snapshot of each neighbourhood.
2. Evaluate the fitness of all generators in a neighbourhood against all its discriminators, and hold tournaments: a
   cell continues with copies of the winners, including optimiser state and learning rates (`Cellular._select`). Without
   selection it continues with its own nets.
3. Mutate the settings that mutate once an iteration, then train up to the next meeting.
4. Evaluate the trained nets against the old neighbourhood. A trained net stays only if it is better than the worst of
   the cell's old ones, or if that one has expired (`Cellular._replace`). Generators and discriminators are replaced
   separately.
5. Change the weights of each neighbourhood's mixture of generators by a step of a (1+1)-ES, an evolution strategy with
   one parent and one child.

Over several ranks the snapshot of the next iteration is sent ahead: generators as soon as they are selected, while the
discriminators are evaluated; then discriminators, while mixtures evolve, pictures are drawn and checkpoints written. With
`exchange: async`, ranks run some iterations without synchronising: a snapshot then holds the newest nets that have arrived
(see `latest_neighbours`), events are buffered, and mixtures evolve when the ranks synchronise.

A net with NaN or infinity wins no tournament, is no opponent, and has no weight in a mixture. Lipizzaner evaluates each
pair with fresh noise; here all discriminators of a neighbourhood see the same samples of a generator (see `fitness`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd import rng
from ganherd.herd.state import State
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.recipe.strategy.cellular_config import CellularConfig as Settings
from ganherd.runs.profile import Profile
from ganherd.strategies.cellular.best_generators import BestGenerators
from ganherd.strategies.cellular.cells import Cells, Wiring, wire
from ganherd.strategies.cellular.fitness import FitnessEvaluator, Sample, Side, overall, sample
from ganherd.strategies.cellular.individuals import KINDS, GatheredIndividuals, finite_nets
from ganherd.strategies.cellular.latest_neighbours import LatestNeighbours
from ganherd.strategies.cellular.matchups import Matchups
from ganherd.strategies.cellular.mutations import Mutations
from ganherd.strategies.cellular.requirements import refuse_impossible
from ganherd.strategies.cellular.rewiring import Rewiring
from ganherd.strategies.cellular.tournament import SelectedIndividuals, ranked, survivors, winners, with_offspring
from ganherd.strategies.event_buffer import EventBuffer
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.mixing.grid_scorer import GridScorer
from ganherd.strategies.mixing.neighbourhood_mixtures import NeighbourhoodMixtures
from ganherd.strategies.strategy import Event, Facts, Strategy
from ganherd.util.host import give_back

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd


class Cellular(Strategy):
    """Train a grid of cells that compete with their neighbours (cellular coevolution).

    With `rows` members in each cell, member cell · rows + j is the j-th individual of the cell. Every iteration ends by
    sorting the individuals of a cell by fitness, the best first. If a cell trains more nets than it has individuals,
    its last members are these further offspring: they enter no tournament, and each iteration overwrites them by copies
    of winners.
    """

    @classmethod
    def refuse_impossible(cls, prepared: PreparedHerd) -> None:
        settings = prepared.recipe.strategy.settings
        assert isinstance(settings, Settings)
        refuse_impossible(settings, prepared.dataset, prepared.trusted, prepared.herd.g.takes_label)

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        settings, ranks = prepared.recipe.strategy.settings, prepared.ranks
        assert isinstance(settings, Settings)
        strategy = cls(prepared, settings, spans, MemberRanks.of(prepared))
        # The first rank trains the network that mixtures are scored with, and the other ranks read it from the cache.
        if not ranks.is_single_process:
            look = strategy.mixtures.scorer.look_at_data
            run_on_all_ranks(ranks.member_comm, lambda: look() if ranks.is_first else None)
        return strategy

    def __init__(
        self, assembly: PreparedHerd, settings: Settings, spans: Mapping[str, int], ranks: MemberRanks
    ) -> None:
        super().__init__()
        self.herd, self.settings, self.ranks = assembly.herd, settings, ranks
        self.span, self.replicas = max(1, spans["iteration"]), ranks.placement.num_members // ranks.members
        self.rewiring, self.profile = Rewiring(settings, assembly.trusted), Profile()
        seed, slot = (self.herd.state[f"set.{name}"].cpu().numpy() for name in ("seed", "slot"))
        self.cells = Cells.of(ranks.own, settings.population, settings.group_size, seed, slot)
        self.wiring = self._wiring_at(0)
        widest = self.rewiring.widest
        self.evaluator = FitnessEvaluator(self.herd, settings.fitness.loss)
        self.mutations = Mutations(self.herd, settings.mutation, ranks)
        is_async = settings.exchange == "async" and settings.staleness > 0 and ranks.comm.world_size > 1
        self.max_unsynced_steps = self.span * settings.rejoin if is_async else 0
        kind = LatestNeighbours if is_async else GatheredIndividuals
        self.gathered = kind(self.herd, settings, ranks, self.traffic)
        self.events = EventBuffer(ranks)
        self._evolved_iterations = 0  # the number of iterations for which mixtures have evolved
        self._cached_sample: tuple[int, Sample] | None = None  # the number of an iteration, and its data for fitness
        opponents = settings.opponents if settings.selection else "neighbourhood"
        self.opponents = Matchups(self.herd, self.gathered, self.cells, ranks, opponents=opponents, widest=widest)
        self.herd.opponents = self.opponents.rivals
        scorer = GridScorer(assembly, settings.mixing, self.cells, ranks, self.traffic)
        best = (
            BestGenerators(self.herd, self.cells.own // ranks.members, widest)
            if settings.mixing.keep == "best"
            else None
        )
        self.mixtures = NeighbourhoodMixtures(scorer, self.cells, self.wiring, widest, best)
        # Each [n, 2], for the generator and the discriminator of each member: its fitness, and the member it was copied
        # from.
        self.fitness = torch.full((len(self.cells.own), 2), torch.inf, dtype=torch.float64)
        self.won = torch.from_numpy(self.cells.own)[:, None].repeat(1, 2)
        self.age = torch.zeros(len(self.cells.own), 2, dtype=torch.int64)  # likewise, iterations since it was trained
        self.state: State = {
            "meet.fitness": self.fitness,
            "meet.won": self.won,
            **({"meet.age": self.age} if settings.max_age else {}),
            **self.mixtures.state,
            **self.mutations.state,
            **self.gathered.checkpoint_state,
        }

    # -- schedule -----------------------------------------------------------------------------------------------------

    def next_after(self, step: int) -> int | None:
        return (step // self.span + 1) * self.span

    def resume(self, step: int) -> None:
        iteration, into = divmod(step, self.span)
        self._evolved_iterations = iteration
        self.mutations.resume(step)
        self.wiring = self._wiring_at(iteration if into else max(0, iteration - 1))
        if into:
            self.gathered.fetch(self.wiring)
            self.opponents.set(self.wiring, self.won.numpy())
            self.profile.leave()
        else:
            self._drop_snapshot()

    # -- the beginning of an iteration --------------------------------------------------------------------------------

    def open(self, step: int) -> Iterator[Event]:
        iteration = step // self.span
        yield from self._rewire(iteration)
        if step == 0:
            self.mutations.at_creation()
        with self.profile.of("gather"):
            self.gathered.take(self.wiring, iteration)
            self.state |= self.gathered.checkpoint_state
        if isinstance(self.gathered, LatestNeighbours):
            self.events.add(step, "exchange", {"iteration": iteration}, {}, self.gathered.behind(iteration))
        if self.settings.selection:
            self._hold_tournaments(step, iteration)
            if not self.max_unsynced_steps:
                yield from self.events.flush(step)
        with self.profile.of("mutate"):
            self.mutations.at_iteration(step)
        with self.profile.of("gather"):
            self.opponents.set(self.wiring, self.won.numpy())
        give_back()  # Return the memory of the evaluations.
        self.profile.leave()

    def _hold_tournaments(self, step: int, iteration: int) -> None:
        """Evaluate all neighbourhoods, overwrite each cell's nets by winners of tournaments, and buffer an event."""
        with self.profile.of("evaluate"):
            sides = {kind: self._snapshot_side(kind) for kind in KINDS}
            g, d = self.evaluator.losses(sides["g"], sides["d"], self._sample(iteration))
            fitness = {"g": self._overall(g, sides["g"], sides["d"]), "d": self._overall(d, sides["d"], sides["g"])}
        with self.profile.of("replace"):
            for kind in KINDS:
                self._select(iteration, kind, sides[kind], fitness[kind])
        won = {kind: self.won[:, i].numpy() for i, kind in enumerate(KINDS)}
        fitness_columns = {f"fitness_{kind}": self.fitness[:, i].numpy() for i, kind in enumerate(KINDS)}
        self.events.add(step, "tournament", {"iteration": iteration}, _copy_columns({**won, **fitness_columns}))

    def _rewire(self, iteration: int) -> Iterator[Event]:
        """Switch to new neighbourhoods and yield an event, if the topology changes with this iteration."""
        before, self.wiring = self.wiring, self._wiring_at(iteration)
        if before is self.wiring:
            return
        self.mixtures.wire(self.wiring)
        topology = self.wiring.topology
        neighbours = [topology.neighbours(cell) for cell in range(len(topology))]
        yield "rewire", {"iteration": iteration, "topology": topology.name, "neighbours": neighbours}

    def _wiring_at(self, iteration: int) -> Wiring:
        """Return the index tables of an iteration's neighbourhoods: the current ones if the topology is the same."""
        topology = self.rewiring.at(iteration)
        now: Wiring | None = getattr(self, "wiring", None)
        if now is not None and now.topology == topology:
            return now
        rows = self.settings.population, self.settings.group_size
        return wire(topology, *rows, self.replicas, self.ranks.placement, self.ranks.comm.rank)

    def _select(self, iteration: int, kind: str, side: Side, fitness: np.ndarray) -> None:
        """Hold tournaments in each neighbourhood, and overwrite the nets of each cell by copies of the winners.

        A cell holds one tournament for each of its members. If no net may enter, the member keeps its own net.

        Args:
            iteration: The number of the iteration.
            kind: g or d, the nets that compete.
            side: The nets of that kind in each neighbourhood.
            fitness: float64 [C, S], their fitness; less is better.
        """
        cells, p, number = self.cells, self.cells.rows, KINDS.index(kind)
        keys = rng.keys(np.zeros(len(cells), np.int64), cells.seed, -rng.TOURNAMENT, cells.cell, iteration, number)
        u = rng.draw(keys, (p, side.rows.shape[1]), "uniform", torch.float64).numpy()
        column = winners(fitness, side.real, u, self.settings.tournament)  # [C, p]
        # Without a winner each individual stays as it is.
        column = np.where(column < 0, np.arange(p) % cells.population, column)
        rows = np.take_along_axis(side.rows, column, 1).reshape(-1)
        self.gathered.clone(kind, rows)
        self.won[:, number] = torch.tensor(self.wiring.wanted[self.ranks.comm.rank])[rows]
        before = np.take_along_axis(fitness, column, 1)  # further offspring begin with the fitness of their parent
        before[:, : cells.population] = fitness[:, : cells.population]
        self.fitness[:, number] = torch.from_numpy(before.reshape(-1))

    # -- the end of an iteration --------------------------------------------------------------------------------------

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        self.profile.enter()
        iteration = step // self.span - 1
        with self.profile.of("evaluate"):
            sample = self._sample(iteration)
        wiring, columns = self._wiring_at(iteration + 1) if continues else self.wiring, dict[str, np.ndarray]()
        for kind in KINDS:
            with self.profile.of("evaluate"):
                trained = self._evaluate_trained(kind, sample)  # [C, rows]
            with self.profile.of("replace"):
                columns |= self._replace(kind, trained)
            if continues or self.max_unsynced_steps:  # These nets do not change before the next iteration begins.
                with self.profile.of("gather"):
                    self.gathered.begin(kind, wiring, iteration + 1)
        self._drop_snapshot()
        columns |= self.mutations.take_columns(step)
        event = "replacement" if self.settings.selection else "evaluation"
        self.events.add(step, event, {"iteration": iteration}, columns, labels=self.mutations.names)
        if not self.max_unsynced_steps:
            yield from self._flush_and_evolve(step)

    def _flush_and_evolve(self, step: int) -> Iterator[Event]:
        """Yield buffered events, and evolve mixture weights for all iterations since they were last evolved."""
        yield from self.events.flush(step)
        mixing, iteration = self.settings.mixing, step // self.span
        iterations, self._evolved_iterations = iteration - self._evolved_iterations, iteration
        if mixing.when == "iteration" and iterations:
            with self.profile.of("mixture"):
                scores = self.mixtures.evolve(self.wiring, iteration - 1, mixing.generations * iterations)
            self.gathered.poll()
            facts = {"iteration": iteration - 1, "score": mixing.score}
            yield "mixture", {**facts, "before": scores[:, 0].tolist(), "after": scores[:, 1].tolist()}

    def begin_unsynced(self, step: int, until: int, continues: bool) -> None:
        assert isinstance(self.gathered, LatestNeighbours)
        last = (until if continues else until - 1) // self.span
        self.gathered.begin_unsynced(self.wiring, -(-step // self.span), last)

    def end_unsynced(self, step: int) -> Iterator[Event]:
        assert isinstance(self.gathered, LatestNeighbours)
        self.profile.enter()
        with self.profile.of("gather"):
            self.gathered.end_unsynced()
        yield from self._flush_and_evolve(step)

    def poll(self) -> None:
        self.gathered.poll()

    def on_interrupt(self) -> None:
        self.gathered.discard_pending()

    def _evaluate_trained(self, kind: str, sample: Sample) -> np.ndarray:
        """Return the fitness of each cell's trained nets against the old neighbourhood, float64 [C, rows]."""
        rows = np.arange(len(self.cells.own)).reshape(len(self.cells), -1)
        trained = Side(self.herd.state, rows, finite_nets(self.herd, self.herd.state, kind)[rows])
        if kind == "g":
            old = self._snapshot_side("d")
            losses, _ = self.evaluator.losses(trained, old, sample, "g")
        else:
            old = self._snapshot_side("g")
            _, losses = self.evaluator.losses(old, trained, sample, "d")
        return self._overall(losses, trained, old)

    def _replace(self, kind: str, trained: np.ndarray) -> dict[str, np.ndarray]:
        """Replace each cell's nets of one kind by the survivors, the best first, and return columns for the event.

        Args:
            kind: g or d.
            trained: float64 [C, rows], the fitness of the trained nets; less is better.

        Returns:
            Arrays [n] with a value for each member: `before`, the fitness of its net when the iteration began;
            `trained`, of the net that it trained; `after`, of the net that it has now; `new`, whether the net that it
            has now was trained in this iteration; `from`, the member that this net comes from. Names have the prefix
            `g_` or `d_`.
        """
        number, p = KINDS.index(kind), self.cells.rows
        old = self.fitness[:, number].numpy().reshape(-1, p).copy()
        selected = self._survivors(number, old, trained) if self.settings.selection else ranked(trained)
        rows, new = (selected.source + self.cells.first[:, None]).reshape(-1), selected.trained.reshape(-1)
        self.gathered.replace(kind, rows, new)
        self.fitness[:, number] = torch.from_numpy(selected.fitness.reshape(-1))
        columns = {"trained": trained, "after": selected.fitness}
        if self.settings.selection:
            columns = {"before": old, **columns, "new": new}
        if p > 1:
            columns["from"] = self.cells.own[rows]
        return _copy_columns({f"{kind}_{name}": column for name, column in columns.items()})

    def _survivors(self, number: int, old: np.ndarray, trained: np.ndarray) -> SelectedIndividuals:
        """Return the nets [C, rows] that each cell continues with: the survivors, then its further offspring.

        The ages of the nets are updated.

        Args:
            number: 0 for generators, 1 for discriminators.
            old: float64 [C, rows], the fitness of the nets when the iteration began.
            trained: float64 [C, rows], the fitness of the trained nets.
        """
        settings, p, ages = self.settings, self.cells.population, self.age[:, number].view(old.shape)
        ages += 1
        if settings.survival == "comma":
            selected = survivors(old[:, :p], trained, p, np.ones_like(old[:, :p], bool))
        else:
            expired = ages[:, :p].numpy() > settings.max_age if settings.max_age else None
            selected = survivors(old[:, :p], trained, settings.replacements, expired)
        selected = with_offspring(selected, trained)
        by_place = np.take_along_axis(ages.numpy(), selected.source, 1)
        ages.copy_(torch.from_numpy(np.where(selected.trained, 0, by_place)))
        return selected

    def neighbourhoods(self, step: int) -> Neighbourhoods:
        return self.mixtures.neighbourhoods(self.wiring, step // self.span)

    def generators(self) -> State | None:
        best = self.mixtures.best_generators
        return best.generators() if best and bool((best.iteration >= 0).all()) else None

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _sample(self, iteration: int) -> Sample:
        """Return the data and random keys for fitness, the same at the beginning and the end of an iteration."""
        cells, n = self.cells, self.settings.fitness.samples
        if self._cached_sample is None or self._cached_sample[0] != iteration:
            self._cached_sample = iteration, sample(self.herd.feed, cells.first, cells.seed, cells.cell, iteration, n)
        return self._cached_sample[1]

    def _snapshot_side(self, kind: str) -> Side:
        """Return the nets of one kind (g or d) in all neighbourhoods, as they were when the iteration began."""
        table, snapshot = self.wiring.table, self.gathered.all
        return Side(snapshot, table, self.wiring.real & finite_nets(self.herd, snapshot, kind)[table])

    def _overall(self, losses: np.ndarray, side: Side, opponents: Side) -> np.ndarray:
        """Return the fitness [C, A] of A nets in each cell from their losses [C, A, B] against B opponents.

        Less is better. Fitness is infinite for padding and for nets with a number that is not finite.
        """
        return np.where(side.real, overall(losses, opponents.real, self.settings.fitness.over), np.inf)

    def _drop_snapshot(self) -> None:
        """Remove the snapshot from the state: checkpoints between two iterations do not need it, and are half as large."""
        for name in self.gathered.checkpoint_state:
            self.state.pop(name, None)

    def on_steps_done(self, seconds: float, step: int) -> None:
        self.profile.updated(seconds)
        self.mutations.count(step)

    def metrics(self) -> Facts:
        """Return the seconds that each routine took (`profile`), and for each member the settings that mutate."""
        return {"profile": self.profile.take(), **self.mutations.metrics()}


def _copy_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return copies of the columns of an event, each flattened to [n]."""
    return {name: np.array(column).reshape(-1) for name, column in columns.items()}
