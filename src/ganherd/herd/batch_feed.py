"""Serve each member's (GAN's) batches: a keyed shuffle of its rows of one data set, which stays on the device.

Images are stored as bytes. "Keyed" means that the order of a member's rows in an epoch depends only on the key of its
random stream and the number of the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ganherd.data.units import Units, divisor, like
from ganherd.herd import rng
from ganherd.util.host import in_threads


@dataclass(frozen=True)
class BatchPlan:
    """Which rows of a data set each member trains on, and how they are converted to batches."""

    index: np.ndarray  # [N, n_max] the rows of the data that each member trains on, then padding
    count: np.ndarray  # [N] the number of these rows without the padding
    batch: int  # samples in a batch
    offset: Units  # nets get (x - offset) / scale
    scale: Units
    dtype: torch.dtype  # of the batches

    def on_device(self, device: torch.device) -> tuple[float | Tensor, float | Tensor]:
        """Return the offset and the divisor of the data: numbers or, if columns differ, tensors [d] on the device."""
        empty = torch.empty(0, dtype=self.dtype, device=device)
        return like(self.offset, empty), like(divisor(self.scale), empty)

    def select(self, members: Sequence[int]) -> BatchPlan:
        """Return the plan of some members, in this order.

        If all members share one row of the index (a broadcast array), so do these, without a copy.
        """
        rows = list(members)
        shared = self.index.strides[0] == 0
        index = np.broadcast_to(self.index[:1], (len(rows), self.index.shape[1])) if shared else self.index[rows]
        return replace(self, index=index, count=self.count[rows])


class Feed:
    """Serve the batches of all members. Batch number c of a member depends only on its random stream and c.

    Therefore nothing about the order of the data is saved in checkpoints. In an epoch a member sees each of its `count`
    rows once, in ceil(count / batch) batches. The last batch is filled up with rows from the start of the same
    permutation, repeatedly if a member has fewer rows than a batch.
    """

    resident = True  # all data is on the device; `StreamFeed` reads it batch by batch

    def __init__(self, x: Tensor, y: Tensor, plan: BatchPlan) -> None:
        """Take the data.

        Args:
            x: [n, …] uint8 images or float points, on the device.
            y: int64 [n], the labels.
        """
        self.x, self.y, self.plan = x, y, plan
        self._offset, self._divisor = plan.on_device(x.device)
        self.batches_per_epoch = -(-plan.count // plan.batch)  # [N]
        # The version of random streams in this context; threads that read ahead would otherwise use the newest one.
        self._stream_version = rng.version()
        # The rows of each member's present epoch, [N, batches · batch]. With many members and much data this is the
        # largest table on the host, so it is int32 if possible.
        kind = np.int32 if len(x) < 2**31 else np.int64
        self._order = np.zeros((len(plan.count), int(self.batches_per_epoch.max()) * plan.batch), kind)
        # The key and the epoch for which each member's row of this table was shuffled, [N].
        self._key_of, self._epoch_of = np.zeros(len(plan.count), np.int64), np.full(len(plan.count), -1)
        self._members, self._within_batch = np.arange(len(plan.count))[:, None], np.arange(plan.batch)

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        """Return the rows of x in batch number `c` of some members, int64 [n, B].

        Args:
            members: The members as a slice of all N.
            base: [n] the base keys of these members' random streams.
            c: The number of the batch, counted from the start of the run.
        """
        epoch, number = np.divmod(c, self.batches_per_epoch[members])  # [n]
        outdated = (self._key_of[members] != base) | (self._epoch_of[members] != epoch)
        if outdated.any():
            these = [(members.start + i, int(base[i]), int(epoch[i])) for i in np.flatnonzero(outdated).tolist()]
            in_threads(lambda one: self._shuffle(*one), these, torch.get_num_threads())
        columns = (number * self.plan.batch)[:, None] + self._within_batch
        return self._order[self._members[members], columns].astype(np.int64)

    def _shuffle(self, member: int, base: int, epoch: int) -> None:
        """Write the order of a member's rows in an epoch to the table, repeated up to the width of the table.

        Args:
            member: The row of the member in the table.
            base: The member's base key, from which the random numbers of its order are derived.
            epoch: The number of the epoch.
        """
        order, count = self._order[member], int(self.plan.count[member])
        generator = rng.seed_(torch.Generator(), rng.key(base, rng.ORDER, epoch), self._stream_version)
        permutation = torch.randperm(count, generator=generator).numpy()
        order[:count] = self.plan.index[member][permutation]
        order[count:] = np.resize(order[:count], len(order) - count)
        self._key_of[member], self._epoch_of[member] = base, epoch

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …], scaled as the nets expect them, and labels [n, B].

        Args:
            indices: [n, B] rows of the data, on its device.
        """
        flat = indices.reshape(-1)
        x = self.x.index_select(0, flat).to(self.plan.dtype).sub_(self._offset).div_(self._divisor)
        return x.unflatten(0, indices.shape), self.y.index_select(0, flat).unflatten(0, indices.shape)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …] and labels [n, B] of batch number `c` of some members; see `indices`."""
        return self.gather(torch.from_numpy(self.indices(members, base, c)).to(self.x.device))

    def select(self, members: Sequence[int]) -> Feed:
        """Return a feed with the same batches for these members only, numbered from 0 in this order."""
        return Feed(self.x, self.y, self.plan.select(members))

    def close(self) -> None:
        """Release resources; this feed holds none."""

    def member_rows(self, member: int) -> np.ndarray:
        """Return the rows of x that a member trains on, [count]."""
        return np.asarray(self.plan.index[member, : int(self.plan.count[member])])
