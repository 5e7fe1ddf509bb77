"""The batches of `Feed`, bit for bit, out of data that does not fit the device: read ahead by threads, sent when wanted."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ganherd.data.arrays import Array
from ganherd.data.shards.shards import ShardRows
from ganherd.herd.feed import Feed
from ganherd.util.memory import available_memory

AHEAD = 2  # batches of each block of members that are read before they are asked for
MOST = 1 << 30  # bytes of them, all together; one batch of a block is always read ahead
READERS = min(8, os.cpu_count() or 1)  # threads that copy rows, or wait for a disk
_WORTH = 1 << 18  # bytes below which a second thread does not pay


@dataclass(frozen=True)
class OffDeviceData:
    """What may be asked of `feed.x` where its rows are not on the device; rows come through `gather` alone."""

    shape: tuple[int, ...]
    device: torch.device  # where batches go
    itemsize: int

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def element_size(self) -> int:
        return self.itemsize


class _Block:
    """Members that are served together, and what is read ahead of their batches."""

    def __init__(self, base: np.ndarray, c: int) -> None:
        self.base, self.c, self.stride = base, c, 1
        self.batches: dict[int, Future[tuple[Tensor, Tensor]]] = {}

    def moves_to(self, c: int) -> None:
        """The next batches will be as far on as this one is from the last: 1, or more where steps are left out."""
        self.stride = c - self.c if c > self.c else self.stride if c == self.c else 1
        self.c = c

    def following(self, ahead: int) -> list[int]:
        return [self.c + self.stride * further for further in range(1, ahead + 1)]


class StreamFeed(Feed):
    """A feed whose rows lie with the host or in files. Which rows a batch has is what `Feed` says; only when they are read
    differs: the next batches of the members that were served last. A guess that was wrong costs its time and no more.
    """

    resident = False  # a CUDA graph cannot hold a copy from the host

    def __init__(
        self,
        x: ShardRows | Array,  # [n, …]
        y: np.ndarray,  # [n] int64
        index: np.ndarray,  # [N, n_max] rows of x for each member
        count: np.ndarray,  # [N] how many of them are its own
        batch: int,
        offset: float,
        scale: float,
        dtype: torch.dtype,
        device: torch.device,
        ahead: int = AHEAD,
        most: int = MOST,
    ) -> None:
        elsewhere = OffDeviceData(x.shape, device, x.dtype.itemsize)
        super().__init__(cast(Tensor, elsewhere), torch.from_numpy(y), index, count, batch, offset, scale, dtype)
        self._rows, self._device, self._ahead, self._most = x, device, ahead, most
        self._row_bytes = x.dtype.itemsize * int(np.prod(x.shape[1:]))
        self._order = threading.Lock()  # tables of the order are shared with the thread that reads ahead
        self._first = ThreadPoolExecutor(1, "ganherd-feed")  # one batch after the other, in the order of asking
        self._readers = ThreadPoolExecutor(READERS, "ganherd-read")  # the rows of that batch, at once
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._held = 0  # bytes of all that is read ahead
        self.read_ahead = 0  # batches that were there, or under way, when they were asked for
        self.late = 0  # the others

    # -- what the engines ask ---------------------------------------------------------------------------------------

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        with self._order:
            return super().indices(members, base, c)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        block = self._block(members, base, c)
        following = block.following(self._ahead)
        size = len(base) * self.batch * self._row_bytes
        for other in [other for other in block.batches if other != c and other not in following]:
            block.batches.pop(other).cancel()
            self._held -= size
        if c in block.batches:
            self.read_ahead += 1
        else:
            self.late += 1
        for one in (c, *following):
            if one not in block.batches and (one in (c, *following[:1]) or self._held + size <= self._most):
                block.batches[one] = self._first.submit(self._read_batch, members, block.base, one)
                self._held += size
        return self._send(*block.batches[c].result())  # kept until the next: a step may ask twice for its last batch

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, B, …] in model units and y [n, B], for rows [n, B] that nobody could foresee."""
        return self._send(*self._read(indices.cpu().numpy()))

    def select(self, members: Sequence[int]) -> Feed:
        index, count = self._own(members)
        given = (self._rows, self.y.numpy(), index, count, self.batch, self._offset, self._scale, self.dtype)
        return StreamFeed(*given, self._device, self._ahead, self._most)

    def close(self) -> None:
        """Ends the threads; what they still had to read is not read."""
        self._first.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        self._blocks.clear()

    # -- reading ----------------------------------------------------------------------------------------------------

    def _block(self, members: slice, base: np.ndarray, c: int) -> _Block:
        """The block as it was left; a new one where members are served in other company, or from other streams."""
        key = (members.start, members.stop)
        block = self._blocks.get(key)
        if block is None or not np.array_equal(block.base, base):
            for start, stop in [one for one in self._blocks if one[0] < key[1] and key[0] < one[1]]:
                for batch in (left := self._blocks.pop((start, stop)).batches).values():
                    batch.cancel()
                self._held -= len(left) * (stop - start) * self.batch * self._row_bytes
            block = self._blocks[key] = _Block(base.copy(), c)
        block.moves_to(c)
        return block

    def _read_batch(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        return self._read(self.indices(members, base, c))

    def _read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """x [n, B, …] as it is stored and y [n, B], on the host; pinned where that lets the copy to a GPU run by itself."""
        pin = self._device.type == "cuda"
        flat = np.ascontiguousarray(rows.reshape(-1))
        kind = torch.from_numpy(np.empty(0, self._rows.dtype)).dtype
        x = torch.empty((len(flat), *self._rows.shape[1:]), dtype=kind, pin_memory=pin)
        parts = max(1, min(READERS, len(flat), len(flat) * self._row_bytes // _WORTH))
        cuts = np.linspace(0, len(flat), parts + 1).astype(int)
        work = [(flat[a:b], x.numpy()[a:b]) for a, b in pairwise(cuts.tolist())]
        if len(work) == 1:
            self._copy(*work[0])
        else:
            for done in [self._readers.submit(self._copy, *part) for part in work]:
                done.result()
        y = self.y.index_select(0, torch.from_numpy(flat))
        return x.unflatten(0, rows.shape), (y.pin_memory() if pin else y).unflatten(0, rows.shape)

    def _copy(self, rows: np.ndarray, out: np.ndarray) -> None:
        if isinstance(self._rows, ShardRows):
            self._rows.read(rows, out)
        else:
            np.take(self._rows, rows, axis=0, out=out, mode="clip")  # `raise` would copy twice; all rows are there

    def _send(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same arithmetic as with resident data, on the same device."""
        there = x.to(self._device, non_blocking=True).to(self.dtype, copy=True)
        return there.sub_(self._offset).div_(self._scale), y.to(self._device, non_blocking=True)


def make_feed(
    x: Any,  # [n, …] a numpy array, or the rows of a prepared folder
    y: np.ndarray,
    index: np.ndarray,
    count: np.ndarray,
    batch: int,
    offset: float,
    scale: float,
    dtype: torch.dtype,
    device: torch.device,
    room: int | None = None,
) -> Feed:
    """Batches from the device where the members' data fits `room` bytes (default: half of what is free), else streamed.

    Of a prepared folder only the rows that these members see are read: no other shard is opened.
    """
    room = _half_of_free(device) if room is None else room
    row = x.dtype.itemsize * int(np.prod(x.shape[1:]))
    if not isinstance(x, ShardRows):
        if len(x) * row > room and device.type != "cpu":
            return StreamFeed(x, y, index, count, batch, offset, scale, dtype, device)
        return Feed(_on(x, device), _on(y, device), index, count, batch, offset, scale, dtype)
    shared = index.strides[0] == 0 or len(index) == 1  # all members see the same rows
    own, at = np.unique(index[:1] if shared else index, return_inverse=True)
    if len(own) * row > room:
        return StreamFeed(x, y, index, count, batch, offset, scale, dtype, device)
    compact = np.broadcast_to(at.reshape(1, -1), index.shape) if shared else at.reshape(index.shape)
    return Feed(_on(x[own], device), _on(y[own], device), compact, count, batch, offset, scale, dtype)


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


def _half_of_free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    return available_memory() // 2
