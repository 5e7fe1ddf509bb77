"""What carries members between processes: a small interface that strategies are written against."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch
from torch import Tensor

from ganherd.comm import row_messages
from ganherd.comm.pending import Fetch, PendingWork

if TYPE_CHECKING:
    from ganherd.herd.state import State


@dataclass(frozen=True)
class Placement:
    """Which members live on which rank, by their number in the whole herd; in order, and each on one rank."""

    ranks: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Members of the whole herd."""
        return sum(len(own) for own in self.ranks)

    def home(self) -> dict[int, tuple[int, int]]:
        """Member -> (its rank, its row there)."""
        return {member: (rank, row) for rank, own in enumerate(self.ranks) for row, member in enumerate(own)}


class RankLost(Exception):
    """Another rank of the job is gone, so that what was asked of it will never come."""


@dataclass(frozen=True)
class Survivors:
    """Who is left of a communicator that lost ranks."""

    comm: Communicator  # of those that are left, in their old order; hosts and counters go on
    before: tuple[int, ...]  # of each rank of `comm`, the one that it was
    lost: tuple[int, ...]  # the ranks of before that are gone

    def left(self, placement: Placement) -> Placement:
        """Where members live after the loss, by new ranks; those of lost ranks live nowhere, to be given new homes."""
        return Placement(tuple(placement.ranks[rank] for rank in self.before))


class Communicator(ABC):
    """One process of a run, as the others see it. Every method is called by all ranks together, in the same order.

    The exceptions are `abort` and what only looks: `check`, `after_loss`, `rank`, `size`, `hosts`, `local_rank` and the
    counters. An engine (MPI, torch.distributed) has to bring two things: `_start` of an exchange of buffers between peers, and
    `_share` of bytes among all.

    A rank that dies. Whoever waits for another rank, or calls `check`, raises `RankLost`, and from then on so does every
    call of every rank, also of those that wait for one that is alive. Where `goes_on`, all that are left then call
    `survivors`, on the communicator of the whole job, spares included (a part made by `among` is lost with its loss), and go
    on with what it answers. Else the rank says `after_loss` and ends with an error: torchrun starts the group again, any
    other launcher ends the job.
    """

    name: str  # local, mpi, torch
    rank: int
    size: int
    hosts: tuple[str, ...] = ()  # of each rank, once the ranks have been introduced: see `agree.introduce`
    bytes_sent = 0  # by `fetch`, from this rank to others: rows of members alone, as they are
    bytes_received = 0
    seconds = 0.0  # in `fetch`, waiting for others included
    waits_since: float | None = None  # time.monotonic() since when this rank waits for others; for its heartbeat
    successor: Communicator | None = None  # of those that are left, where this one lost ranks and the run goes on
    goes_on = False  # whether those that are left when a rank is lost can go on: see `survivors`
    hears_of_loss = True  # whether they live long enough to say so; else the launcher ends all at once
    _broken: tuple[type[Exception], ...] = ()  # what the engine raises where a peer is gone

    # -- members ------------------------------------------------------------------------------------------------------

    def fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> State:
        """Copies of the members wanted[rank], in that order, wherever they live; only slices that cross a rank are sent.

        `state` holds this rank's own members. All ranks know what each of them wants, so nothing has to be asked for.
        """
        return self.begin_fetch(state, placement, wanted).wait()

    def begin_fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> Fetch:
        """The same, not waited for: members as they are now, whatever happens to `state` until they are waited for.

        All ranks begin and wait in the same order; other calls may lie between. `seconds` counts what a rank spends in both.
        """
        began = time.perf_counter()
        routes = row_messages.routes(placement.home(), wanted, self.rank)
        layout = row_messages.Layout.of(state)
        devices = {value.device for value in state.values()}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        device = device if self._carries(device) else torch.device("cpu")
        outgoing = layout.pack_all(state, routes.send, device)
        incoming = {peer: layout.empty(len(rows), device) for peer, rows in routes.receive.items()}
        found = layout.own(state, routes)
        work = None
        if routes.crosses and layout.width:
            with self._watched():
                work = self._start(outgoing, incoming, device)
        self.bytes_sent += sum(message.numel() for message in outgoing.values())
        self.bytes_received += sum(message.numel() for message in incoming.values())
        self.seconds += time.perf_counter() - began
        return Fetch(self, work, lambda: layout.fill(found, routes, incoming))

    # -- small things -------------------------------------------------------------------------------------------------

    def gather(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Small numbers of this rank's members [n, …] -> those of all members [N, …], on every rank."""
        own = np.ascontiguousarray(values)
        if len(own) != len(placement.ranks[self.rank]):
            raise ValueError(f"{len(own)} rows for the {len(placement.ranks[self.rank])} members of rank {self.rank}")
        width = own.dtype.itemsize * int(np.prod(own.shape[1:], dtype=np.int64))
        shared = self._shared(own.tobytes(), [len(members) * width for members in placement.ranks])
        rows = np.frombuffer(shared, own.dtype).reshape(placement.size, *own.shape[1:])
        out = np.empty_like(rows)
        out[[member for members in placement.ranks for member in members]] = rows
        return out

    def collect(self, content: bytes) -> list[bytes]:
        """A few bytes of each rank, as JSON, on every rank."""
        counts = np.frombuffer(self._shared(np.int64(len(content)).tobytes(), [8] * self.size), np.int64)
        shared, ends = self._shared(content, counts.tolist()), np.cumsum(counts).tolist()
        return [shared[end - count : end] for count, end in zip(counts.tolist(), ends, strict=True)]

    def broadcast(self, content: bytes | None) -> bytes:
        """What rank 0 gives, as a decision in JSON, on every rank; the others give None."""
        own = (content or b"") if self.rank == 0 else b""
        nobody = [0] * (self.size - 1)
        length = self._shared(np.int64(len(own)).tobytes() if self.rank == 0 else b"", [8, *nobody])
        return self._shared(own, [int(np.frombuffer(length, np.int64)[0]), *nobody])

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        self._shared(b"!", [1] * self.size)

    def _shared(self, own: bytes, counts: Sequence[int]) -> bytes:
        if not any(counts):
            return b""
        with self._waiting():
            return self._share(own, counts)

    # -- where it runs, and how it ends -------------------------------------------------------------------------------

    @property
    def local_rank(self) -> int:
        """Its number among the ranks of the same host: which GPU is its own."""
        return sum(host == self.hosts[self.rank] for host in self.hosts[: self.rank])

    @property
    def local_size(self) -> int:
        """How many ranks share this host, and so its cores and GPUs."""
        return sum(host == self.hosts[self.rank] for host in self.hosts)

    def among(self, ranks: Sequence[int]) -> Communicator | None:
        """The communicator of these ranks alone, in ascending order; None on the others, which are spares."""
        chosen = sorted(set(ranks))
        if chosen == list(range(self.size)):
            return self
        with self._watched():
            made = self._among(chosen)
        if made is not None:
            made.hosts = tuple(self.hosts[rank] for rank in chosen) if self.hosts else ()
        return made

    # -- when a rank is lost ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises `RankLost` where a rank is known to be gone, and waits for nobody: for long stretches in which nobody meets."""
        return

    def survivors(self) -> Survivors:
        """Called by all that are left, after `RankLost`; returns when all have come. Raises `RankLost` where that cannot be."""
        raise RankLost(f"{self.name} cannot go on without a rank that is lost")

    def agreed(self) -> None:
        """As `barrier`; where ranks can be lost, all that are left hear the same: none goes on while another has to look for
        survivors."""
        self.barrier()

    @property
    def latest(self) -> Communicator:
        """The communicator of those that are left by now: this one, where nobody was lost."""
        return self if self.successor is None else self.successor.latest

    def after_loss(self, resume: str) -> str:
        """What becomes of the job when a rank is lost, as a sentence; `resume`: the command that goes on with the run."""
        return f"Go on with: {resume}"

    def is_teller(self) -> bool:
        """Whether it is this rank, of those that were left by a loss, that says so: the first that asks, where that is known."""
        return True

    @property
    def restarts_left(self) -> int:
        """How often the launcher will start all ranks again, where one is lost."""
        return 0

    # -- how it ends --------------------------------------------------------------------------------------------------

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """Ends every rank at once with this exit code; for a rank that cannot go on while others wait for it."""

    @abstractmethod
    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        """End the job if only this rank has an error.

        Returns if all ranks come here within `patience` seconds, as after a mistake that all were given. Otherwise the others
        wait for this one: `last_words` go to stderr, since nothing can be said later, and all end with this exit code.
        """

    def close(self) -> None:
        """The last call: waits, without using the processor, until all ranks have come here, however long that takes."""
        self.barrier()
        self._leave()

    # -- what an engine brings ----------------------------------------------------------------------------------------

    @abstractmethod
    def _start(
        self,
        outgoing: Mapping[int, Tensor],
        incoming: Mapping[int, Tensor],
        device: torch.device,
        apart: bool = False,
    ) -> PendingWork:
        """Sends one message to each peer of `outgoing` and fills `incoming`: uint8 [bytes], contiguous, none empty, all on
        that device, and left alone until it is done. Called by every rank where anything crosses anywhere. `apart`: by a
        rank when it likes, on a host; these messages meet none of the others."""

    @abstractmethod
    def _share(self, own: bytes, counts: Sequence[int]) -> bytes:
        """Bytes of all ranks, one after another; rank r gives counts[r] of them, which may be none."""

    @abstractmethod
    def _among(self, ranks: Sequence[int]) -> Communicator | None:
        """As `among`, for some of the ranks."""

    @abstractmethod
    def _leave(self) -> None:
        """Lets go of the engine."""

    def _carries(self, device: torch.device) -> bool:
        """Whether messages may lie on that device; else they go through the host's memory."""
        return device.type == "cpu"

    def _lost(self, error: Exception) -> RankLost:
        """What is raised for an engine's error; also the moment to wake those that wait for others."""
        return RankLost(f"rank {self.rank} waited for another rank, which is gone ({str(error).partition(chr(10))[0]})")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except self._broken as error:
            raise self._lost(error) from error

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waits_since = time.monotonic()
        try:
            with self._watched():
                yield
        finally:
            self.waits_since = None
