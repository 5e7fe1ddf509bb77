"""The mixtures of a grid: what a network sees in the best generator of every cell, and how far mixtures are from the data."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.comm.communicator import Communicator, Placement
from ganherd.features.material import MetricSkipped
from ganherd.features.moments import Moments
from ganherd.features.networks import Network
from ganherd.features.real_features import RealFeatures
from ganherd.herd import rng
from ganherd.herd.engine.engines import has_kernels, keys_on_device
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, buffers_of
from ganherd.recipe.mixture_scores import more_is_better
from ganherd.recipe.strategy.cellular_config import MixingConfig
from ganherd.strategies.cellular.cells import Cells, Wiring
from ganherd.strategies.mixing import objectives
from ganherd.strategies.mixing.mixing import (
    Evolved,
    FrechetScore,
    MixtureScorer,
    Summary,
    VariationScore,
    evolve,
    scored_on,
    summarise,
)
from ganherd.strategies.mixing.objectives import Objective, SampledGenerator
from ganherd.strategies.mixing.reweighted import Oriented
from ganherd.strategies.traffic import Traffic
from ganherd.util.errors import UserError
from ganherd.util.host import give_back

_REAL = 10_000  # real images that a heavy network looks at where there is no GPU
_AIM = "aim."  # how names of what another score needs begin, where they travel

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd


class Mixer:
    """Features are computed once for each generator; every mixture of any weights is then scored from what is kept of them."""

    def __init__(
        self,
        assembly: PreparedHerd,
        settings: MixingConfig,
        cells: Cells,
        comm: Communicator,
        placement: Placement,
        traffic: Traffic | None = None,
    ) -> None:
        """`traffic`: where what comes from other ranks is counted."""
        self._assembly, self._herd, self.settings, self._cells = assembly, assembly.herd, settings, cells
        self._comm, self._placement, self._traffic = comm, placement, traffic or Traffic()
        wanted = None if settings.network == "auto" else settings.network
        self._reference = RealFeatures(assembly.dataset, wanted, _REAL, trust_code=assembly.trusted)
        self._play = NetworkCall(self._herd.g, has_kernels(self._herd), self._herd.rules.precision)
        self._most: int | None = None  # generators at once

    @cached_property
    def network(self) -> Network:
        try:
            found = self._reference.network
        except MetricSkipped as why:
            raise UserError(f"strategy.cellular.mixing.network {self.settings.network}: {why}.") from why
        found.module.to(self._herd.device)
        return found

    @cached_property
    def _real(self) -> tuple[Moments, Tensor | None]:
        """(moments of the data's features, shares of the classes that the network sees in it)."""
        self.network  # noqa: B018 - a sentence where it is missing
        moments, seen = self._reference.summary
        self._reference.forget()
        if seen is None and self.settings.score in objectives.CLASSES:
            raise objectives.no_classes(self._what, self.network.name)
        where = self._where(len(moments.mean))
        shares = None if seen is None else seen.double() / seen.sum()
        return Moments(moments.mean.to(where), moments.cov.to(where)), shares

    @cached_property
    def _aim(self) -> Objective | None:
        shares, name, data, n = self._real[1], self.settings.score, self._assembly.dataset, self.settings.samples
        told = None if shares is None else len(shares)
        objectives.refuse(self._what, name, data, n, self._herd.g.takes_label, self._assembly.trusted, told)
        found = objectives.find(name, self._reference, n, self._where, self._assembly.trusted)
        self._reference.forget()
        return found

    @property
    def _what(self) -> str:
        """As sentences begin."""
        return f"strategy.cellular.mixing.score {self.settings.score}"

    @property
    def sign(self) -> float:
        """-1 where more of the recipe's score is better, so that less of what is searched for is."""
        return -1.0 if more_is_better(self.settings.score) else 1.0

    def look_at_data(self) -> None:
        """Now, rather than when the first mixture is scored: what a benchmark keeps apart."""
        self._real, self._aim  # noqa: B018 - kept

    def _where(self, features: int) -> torch.device:
        return scored_on(features, self._herd.device)

    # -- what is known of the generators ----------------------------------------------------------------------------

    @torch.no_grad()
    def summary(self, wiring: Wiring, iteration: int, state: State | None = None) -> Summary:
        """Of the first generator of every cell that this rank's cells meet, on noise that belongs to cell and iteration.

        Rows are those of `Wiring.near`. `state`: other generators than those of now.
        """
        give_back()  # what evaluations took
        features: list[Tensor] = []
        predicted: list[Tensor] = []
        wanted: list[dict[str, Tensor]] = []
        first, keys = self._cells.first, self._keys(iteration)
        if self._most is None:
            self._most = self._found_most()
        for start in range(0, len(first), self._most):
            part = slice(start, start + self._most)
            x = self._samples(first[part], keys[part], state or self._herd.state)  # [K, n, …]
            whole = torch.isfinite(x).flatten(1).all(1)
            for own, is_whole in zip(
                x, whole, strict=True
            ):  # by itself, so that no batch depends on the other generators
                seen, logits = self._look(own)
                features.append(torch.where(is_whole, seen, torch.nan))
                predicted += [] if logits is None else [logits.argmax(1)]
                if self._aim:
                    wanted.append(self._aim.of(SampledGenerator(own, features[-1], logits, self._asked)))
            del x
        give_back()
        shares = self._real[1]
        found = summarise(features, predicted or None, 0 if shares is None else len(shares))
        assert found.mean is not None and found.cov is not None and found.samples is not None
        where = self._where(found.mean.shape[1])
        parts = {"mean": found.mean.to(where), "cov": found.cov.to(where), "samples": found.samples.to(where)}
        parts |= {} if found.classes is None else {"classes": found.classes.to(where)}
        parts |= (
            {f"{_AIM}{name}": torch.stack([one[name] for one in wanted]).to(where) for name in wanted[0]}
            if wanted
            else {}
        )
        known = self._known(parts, wiring)
        classes = known.get("classes")
        moments = known["mean"], known["cov"], known["samples"]
        aim = {name.removeprefix(_AIM): value for name, value in known.items() if name.startswith(_AIM)}
        return Summary(*moments, None if classes is None else classes.cpu(), aim)

    def scores(self, summary: Summary) -> dict[str, MixtureScorer]:
        """How mixtures of these generators are scored, less being better: fid, tvd where the network tells classes, and what
        the recipe asks for; `sign` times that is the score itself."""
        real, shares = self._real
        first = FrechetScore(summary, real)
        found: dict[str, MixtureScorer] = {"fid": first}
        found |= {} if shares is None else {"tvd": VariationScore(summary, shares)}
        if self._aim:
            found[self.settings.score] = Oriented(self._aim.score(summary.aim), first.broken, self.sign < 0)
        return found

    def evolved(
        self, weights: Tensor, table: Tensor, score: MixtureScorer, iteration: int, generations: int
    ) -> Evolved:
        """The weights of this rank's neighbourhoods after so many steps of the ES."""
        drawn = rng.draw(self._keys(iteration), (generations, table.shape[1]), "normal", torch.float64)
        return evolve(weights, table, score, self.settings.sigma, generations, lambda generation: drawn[:, generation])

    # -- samples ----------------------------------------------------------------------------------------------------

    def _keys(self, iteration: int) -> np.ndarray:
        """int64 [C]"""
        cells = self._cells
        return rng.keys(np.zeros(len(cells), np.int64), cells.seed, -rng.MIXING, cells.cell, iteration)

    def _samples(self, rows: np.ndarray, keys: np.ndarray, state: State) -> Tensor:
        """[K, n, …] in the data's own units, as the mixture would make them."""
        herd, data = self._herd, self._assembly.dataset
        views, buffers = self._generators(rows, state)
        draws = Streams(keys_on_device(keys, herd.device), 0)
        inputs = self._inputs(draws)
        x, _ = self._play(views, buffers, lambda: draws.keys(rng.INSIDE), inputs)
        x = x.float() * data.scale + data.offset
        return x.round().clamp(0, 255) if data.is_image else x

    def _generators(self, rows: np.ndarray, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters (their running average, where there is one) and buffers of these members."""
        herd = self._herd
        params = state.get("g.ema", state["g.params"])
        index = torch.from_numpy(rows).to(params.device)
        buffers = {name: value[index].to(herd.device) for name, value in buffers_of(state, "g").items()}
        return herd.g.views(params[index].to(herd.device)), buffers

    def _inputs(self, draws: Streams) -> tuple[Tensor, ...]:
        """Noise [K, n, latent], and labels as often as the data has them, where a generator takes one."""
        herd, n = self._herd, self.settings.samples
        z = draws.prior((rng.NOISE,), (n, herd.rules.latent), herd.rules.prior, herd.state["g.params"].dtype)
        return (z,) if self._asked is None else (z, self._asked.expand(len(z), -1))

    @cached_property
    def _asked(self) -> Tensor | None:
        """int64 [n] the labels of samples, as often as the data has them, where a generator takes one."""
        if not self._herd.g.takes_label:
            return None
        known, n = np.sort(self._assembly.dataset.y[self._assembly.dataset.y >= 0]), self.settings.samples
        return torch.from_numpy(known[np.arange(n) * len(known) // n]).to(self._herd.device)

    def _found_most(self) -> int:
        views, buffers = self._generators(np.zeros(1, np.int64), self._herd.state)
        few = [value[:, :2] for value in self._inputs(Streams(keys_on_device(self._keys(0)[:1], self._herd.device), 0))]
        return self._play.max_at_once(views, buffers, self.settings.samples, *few)

    def _look(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(features [n, F], logits [n, K] or none)"""
        x = x.nan_to_num(0.0).to(torch.uint8) if self._assembly.dataset.is_image else x
        each = [self.network.module(part) for part in x.split(self.network.batch)]
        features = torch.cat([seen.float() for seen, _ in each])
        logits = None if each[0][1] is None else torch.cat([said.float() for _, said in each])
        return features, logits

    def _known(self, parts: State, wiring: Wiring) -> State:
        """What is known of this rank's cells -> of all that they meet: neighbours' come from their ranks, and no others."""
        if self._comm.size == 1:
            return parts
        p, ranks = self._cells.population, self._placement.ranks
        homes = Placement(tuple(tuple(member // p for member in own[::p]) for own in ranks))
        cells = len(wiring.topology)
        return self._traffic.begin(self._comm, homes, cells, parts, wiring.cells).wait()

    def all_cells(self, values: Tensor) -> Tensor:
        """Numbers of this rank's cells -> those of all cells."""
        p = self._cells.population
        own = np.repeat(values.cpu().numpy(), p, 0)
        return torch.from_numpy(self._comm.gather(own, self._placement)[::p])
