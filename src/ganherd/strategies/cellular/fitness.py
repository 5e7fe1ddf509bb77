"""Compute fitness: evaluate every generator of a neighbourhood against every discriminator.

Each cell has its own sample of data and noise for this. The loss of generator a against discriminator b, and the loss
of b against a, come from the same logits D_b(G_a(z)). Each generator of a cell gets one batch of noise z, and all s
discriminators of the neighbourhood see the same fakes. This is fairer than fresh noise for every pair, and needs s
batches of fakes instead of s². The logits D_b(x) on real data x are computed once for each discriminator of a cell.
Nets run as in training, with batch norm over the batch, so a batch is never split. No net is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.herd.batch_feed import Feed
from ganherd.herd.engine.engines import StackedHerd, evaluation_operations, keys_on_device
from ganherd.herd.lowering.network import NetworkCall
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, buffers_of
from ganherd.util.host import in_threads


@dataclass(frozen=True)
class Side:
    """The generators or the discriminators that are compared in each of C cells; S is the largest number in a cell."""

    state: State  # tensors with one row for each net
    rows: np.ndarray  # int64 [C, S], the rows of `state` that hold the nets of each cell
    real: np.ndarray  # bool [C, S], False for padding and for nets with a number that is not finite


@dataclass(frozen=True)
class Sample:
    """The data that the nets of each cell are compared on, and a key for the random numbers of that comparison."""

    rows: np.ndarray  # int64 [C, n], rows of the data set
    keys: np.ndarray  # int64 [C]


def sample(feed: Feed, members: np.ndarray, seed: np.ndarray, cell: np.ndarray, iteration: int, n: int) -> Sample:
    """Draw n rows of data for each of C cells, without repetition if the cell has that many.

    Args:
        feed: The data of this rank's members.
        members: int64 [C], for each cell the row (on this rank) of the member whose data is drawn from.
        seed: int64 [C], the seed of each cell.
        cell: int64 [C], the number of each cell within its replica (independent copy) of the grid.
        iteration: The number of the iteration.
        n: The number of rows for each cell.
    """
    # The negative purpose keeps these keys apart from those of members, which have their slot (0 or more) in its place.
    keys = rng.keys(np.zeros(len(cell), np.int64), seed, -rng.FITNESS, cell, iteration)
    orders = rng.keys(np.zeros(len(cell), np.int64), keys, rng.ORDER)
    rows = np.empty((len(keys), n), np.int64)

    def choose(i: int) -> None:
        available = feed.member_rows(int(members[i]))
        order = torch.randperm(len(available), generator=rng.seed_(torch.Generator(), int(orders[i]))).numpy()
        rows[i] = available[order[:n] if n <= len(available) else np.resize(order, n)]

    in_threads(choose, range(len(keys)), torch.get_num_threads())
    return Sample(rows, keys)


def overall(losses: np.ndarray, opponents: np.ndarray, over: str) -> np.ndarray:
    """Return the fitness, float64 [C, A], of A nets in each of C cells from their losses against B opponents.

    Less is better. A loss that is NaN counts as infinite. A net without opponents has infinite fitness.

    Args:
        losses: float64 [C, A, B].
        opponents: bool [C, B], True for opponents that count.
        over: How losses are combined over the opponents: `average`, `worst` (the largest) or `best` (the smallest).

    >>> losses = np.array([[[1.0, 3.0, np.nan], [np.nan, 2.0, 9.0]]])
    >>> [overall(losses, np.array([[True, True, False]]), how).tolist() for how in ("average", "worst", "best")]
    [[[2.0, inf]], [[3.0, inf]], [[1.0, 2.0]]]
    """
    met = np.broadcast_to(opponents[:, None, :], losses.shape)
    known = np.where(np.isnan(losses), np.inf, losses)
    if over == "worst":
        fitness = np.where(met, known, -np.inf).max(2)
    elif over == "best":
        fitness = np.where(met, known, np.inf).min(2)
    else:
        fitness = np.where(met, known, 0.0).sum(2) / np.maximum(met.sum(2), 1)
    return np.where(met.any(2) & (fitness > -np.inf), fitness, np.inf)


class FitnessEvaluator:
    """Compute the losses of all pairs of generator and discriminator in all cells.

    Many nets are evaluated in one fused call, as many as memory allows.
    """

    def __init__(self, herd: StackedHerd, loss: str) -> None:
        self._herd, self._loss, self._feed = herd, herd.rules.game.loss(loss), herd.feed
        operations, precision = evaluation_operations(herd), herd.rules.precision
        self._play = {kind: NetworkCall(net, operations, precision) for kind, net in (("g", herd.g), ("d", herd.d))}
        self._takes_label = herd.g.takes_label or herd.d.takes_label
        self._most: int | None = None  # the largest number of nets in one call; None: not measured yet

    @torch.no_grad()
    def losses(self, g: Side, d: Side, sample: Sample, whose: str = "gd") -> tuple[np.ndarray, np.ndarray]:
        """Return the losses of A generators against B discriminators in each of C cells, and the other way round.

        The noise of a generator depends on its column in `g.rows` (and on its cell), not on which net is in that
        column.

        Args:
            g: The generators [C, A].
            d: The discriminators [C, B].
            sample: The data and the random key of each cell.
            whose: The losses that are needed: `g` of generators, `d` of discriminators, `gd` of both. Others may be
                NaN.

        Returns:
            The losses of generators, float64 [C, A, B], and of discriminators, float64 [C, B, A]. They are NaN if one
            of the two nets is padding or not finite.
        """
        shape = (*g.rows.shape, d.rows.shape[1])
        out = torch.full((2, *shape), torch.nan, dtype=torch.float64, device=self._herd.device)
        real = self._real(d, sample) if "d" in whose or self._loss.g_sees_real else None
        for cell, a in self._batches(g, sample):
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
                seen_by_g = (real[cells, b], logits) if real is not None and self._loss.g_sees_real else (logits,)
                out[0, cells, makers, b] = self._loss.g(*seen_by_g).double()
                if real is not None and "d" in whose:
                    out[1, cells, makers, b] = self._loss.d(real[cells, b], logits).double()
        losses = out.cpu().numpy()
        return losses[0], losses[1].transpose(0, 2, 1)

    def _real(self, d: Side, sample: Sample) -> Tensor:
        """Return the logits of each discriminator on the n real samples of its cell [C, B, n]."""
        shape = (*d.rows.shape, sample.rows.shape[1])
        out = torch.zeros(shape, dtype=d.state["d.params"].dtype, device=self._herd.device)
        for cell, b in self._batches(d, sample):
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
        """Return the outputs of K nets [K, n, …]; their buffers do not change.

        Args:
            kind: g or d.
            side: The nets of that kind in all cells.
            cell: int64 [K], with `column` the place of each net in `side.rows`.
            column: int64 [K].
            x: The input of each net [K, n, …].
            y: The labels [K, n], for nets that take labels.
            keys: int64 [K], the key of each net's random numbers, e.g. for dropout.
            call: A number that gives several calls with the same keys different random numbers.
        """
        play, (views, buffers) = self._play[kind], self._select(kind, side.state, side.rows[cell, column])
        inputs = (x, y) if play.net.takes_label and y is not None else (x,)
        draws = Streams(keys_on_device(keys, self._herd.device), call)
        out, _ = play(views, buffers, lambda: draws.keys(rng.INSIDE), inputs)
        return out.to(side.state[f"{kind}.params"].dtype)

    def _select(self, kind: str, state: State, rows: np.ndarray) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters and buffers of the nets (kind g or d) in these rows of a state, on the herd's device."""

        def pick(value: Tensor) -> Tensor:
            return value[torch.from_numpy(rows).to(value.device)].to(self._herd.device)

        views = self._play[kind].net.views(pick(state[f"{kind}.params"]))
        return views, {name: pick(value) for name, value in buffers_of(state, kind).items()}

    def _batches(self, side: Side, sample: Sample) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the cells [K] and columns [K] of a side's real nets in batches, with K limited by memory."""
        cell, column = np.nonzero(side.real)
        if self._most is None:
            self._most = self._nets_in_memory(sample)
        for first in range(0, len(cell), self._most):
            yield cell[first : first + self._most], column[first : first + self._most]

    def _nets_in_memory(self, sample: Sample) -> int:
        """Return the number of nets, generators or discriminators, that one call can hold in memory."""
        x, y = self._feed.gather(self._index(sample.rows[:1, :2]))
        fits = []
        for kind, seen in (("g", self._noise(sample.keys[:1], sample)[:, :2]), ("d", x)):
            views, buffers = self._select(kind, self._herd.state, np.zeros(1, np.int64))
            inputs = (seen, y) if self._play[kind].net.takes_label else (seen,)
            fits.append(self._play[kind].max_at_once(views, buffers, sample.rows.shape[1], *inputs))
        return min(fits)

    def _noise(self, keys: np.ndarray, sample: Sample) -> Tensor:
        """Return noise [K, n, latent] for K random keys, with n samples each."""
        rules, dtype = self._herd.rules, self._herd.state["g.params"].dtype
        draws = Streams(keys_on_device(keys, self._herd.device), 0)
        return draws.prior((rng.NOISE,), (sample.rows.shape[1], rules.latent), rules.prior, dtype)

    def _labels(self, sample: Sample, cell: np.ndarray) -> Tensor | None:
        """Return the labels of the cells' data [K, n]; None if no net takes labels."""
        return self._feed.gather(self._index(sample.rows[cell]))[1] if self._takes_label else None

    def _index(self, rows: np.ndarray) -> Tensor:
        """Return row numbers as a tensor on the herd's device."""
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self._herd.device)
