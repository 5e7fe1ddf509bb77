"""The communicator: the interface by which the ranks of a job exchange members and small values.

In shapes, N is the number of members of the whole herd, and n the number of those on one rank.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch

from ganherd.comm import row_messages
from ganherd.comm.row_messages import Fetch, Messages, PendingWork

if TYPE_CHECKING:
    from ganherd.herd.state import State

_SHORT = 248  # the first bytes of a content, which are sent together with its length


@dataclass(frozen=True)
class Placement:
    """Assign every member of the herd to one rank. Members are numbered over the whole herd, ascending on each rank."""

    ranks: tuple[tuple[int, ...], ...]  # the members of each rank

    @property
    def num_members(self) -> int:
        """Return the number of members in the whole herd."""
        return sum(len(members) for members in self.ranks)

    def locations(self) -> dict[int, tuple[int, int]]:
        """Return for each member its rank and its row on that rank."""
        return {member: (rank, row) for rank, members in enumerate(self.ranks) for row, member in enumerate(members)}


class RankLost(Exception):
    """Raised when another rank of the job has died, so that its messages will never arrive."""


@dataclass(frozen=True)
class Survivors:
    """The ranks that remain after some ranks of a communicator died."""

    comm: Communicator  # of the remaining ranks, in their old order, with the old hosts and counters
    before: tuple[int, ...]  # for each rank of `comm`, its rank in the old communicator
    lost: tuple[int, ...]  # the ranks of the old communicator that died

    def left(self, placement: Placement) -> Placement:
        """Return the placement over the new ranks. Members of lost ranks are missing from it and need new ranks."""
        return Placement(tuple(placement.ranks[rank] for rank in self.before))


class Communicator(ABC):
    """The connection of one process to the other ranks of a job.

    Every method is collective: all ranks call it, in the same order. Exceptions are `abort`, `raise_if_rank_lost`,
    `describe_loss`, `rank`, `world_size`, `hosts`, `local_rank` and the counters. A backend (MPI, torch.distributed)
    implements two operations: `_start` exchanges buffers between peers, and `_all_gather_bytes` shares bytes among all ranks.

    If a rank dies, every rank that waits for another one, or calls `raise_if_rank_lost`, raises `RankLost`. From then on
    every call on every rank raises it, also on ranks that wait for one that is alive. If `survives_loss`, the remaining ranks
    call `shrink` on the communicator of the whole job, spares (ranks without members) included, and continue with the
    communicator that it returns. A group made by `new_group` cannot be used any more. If not `survives_loss`, the rank
    reports `describe_loss` and ends with an error: torchrun restarts all ranks, other launchers end the job.
    """

    name: str  # local, mpi, torch
    rank: int
    world_size: int
    hosts: tuple[str, ...] = ()  # the host of each rank; set by `handshake.introduce`
    bytes_sent = 0  # bytes of members' rows that `fetch` sent from this rank to others
    bytes_received = 0  # … and that it received
    exchange_seconds = 0.0  # seconds spent in `fetch`, including waiting
    waiting_since: float | None = None  # time.monotonic() when this rank began to wait for others; for its heartbeat
    successor: Communicator | None = None  # the communicator of the remaining ranks, if this one lost ranks
    survives_loss = False  # whether the remaining ranks can continue after a loss; see `shrink`
    # Whether the remaining ranks live long enough to report a loss; otherwise the launcher ends them.
    detects_loss = True
    _peer_errors: tuple[type[Exception], ...] = ()  # the backend's exceptions for a peer that died

    # -- members ------------------------------------------------------------------------------------------------------

    def fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> State:
        """Return copies of members, whichever rank they are on. Only rows that change rank are sent.

        Args:
            state: Tensors [n, …] of this rank's members.
            placement: The members of each rank.
            wanted: For each rank the members that it receives, in this order. All ranks pass the same lists, so no
                requests have to be exchanged.

        Returns:
            Tensors of the members wanted[this rank], in this order.
        """
        return self.begin_fetch(state, placement, wanted).wait()

    def begin_fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> Fetch:
        """Start a `fetch` without waiting for it.

        The result holds the members as they are now: later changes to `state` do not matter. All ranks begin and wait in
        the same order, and may make other calls in between. `exchange_seconds` counts the time spent in both calls.
        """
        began = time.perf_counter()
        routes = row_messages.routes(placement.locations(), wanted, self.rank)
        layout = row_messages.Layout.of(state)
        device = self._message_device(state)
        outgoing = layout.pack_all(state, routes.send, device)
        incoming = {peer: layout.empty(len(members), device) for peer, members in routes.receive.items()}
        local = layout.copy_local(state, routes)
        work = None
        if routes.crosses and layout.width:
            with self._translating_errors():
                work = self._start(outgoing, incoming, device)
        self.bytes_sent += sum(message.numel() for message in outgoing.values())
        self.bytes_received += sum(message.numel() for message in incoming.values())
        self.exchange_seconds += time.perf_counter() - began
        return Fetch(self, work, lambda: layout.assemble(local, routes, incoming))

    def _message_device(self, state: State) -> torch.device:
        """Return the device of the state if the backend can send from there, otherwise the CPU."""
        devices = {value.device for value in state.values()}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        return device if self._supports_device(device) else torch.device("cpu")

    # -- small values -------------------------------------------------------------------------------------------------

    def all_gather(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Return small values of all members [N, …], in the order of their numbers, on every rank.

        Args:
            values: The values of this rank's members [n, …].
            placement: The members of each rank.
        """
        local = np.ascontiguousarray(values)
        if len(local) != len(placement.ranks[self.rank]):
            raise ValueError(f"{len(local)} rows for the {len(placement.ranks[self.rank])} members of rank {self.rank}")
        width = local.dtype.itemsize * int(np.prod(local.shape[1:], dtype=np.int64))
        content = self._all_gather(local.tobytes(), [len(members) * width for members in placement.ranks])
        rows = np.frombuffer(content, local.dtype).reshape(placement.num_members, *local.shape[1:])
        out = np.empty_like(rows)
        out[[member for members in placement.ranks for member in members]] = rows
        return out

    def all_gather_bytes(self, content: bytes) -> list[bytes]:
        """Return the bytes, e.g. JSON, that each rank passes, as a list by rank; every rank gets the same list."""
        # The first message has the length and the first bytes. Most contents are short and need no second message.
        first = len(content).to_bytes(8, "little") + content[:_SHORT].ljust(_SHORT, b"\0")
        firsts = self._all_gather(first, [8 + _SHORT] * self.world_size)
        starts = range(0, len(firsts), 8 + _SHORT)
        counts = [int.from_bytes(firsts[start : start + 8], "little") for start in starts]
        rests = [max(0, count - _SHORT) for count in counts]
        rest, ends = self._all_gather(content[_SHORT:], rests), np.cumsum(rests).tolist()
        return [
            firsts[start + 8 : start + 8 + min(count, _SHORT)] + rest[end - length : end]
            for start, count, length, end in zip(starts, counts, rests, ends, strict=True)
        ]

    def broadcast(self, content: bytes | None) -> bytes:
        """Return the bytes that rank 0 passes, on every rank; the other ranks pass None."""
        local = (content or b"") if self.rank == 0 else b""
        others = [0] * (self.world_size - 1)
        length = self._all_gather(np.int64(len(local)).tobytes() if self.rank == 0 else b"", [8, *others])
        return self._all_gather(local, [int(np.frombuffer(length, np.int64)[0]), *others])

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._all_gather(b"!", [1] * self.world_size)

    def _all_gather(self, content: bytes, counts: Sequence[int]) -> bytes:
        """Call the backend's `_all_gather_bytes`, unless no rank has anything to send."""
        if not any(counts):
            return b""
        with self._waiting():
            return self._all_gather_bytes(content, counts)

    # -- hosts and groups ---------------------------------------------------------------------------------------------

    @property
    def local_rank(self) -> int:
        """Return the number of this rank among the ranks of its host; it selects the GPU."""
        return sum(host == self.hosts[self.rank] for host in self.hosts[: self.rank])

    def new_group(self, ranks: Sequence[int]) -> Communicator | None:
        """Return a communicator of these ranks, in ascending order; None on the other ranks, which are spares."""
        chosen = sorted(set(ranks))
        if chosen == list(range(self.world_size)):
            return self
        with self._translating_errors():
            group = self._new_group(chosen)
        if group is not None:
            group.hosts = tuple(self.hosts[rank] for rank in chosen) if self.hosts else ()
        return group

    # -- when a rank is lost ------------------------------------------------------------------------------------------

    def raise_if_rank_lost(self) -> None:
        """Raise `RankLost` if a rank is known to have died.

        Does not wait; called in long phases without an exchange.
        """
        return

    def shrink(self) -> Survivors:
        """Return the communicator of the remaining ranks. All of them call this after `RankLost`.

        Raises:
            RankLost: This backend cannot continue after a loss.
        """
        raise RankLost(f"{self.name} cannot continue without a rank that is lost")

    def agree(self) -> None:
        """Wait for all ranks, as `barrier` does; if a rank dies, raise `RankLost` on all remaining ranks or on none.

        This prevents that some ranks continue while others have to call `shrink`.
        """
        self.barrier()

    @property
    def latest(self) -> Communicator:
        """Return the communicator of the ranks that remain after all losses so far; this one if no rank was lost."""
        return self if self.successor is None else self.successor.latest

    def describe_loss(self, resume: str) -> str:
        """Return a sentence about how the job continues after a loss; `resume` is the command that resumes the run."""
        return f"Resume with: {resume}"

    def is_loss_reporter(self) -> bool:
        """Return whether this rank is to report that a rank was lost.

        Only the first rank that calls this gets True, if the backend can determine it; otherwise every rank does.
        """
        return True

    @property
    def restarts_left(self) -> int:
        """Return how many more times the launcher will restart all ranks after a loss."""
        return 0

    # -- the end of a job ---------------------------------------------------------------------------------------------

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """End every rank at once with this exit code; for a rank that fails while others wait for it."""

    @abstractmethod
    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        """End the job if only this rank has an error, because the other ranks would wait for it forever.

        If all ranks call this within `patience` seconds, e.g. because of a mistake in the input of all of them, it
        returns, and each ends by itself. Otherwise `last_words` are written to stderr, and all ranks are ended with the
        exit code.
        """

    def close(self) -> None:
        """Wait until all ranks have called this, however long it takes and without using the CPU, and disconnect."""
        self.barrier()
        self._release()

    # -- implemented by backends --------------------------------------------------------------------------------------

    @abstractmethod
    def _start(
        self, outgoing: Messages, incoming: Messages, device: torch.device, unsynced: bool = False
    ) -> PendingWork:
        """Start to send one message to each peer in `outgoing` and to fill the messages in `incoming`.

        Messages are uint8 [bytes], contiguous, not empty, on `device`, and must not change until the work is done. Every
        rank calls this if any row crosses between any two ranks.

        Args:
            unsynced: Whether ranks call this at different times, with messages on the host. These are then never
                matched with messages of synchronised calls.
        """

    @abstractmethod
    def _all_gather_bytes(self, content: bytes, counts: Sequence[int]) -> bytes:
        """Return the bytes that all ranks pass, concatenated; rank r passes counts[r] bytes, which may be 0."""

    @abstractmethod
    def _new_group(self, ranks: Sequence[int]) -> Communicator | None:
        """Implement `new_group` for a proper subset of the ranks."""

    @abstractmethod
    def _release(self) -> None:
        """Release the backend's resources."""

    def _supports_device(self, device: torch.device) -> bool:
        """Return whether messages can be sent from that device; otherwise they are copied through host memory."""
        return device.type == "cpu"

    def _rank_lost(self, error: Exception) -> RankLost:
        """Return the exception to raise for a backend's error.

        Backends may also make the calls of all other ranks fail.
        """
        return RankLost(f"rank {self.rank} waited for another rank, which is gone ({str(error).partition(chr(10))[0]})")

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raise `RankLost` in place of the backend's errors in the block."""
        try:
            yield
        except self._peer_errors as error:
            raise self._rank_lost(error) from error

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Raise `RankLost` in place of the backend's errors, and show in the heartbeat that this rank waits."""
        self.waiting_since = time.monotonic()
        try:
            with self._translating_errors():
                yield
        finally:
            self.waiting_since = None
