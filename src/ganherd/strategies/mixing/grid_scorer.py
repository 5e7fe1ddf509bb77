"""Score the mixtures of a grid: sample the best generator of every cell, extract features, and compare with the data.

The mixture of a cell's neighbourhood contains the best generator of each of its cells, with a weight for each. In
shapes, C is the number of this rank's cells, G of generators, s of cells in the largest neighbourhood, n of samples, F
of features, K of classes or of generators evaluated at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.comm.communicator import Placement
from ganherd.data.units import to_data
from ganherd.features.extract import Moments
from ganherd.features.material import MetricSkipped
from ganherd.features.networks import Network
from ganherd.features.real_features import RealFeatures
from ganherd.herd import rng
from ganherd.herd.engine.engines import evaluation_operations, keys_on_device
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, buffers_of
from ganherd.metrics.metric_registry import metric_of
from ganherd.recipe.strategy.cellular_config import MixingConfig
from ganherd.strategies.cellular.cells import Cells, Wiring
from ganherd.strategies.member_ranks import MemberRanks, Traffic
from ganherd.strategies.mixing import objectives
from ganherd.strategies.mixing.objectives import Objective, SampledGenerator
from ganherd.strategies.mixing.scorers import (
    MixtureGroup,
    MixtureScorer,
    Summary,
    class_shares,
    grouped,
    scored_on,
    summarise,
)
from ganherd.strategies.mixing.weight_evolution import Evolved, evolve
from ganherd.util.errors import UserError
from ganherd.util.host import give_back

_REAL = 10_000  # real images that are used if the network is slow and there is no GPU
_OBJECTIVE = "objective."  # prefix of the names of an objective's tensors when they are sent between ranks

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd


@dataclass(frozen=True)
class ClassTarget:
    """Statistics of the data that mixtures are compared with: the data of their class, or all of it."""

    moments: Moments  # mean and covariance of the data's features
    shares: Tensor | None  # [K], shares of the classes that the network predicts for the data; None: it predicts none
    objective: Objective | None  # the recipe's score; None for FID and TVD, which are always computed


class GridScorer:
    """Compute statistics of each generator's samples once, and score mixtures of any weights from these statistics."""

    def __init__(
        self,
        assembly: PreparedHerd,
        settings: MixingConfig,
        cells: Cells,
        ranks: MemberRanks,
        traffic: Traffic,
    ) -> None:
        """Store the settings; the network and the features of the data are loaded or computed on first use.

        Args:
            assembly: The herd with its data.
            settings: The recipe's settings for mixtures.
            cells: The cells of this rank.
            ranks: The ranks with members.
            traffic: Counts bytes received from other ranks.
        """
        self._assembly, self._herd, self.settings, self._cells = assembly, assembly.herd, settings, cells
        self.metric, self._traffic, p = metric_of(settings.score), traffic, cells.rows
        homes = Placement(tuple(tuple(member // p for member in own[::p]) for own in ranks.placement.ranks))
        self._cell_ranks = MemberRanks(ranks.comm, homes, ranks.members // p)  # with cells in place of members
        self.classes = ranks.classes  # number of grids in one replica: one for each class, or 1
        self._label = assembly.label[cells.own[cells.first]]  # int64 [C], the class of each cell; -1: all classes
        network = None if settings.network == "auto" else settings.network
        self._reference = RealFeatures(assembly.dataset, network, _REAL, trust_code=assembly.trusted)
        self._play = NetworkCall(self._herd.g, evaluation_operations(self._herd), self._herd.rules.precision)

    @cached_property
    def network(self) -> Network:
        """Return the network that extracts features.

        Raises:
            UserError: The network cannot be used with this data.
        """
        try:
            network = self._reference.network
        except MetricSkipped as why:  # in benchmarks, which skip the checks before a run
            raise UserError(f"strategy.cellular.mixing.network {self.settings.network}: {why}.") from why
        return network

    @cached_property
    def _targets(self) -> dict[int, ClassTarget]:
        """Return the statistics of the data by class of this rank's cells; key -1: of all classes."""
        self.network  # noqa: B018 - raises a UserError if the network is missing
        return {label: self._target(self._reference.of_class(label)) for label in np.unique(self._label).tolist()}

    def _target(self, reference: RealFeatures) -> ClassTarget:
        """Return the statistics of these features of the data that mixtures are compared with."""
        settings, trusted = self.settings, self._assembly.trusted
        moments, counts = reference.summary
        objective = objectives.find(settings.score, reference, settings.samples, self._where, trusted)
        reference.forget()
        where = self._where(len(moments.mean))
        shares = None if counts is None else counts.double() / counts.sum()
        return ClassTarget(Moments(moments.mean.to(where), moments.cov.to(where)), shares, objective)

    def look_at_data(self) -> None:
        """Compute the features of the data now instead of with the first mixture, e.g. to time them separately."""
        self._targets  # noqa: B018 - a cached property

    def _where(self, features: int) -> torch.device:
        """Return the device on which mixtures are scored fastest with this many features."""
        return scored_on(features, self._herd.device)

    # -- statistics of generators -----------------------------------------------------------------------------------

    @torch.no_grad()
    def summary(self, wiring: Wiring, iteration: int, state: State | None = None) -> Summary:
        """Return statistics of the first (best) generator of every cell that this rank's cells meet.

        Row i belongs to the i-th cell in the list of `Wiring.cells` for this rank, so `Wiring.near` holds row numbers.
        The noise of the samples depends on the cell and the iteration only.

        Args:
            wiring: The neighbourhoods.
            iteration: The number of the iteration.
            state: Tensors that hold the generators to use; None: the herd's current ones.
        """
        tensors = self._fetch_neighbours(self._local_statistics(iteration, state or self._herd.state), wiring)
        measured = {k.removeprefix(_OBJECTIVE): v for k, v in tensors.items() if k.startswith(_OBJECTIVE)}
        return Summary(tensors["mean"], tensors["cov"], tensors["samples"], tensors.get("classes"), measured)

    def _local_statistics(self, iteration: int, state: State) -> State:
        """Return the statistics of this rank's C cells as tensors [C, …], by the names under which they are sent."""
        give_back()  # Return the memory of the evaluations.
        features: list[Tensor] = []
        predicted: list[Tensor] = []
        measured: list[dict[str, Tensor]] = []
        first, keys, most = self._cells.first, self._keys(iteration), self._generators_in_memory
        for start in range(0, len(first), most):
            chunk = slice(start, start + most)
            x = self._samples(chunk, keys[chunk], state)  # [K, n, …]
            finite = torch.isfinite(x).flatten(1).all(1)
            # Extract features of one generator at a time, so that no batch of the network depends on other generators.
            for samples, is_finite, label in zip(x, finite, self._label[chunk].tolist(), strict=True):
                extracted, logits = self._extract(samples)
                features.append(torch.where(is_finite, extracted, torch.nan))
                predicted += [] if logits is None else [logits.argmax(1)]
                if objective := self._targets[label].objective:
                    sampled = SampledGenerator(samples, features[-1], logits, self._labels_of(label))
                    measured.append(objective.measure(sampled))
            del x
        give_back()
        summary, shares = summarise(features), next(iter(self._targets.values())).shares
        tensors = {"mean": summary.mean, "cov": summary.cov, "samples": summary.samples}
        if shares is not None:
            tensors["classes"] = class_shares(predicted, len(shares))
        if measured:
            tensors |= {_OBJECTIVE + name: torch.stack([each[name] for each in measured]) for name in measured[0]}
        where = self._where(summary.mean.shape[1])
        return {name: value.to(where) for name, value in tensors.items()}

    def scores(self, summary: Summary, near: Tensor) -> dict[str, MixtureScorer]:
        """Return functions that score this rank's C mixtures, by the name of the score.

        There is one for FID (`fid`), one for the score that the recipe chooses by, and, if the network predicts classes, one
        for the distance of class frequencies (`tvd`). A mixture is compared with the data of its cell's class.

        Args:
            summary: The statistics of the generators.
            near: int64 [C, s], the generators of each mixture, as rows of the summary.
        """
        groups: dict[str, list[MixtureGroup]] = {}
        for label, target in self._targets.items():
            cells = torch.from_numpy(np.flatnonzero(self._label == label))
            generators = near[cells].unique()
            own = summary.of(generators)
            each = objectives.scorers(own, target.moments, target.shares, self.settings.score, target.objective)
            for name, score in each.items():
                groups.setdefault(name, []).append(MixtureGroup(cells, generators, score))
        return {name: grouped(own) for name, own in groups.items()}

    def evolve(self, weights: Tensor, table: Tensor, score: MixtureScorer, iteration: int, generations: int) -> Evolved:
        """Evolve the mixture weights of this rank's neighbourhoods by an evolution strategy, a (1+1)-ES.

        Args:
            weights: float64 [C, s], the weights to begin with.
            table: int64 [C, s], the generators of each mixture.
            score: The score of mixtures that is improved.
            iteration: The number of the iteration, which determines the random numbers.
            generations: The number of steps of the ES.
        """
        drawn = rng.draw(self._keys(iteration), (generations, table.shape[1]), "normal", torch.float64)
        sigma, cost = self.settings.sigma, self.metric.cost
        return evolve(weights, table, score, sigma, generations, lambda generation: drawn[:, generation], cost)

    # -- samples ----------------------------------------------------------------------------------------------------

    def _keys(self, iteration: int) -> np.ndarray:
        """Return a random key for each of this rank's cells in this iteration, int64 [C]."""
        cells = self._cells
        return rng.keys(np.zeros(len(cells), np.int64), cells.seed, -rng.MIXING, cells.cell, iteration)

    def _samples(self, cells: slice, keys: np.ndarray, state: State) -> Tensor:
        """Return n samples of each cell's best generator in the units of the data [K, n, …], e.g. pixels from 0 to 255.

        Args:
            cells: The K cells of this rank.
            keys: int64 [K], their random keys.
            state: The tensors that hold the generators.
        """
        herd, data = self._herd, self._assembly.dataset
        views, buffers = self._generators(self._cells.first[cells], state)
        draws = Streams(keys_on_device(keys, herd.device), 0)
        inputs = self._inputs(draws, self._label[cells].tolist())
        x, _ = self._play(views, buffers, lambda: draws.keys(rng.INSIDE), inputs)
        x = to_data(x.float(), data)
        return x.round().clamp(0, 255) if data.is_image else x

    def _generators(self, rows: np.ndarray, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters and the buffers of the generators in these rows of a state, on the herd's device.

        Parameters are their running averages if the recipe keeps these.
        """
        herd = self._herd
        params = state.get("g.ema", state["g.params"])
        index = torch.from_numpy(rows).to(params.device)
        buffers = {name: value[index].to(herd.device) for name, value in buffers_of(state, "g").items()}
        return herd.g.views(params[index].to(herd.device)), buffers

    def _inputs(self, draws: Streams, labels: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the inputs of K generators: noise [K, n, latent], and labels [K, n] if they take labels.

        Args:
            draws: The random streams of the generators.
            labels: The class of each of the K generators; -1: all classes.
        """
        herd, n = self._herd, self.settings.samples
        z = draws.prior((rng.NOISE,), (n, herd.rules.latent), herd.rules.prior, herd.state["g.params"].dtype)
        each = [own for label in labels if (own := self._labels_of(label)) is not None]
        return (z, torch.stack(each)) if each else (z,)

    def _labels_of(self, label: int) -> Tensor | None:
        """Return the labels that a generator gets for its n samples, int64 [n]; None if generators take no labels.

        They are all `label`, or for -1 all labels in the proportions of the data.
        """
        if not self._herd.g.takes_label:
            return None
        if label >= 0:
            return torch.full((self.settings.samples,), label, device=self._herd.device)
        labels, n = np.sort(self._assembly.dataset.y[self._assembly.dataset.y >= 0]), self.settings.samples
        return torch.from_numpy(labels[np.arange(n) * len(labels) // n]).to(self._herd.device)

    @cached_property
    def _generators_in_memory(self) -> int:
        """Return the number of generators whose samples fit into memory at once."""
        views, buffers = self._generators(np.zeros(1, np.int64), self._herd.state)
        draws = Streams(keys_on_device(self._keys(0)[:1], self._herd.device), 0)
        few = [value[:, :2] for value in self._inputs(draws, self._label[:1].tolist())]
        return self._play.max_at_once(views, buffers, self.settings.samples, *few)

    def _extract(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the features [n, F] and the logits [n, K] of samples; None for logits if the network has no classes."""
        x = x.nan_to_num(0.0).to(torch.uint8) if self._assembly.dataset.is_image else x
        module = self.network.module.to(x.device)  # features of the data may have been computed on another device
        outputs = [module(batch) for batch in x.split(self.network.batch)]
        features = torch.cat([each.float() for each, _ in outputs])
        logits = None if outputs[0][1] is None else torch.cat([each.float() for _, each in outputs])
        return features, logits

    def _fetch_neighbours(self, tensors: State, wiring: Wiring) -> State:
        """Return the statistics of all cells that this rank's cells meet; those of other ranks are fetched."""
        if self._cell_ranks.comm.world_size == 1:
            return tensors
        return self._traffic.begin_fetch(self._cell_ranks, tensors, wiring.cells).wait()

    def all_cells(self, values: Tensor) -> Tensor:
        """Exchange values of cells: return those of all cells of the herd from those of this rank's cells [C, …]."""
        return torch.from_numpy(self._cell_ranks.all_gather(values.cpu().numpy()))
