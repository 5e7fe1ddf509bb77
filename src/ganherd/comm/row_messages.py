"""Plan which members' rows are sent from rank to rank, pack them into one message for each peer, and wait for messages.

A row is the part of a rank's stacked tensors that belongs to one member. A peer is another rank that this one exchanges
with.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator
    from ganherd.herd.state import State

Messages = Mapping[int, Tensor]  # for each peer one message, uint8 [bytes]
_MOST_RUNS = 8  # this many runs of consecutive rows are copied one after another; more are copied through an index
_HUGE = 2**22  # tensors of at least this many bytes use huge pages


@dataclass(frozen=True)
class Routes:
    """The rows that one rank sends, receives and already has, for one fetch."""

    rank: int  # the rank whose routes these are
    crosses: bool  # whether any row crosses between any two ranks; the same on every rank
    send: dict[int, list[int]]  # peer -> the rows of this rank that the peer wants, each once
    receive: dict[int, list[int]]  # peer -> the members that the peer sends to this rank, each once
    places: dict[int, tuple[list[int], list[int]]]  # source rank -> (positions in the result, rows of that source)
    count: int  # the number of members in the result


def routes(locations: Mapping[int, tuple[int, int]], wanted: Sequence[Sequence[int]], rank: int) -> Routes:
    """Return the routes of one rank. A member is sent to a rank once, however often that rank wants it.

    Args:
        locations: For each member its rank and its row there.
        wanted: The members that each rank wants, in order; members may repeat.
        rank: The rank whose routes are returned.

    >>> locations = {0: (0, 0), 1: (0, 1), 2: (1, 0)}
    >>> plan = routes(locations, [[2, 0, 2], [1]], rank=0)
    >>> plan.send, plan.receive, plan.places
    ({1: [1]}, {1: [2]}, {1: ([0, 2], [0, 0]), 0: ([1], [0])})
    """
    send: dict[int, list[int]] = {}
    receive: dict[int, list[int]] = {}
    places: dict[int, tuple[list[int], list[int]]] = {}
    crosses = False
    for receiver, members in enumerate(wanted):
        for member in dict.fromkeys(members):
            sender, row = locations[member]
            if sender == receiver:
                continue
            crosses = True
            if sender == rank:
                send.setdefault(receiver, []).append(row)
            elif receiver == rank:
                receive.setdefault(sender, []).append(member)
    message_rows = {peer: {member: n for n, member in enumerate(members)} for peer, members in receive.items()}
    for position, member in enumerate(wanted[rank]):
        sender, row = locations[member]
        positions, rows = places.setdefault(sender, ([], []))
        positions.append(position)
        rows.append(row if sender == rank else message_rows[sender][member])
    return Routes(rank, crosses, send, receive, places, len(wanted[rank]))


@dataclass(frozen=True)
class TensorSlice:
    """The name, type and row shape of one tensor of the state."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of a row, without the member axis

    @property
    def width(self) -> int:
        """Return the number of bytes in a row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The order of tensors in a message: all rows of one tensor, then of the next.

    Wide types come first, so that every tensor is aligned.
    """

    slices: tuple[TensorSlice, ...]

    @staticmethod
    def of(state: State) -> Layout:
        """Return the layout of messages for a state."""
        slices = [TensorSlice(name, value.dtype, tuple(value.shape[1:])) for name, value in state.items()]
        return Layout(tuple(sorted(slices, key=lambda each: (-each.dtype.itemsize, each.name))))

    @property
    def width(self) -> int:
        """Return the number of bytes of one member."""
        return sum(each.width for each in self.slices)

    def empty(self, rows: int, device: torch.device) -> Tensor:
        """Return an uninitialised message for this many members."""
        return _empty((rows * self.width,), torch.uint8, device)

    def pack(self, state: State, rows: Sequence[int], device: torch.device) -> Tensor:
        """Return these rows of this rank's members as one message, uint8 [bytes]."""
        message = self.empty(len(rows), device)
        for each, view in zip(self.slices, self._views(message, len(rows)), strict=True):
            _copy_rows(view, range(len(rows)), state[each.name].detach(), rows)
        return message

    def pack_all(self, state: State, send: Mapping[int, Sequence[int]], device: torch.device) -> dict[int, Tensor]:
        """Return a message for each peer. Peers that want the same members share one tensor."""
        packed = {rows: self.pack(state, rows, device) for rows in {tuple(rows) for rows in send.values()}}
        return {peer: packed[tuple(rows)] for peer, rows in send.items()}

    def copy_local(self, state: State, routes: Routes) -> State:
        """Return tensors with a row for each wanted member. Only the rows of members on this rank are filled in.

        The tensors are in the order of `state`; `assemble` fills in the rows of other ranks.
        """
        positions, rows = routes.places.get(routes.rank, ([], []))
        out = {
            name: _empty((routes.count, *value.shape[1:]), value.dtype, value.device) for name, value in state.items()
        }
        for name, value in state.items():
            _copy_rows(out[name], positions, value.detach(), rows)
        return out

    def assemble(self, out: State, routes: Routes, messages: Mapping[int, Tensor]) -> State:
        """Copy the rows of other ranks from their messages into the result of `copy_local`, and return it."""
        for peer, message in messages.items():
            positions, rows = routes.places[peer]
            for each, view in zip(self.slices, self._views(message, len(routes.receive[peer])), strict=True):
                _copy_rows(out[each.name], positions, view, rows)
        return out

    def _views(self, message: Tensor, rows: int) -> list[Tensor]:
        """Return views [rows, …] of a message's bytes, one for each tensor."""
        pieces = message.split([rows * each.width for each in self.slices])
        return [piece.view(each.dtype).view(rows, *each.shape) for piece, each in zip(pieces, self.slices, strict=True)]


def _copy_rows(out: Tensor, positions: Sequence[int], source: Tensor, rows: Sequence[int]) -> None:
    """Copy rows of `source` to positions of `out`. Consecutive rows are copied at once, without a temporary tensor."""
    runs = _runs(positions, rows)
    if len(runs) > _MOST_RUNS or source.device != out.device:
        selected = source.index_select(0, index(rows, source.device))
        if isinstance(positions, range):  # one copy from a GPU to the host
            out[positions.start : positions.stop].copy_(selected)
        else:
            out.index_copy_(0, index(positions, out.device), selected.to(out.device))
        return
    for position, row, length in runs:
        out[position : position + length].copy_(source[row : row + length])


def _runs(positions: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first position, first row, length) of each run that is consecutive in both positions and rows.

    >>> _runs([0, 1, 4], [2, 3, 4])
    [(0, 2, 2), (4, 4, 1)]
    """
    runs: list[tuple[int, int, int]] = []
    for position, row in zip(positions, rows, strict=True):
        first, first_row, length = runs[-1] if runs else (-1, -1, 0)
        if runs and (position, row) == (first + length, first_row + length):
            runs[-1] = first, first_row, length + 1
        else:
            runs.append((position, row, 1))
    return runs


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor; a large one on the host uses huge pages if the system has them.

    Memory of an exchange is new each time, and a page fault for every 4 KiB of it would take longer than the copy into it.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    block = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the system's kernel has no huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=dtype).view(shape)  # the tensor keeps the block alive


def index(rows: Sequence[int], device: torch.device) -> Tensor:
    """Return row numbers as int64 [n] on a device. The host does not wait for the copy or for earlier work of the device."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


class PendingWork(Protocol):
    """Messages that a backend has started to send and receive. It holds references to their buffers."""

    def poll(self) -> None:
        """Advance the messages, if the backend has no thread that does."""
        ...

    def is_completed(self) -> bool:
        """Advance the messages and return, without waiting, whether all are done."""
        ...

    def wait(self) -> None:
        """Wait until all messages are done."""
        ...


class Fetch:
    """A fetch that was started: `wait` returns the members as they were when it began."""

    def __init__(self, comm: Communicator, work: PendingWork | None, assemble: Callable[[], State]) -> None:
        """Track one fetch.

        Args:
            comm: The communicator that counts the time spent.
            work: The messages; None if no row crosses between ranks.
            assemble: Returns the members once all messages have arrived.
        """
        self._comm, self._work, self._assemble = comm, work, assemble
        self._members: State | None = None

    def poll(self) -> None:
        """Advance the messages; call it now and then before `wait`, because MPI only progresses inside calls.

        A call costs microseconds.
        """
        if self._work is not None:
            with self._comm._translating_errors():
                self._work.poll()

    def wait(self) -> State:
        """Return the members; later calls return the same tensors."""
        if self._members is None:
            began = time.perf_counter()
            if self._work is not None:
                with self._comm._waiting():
                    self._work.wait()
            self._members, self._work = self._assemble(), None
            self._comm.exchange_seconds += time.perf_counter() - began
        return self._members
