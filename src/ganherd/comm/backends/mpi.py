"""Ranks of an MPI job, by mpi4py: buffers, never pickles, and nothing that blocks."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ganherd.comm.communicator import Communicator, RankLost, Survivors
from ganherd.comm.launch_command import ULFM
from ganherd.comm.pending import PendingWork
from ganherd.util.errors import UserError, first_line
from ganherd.util.standard_streams import flush_all

_MESSAGE = 1  # the tag of members' rows
_NEVER = 2  # a tag that no message has
_APART = 3  # the tag of rows that ranks send when they like
_NAP = 5e-5, 1e-2  # seconds, at least and at most, between two looks whether a message has come


class Mpi(Communicator):
    """A communicator of its own, so that no message of other code in the process can be mistaken for one of these.

    Under Open MPI with `mpiexec --with-ft ulfm` a lost rank is an error in what the others wait for. Who gets it first revokes
    the communicator: then every call of every rank ends with an error.
    """

    name = "mpi"
    most = 2**30  # bytes in one message: an MPI of before 4.0 counts with 31 bits; more goes as several

    def __init__(self, comm: Any = None, whole: Mpi | None = None) -> None:
        """`comm`: an mpi4py communicator; none: all ranks of the job, for which MPI is started. `whole`: whose part it is."""
        self._mpi = _load()
        self._broken = (self._mpi.Exception,)
        self._comm = (self._mpi.COMM_WORLD if comm is None else comm).Dup()
        self._last = self._comm.Dup()  # for `fail`, which must not be mistaken for what others are waiting in
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        # what the MPI standard (4.1) has for the question whether it can read a GPU's memory
        self._on_gpus = "cuda" in (self._comm.Get_info().Get("mpi_memory_alloc_kinds") or "")
        self.goes_on = self.hears_of_loss = os.environ.get(ULFM) == "1"
        self._whole = whole
        self._begun: set[_Requests] = (
            set()
        )  # what has not ended: MPI looks at its buffers, whoever else has forgotten it

    @classmethod
    def world(cls) -> Mpi:
        """Return the communicator of all ranks of the job.

        Raises:
            RankLost: a rank died before all had met.
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
        if not self._all_come(patience):
            print(last_words, file=sys.stderr, end="\n" if last_words else "")
            self.abort(code)

    def _all_come(self, patience: float) -> bool:
        """Return whether all ranks come here within this many seconds."""
        began = time.monotonic()
        try:
            everyone = self._last.Ibarrier()
            while not everyone.Test():
                if time.monotonic() - began > patience:
                    return False
                time.sleep(_NAP[1])
        except self._mpi.Exception:  # one of them is gone, or waits no more
            return False
        return True

    def check(self) -> None:
        if self.goes_on:
            with self._watched():
                self._comm.Iprobe(self.rank, _NEVER)  # MPI hears of others when it is called
                if self._gone() or self._comm.Is_revoked():
                    raise self._mpi.Exception(self._mpi.ERR_PROC_FAILED)

    def survivors(self) -> Survivors:
        if not self.goes_on:
            return super().survivors()
        self._revoke()
        everyone = np.ones(1, np.int32)
        with suppress(
            self._mpi.Exception
        ):  # which says who is gone; shrinking would take a core while it waits for the others
            self._requests([self._comm.Iagree(everyone)]).wait()
        made = self._shrunk()
        before = tuple(self._mpi.Group.Translate_ranks(made._comm.group, list(range(made.size)), self._comm.group))
        lost = tuple(rank for rank in range(self.size) if rank not in before)
        if not lost:
            raise RuntimeError("MPI reported an error, but every rank is there.")
        made.hosts = tuple(self.hosts[rank] for rank in before) if self.hosts else ()
        made.bytes_sent, made.bytes_received, made.seconds = self.bytes_sent, self.bytes_received, self.seconds
        made._begun = self._begun
        return Survivors(made, before, lost)

    def after_loss(self, resume: str) -> str:
        if self.goes_on:
            return "The ranks that are left go on."
        return f"The job ends; go on with: {resume} (under Open MPI, mpiexec --with-ft ulfm does so by itself)"

    def agreed(self) -> None:
        if not self.goes_on:
            super().agreed()
            return
        with self._waiting():
            self._requests([self._comm.Iagree(np.ones(1, np.int32))]).wait()

    def close(self) -> None:
        if not self.goes_on:
            super().close()
            return
        self.agreed()
        with suppress(self._mpi.Exception):  # who is lost from here on is missed by nobody
            self._leave()

    def _leave(self) -> None:
        self._last.Free()
        self._comm.Free()

    def _lost(self, error: Exception) -> RankLost:
        if not self.goes_on:
            return super()._lost(error)
        self._revoke()
        gone = self._gone()
        names = " and ".join(f"rank {rank}" + (f" on {self.hosts[rank]}" if self.hosts else "") for rank in gone)
        return RankLost(f"rank {self.rank} lost {names or 'another rank'} ({str(error).partition(chr(10))[0]})")

    def _gone(self) -> list[int]:
        """The ranks that this one knows to be lost."""
        failed = self._comm.Get_failed()
        return list(self._mpi.Group.Translate_ranks(failed, list(range(failed.Get_size())), self._comm.group))

    def _revoke(self) -> None:
        """Whatever any rank waits for in this communicator, and in the one that it is a part of, ends with an error."""
        self._comm.Revoke()
        if self._whole is not None:
            self._whole._revoke()

    def _shrunk(self) -> Mpi:
        """A communicator of those that are left; where another one dies meanwhile, all of them try again."""
        comm = self._comm
        while True:
            comm = comm.Shrink()
            made = None
            try:
                made = Mpi(comm)
            except self._mpi.Exception:
                comm.Revoke()
            with suppress(self._mpi.Exception):
                if comm.Agree(int(made is not None)) and made is not None:  # the same answer on all
                    return made
            comm.Revoke()

    def _start(
        self,
        outgoing: Mapping[int, Tensor],
        incoming: Mapping[int, Tensor],
        device: torch.device,
        apart: bool = False,
    ) -> PendingWork:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # MPI does not know of streams: what it sends must be there
        begun, tag = self._requests([]), _APART if apart else _MESSAGE
        for peer, piece in self._pieces(incoming):
            begun.requests.append(self._comm.Irecv(piece, peer, tag))
        for peer, piece in self._pieces(outgoing):
            begun.requests.append(self._comm.Isend(piece, peer, tag))
        return begun

    def _requests(self, requests: list[Any]) -> _Requests:
        begun = _Requests(requests, self._begun)
        self._begun.add(begun)
        return begun

    def _pieces(self, by_peer: Mapping[int, Tensor]) -> list[tuple[int, Any]]:
        """Messages as buffers, cut where they are too long; those of a pair arrive in the order in which they were sent."""
        pieces = [(peer, piece) for peer, message in by_peer.items() for piece in message.split(self.most)]
        return [(peer, [piece if piece.is_cuda else piece.numpy(), self._mpi.BYTE]) for peer, piece in pieces]

    def _share(self, own: bytes, counts: Sequence[int]) -> bytes:
        found, starts = np.empty(sum(counts), np.uint8), [0, *np.cumsum(counts).tolist()[:-1]]
        mine = np.frombuffer(own, np.uint8)
        request = self._comm.Iallgatherv([mine, self._mpi.BYTE], [found, list(counts), starts, self._mpi.BYTE])
        self._requests([request]).wait()
        return found.tobytes()

    def _among(self, ranks: Sequence[int]) -> Communicator | None:
        mine = self.rank in ranks
        part = self._comm.Split(0 if mine else self._mpi.UNDEFINED, ranks.index(self.rank) if mine else 0)
        if not mine:
            return None
        made = Mpi(part, self)
        part.Free()
        return made

    def _carries(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and self._on_gpus)


class _Requests:
    """What MPI has begun; it goes on while somebody looks."""

    def __init__(self, requests: list[Any], begun: set[_Requests]) -> None:
        """`begun`: where it stands until it is done."""
        self.requests, self._all = requests, begun

    def ready(self) -> bool:
        """Whether all are done."""
        self.requests = [
            request for request in self.requests if not request.Test()
        ]  # one by one: an error then leaves the others
        if not self.requests:
            self._all.discard(self)
        return not self.requests

    def push(self) -> None:
        self.ready()

    def wait(self) -> None:
        """Sleeps between looks, longer the longer it takes: MPI's own waiting would take a whole core, and no signal
        would be heard while it lasts."""
        began = time.monotonic()
        while not self.ready():
            time.sleep(min(max(_NAP[0], (time.monotonic() - began) / 50), _NAP[1]))


def _load() -> Any:
    """Return mpi4py's module with MPI started. Starting MPI waits for the other ranks, so importing ganherd must not do it."""
    try:
        import mpi4py

        if tuple(map(int, mpi4py.__version__.split(".")[:2])) < (4, 1):
            raise UserError(f"mpi4py {mpi4py.__version__} is too old for ganherd: pip install -U 'ganherd[mpi]'.")
        # MPI_Finalize may wait for ever for ranks that are lost; under ULFM a process may end without it
        mpi4py.rc.finalize = os.environ.get(ULFM) != "1"
        mpi4py.rc.initialize = False  # it would hold Python's lock while it waits for the other ranks
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise UserError(
            "this is an MPI job, but mpi4py is not installed here: pip install 'ganherd[mpi]' (and mpich, where the machine "
            "has no MPI of its own)."
        ) from error
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py finds no MPI library ({first_line(error)}): load your site's MPI module, or pip install mpich."
        ) from error
    if not MPI.Is_initialized():
        _initialize(MPI)
    return MPI


def _initialize(mpi: Any) -> None:
    """Start MPI without holding Python's lock, so that the start-up watchdog can end a process that waits for ever."""
    try:
        start = ctypes.CDLL(mpi.__file__).MPI_Init_thread  # of the MPI library that mpi4py is linked with
    except (OSError, AttributeError):  # a platform that does not look in linked libraries
        mpi.Init_thread()
        return
    if code := start(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int())):
        raise UserError(f"MPI cannot be started (MPI_Init_thread returned {code}): check the launcher and its options.")
    for comm in (mpi.COMM_SELF, mpi.COMM_WORLD):  # as mpi4py does when it starts MPI itself
        comm.Set_errhandler(mpi.ERRORS_RETURN)
