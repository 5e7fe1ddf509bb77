"""Serve the same batches as `Feed`, bit for bit, from data that does not fit on the device.

The data stays on the host or in files. Threads read the next batches ahead while members (GANs) train.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ganherd.data.arrays import Array
from ganherd.data.shards.shards import ShardRows
from ganherd.herd.batch_feed import BatchPlan, Feed
from ganherd.util.memory import available_memory

BATCHES_AHEAD = 2  # number of batches to read ahead for each block of members
MAX_BYTES_AHEAD = 1 << 30  # most bytes to hold read ahead for all blocks; one batch of each block is always read ahead
READERS = min(8, os.cpu_count() or 1)  # number of threads that copy rows or wait for a disk
Rows = ShardRows | Array  # the data [n, …]: rows of a prepared folder (cut into shards), or an array

_BYTES_PER_READER = 1 << 18  # a thread that copies fewer bytes costs more than it saves


@dataclass(frozen=True)
class OffDeviceData:
    """A stand-in for the tensor `feed.x` that has its shape and device, but no numbers: these are not on the device."""

    shape: tuple[int, ...]
    device: torch.device  # where batches are sent
    itemsize: int

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """Return the number of elements, like `Tensor.numel`."""
        return int(np.prod(self.shape))

    def element_size(self) -> int:
        """Return the bytes of one element, like `Tensor.element_size`."""
        return self.itemsize


class _Block:
    """A block of members that are served together, and the batches that are read ahead for them.

    Attributes:
        base: [n] the members' base keys.
        c: The number of the batch that was served last.
        stride: The expected difference to the number of the next batch.
        batches: Batches that are read or being read, by number.
    """

    def __init__(self, base: np.ndarray, c: int) -> None:
        self.base, self.c, self.stride = base, c, 1
        self.batches: dict[int, Future[tuple[Tensor, Tensor]]] = {}

    def move_to(self, c: int) -> None:
        """Record that batch `c` is served now, and update the expected stride: more than 1 if batches are skipped."""
        self.stride = c - self.c if c > self.c else self.stride if c == self.c else 1
        self.c = c

    def following(self, ahead: int) -> list[int]:
        """Return the expected numbers of the next `ahead` batches."""
        return [self.c + self.stride * further for further in range(1, ahead + 1)]


class StreamFeed(Feed):
    """A feed whose data stays on the host or in files.

    `Feed` determines the rows of each batch; this class only decides when they are read. After serving a batch it reads
    the batches that the same members will probably need next. If it reads the wrong ones, only time is lost.
    """

    resident = False  # a CUDA graph cannot hold a copy from the host

    def __init__(
        self, x: Rows, y: np.ndarray, plan: BatchPlan, device: torch.device, max_bytes: int = MAX_BYTES_AHEAD
    ) -> None:
        """Take the data, and prepare the threads that read it.

        Args:
            x: [n, …] the data on the host.
            y: int64 [n], the labels.
            device: The device to which batches are copied.
            max_bytes: Most bytes of batches to hold read ahead.
        """
        stand_in = OffDeviceData(x.shape, device, x.dtype.itemsize)
        super().__init__(cast(Tensor, stand_in), torch.from_numpy(y), plan)
        self._rows, self._device, self._max_bytes = x, device, max_bytes
        self._row_bytes = x.dtype.itemsize * int(np.prod(x.shape[1:]))
        self._order_lock = threading.Lock()  # protects `_order` of `Feed`, which the thread that reads ahead uses, too
        self._batch_reader = ThreadPoolExecutor(1, "ganherd-feed")  # reads batches in the order of requests
        self._readers = ThreadPoolExecutor(READERS, "ganherd-read")  # read the rows of one batch in parallel
        self._blocks: dict[tuple[int, int], _Block] = {}  # by (first member, member after the last)
        self._held = 0  # bytes of all batches that are read ahead
        self.read_ahead = 0  # number of batches that were read, or being read, when they were requested
        self.late = 0  # number of batches that had to be read when they were requested

    # -- the interface of `Feed` ------------------------------------------------------------------------------------

    def indices(self, members: slice, base: np.ndarray, c: int) -> np.ndarray:
        """Return the rows of x in batch `c` of some members, int64 [n, B]; may be called from several threads."""
        with self._order_lock:
            return super().indices(members, base, c)

    def batch_at(self, members: slice, base: np.ndarray, c: int) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …] and labels [n, B] of batch `c` of some members, and start to read the next ones."""
        block = self._block(members, base, c)
        following = block.following(BATCHES_AHEAD)
        num_bytes = len(base) * self.plan.batch * self._row_bytes
        for other in [other for other in block.batches if other != c and other not in following]:
            block.batches.pop(other).cancel()
            self._held -= num_bytes
        if c in block.batches:
            self.read_ahead += 1
        else:
            self.late += 1
        for one in (c, *following):
            if one not in block.batches and (one in (c, *following[:1]) or self._held + num_bytes <= self._max_bytes):
                block.batches[one] = self._batch_reader.submit(
                    lambda c, base: self._read(self.indices(members, base, c)), one, block.base
                )
                self._held += num_bytes
        # The batch stays cached until the next request: a step may request its last batch twice.
        return self._send(*block.batches[c].result())

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …], scaled as the nets expect them, and labels [n, B] for rows [n, B] of the data."""
        return self._send(*self._read(indices.cpu().numpy()))

    def select(self, members: Sequence[int]) -> Feed:
        """Return a feed with the same batches for these members only, numbered from 0 in this order."""
        return StreamFeed(self._rows, self.y.numpy(), self.plan.select(members), self._device, self._max_bytes)

    def close(self) -> None:
        """Stop the threads and drop batches that are not read yet."""
        self._batch_reader.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        self._blocks.clear()

    # -- reading ----------------------------------------------------------------------------------------------------

    def _block(self, members: slice, base: np.ndarray, c: int) -> _Block:
        """Return the block of these members, at batch `c`.

        If there is none, or if the members have other random streams now, start a new one, and drop blocks with some of
        them.
        """
        key = (members.start, members.stop)
        block = self._blocks.get(key)
        if block is None or not np.array_equal(block.base, base):
            for start, stop in [one for one in self._blocks if one[0] < key[1] and key[0] < one[1]]:
                dropped = self._blocks.pop((start, stop)).batches
                for batch in dropped.values():
                    batch.cancel()
                self._held -= len(dropped) * (stop - start) * self.plan.batch * self._row_bytes
            block = self._blocks[key] = _Block(base.copy(), c)
        block.move_to(c)
        return block

    def _read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return samples [n, B, …], as they are stored, and labels [n, B] for rows [n, B], read into host memory.

        The memory is pinned if the device is a GPU, so that copies to it can overlap with its work.
        """
        pin = self._device.type == "cuda"
        flat = np.ascontiguousarray(rows.reshape(-1))
        kind = torch.from_numpy(np.empty(0, self._rows.dtype)).dtype
        x = torch.empty((len(flat), *self._rows.shape[1:]), dtype=kind, pin_memory=pin)
        num_readers = max(1, min(READERS, len(flat), len(flat) * self._row_bytes // _BYTES_PER_READER))
        cuts = np.linspace(0, len(flat), num_readers + 1).astype(int)
        jobs = [(flat[a:b], x.numpy()[a:b]) for a, b in pairwise(cuts.tolist())]
        if len(jobs) == 1:
            self._copy(*jobs[0])
        else:
            for future in [self._readers.submit(self._copy, *job) for job in jobs]:
                future.result()
        y = self.y.index_select(0, torch.from_numpy(flat))
        return x.unflatten(0, rows.shape), (y.pin_memory() if pin else y).unflatten(0, rows.shape)

    def _copy(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy rows of the data to `out`."""
        if isinstance(self._rows, ShardRows):
            self._rows.read(rows, out)
        else:
            # All rows are in range; the mode `raise` would copy twice.
            np.take(self._rows, rows, axis=0, out=out, mode="clip")

    def _send(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch on the device, scaled there with the same arithmetic as by `Feed.gather`."""
        scaled = x.to(self._device, non_blocking=True).to(self.plan.dtype, copy=True)
        return scaled.sub_(self._offset).div_(self._divisor), y.to(self._device, non_blocking=True)


def make_feed(x: Any, y: np.ndarray, plan: BatchPlan, device: torch.device, room: int | None = None) -> Feed:
    """Return a feed whose data is on the device if it fits there, otherwise a feed that streams the data from the host.

    Of a prepared folder, only the rows that these members train on are read.

    Args:
        x: [n, …] a numpy array, or the rows of a prepared folder.
        y: int64 [n], the labels.
        plan: The rows of each member.
        room: Bytes that the data may take on the device; None: half of the free memory.
    """
    room = _half_of_free(device) if room is None else room
    row_bytes = x.dtype.itemsize * int(np.prod(x.shape[1:]))
    if not isinstance(x, ShardRows):
        if len(x) * row_bytes > room and device.type != "cpu":
            return StreamFeed(x, y, plan, device)
        return Feed(_on(x, device), _on(y, device), plan)
    index = plan.index
    shared = index.strides[0] == 0 or len(index) == 1  # all members see the same rows
    rows, positions = np.unique(index[:1] if shared else index, return_inverse=True)
    if len(rows) * row_bytes > room:
        return StreamFeed(x, y, plan, device)
    compact = np.broadcast_to(positions.reshape(1, -1), index.shape) if shared else positions.reshape(index.shape)
    return Feed(_on(x[rows], device), _on(y[rows], device), replace(plan, index=compact))


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; on a CPU they share memory, to which nothing writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # a memory-mapped file
        return torch.from_numpy(array).to(device)


def _half_of_free(device: torch.device) -> int:
    """Return half of the free memory of a device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    return available_memory() // 2
