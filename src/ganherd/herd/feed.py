"""Serve every member its own shuffled batches from one data set that stays on the device, images as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.util.host import in_threads


class Feed:
    """Batches of all members. Batch c of a member depends only on its random stream and c, so no order needs to be saved.

    In an epoch a member sees its own data once, in ceil(count / batch) batches. The last batch is filled up from the start of the
    same permutation; if a member has less data than one batch, so is its only batch.
    """

    resident = True  # all data is on the device; `StreamFeed` reads it batch by batch

    def __init__(
        self,
        x: Tensor,  # [n, …] uint8 images or float points, on the device
        y: Tensor,  # [n] int64
        index: np.ndarray,  # [N, n_max] rows of x for each member
        count: np.ndarray,  # [N] the number of rows of each member; the rest of its index row is padding
        batch: int,
        offset: float,
        scale: float,
        dtype: torch.dtype,
    ) -> None:
        self.x, self.y, self.batch, self.dtype = x, y, batch, dtype
        self._index, self._count = index, count
        self._offset, self._scale = offset, scale
        self.batches_per_epoch = -(-count // batch)  # [N]
        self._stream_version = (
            rng.version()
        )  # recorded here, because threads that read ahead start with the newest version
        # With many members and much data this is the largest table on the host, hence int32 if it suffices.
        kind = np.int32 if len(x) < 2**31 else np.int64
        self._order = np.zeros(
            (len(count), int(self.batches_per_epoch.max()) * batch), kind
        )  # [N, …] rows of one epoch
        self._order_of = np.array([[0], [-1]]).repeat(
            len(count), 1
        )  # [2, N] (key, epoch) that each row of it belongs to

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        """Return the rows of x in batch `c` of some members, int64 [n, B].

        Args:
            base: [n] the keys of the members' random streams.
        """
        length = self.batches_per_epoch[members]
        wanted = np.stack([base, c // length])  # [2, n]
        outdated = np.flatnonzero((self._order_of[:, members] != wanted).any(0)).tolist()
        in_threads(
            lambda i: self._shuffle(members.start + i, *wanted[:, i].tolist()), outdated, torch.get_num_threads()
        )
        columns = (c % length * self.batch)[:, None] + np.arange(self.batch)
        return np.take_along_axis(self._order[members], columns, axis=1).astype(np.int64)

    def _shuffle(self, member: int, base: int, epoch: int) -> None:
        """Write a member's order of an epoch to the table, repeated from its start up to the width of the table."""
        order, count = self._order[member], int(self._count[member])
        generator = rng.seed_(torch.Generator(), rng.key(base, rng.ORDER, epoch), self._stream_version)
        permutation = torch.randperm(count, generator=generator).numpy()
        order[:count] = self._index[member][permutation]
        order[count:] = np.resize(order[:count], len(order) - count)
        self._order_of[:, member] = base, epoch

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return x [n, B, …], scaled as the nets expect it, and y [n, B] for rows [n, B] on the data's device."""
        flat = indices.reshape(-1)
        x = self.x.index_select(0, flat).to(self.dtype).sub_(self._offset).div_(self._scale)
        return x.unflatten(0, indices.shape), self.y.index_select(0, flat).unflatten(0, indices.shape)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        """Return x [n, B, …] and y [n, B] of batch `c` of some members; see `indices`."""
        return self.gather(torch.from_numpy(self.indices(members, base, c)).to(self.x.device))

    def select(self, members: Sequence[int]) -> Feed:
        """Return a feed with the same batches for these members only, numbered from 0 in this order."""
        return Feed(self.x, self.y, *self._index_of(members), self.batch, self._offset, self._scale, self.dtype)

    def _index_of(self, members: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return index and count of some members. An index that is one row broadcast to all members stays that way."""
        rows = list(members)
        shared = self._index.strides[0] == 0
        width = self._index.shape[1]
        index = np.broadcast_to(self._index[:1], (len(rows), width)) if shared else self._index[rows]
        return index, self._count[rows]

    def close(self) -> None:
        """Release resources; this feed holds none."""

    def member_rows(self, member: int) -> np.ndarray:
        """Return the rows of x that a member trains on, [count]."""
        return np.asarray(self._index[member, : int(self._count[member])])
