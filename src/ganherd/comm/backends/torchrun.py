"""The communicator of a torchrun job, based on torch.distributed: gloo between CPUs, NCCL if no two ranks share a GPU."""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from ganherd.comm.backends.rendezvous import LivenessRing, lost_after, meet, start_timeout
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.row_messages import Messages, PendingWork
from ganherd.util.errors import UserError, first_line
from ganherd.util.terminal.standard_streams import flush_all

_UNSYNCED_TAG = 1  # tag of messages that ranks send without synchronising
_FOREVER = timedelta(days=30)  # slow ranks are waited for; if a rank dies, its connections close, which others notice


class Torch(Communicator):
    """Connect all ranks over gloo, and GPUs by a second group over NCCL."""

    name = "torch"
    _peer_errors = (RuntimeError,)  # the base class of torch.distributed's errors

    def __init__(self, group: Any = None, gpus: Any = None) -> None:
        """Join a process group.

        Args:
            group: A process group over gloo; None joins all ranks of the job, as the environment describes it.
            gpus: The same ranks as a group over NCCL, if there is one.
        """
        joined: tuple[Any, LivenessRing | None, Any] = _join(os.environ) if group is None else (group, None, None)
        self._group, self._liveness, self._store = joined
        self._job_ranks = dist.get_process_group_ranks(self._group)  # the number in the whole job of each rank here
        self.rank, self.world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._gpus = self._join_gpus() if group is None else gpus
        atexit.register(self._release)  # for a rank that ends without `close`
        self._nccl_connected = False  # NCCL connects when all ranks call it for the first time.

    def abort(self, code: int) -> NoReturn:
        """End this process; torchrun then ends the others."""
        flush_all()
        os._exit(code)

    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        """Do nothing: this rank exits with the code, and torchrun ends the ranks that wait for it."""

    def _release(self) -> None:
        """Destroy the groups while Python is intact: their threads would abort a process that shuts down."""
        if self._liveness is not None:
            self._liveness.close()
        groups, self._gpus, self._group = (self._gpus, self._group), None, None
        for group in groups:
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)

    def describe_loss(self, resume: str) -> str:
        if (left := self.restarts_left) > 0:
            return f"torchrun starts all ranks again, {left} time{'s' * (left != 1)} at most."
        hint = " (torchrun --max-restarts 3 does so by itself)" if "TORCHELASTIC_RUN_ID" in os.environ else ""
        return f"The job ends; resume with: {resume}{hint}"

    @property
    def restarts_left(self) -> int:
        maximum, count = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
        return max(0, int(maximum) - int(count))

    def is_loss_reporter(self) -> bool:
        """Return whether this rank is the first to ask the store of the launcher; True if there is no store."""
        if self._store is None:
            return True
        try:
            return bool(self._store.add("told", 1) == 1)
        except RuntimeError:
            return True

    def _rank_lost(self, error: Exception) -> RankLost:
        """Return the exception for gloo's error, whose message is shortened: no source file and no advice."""
        return super()._rank_lost(RuntimeError(re.sub(r"^\[\S+\] |\. This is typically .*", "", str(error))))

    def _start(
        self, outgoing: Messages, incoming: Messages, device: torch.device, unsynced: bool = False
    ) -> PendingWork:
        if device.type == "cpu":
            return self._send_and_receive(outgoing, incoming, self._group, _UNSYNCED_TAG if unsynced else 0)
        with torch.cuda.device(device):
            if not self._nccl_connected:
                dist.all_reduce(torch.zeros(1, device=device), group=self._gpus)
                self._nccl_connected = True
            return self._send_and_receive(outgoing, incoming, self._gpus)

    def _send_and_receive(self, outgoing: Messages, incoming: Messages, group: Any, tag: int = 0) -> _Works:
        """Start to send and receive messages in a group."""
        peers = self._job_ranks
        operations = [dist.P2POp(dist.irecv, message, peers[peer], group, tag) for peer, message in incoming.items()]
        operations += [dist.P2POp(dist.isend, message, peers[peer], group, tag) for peer, message in outgoing.items()]
        return _Works(dist.batch_isend_irecv(operations) if operations else [], outgoing)

    def _all_gather_bytes(self, content: bytes, counts: Sequence[int]) -> bytes:
        local = torch.zeros(max(counts), dtype=torch.uint8)  # gloo needs the same length on all ranks.
        local.numpy()[: len(content)] = np.frombuffer(content, np.uint8)
        if sum(count > 0 for count in counts) == 1:
            sender = next(rank for rank, count in enumerate(counts) if count)
            dist.broadcast(local, self._job_ranks[sender], self._group)
            return local.numpy().tobytes()
        gathered = [torch.empty_like(local) for _ in counts]
        dist.all_gather(gathered, local, self._group)
        return b"".join(each[:count].numpy().tobytes() for each, count in zip(gathered, counts, strict=True))

    def _new_group(self, ranks: Sequence[int]) -> Communicator | None:
        chosen = [self._job_ranks[rank] for rank in ranks]
        group = dist.new_group(chosen, backend="gloo", timeout=_FOREVER)
        gpus = dist.new_group(chosen, backend="nccl", timeout=_FOREVER) if self._gpus is not None else None
        return Torch(group, gpus) if self.rank in ranks else None

    def _supports_device(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and self._gpus is not None)

    def _join_gpus(self) -> Any:
        """Return a group over NCCL if every rank has a GPU that no other rank uses; otherwise None."""
        gpu = b""
        if torch.cuda.is_available() and dist.is_nccl_available():
            number = int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count()
            gpu = str(torch.cuda.get_device_properties(number).uuid).encode()
        gpus = self.all_gather_bytes(gpu)
        if not all(gpus) or len(set(gpus)) < self.world_size:
            return None
        return dist.new_group(self._job_ranks, backend="nccl", timeout=_FOREVER)


class _Works:
    """Messages that torch.distributed has started; gloo and NCCL advance them by themselves."""

    def __init__(self, works: Sequence[Any], outgoing: Messages) -> None:
        self._works, self._outgoing = works, outgoing  # Messages must not be freed before they are sent.
        self._waiter: threading.Thread | None = None
        self._error: Exception | None = None

    def poll(self) -> None:
        """Do nothing: threads of the backend advance the messages."""

    def is_completed(self) -> bool:
        """Return whether all messages are done. A thread waits for them, because gloo can only be waited for."""
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._wait_in_thread, name="messages", daemon=True)
            self._waiter.start()
        if self._waiter.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self) -> None:
        """Return when all messages are done."""
        for work in self._works:
            work.wait()

    def _wait_in_thread(self) -> None:
        """Wait for all messages, and store an error for the next `is_completed`."""
        try:
            self.wait()
        except Exception as error:  # Raised by the next `is_completed`.
            self._error = error


def _join(environ: Mapping[str, str]) -> tuple[Any, LivenessRing | None, Any]:
    """Return a group of all ranks over gloo, the ring that watches for silent ranks, and the store of this attempt."""
    if not dist.is_available():
        raise UserError(
            "this PyTorch is built without torch.distributed: take another build, or start ganherd with mpiexec."
        )
    if dist.is_initialized():  # by a program that uses ganherd as a library
        return dist.new_group(backend="gloo", timeout=_FOREVER), None, None
    rank, world_size, host, port = _rendezvous_settings(environ)
    # torchrun serves the store itself; otherwise rank 0 does.
    serves = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    after = lost_after(environ.get("GANHERD_LOST_AFTER"))
    patience = 0.9 * start_timeout(environ)  # The error raised here says more than the start-up watchdog can.
    store_timeout = timedelta(seconds=patience) if patience else _FOREVER

    def open_store(serves: bool = False) -> Any:
        # `meet` waits for the other ranks, and can name those that are missing.
        store = dist.TCPStore(host, port, world_size, serves, store_timeout, wait_for_workers=False)
        return dist.PrefixStore("ganherd", store)

    try:
        first = open_store(serves)
        name = meet(first, rank, world_size, patience)
        store = dist.PrefixStore(name, first)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_FOREVER)
    except (dist.DistError, RuntimeError) as error:
        raise UserError(
            f"rank {rank} of {world_size} did not find the others at {host}:{port} ({first_line(error)})."
        ) from error
    liveness = LivenessRing(open_store, name, rank, world_size, after) if after and world_size > 1 else None
    return dist.group.WORLD, liveness, store


def _rendezvous_settings(environ: Mapping[str, str]) -> tuple[int, int, str, int]:
    """Return rank, world size, host and port, as torchrun sets them."""
    try:
        rank, world_size, port = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        return rank, world_size, environ["MASTER_ADDR"], port
    except (KeyError, ValueError) as error:
        raise UserError(
            "RANK and WORLD_SIZE are set as for torch.distributed, but RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all "
            "there and whole: start with torchrun, which sets them, or unset them to train in one process."
        ) from error
