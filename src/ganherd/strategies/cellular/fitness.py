"""Fitness: every generator of a neighbourhood against every discriminator, on samples that belong to the cell.

A generator's loss against a discriminator and the discriminator's against that generator come from the same logits
D_b(G_a(z)). There is one z for each (cell, generator), which all discriminators of the neighbourhood see: the comparison is
fairer than with fresh noise for every pair, and of s² fakes only s have to be made. D_b(x) is computed once for each (cell,
discriminator). Nets run as in a step (batch norm by the batch), so a batch is never cut; nothing of them is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.engine.engines import Herd, has_kernels, keys_on_device
from ganherd.herd.feed import Feed
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, buffers_of
from ganherd.util.host import in_threads
from ganherd.util.registry import LOSSES


@dataclass(frozen=True)
class Side:
    """The nets of one kind that meet in each of C cells: rows of a state, as many columns as the largest cell has."""

    state: State
    rows: np.ndarray  # int64 [C, S]
    real: np.ndarray  # bool [C, S]: which entries take part; the others are filling, or not finite


@dataclass(frozen=True)
class Sample:
    """What individuals are compared on: rows of each cell's own data, and a key for all that is drawn."""

    rows: np.ndarray  # int64 [C, n] of the data set
    keys: np.ndarray  # int64 [C]


def sample(feed: Feed, members: np.ndarray, seed: np.ndarray, cell: np.ndarray, iteration: int, n: int) -> Sample:
    """Of each cell n rows out of the data of one of its members, none twice as long as there are enough."""
    # a negative purpose: no member's slot can have the same key
    keys = rng.keys(np.zeros(len(cell), np.int64), seed, -rng.FITNESS, cell, iteration)
    orders = rng.keys(np.zeros(len(cell), np.int64), keys, rng.ORDER)
    rows = np.empty((len(keys), n), np.int64)

    def choose(i: int) -> None:
        own = feed.member_rows(int(members[i]))
        order = torch.randperm(len(own), generator=rng.seed_(torch.Generator(), int(orders[i]))).numpy()
        rows[i] = own[order[:n] if n <= len(own) else np.resize(order, n)]

    in_threads(choose, range(len(keys)), torch.get_num_threads())
    return Sample(rows, keys)


def overall(losses: np.ndarray, opponents: np.ndarray, over: str) -> np.ndarray:
    """[C, A] fitness from losses [C, A, B] against those of B opponents that take part [C, B]; less is better.

    What is no number is infinitely bad, and so is one that met nobody.

    >>> losses = np.array([[[1.0, 3.0, np.nan], [np.nan, 2.0, 9.0]]])
    >>> [overall(losses, np.array([[True, True, False]]), how).tolist() for how in ("average", "worst", "best")]
    [[[2.0, inf]], [[3.0, inf]], [[1.0, 2.0]]]
    """
    met = np.broadcast_to(opponents[:, None, :], losses.shape)
    known = np.where(np.isnan(losses), np.inf, losses)
    if over == "worst":
        found = np.where(met, known, -np.inf).max(2)
    elif over == "best":
        found = np.where(met, known, np.inf).min(2)
    else:
        found = np.where(met, known, 0.0).sum(2) / np.maximum(met.sum(2), 1)
    return np.where(met.any(2) & (found > -np.inf), found, np.inf)


class FitnessEvaluator:
    """All pairs of all cells in a few fused calls: as many pairs at once as the memory allows, all samples of each."""

    def __init__(self, herd: Herd, loss: str) -> None:
        self._herd, self._loss, self._feed = herd, LOSSES[loss], herd.feed
        kernels, precision = has_kernels(herd), herd.rules.precision
        self._play = {kind: NetworkCall(net, kernels, precision) for kind, net in (("g", herd.g), ("d", herd.d))}
        self._takes_label = herd.g.takes_label or herd.d.takes_label
        self._most: int | None = None  # nets at once

    @torch.no_grad()
    def losses(self, g: Side, d: Side, sample: Sample, whose: str = "gd") -> tuple[np.ndarray, np.ndarray]:
        """(of A generators against B discriminators [C, A, B], of these against those [C, B, A]), float64; NaN where one
        takes no part. `whose`: g or d, where only these are asked for.

        Column a of the generators gets noise a of its cell, whatever net stands there.
        """
        shape = (*g.rows.shape, d.rows.shape[1])
        out = torch.full((2, *shape), torch.nan, dtype=torch.float64, device=self._herd.device)
        real = self._real(d, sample) if "d" in whose else None
        for cell, a in self._parts(g, sample):
            y = self._labels(sample, cell)
            keys = rng.keys(sample.keys[cell], a)
            fake = self._call("g", g, cell, a, self._noise(keys, sample), y, keys, 0)  # [K, n, …]
            for b in range(shape[2]):
                met = np.flatnonzero(d.real[cell, b])
                if not len(met):
                    continue
                some = None if len(met) == len(cell) else self._index(met)
                seen, labels = (value if some is None or value is None else value[some] for value in (fake, y))
                assert seen is not None
                columns = np.full(len(met), b)
                logits = self._call("d", d, cell[met], columns, seen, labels, keys[met], 1 + b).flatten(1)  # [k, n]
                cells, makers = self._index(cell[met]), self._index(a[met])
                out[0, cells, makers, b] = self._loss.g(logits).double()
                if real is not None:
                    out[1, cells, makers, b] = self._loss.d(real[cells, b], logits).double()
        found = out.cpu().numpy()
        return found[0], found[1].transpose(0, 2, 1)

    def _real(self, d: Side, sample: Sample) -> Tensor:
        """[C, B, n] what each discriminator says of its cell's data."""
        shape = (*d.rows.shape, sample.rows.shape[1])
        out = torch.zeros(shape, dtype=d.state["d.params"].dtype, device=self._herd.device)
        for cell, b in self._parts(d, sample):
            x, y = self._feed.gather(self._index(sample.rows[cell]))
            keys = rng.keys(sample.keys[cell], -1 - b)
            out[self._index(cell), self._index(b)] = self._call("d", d, cell, b, x, y, keys, 0).flatten(1)
        return out

    def _call(
        self,
        kind: str,
        side: Side,
        cell: np.ndarray,
        column: np.ndarray,
        x: Tensor,
        y: Tensor | None,
        keys: np.ndarray,
        call: int,
    ) -> Tensor:
        """The nets at (cell, column) [K] on inputs [K, n, …]; their buffers stay as they are."""
        play, (views, buffers) = self._play[kind], self._picked(kind, side.state, side.rows[cell, column])
        inputs = (x, y) if play.net.takes_label and y is not None else (x,)
        draws = Streams(keys_on_device(keys, self._herd.device), call)
        out, _ = play(views, buffers, lambda: draws.keys(rng.INSIDE), inputs)
        return out.to(side.state[f"{kind}.params"].dtype)

    def _picked(self, kind: str, state: State, rows: np.ndarray) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        def pick(value: Tensor) -> Tensor:
            return value[torch.from_numpy(rows).to(value.device)].to(self._herd.device)

        views = self._play[kind].net.views(pick(state[f"{kind}.params"]))
        return views, {name: pick(value) for name, value in buffers_of(state, kind).items()}

    def _parts(self, side: Side, sample: Sample) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(cells [K], columns [K]) of all that take part; as many at once as the memory holds."""
        cell, column = np.nonzero(side.real)
        if self._most is None:
            self._most = self._found_most(sample)
        for first in range(0, len(cell), self._most):
            yield cell[first : first + self._most], column[first : first + self._most]

    def _found_most(self, sample: Sample) -> int:
        x, y = self._feed.gather(self._index(sample.rows[:1, :2]))
        fits = []
        for kind, seen in (("g", self._noise(sample.keys[:1], sample)[:, :2]), ("d", x)):
            views, buffers = self._picked(kind, self._herd.state, np.zeros(1, np.int64))
            inputs = (seen, y) if self._play[kind].net.takes_label else (seen,)
            fits.append(self._play[kind].max_at_once(views, buffers, sample.rows.shape[1], *inputs))
        return min(fits)

    def _noise(self, keys: np.ndarray, sample: Sample) -> Tensor:
        """[K, n, latent]"""
        rules, dtype = self._herd.rules, self._herd.state["g.params"].dtype
        draws = Streams(keys_on_device(keys, self._herd.device), 0)
        return draws.prior((rng.NOISE,), (sample.rows.shape[1], rules.latent), rules.prior, dtype)

    def _labels(self, sample: Sample, cell: np.ndarray) -> Tensor | None:
        """[K, n] those of the cell's data, where a net takes them."""
        return self._feed.gather(self._index(sample.rows[cell]))[1] if self._takes_label else None

    def _index(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self._herd.device)
