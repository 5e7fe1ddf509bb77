"""Every member's own shuffled batches, out of one data set that stays as bytes on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ganherd.herd import rng
from ganherd.util.host import in_threads


class Feed:
    """Batch c of a member is a fixed function of its stream and c: nothing of the order is ever saved.

    A member's epoch goes through its own data once, in ceil(count / batch) batches; the last one is filled from the start of the
    same permutation, and so is the only one where a class is smaller than a batch.
    """

    resident = True  # all data is on the device; `StreamFeed` reads it as it goes

    def __init__(
        self,
        x: Tensor,  # [n, …] uint8 images or float points, on the device
        y: Tensor,  # [n] int64
        index: np.ndarray,  # [N, n_max] rows of x for each member
        count: np.ndarray,  # [N] how many of them are its own
        batch: int,
        offset: float,
        scale: float,
        dtype: torch.dtype,
    ) -> None:
        self.x, self.y, self.batch, self.dtype = x, y, batch, dtype
        self._index, self._count = index, count
        self._offset, self._scale = offset, scale
        self.batches_per_epoch = -(-count // batch)  # [N]
        self._streams = rng.version()  # for the threads that read ahead, too
        # of many members on much data these are the host's largest table
        kind = np.int32 if len(x) < 2**31 else np.int64
        self._tables = np.zeros((len(count), int(self.batches_per_epoch.max()) * batch), kind)
        self._tabled = np.array([[0], [-1]]).repeat(len(count), 1)  # [2, N] (key, epoch) of what each row of them holds

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        """[n, B] rows of the data in batch `c` of those members, whose streams are `base` [n]."""
        length = self.batches_per_epoch[members]
        wanted = np.stack([base, c // length])  # [2, n]
        late = np.flatnonzero((self._tabled[:, members] != wanted).any(0)).tolist()
        in_threads(lambda i: self._shuffle(members.start + i, *wanted[:, i].tolist()), late, torch.get_num_threads())
        columns = (c % length * self.batch)[:, None] + np.arange(self.batch)
        return np.take_along_axis(self._tables[members], columns, axis=1).astype(np.int64)

    def _shuffle(self, member: int, base: int, epoch: int) -> None:
        """The member's data in the order of that epoch, wrapped to whole batches and padded to the widest member."""
        table, count = self._tables[member], int(self._count[member])
        generator = rng.seed_(torch.Generator(), rng.key(base, rng.ORDER, epoch), self._streams)
        order = torch.randperm(count, generator=generator).numpy()
        table[:count] = self._index[member][order]
        table[count:] = np.resize(table[:count], len(table) - count)
        self._tabled[:, member] = base, epoch

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, B, …] in model units and y [n, B], for indices [n, B] on the data's device."""
        flat = indices.reshape(-1)
        x = self.x.index_select(0, flat).to(self.dtype).sub_(self._offset).div_(self._scale)
        return x.unflatten(0, indices.shape), self.y.index_select(0, flat).unflatten(0, indices.shape)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        return self.gather(torch.from_numpy(self.indices(members, base, c)).to(self.x.device))

    def select(self, members: Sequence[int]) -> Feed:
        """The same batches for these members alone, numbered from 0 in this order."""
        return Feed(self.x, self.y, *self._own(members), self.batch, self._offset, self._scale, self.dtype)

    def _own(self, members: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Index and count of these; one row for all stays one row."""
        rows = list(members)
        shared = self._index.strides[0] == 0
        width = self._index.shape[1]
        index = np.broadcast_to(self._index[:1], (len(rows), width)) if shared else self._index[rows]
        return index, self._count[rows]

    def close(self) -> None:
        """Ends what it has under way: nothing."""

    def member_rows(self, member: int) -> np.ndarray:
        """[count] the rows of the data that are this member's."""
        return np.asarray(self._index[member, : int(self._count[member])])
