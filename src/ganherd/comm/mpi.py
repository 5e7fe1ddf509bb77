"""Ranks of an MPI job, by mpi4py: buffers, never pickles, and nothing that blocks."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ganherd.comm.base import Communicator
from ganherd.errors import UserError

_MESSAGE = 1  # the tag of members' rows
_NAP = 5e-5, 1e-2  # seconds, at least and at most, between two looks whether a message has come


class Mpi(Communicator):
    """A communicator of its own, so that no message of other code in the process can be mistaken for one of these."""

    name = "mpi"
    most = 2**30  # bytes in one message: an MPI of before 4.0 counts with 31 bits; more goes as several

    def __init__(self, comm: Any = None) -> None:
        """`comm`: an mpi4py communicator; none: all ranks of the job, for which MPI is started."""
        self._mpi = _load()
        self._broken = (self._mpi.Exception,)
        self._comm = (self._mpi.COMM_WORLD if comm is None else comm).Dup()
        self._last = self._comm.Dup()  # for `fail`, which must not be mistaken for what others are waiting in
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        # what the MPI standard (4.1) has for the question whether it can read a GPU's memory
        self._on_gpus = "cuda" in (self._comm.Get_info().Get("mpi_memory_alloc_kinds") or "")

    def abort(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        self._mpi.COMM_WORLD.Abort(code)
        raise AssertionError("MPI does not return from an abort")

    def fail(self, code: int, patience: float = 10.0) -> None:
        everyone, began = self._last.Ibarrier(), time.monotonic()
        while not everyone.Test():
            if time.monotonic() - began > patience:
                self.abort(code)
            time.sleep(_NAP[1])

    def _leave(self) -> None:
        self._last.Free()
        self._comm.Free()

    def _exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # MPI does not know of streams: what it sends must be there
        requests = [self._comm.Irecv(piece, peer, _MESSAGE) for peer, piece in self._pieces(incoming)]
        requests += [self._comm.Isend(piece, peer, _MESSAGE) for peer, piece in self._pieces(outgoing)]
        self._wait(requests)

    def _pieces(self, by_peer: Mapping[int, Tensor]) -> list[tuple[int, Any]]:
        """Messages as buffers, cut where they are too long; those of a pair arrive in the order in which they were sent."""
        pieces = [(peer, piece) for peer, message in by_peer.items() for piece in message.split(self.most)]
        return [(peer, [piece if piece.is_cuda else piece.numpy(), self._mpi.BYTE]) for peer, piece in pieces]

    def _share(self, own: bytes, counts: Sequence[int]) -> bytes:
        found, starts = np.empty(sum(counts), np.uint8), [0, *np.cumsum(counts).tolist()[:-1]]
        mine = np.frombuffer(own, np.uint8)
        request = self._comm.Iallgatherv([mine, self._mpi.BYTE], [found, list(counts), starts, self._mpi.BYTE])
        self._wait([request])
        return found.tobytes()

    def _among(self, ranks: Sequence[int]) -> Communicator | None:
        mine = self.rank in ranks
        part = self._comm.Split(0 if mine else self._mpi.UNDEFINED, ranks.index(self.rank) if mine else 0)
        if not mine:
            return None
        made = Mpi(part)
        part.Free()
        return made

    def _carries(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and self._on_gpus)

    def _wait(self, requests: list[Any]) -> None:
        """Sleeps between looks, longer the longer it takes: MPI's own waiting would take a whole core, and no signal
        would be heard while it lasts."""
        began = time.monotonic()
        while not self._mpi.Request.Testall(requests):
            time.sleep(min(max(_NAP[0], (time.monotonic() - began) / 50), _NAP[1]))


def _load() -> Any:
    """mpi4py with its library; MPI is started by this import, so it is made when a communicator is."""
    try:
        import mpi4py

        if tuple(map(int, mpi4py.__version__.split(".")[:2])) < (4, 1):
            raise UserError(f"mpi4py {mpi4py.__version__} is too old for ganherd: pip install -U 'ganherd[mpi]'.")
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise UserError(
            "this is an MPI job, but mpi4py is not installed here: pip install 'ganherd[mpi]' (and mpich, where the machine "
            "has no MPI of its own)."
        ) from error
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py finds no MPI library ({str(error).splitlines()[0]}): load your site's MPI module, or pip install mpich."
        ) from error
    return MPI
