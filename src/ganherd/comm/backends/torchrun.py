"""Ranks of a torchrun job, by torch.distributed: gloo between CPUs, NCCL between GPUs where each rank has one of its own."""

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
from torch import Tensor

from ganherd.comm.backends.rendezvous import LivenessRing, lost_after, meet
from ganherd.comm.backends.startup import start_timeout
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.pending import PendingWork
from ganherd.util.errors import UserError, first_line
from ganherd.util.standard_streams import flush_all

_APART = 1  # the tag of rows that ranks send when they like
_FOREVER = timedelta(days=30)  # a rank may be slow; one that dies closes its connections, which the others notice


class Torch(Communicator):
    """All ranks talk over gloo; GPUs have a group of their own beside it."""

    name = "torch"
    _broken = (RuntimeError,)  # of which all of torch.distributed's errors are

    def __init__(self, group: Any = None, gpus: Any = None) -> None:
        """`group`: a process group that talks over gloo; none: all ranks of the job, as the environment describes it."""
        joined: tuple[Any, LivenessRing | None, Any] = _join(os.environ) if group is None else (group, None, None)
        self._group, self._watch, self._store = joined
        self._everyone = dist.get_process_group_ranks(self._group)  # by their number in the whole job
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._gpus = self._join_gpus() if group is None else gpus
        atexit.register(self._leave)  # for a rank that ends without `close`
        self._met = False  # NCCL makes its connections when all ranks call it for the first time

    def abort(self, code: int) -> NoReturn:
        """torchrun ends the others when one of its processes fails."""
        flush_all()
        os._exit(code)

    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        """Nothing has to be done: it will exit with this code, and torchrun ends those that wait for it."""

    def _leave(self) -> None:
        """Lets go of the groups while Python is whole: their threads, met by its end, would abort the process."""
        if self._watch is not None:
            self._watch.close()
        groups, self._gpus, self._group = (self._gpus, self._group), None, None
        for group in groups:
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)

    def after_loss(self, resume: str) -> str:
        if (left := self.restarts_left) > 0:
            return f"torchrun starts all ranks again, {left} time{'s' * (left != 1)} at most."
        more = " (torchrun --max-restarts 3 does so by itself)" if "TORCHELASTIC_RUN_ID" in os.environ else ""
        return f"The job ends; go on with: {resume}{more}"

    @property
    def restarts_left(self) -> int:
        most, made = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
        return max(0, int(most) - int(made))

    def is_teller(self) -> bool:
        """By the store, which the process that started the ranks holds; where it is gone too, each rank tells."""
        if self._store is None:
            return True
        try:
            return bool(self._store.add("told", 1) == 1)
        except RuntimeError:
            return True

    def _lost(self, error: Exception) -> RankLost:
        """gloo's reason, less its source file and its advice."""
        return super()._lost(RuntimeError(re.sub(r"^\[\S+\] |\. This is typically .*", "", str(error))))

    def _start(
        self,
        outgoing: Mapping[int, Tensor],
        incoming: Mapping[int, Tensor],
        device: torch.device,
        apart: bool = False,
    ) -> PendingWork:
        if device.type == "cpu":
            return self._pass_on(outgoing, incoming, self._group, _APART if apart else 0)
        with torch.cuda.device(device):
            if not self._met:
                dist.all_reduce(torch.zeros(1, device=device), group=self._gpus)
                self._met = True
            return self._pass_on(outgoing, incoming, self._gpus)

    def _pass_on(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], group: Any, tag: int = 0
    ) -> _Works:
        peers = self._everyone
        operations = [dist.P2POp(dist.irecv, message, peers[peer], group, tag) for peer, message in incoming.items()]
        operations += [dist.P2POp(dist.isend, message, peers[peer], group, tag) for peer, message in outgoing.items()]
        return _Works(dist.batch_isend_irecv(operations) if operations else [], outgoing)

    def _share(self, own: bytes, counts: Sequence[int]) -> bytes:
        mine = torch.zeros(max(counts), dtype=torch.uint8)  # gloo wants the same length of all
        mine.numpy()[: len(own)] = np.frombuffer(own, np.uint8)
        if sum(count > 0 for count in counts) == 1:
            giver = next(rank for rank, count in enumerate(counts) if count)
            dist.broadcast(mine, self._everyone[giver], self._group)
            return mine.numpy().tobytes()
        everyones = [torch.empty_like(mine) for _ in counts]
        dist.all_gather(everyones, mine, self._group)
        return b"".join(each[:count].numpy().tobytes() for each, count in zip(everyones, counts, strict=True))

    def _among(self, ranks: Sequence[int]) -> Communicator | None:
        chosen = [self._everyone[rank] for rank in ranks]
        group = dist.new_group(chosen, backend="gloo", timeout=_FOREVER)
        gpus = dist.new_group(chosen, backend="nccl", timeout=_FOREVER) if self._gpus is not None else None
        return Torch(group, gpus) if self.rank in ranks else None

    def _carries(self, device: torch.device) -> bool:
        return device.type == "cpu" or (device.type == "cuda" and self._gpus is not None)

    def _join_gpus(self) -> Any:
        """The group for NCCL, where every rank has a GPU that no other rank uses; else messages go through the host."""
        own = b""
        if torch.cuda.is_available() and dist.is_nccl_available():
            number = int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count()
            own = str(torch.cuda.get_device_properties(number).uuid).encode()
        found = self.collect(own)
        if not all(found) or len(set(found)) < self.size:
            return None
        return dist.new_group(self._everyone, backend="nccl", timeout=_FOREVER)


class _Works:
    """What torch.distributed has begun; gloo and NCCL go on by themselves."""

    def __init__(self, works: Sequence[Any], outgoing: Mapping[int, Tensor]) -> None:
        self._works, self._outgoing = works, outgoing  # what is sent must not go before it is
        self._waiter: threading.Thread | None = None
        self._error: Exception | None = None

    def push(self) -> None:
        pass

    def ready(self) -> bool:
        """gloo tells only those that wait, so a thread does."""
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._await, name="messages", daemon=True)
            self._waiter.start()
        if self._waiter.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def _await(self) -> None:
        try:
            self.wait()
        except Exception as error:  # raised where somebody asks
            self._error = error


def _join(environ: Mapping[str, str]) -> tuple[Any, LivenessRing | None, Any]:
    """A group of all ranks over gloo, who notices where one of them falls silent, and the store of this attempt."""
    if not dist.is_available():
        raise UserError(
            "this PyTorch is built without torch.distributed: take another build, or start ganherd with mpiexec."
        )
    if dist.is_initialized():  # by the program that ganherd is a part of
        return dist.new_group(backend="gloo", timeout=_FOREVER), None, None
    try:
        rank, size, port = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        host = environ["MASTER_ADDR"]
    except (KeyError, ValueError) as error:
        raise UserError(
            "RANK and WORLD_SIZE are set as for torch.distributed, but RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all "
            "there and whole: start with torchrun, which sets them, or unset them to train in one process."
        ) from error
    serves = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # torchrun holds the store itself
    after = lost_after(environ.get("GANHERD_LOST_AFTER"))
    patience = 0.9 * start_timeout(environ)  # what is raised here says more than the start-up watchdog can
    store_timeout = timedelta(seconds=patience) if patience else _FOREVER

    def store(serves: bool = False) -> Any:
        # `meet` waits for the other ranks, and can say which are missing
        made = dist.TCPStore(host, port, size, serves, store_timeout, wait_for_workers=False)
        return dist.PrefixStore("ganherd", made)

    try:
        first = store(serves)
        name = meet(first, rank, size, patience)
        own = dist.PrefixStore(name, first)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=_FOREVER)
    except (dist.DistError, RuntimeError) as error:
        raise UserError(
            f"rank {rank} of {size} did not find the others at {host}:{port} ({first_line(error)})."
        ) from error
    return dist.group.WORLD, LivenessRing(store, name, rank, size, after) if after and size > 1 else None, own
