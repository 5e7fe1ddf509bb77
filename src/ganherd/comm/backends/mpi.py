"""The communicator of an MPI job, based on mpi4py. It sends buffers, never pickles, and only makes calls that do not block."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch

from ganherd.comm.backends.detect import ULFM
from ganherd.comm.communicator import Communicator, RankLost, Survivors
from ganherd.comm.row_messages import Messages, PendingWork
from ganherd.util.errors import UserError, first_line
from ganherd.util.terminal.standard_streams import flush_all

_FETCH_TAG = 1  # tag of messages with members' rows
_UNUSED_TAG = 2  # a tag that no message has
_UNSYNCED_TAG = 3  # tag of rows that ranks send without synchronising
_NAP = 5e-5, 1e-2  # seconds, at least and at most, between two polls while waiting


class Mpi(Communicator):
    """Connect the ranks of an MPI job. A duplicated MPI communicator keeps messages separate from those of other code.

    ULFM is MPI's fault tolerance. Under Open MPI with `mpiexec --with-ft ulfm`, a rank that dies causes an error in the
    call of another rank that waits for it. That rank then revokes the communicator, so that every call of every rank
    ends with an error.
    """

    name = "mpi"
    most = 2**30  # bytes in one message: MPI before 4.0 counts with 31 bits. Longer messages are split.

    def __init__(self, comm: Any = None, whole: Mpi | None = None) -> None:
        """Join an MPI communicator.

        Args:
            comm: An mpi4py communicator; None starts MPI and joins all ranks of the job.
            whole: The communicator of the whole job, if this one has only some of its ranks.
        """
        self._mpi = _load()
        self._peer_errors = (self._mpi.Exception,)
        self._comm = (self._mpi.COMM_WORLD if comm is None else comm).Dup()
        self._fail_comm = self._comm.Dup()  # `fail` must not be matched with calls that other ranks wait in.
        self.rank, self.world_size = self._comm.Get_rank(), self._comm.Get_size()
        # MPI 4.1 reports by this key whether it can read a GPU's memory.
        self._on_gpus = "cuda" in (self._comm.Get_info().Get("mpi_memory_alloc_kinds") or "")
        self.survives_loss = self.detects_loss = os.environ.get(ULFM) == "1"
        self._whole = whole
        # Unfinished requests. MPI accesses their buffers, so they must stay referenced.
        self._unfinished: set[_Requests] = set()

    @classmethod
    def world(cls) -> Mpi:
        """Return the communicator of all ranks of the job.

        Raises:
            RankLost: A rank died before all were connected.
        """
        mpi = _load()
        try:
            return cls()
        except mpi.Exception as error:
            raise RankLost(f"MPI lost a rank ({str(error).partition(chr(10))[0]})") from error

    def abort(self, code: int) -> NoReturn:
        flush_all()
        self._mpi.COMM_WORLD.Abort(code)
        raise AssertionError("MPI does not return from an abort")

    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        """End the job unless all ranks call this within `patience` seconds; see `Communicator.fail`."""
        if not self._all_fail(patience):
            print(last_words, file=sys.stderr, end="\n" if last_words else "")
            self.abort(code)

    def _all_fail(self, patience: float) -> bool:
        """Return whether all ranks call `fail` within this many seconds."""
        began = time.monotonic()
        try:
            barrier = self._fail_comm.Ibarrier()
            while not barrier.Test():
                if time.monotonic() - began > patience:
                    return False
                time.sleep(_NAP[1])
        except self._mpi.Exception:  # Another rank died, or has stopped waiting.
            return False
        return True

    def raise_if_rank_lost(self) -> None:
        if self.survives_loss:
            with self._translating_errors():
                self._comm.Iprobe(self.rank, _UNUSED_TAG)  # MPI only notices failures inside its calls
                if self._failed_ranks() or self._comm.Is_revoked():
                    raise self._mpi.Exception(self._mpi.ERR_PROC_FAILED)

    def shrink(self) -> Survivors:
        """Return the communicator of the remaining ranks; all of them call this after a rank was lost, under ULFM."""
        if not self.survives_loss:
            return super().shrink()
        self._revoke()
        flag = np.ones(1, np.int32)
        # The agreement reports which ranks failed. Waiting in MPI's own shrink would occupy a core.
        with suppress(self._mpi.Exception):
            self._requests([self._comm.Iagree(flag)]).wait()
        remaining = self._shrunk()
        remaining_ranks = list(range(remaining.world_size))
        before = tuple(self._mpi.Group.Translate_ranks(remaining._comm.group, remaining_ranks, self._comm.group))
        lost = tuple(rank for rank in range(self.world_size) if rank not in before)
        if not lost:
            raise RuntimeError("MPI reported an error, but every rank is there.")
        remaining.hosts = tuple(self.hosts[rank] for rank in before) if self.hosts else ()
        remaining.bytes_sent, remaining.bytes_received = self.bytes_sent, self.bytes_received
        remaining.exchange_seconds = self.exchange_seconds
        remaining._unfinished = self._unfinished
        return Survivors(remaining, before, lost)

    def describe_loss(self, resume: str) -> str:
        if self.survives_loss:
            return "The remaining ranks continue."
        return f"The job ends; resume with: {resume} (under Open MPI, mpiexec --with-ft ulfm does so by itself)"

    def agree(self) -> None:
        if not self.survives_loss:
            super().agree()
            return
        with self._waiting():
            self._requests([self._comm.Iagree(np.ones(1, np.int32))]).wait()

    def close(self) -> None:
        if not self.survives_loss:
            super().close()
            return
        self.agree()
        with suppress(self._mpi.Exception):  # A rank that dies from here on has nothing left to do.
            self._release()

    def _release(self) -> None:
        self._fail_comm.Free()
        self._comm.Free()

    def _rank_lost(self, error: Exception) -> RankLost:
        """Return the exception to raise for MPI's error.

        With MPI's fault tolerance (ULFM), also revoke the communicator, so that pending calls of all other ranks fail.
        """
        if not self.survives_loss:
            return super()._rank_lost(error)
        self._revoke()
        failed = self._failed_ranks()
        names = " and ".join(f"rank {rank}" + (f" on {self.hosts[rank]}" if self.hosts else "") for rank in failed)
        return RankLost(f"rank {self.rank} lost {names or 'another rank'} ({str(error).partition(chr(10))[0]})")

    def _failed_ranks(self) -> list[int]:
        """Return the ranks that this one knows to be lost."""
        failed = self._comm.Get_failed()
        return list(self._mpi.Group.Translate_ranks(failed, list(range(failed.Get_size())), self._comm.group))

    def _revoke(self) -> None:
        """End all pending calls of all ranks with an error, also in the communicator of the whole job."""
        self._comm.Revoke()
        if self._whole is not None:
            self._whole._revoke()

    def _shrunk(self) -> Mpi:
        """Return a communicator of the remaining ranks; if another rank dies meanwhile, all of them try again."""
        comm = self._comm
        while True:
            comm = comm.Shrink()
            remaining = None
            try:
                remaining = Mpi(comm)
            except self._mpi.Exception:
                comm.Revoke()
            with suppress(self._mpi.Exception):
                if comm.Agree(int(remaining is not None)) and remaining is not None:  # the same answer on all ranks
                    return remaining
            comm.Revoke()

    def _start(
        self, outgoing: Messages, incoming: Messages, device: torch.device, unsynced: bool = False
    ) -> PendingWork:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # MPI ignores CUDA streams, so the data must be complete.
        work, tag = self._requests([]), _UNSYNCED_TAG if unsynced else _FETCH_TAG
        for peer, piece in self._pieces(incoming):
            work.requests.append(self._comm.Irecv(piece, peer, tag))
        for peer, piece in self._pieces(outgoing):
            work.requests.append(self._comm.Isend(piece, peer, tag))
        return work

    def _requests(self, requests: list[Any]) -> _Requests:
        """Return a handle for requests. It stays referenced until they are done, because MPI accesses their buffers."""
        work = _Requests(requests, self._unfinished)
        self._unfinished.add(work)
        return work

    def _pieces(self, by_peer: Messages) -> list[tuple[int, Any]]:
        """Return messages as buffers, split if they are too long. Pieces between two ranks arrive in order."""
        pieces = [(peer, piece) for peer, message in by_peer.items() for piece in message.split(self.most)]
        return [(peer, [piece if piece.is_cuda else piece.numpy(), self._mpi.BYTE]) for peer, piece in pieces]

    def _all_gather_bytes(self, content: bytes, counts: Sequence[int]) -> bytes:
        gathered, starts = np.empty(sum(counts), np.uint8), [0, *np.cumsum(counts).tolist()[:-1]]
        local = np.frombuffer(content, np.uint8)
        request = self._comm.Iallgatherv([local, self._mpi.BYTE], [gathered, list(counts), starts, self._mpi.BYTE])
        self._requests([request]).wait()
        return gathered.tobytes()

    def _new_group(self, ranks: Sequence[int]) -> Communicator | None:
        is_member = self.rank in ranks
        comm = self._comm.Split(0 if is_member else self._mpi.UNDEFINED, ranks.index(self.rank) if is_member else 0)
        if not is_member:
            return None
        group = Mpi(comm, self)
        comm.Free()
        return group

    def _supports_device(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and self._on_gpus)


class _Requests:
    """Requests that MPI has started; they only advance while MPI is called."""

    def __init__(self, requests: list[Any], unfinished: set[_Requests]) -> None:
        """Track requests.

        Args:
            unfinished: The set that references this object until its requests are done.
        """
        self.requests, self._unfinished = requests, unfinished

    def is_completed(self) -> bool:
        """Advance the requests and return whether all are done."""
        # Tested one by one, so that an error in one of them does not affect the others.
        self.requests = [request for request in self.requests if not request.Test()]
        if not self.requests:
            self._unfinished.discard(self)
        return not self.requests

    def poll(self) -> None:
        """Advance the requests."""
        self.is_completed()

    def wait(self) -> None:
        """Poll until all requests are done; naps between polls grow with the time waited.

        MPI's own wait would occupy a core and ignore signals.
        """
        began = time.monotonic()
        while not self.is_completed():
            time.sleep(min(max(_NAP[0], (time.monotonic() - began) / 50), _NAP[1]))


def _load() -> Any:
    """Start MPI if needed, and return mpi4py's module.

    Starting MPI waits for the other ranks, so this is not done when ganherd is imported.
    """
    try:
        import mpi4py

        if tuple(map(int, mpi4py.__version__.split(".")[:2])) < (4, 1):
            raise UserError(f"mpi4py {mpi4py.__version__} is too old for ganherd: pip install -U 'ganherd[mpi]'.")
        # MPI_Finalize may wait forever for lost ranks; under ULFM a process may end without it.
        mpi4py.rc.finalize = os.environ.get(ULFM) != "1"
        mpi4py.rc.initialize = False  # mpi4py would hold Python's lock while MPI waits for the other ranks
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise UserError(
            "this is an MPI job, but mpi4py is not installed here: pip install 'ganherd[mpi]' (and mpich, if the machine has "
            "no MPI)."
        ) from error
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py finds no MPI library ({first_line(error)}): load your site's MPI module, or pip install mpich."
        ) from error
    if not MPI.Is_initialized():
        _initialize(MPI)
    return MPI


def _initialize(mpi: Any) -> None:
    """Start MPI without holding Python's lock, so that the start-up watchdog can end a process that waits forever."""
    try:
        start = ctypes.CDLL(mpi.__file__).MPI_Init_thread  # of the MPI library that mpi4py is linked with
    except (OSError, AttributeError):  # ctypes does not search linked libraries on this platform
        mpi.Init_thread()
        return
    if code := start(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int())):
        raise UserError(f"MPI cannot be started (MPI_Init_thread returned {code}): check the launcher and its options.")
    for comm in (mpi.COMM_SELF, mpi.COMM_WORLD):  # mpi4py does the same when it starts MPI itself.
        comm.Set_errhandler(mpi.ERRORS_RETURN)
