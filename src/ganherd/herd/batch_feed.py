"""Draw each member's batches: a keyed shuffle of its rows of one data set that stays on the device, images as bytes."""

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
    """Which rows of a data set each member trains on, and how they become batches."""

    index: np.ndarray  # [N, n_max] rows of the data for each member
    count: np.ndarray  # [N] the number of rows of each member; the rest of its index row is padding
    batch: int
    offset: Units  # nets get (x - offset) / scale
    scale: Units
    dtype: torch.dtype

    def on_device(self, device: torch.device) -> tuple[float | Tensor, float | Tensor]:
        """Return the offset and the divisor of values; those of columns are tensors [d] on the device."""
        empty = torch.empty(0, dtype=self.dtype, device=device)
        return like(self.offset, empty), like(divisor(self.scale), empty)

    def select(self, members: Sequence[int]) -> BatchPlan:
        """Return the plan of some members. An index that is one row broadcast to all members stays that way."""
        rows = list(members)
        shared = self.index.strides[0] == 0
        index = np.broadcast_to(self.index[:1], (len(rows), self.index.shape[1])) if shared else self.index[rows]
        return replace(self, index=index, count=self.count[rows])


class Feed:
    """Batches of all members. Batch c of a member depends only on its random stream and c, so no order needs to be saved.

    In an epoch a member sees its own data once, in ceil(count / batch) batches. The last batch is filled up from the start of the
    same permutation; if a member has less data than one batch, so is its only batch.
    """

    resident = True  # all data is on the device; `StreamFeed` reads it batch by batch

    def __init__(self, x: Tensor, y: Tensor, plan: BatchPlan) -> None:
        """Take the data: x [n, …] uint8 images or float points, on the device, and y [n] int64."""
        self.x, self.y, self.plan = x, y, plan
        self._offset, self._divisor = plan.on_device(x.device)
        self.batches_per_epoch = -(-plan.count // plan.batch)  # [N]
        # Recorded here, because threads that read ahead start with the newest version.
        self._stream_version = rng.version()
        # The rows of one epoch, [N, …]. With many members and much data this is the largest table on the host, hence int32 if
        # it suffices.
        kind = np.int32 if len(x) < 2**31 else np.int64
        self._order = np.zeros((len(plan.count), int(self.batches_per_epoch.max()) * plan.batch), kind)
        # The key and the epoch that each row of this table belongs to, [N].
        self._key_of, self._epoch_of = np.zeros(len(plan.count), np.int64), np.full(len(plan.count), -1)
        self._members, self._within_batch = np.arange(len(plan.count))[:, None], np.arange(plan.batch)

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        """Return the rows of x in batch `c` of some members, int64 [n, B].

        Args:
            base: [n] the keys of the members' random streams.
        """
        epoch, number = np.divmod(c, self.batches_per_epoch[members])  # [n]
        outdated = (self._key_of[members] != base) | (self._epoch_of[members] != epoch)
        if outdated.any():
            these = [(members.start + i, int(base[i]), int(epoch[i])) for i in np.flatnonzero(outdated).tolist()]
            in_threads(lambda one: self._shuffle(*one), these, torch.get_num_threads())
        columns = (number * self.plan.batch)[:, None] + self._within_batch
        return self._order[self._members[members], columns].astype(np.int64)

    def _shuffle(self, member: int, base: int, epoch: int) -> None:
        """Write the order of a member's rows in an epoch to the table. If the table is wider, the order is repeated in it."""
        order, count = self._order[member], int(self.plan.count[member])
        generator = rng.seed_(torch.Generator(), rng.key(base, rng.ORDER, epoch), self._stream_version)
        permutation = torch.randperm(count, generator=generator).numpy()
        order[:count] = self.plan.index[member][permutation]
        order[count:] = np.resize(order[:count], len(order) - count)
        self._key_of[member], self._epoch_of[member] = base, epoch

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [n, B, …], scaled as the nets expect it, and y [n, B] for rows [n, B] on the data's device."""
        flat = indices.reshape(-1)
        x = self.x.index_select(0, flat).to(self.plan.dtype).sub_(self._offset).div_(self._divisor)
        return x.unflatten(0, indices.shape), self.y.index_select(0, flat).unflatten(0, indices.shape)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        """Return x [n, B, …] and y [n, B] of batch `c` of some members; see `indices`."""
        return self.gather(torch.from_numpy(self.indices(members, base, c)).to(self.x.device))

    def select(self, members: Sequence[int]) -> Feed:
        """Return a feed with the same batches for these members only, numbered from 0 in this order."""
        return Feed(self.x, self.y, self.plan.select(members))

    def close(self) -> None:
        """Release resources; this feed holds none."""

    def member_rows(self, member: int) -> np.ndarray:
        """Return the rows of x that a member trains on, [count]."""
        return np.asarray(self.plan.index[member, : int(self.plan.count[member])])
