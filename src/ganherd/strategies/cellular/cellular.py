"""Cellular coevolution, as Lipizzaner and Mustangs: cells on a graph compete with their neighbours and learn from them.

One iteration, all cells at once, as index operations on the stacked state:

1. gather: a frozen snapshot of each neighbourhood;
2. fitness of all its generators against all its discriminators, and tournaments: a cell goes on with copies of the
   winners, with their optimiser's state and learning rates (without selection: with its own);
3. mutation of what mutates once an iteration, then training up to the next meeting;
4. fitness of the trained ones against the old neighbourhood: they stay only if they are better than the worst of the
   cell's own old ones; generators and discriminators are judged apart;
5. a step of the (1+1)-ES on the weights of each neighbourhood's mixture.

Over several ranks the next iteration's snapshot is sent ahead: generators when those that stay are known, while the
discriminators are judged; discriminators then, while mixtures evolve, pictures are drawn and checkpoints written. Where
`exchange` is async, ranks part for some iterations: a snapshot is then what has come from neighbours (see `newest`), events
are noted, and mixtures evolve when all are together again.

A member that is not finite wins no tournament, is nobody's opponent, and has no weight. The reference evaluates with fresh
noise for every pair; here the discriminators of a neighbourhood see the same samples of a generator: see `fitness`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.ranks import together
from ganherd.herd import rng
from ganherd.herd.state import State
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.recipe.strategy.cellular_config import CellularConfig as Settings
from ganherd.runs.profile import Profile
from ganherd.strategies.cellular.best_generators import BestGenerators
from ganherd.strategies.cellular.cells import Cells, Wiring, wire
from ganherd.strategies.cellular.fitness import FitnessEvaluator, Sample, Side, overall, sample
from ganherd.strategies.cellular.individuals import KINDS, GatheredIndividuals, sound
from ganherd.strategies.cellular.latest_neighbours import LatestNeighbours
from ganherd.strategies.cellular.matchups import Matchups
from ganherd.strategies.cellular.mutations import Mutations
from ganherd.strategies.cellular.requirements import refuse_impossible
from ganherd.strategies.cellular.rewiring import Rewiring
from ganherd.strategies.cellular.tournament import SelectedIndividuals, ranked, survivors, winners
from ganherd.strategies.event_buffer import EventBuffer
from ganherd.strategies.mixing.mixer import Mixer
from ganherd.strategies.mixing.neighbourhood_mixtures import NeighbourhoodMixtures
from ganherd.strategies.strategy import Event, Strategy, on_all_ranks
from ganherd.util.host import give_back

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd


class Cellular(Strategy):
    """Member cell · population + j is the j-th individual of a cell; after an iteration the best is the first."""

    @classmethod
    def refuse_impossible(cls, prepared: PreparedHerd) -> None:
        settings = prepared.recipe.strategy.settings
        assert isinstance(settings, Settings)
        refuse_impossible(settings, prepared.dataset, prepared.trusted, prepared.herd.g.takes_label)

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        settings, ranks = prepared.recipe.strategy.settings, prepared.ranks
        assert isinstance(settings, Settings)
        strategy = cls(prepared, settings, spans, **on_all_ranks(prepared))
        if not ranks.is_alone:  # the first rank trains the network of the mixtures; the others find it in the cache
            look = strategy.mixtures.mixer.look_at_data
            together(ranks.everyone, lambda: look() if ranks.is_first else None)
        return strategy

    def __init__(
        self,
        assembly: PreparedHerd,
        settings: Settings,
        spans: Mapping[str, int],
        *,
        comm: Communicator,
        placement: Placement,
        members: int,
    ) -> None:
        super().__init__()
        self.herd, self.settings, self.comm, self.placement = assembly.herd, settings, comm, placement
        self.span, self.replicas = max(1, spans["iteration"]), placement.size // members
        self.rewiring, self.profile = Rewiring(settings, assembly.trusted), Profile()
        seed, slot = (self.herd.state[f"set.{name}"].cpu().numpy() for name in ("seed", "slot"))
        self.cells = Cells.of(placement.ranks[comm.rank], settings.population, seed, slot)
        self.wiring = self._wired(0)
        widest = self.rewiring.widest
        self.judge = FitnessEvaluator(self.herd, settings.fitness.loss)
        self.mutations = Mutations(self.herd, settings.mutation, comm, placement)
        is_apart = settings.exchange == "async" and settings.staleness > 0 and comm.size > 1
        self.apart = self.span * settings.rejoin if is_apart else 0
        kind = LatestNeighbours if self.apart else GatheredIndividuals
        self.gathered = kind(self.herd, settings, comm, placement, self.traffic, members)
        self.untold = EventBuffer(comm, placement)
        self._mixed = 0  # iterations after which mixtures have evolved
        self._sampled: tuple[int, Sample] | None = None  # of an iteration
        self.opponents = Matchups(
            self.herd, self.gathered, self.cells, comm, placement, selection=settings.selection, widest=widest
        )
        self.herd.opponents = self.opponents.rivals
        mixer = Mixer(assembly, settings.mixing, self.cells, comm, placement, self.traffic)
        keeper = (
            BestGenerators(self.herd, self.cells.own // members, widest) if settings.mixing.keep == "best" else None
        )
        self.mixtures = NeighbourhoodMixtures(mixer, self.cells, self.wiring, widest, keeper)
        # of each member's generator and discriminator, [n, 2]: their fitness, and the members that they are copies of
        self.fitness = torch.full((len(self.cells.own), 2), torch.inf, dtype=torch.float64)
        self.won = torch.from_numpy(self.cells.own)[:, None].repeat(1, 2)
        self.state: State = {
            "meet.fitness": self.fitness,
            "meet.won": self.won,
            **self.mixtures.state,
            **self.mutations.state,
            **self.gathered.remembered,
        }

    # -- when ---------------------------------------------------------------------------------------------------------

    def next_after(self, step: int) -> int | None:
        return (step // self.span + 1) * self.span

    def resume(self, step: int) -> None:
        iteration, into = divmod(step, self.span)
        self._mixed = iteration
        self.mutations.resume(step)
        self.wiring = self._wired(iteration if into else max(0, iteration - 1))
        if into:
            self.gathered.fetch(self.wiring)
            self.opponents.set(self.wiring, self.won.numpy())
            self.profile.leave()
        else:
            self._forget_gathered()

    # -- the beginning of an iteration --------------------------------------------------------------------------------

    def open(self, step: int) -> Iterator[Event]:
        iteration = step // self.span
        yield from self._rewire(iteration)
        if step == 0:
            self.mutations.at_creation()
        with self.profile.of("gather"):
            self.gathered.take(self.wiring, iteration)
            self.state |= self.gathered.remembered
        if isinstance(self.gathered, LatestNeighbours):
            self.untold.note(step, "exchange", {"iteration": iteration}, {}, self.gathered.behind(iteration))
        if self.settings.selection:
            with self.profile.of("evaluate"):
                sides = {kind: self._old(kind) for kind in KINDS}
                g, d = self.judge.losses(sides["g"], sides["d"], self._sample(iteration))
                fitness = {"g": self._overall(g, sides["g"], sides["d"]), "d": self._overall(d, sides["d"], sides["g"])}
            with self.profile.of("replace"):
                for kind in KINDS:
                    self._select(iteration, kind, sides[kind], fitness[kind])
            won = {kind: self.won[:, i].numpy() for i, kind in enumerate(KINDS)}
            found = {f"fitness_{kind}": self.fitness[:, i].numpy() for i, kind in enumerate(KINDS)}
            self.untold.note(step, "tournament", {"iteration": iteration}, _copied({**won, **found}))
            if not self.apart:
                yield from self.untold.tell(step)
        with self.profile.of("mutate"):
            self.mutations.at_iteration(step)
        with self.profile.of("gather"):
            self.opponents.set(self.wiring, self.won.numpy())
        give_back()  # what evaluations took
        self.profile.leave()

    def _rewire(self, iteration: int) -> Iterator[Event]:
        """Other neighbourhoods, where they change with this iteration."""
        before, self.wiring = self.wiring, self._wired(iteration)
        if before is self.wiring:
            return
        self.mixtures.wire(self.wiring)
        topology = self.wiring.topology
        neighbours = [topology.neighbours(cell) for cell in range(len(topology))]
        yield "rewire", {"iteration": iteration, "topology": topology.name, "neighbours": neighbours}

    def _wired(self, iteration: int) -> Wiring:
        topology = self.rewiring.at(iteration)
        now: Wiring | None = getattr(self, "wiring", None)
        if now is not None and now.topology == topology:
            return now
        return wire(topology, self.settings.population, self.replicas, self.placement, self.comm.rank)

    def _select(self, iteration: int, kind: str, side: Side, fitness: np.ndarray) -> None:
        """Tournaments in each neighbourhood, by fitness [C, S]; the winners are written over the cells' own."""
        cells, p, number = self.cells, self.cells.population, KINDS.index(kind)
        keys = rng.keys(np.zeros(len(cells), np.int64), cells.seed, -rng.TOURNAMENT, cells.cell, iteration, number)
        u = rng.draw(keys, (p, side.rows.shape[1]), "uniform", torch.float64).numpy()
        column = winners(fitness, side.real, u, self.settings.tournament)  # [C, p]
        column = np.where(column < 0, np.arange(p), column)  # nobody could win: each stays as it is
        rows = np.take_along_axis(side.rows, column, 1).reshape(-1)
        self.gathered.clone(kind, rows)
        self.won[:, number] = torch.tensor(self.wiring.wanted[self.comm.rank])[rows]
        self.fitness[:, number] = torch.from_numpy(fitness[:, :p].reshape(-1))

    # -- the end of an iteration --------------------------------------------------------------------------------------

    def close(self, step: int, goes_on: bool = False) -> Iterator[Event]:
        self.profile.enter()
        iteration = step // self.span - 1
        with self.profile.of("evaluate"):
            on = self._sample(iteration)
        wiring, facts = self._wired(iteration + 1) if goes_on else self.wiring, dict[str, np.ndarray]()
        for kind in KINDS:
            with self.profile.of("evaluate"):
                trained = self._judged(kind, on)  # [C, p]
            with self.profile.of("replace"):
                facts |= self._replace(kind, trained)
            if goes_on or self.apart:  # nothing changes these nets before the next iteration begins
                with self.profile.of("gather"):
                    self.gathered.begin(kind, wiring, iteration + 1)
        self._forget_gathered()
        facts |= self.mutations.taken(step)
        event = "replacement" if self.settings.selection else "evaluation"
        self.untold.note(step, event, {"iteration": iteration}, facts, words=self.mutations.names)
        if not self.apart:
            yield from self._told(step)

    def _told(self, step: int) -> Iterator[Event]:
        """What was noted; and mixtures evolve, for as many iterations as passed since they last did."""
        yield from self.untold.tell(step)
        mixing, iterations, self._mixed = self.settings.mixing, step // self.span - self._mixed, step // self.span
        if mixing.when == "iteration" and iterations:
            with self.profile.of("mixture"):
                found = self.mixtures.evolve(self.wiring, self._mixed - 1, mixing.generations * iterations)
            self.gathered.push()
            facts = {"iteration": self._mixed - 1, "score": mixing.score}
            yield "mixture", {**facts, "before": found[:, 0].tolist(), "after": found[:, 1].tolist()}

    def part(self, step: int, until: int, goes_on: bool) -> None:
        assert isinstance(self.gathered, LatestNeighbours)
        self.gathered.part(self.wiring, -(-step // self.span), (until if goes_on else until - 1) // self.span)

    def rejoin(self, step: int) -> Iterator[Event]:
        assert isinstance(self.gathered, LatestNeighbours)
        self.profile.enter()
        with self.profile.of("gather"):
            self.gathered.rejoin()
        yield from self._told(step)

    def push(self) -> None:
        self.gathered.push()

    def leave(self) -> None:
        self.gathered.forget()

    def _judged(self, kind: str, on: Sample) -> np.ndarray:
        """[C, p] the fitness of the cells' own against the neighbourhood as it was gathered."""
        rows = np.arange(len(self.cells.own)).reshape(len(self.cells), -1)
        mine = Side(self.herd.state, rows, sound(self.herd.state, kind)[rows])
        old = self._old("d" if kind == "g" else "g")
        losses = self.judge.losses(mine, old, on, "g")[0] if kind == "g" else self.judge.losses(old, mine, on, "d")[1]
        return self._overall(losses, mine, old)

    def _replace(self, kind: str, trained: np.ndarray) -> dict[str, np.ndarray]:
        """Who stays, the best first; the event's facts, for each member: the fitness before, of the one that was trained in
        its place and of the one that is there now; whether that is a trained one; and in whose place it was."""
        number, p = KINDS.index(kind), self.cells.population
        old = self.fitness[:, number].numpy().reshape(-1, p).copy()
        found: SelectedIndividuals = (
            survivors(old, trained, self.settings.replacements) if self.settings.selection else ranked(trained)
        )
        rows, new = (found.source + self.cells.first[:, None]).reshape(-1), found.trained.reshape(-1)
        self.gathered.settle(kind, rows, new)
        self.fitness[:, number] = torch.from_numpy(found.fitness.reshape(-1))
        facts = {"before": old, "trained": trained, "after": found.fitness, "new": new, "from": self.cells.own[rows]}
        told = ["trained", "after"] if not self.settings.selection else ["before", "trained", "after", "new"]
        told += ["from"] if p > 1 else []
        return _copied({f"{kind}_{name}": facts[name] for name in told})

    def neighbourhoods(self, step: int) -> Neighbourhoods:
        return self.mixtures.neighbourhoods(self.wiring, step // self.span)

    def generators(self) -> State | None:
        keeper = self.mixtures.keeper
        return keeper.generators() if keeper and bool((keeper.iteration >= 0).all()) else None

    # -- small things -------------------------------------------------------------------------------------------------

    def _sample(self, iteration: int) -> Sample:
        """The same at both ends of an iteration: chosen once."""
        cells, n = self.cells, self.settings.fitness.samples
        if self._sampled is None or self._sampled[0] != iteration:
            self._sampled = iteration, sample(self.herd.feed, cells.first, cells.seed, cells.cell, iteration, n)
        return self._sampled[1]

    def _old(self, kind: str) -> Side:
        """Everyone in the neighbourhoods as they were gathered."""
        table, everyone = self.wiring.table, self.gathered.all
        return Side(everyone, table, self.wiring.real & sound(everyone, kind)[table])

    def _overall(self, losses: np.ndarray, own: Side, opponents: Side) -> np.ndarray:
        """[C, own] from losses [C, own, opponents]; who is not finite is infinitely bad."""
        return np.where(own.real, overall(losses, opponents.real, self.settings.fitness.over), np.inf)

    def _forget_gathered(self) -> None:
        """Between two iterations nothing of it is needed, so a checkpoint there is half as large."""
        for name in self.gathered.remembered:
            self.state.pop(name, None)

    def trained(self, seconds: float, step: int) -> None:
        self.profile.updated(seconds)
        self.mutations.count(step)

    def measured(self) -> dict[str, Any]:
        """Seconds of each routine, and the settings that mutate, for each member."""
        return {"profile": self.profile.take(), **self.mutations.measured()}


def _copied(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As they are now, of each member."""
    return {name: np.array(column).reshape(-1) for name, column in columns.items()}
