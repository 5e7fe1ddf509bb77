"""Spread a herd over the ranks of a job: the members of each rank, collective operations, and the end of a job.

Each member is on one rank. Small values of all members are gathered on all ranks, so that all make the same decisions
at the same step. Only rank 0 (the first rank) writes records, run.json and the mixture. In a single process every
operation here is local. In shapes, N is the number of members of the whole herd, and n the number of those on this
rank.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ganherd.util.errors import Interrupted, RunFailed, UserError
from ganherd.util.host import own_cores
from ganherd.util.memory import refused_if_too_large

if TYPE_CHECKING:
    from torch import Tensor

    from ganherd.comm.communicator import Communicator, Placement
    from ganherd.herd.state import State
    from ganherd.recipe.schema import Recipe

T = TypeVar("T")
_CODES = {UserError: 2, Interrupted: 75}  # exit codes of the command


@dataclass(frozen=True)
class Ranks:
    """The members of this rank and its connections to the other ranks. A spare is a rank without members."""

    job: Communicator  # connects all ranks, spares included
    comm: Communicator | None  # connects the ranks that have members; None on a spare
    placement: Placement  # the members of each rank of `comm`
    members_by_rank: tuple[tuple[int, ...], ...]  # the members of each rank of `job`; empty for a spare
    weights: tuple[float, ...] | None = None  # the speed of each rank of `job`, if it was measured and differs

    @staticmethod
    def single_process(members: int) -> Ranks:
        """Return the ranks of a run in this process only."""
        from ganherd.comm.backends.local import Local
        from ganherd.comm.communicator import Placement

        comm, members_by_rank = Local(), (tuple(range(members)),)
        return Ranks(comm, comm, Placement(members_by_rank), members_by_rank)

    @staticmethod
    def distribute(job: Communicator, recipe: Recipe, members: int, weights: Sequence[float] | None = None) -> Ranks:
        """Place the members of all replicas on the ranks of the job. All ranks call this.

        Args:
            job: All ranks.
            recipe: Its strategy decides which members should be on the same rank.
            members: The number of members in one replica.
            weights: The speed of each rank; None: all are equally fast.
        """
        from ganherd.comm.communicator import Placement
        from ganherd.comm.placement import place

        grid, together = recipe.strategy.settings.torus, recipe.strategy.settings.group_size
        speeds = None if weights is None else list(weights)
        # The members of a class meet like those of a replica, so a class is placed like one.
        group_members = recipe.herd.per_class if recipe.herd.per_class > 1 else members
        replicas = recipe.herd.replicas * members // group_members
        placed = place(group_members, job.world_size, replicas=replicas, grid=grid, together=together, weights=speeds)
        while speeds and not placed.ranks[0]:  # The first rank writes the run, so it must not be a spare.
            speeds[0] = 2 * speeds[0] or min(speed for speed in speeds if speed)
            placed = place(
                group_members, job.world_size, replicas=replicas, grid=grid, together=together, weights=speeds
            )
        busy = [rank for rank, own in enumerate(placed.ranks) if own]
        placement = Placement(tuple(placed.ranks[rank] for rank in busy))
        return Ranks(job, job.new_group(busy), placement, placed.ranks, None if weights is None else tuple(weights))

    # -- this rank ------------------------------------------------------------------------------------------------------

    @property
    def member_comm(self) -> Communicator:
        """Return the communicator of the ranks that have members; not available on a spare."""
        assert self.comm is not None, "a spare has no members to communicate about"
        return self.comm

    @property
    def local_members(self) -> tuple[int, ...]:
        """Return the members of this rank, ascending; row r of its state belongs to local_members[r]."""
        return self.placement.ranks[self.comm.rank] if self.comm is not None else ()

    @property
    def num_members(self) -> int:
        """Return the number of members on all ranks."""
        return self.placement.num_members

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0, which writes the run."""
        return self.job.rank == 0

    @property
    def is_single_process(self) -> bool:
        """Return whether the job has no other rank."""
        return self.job.world_size == 1

    def local_row(self, member: int) -> int | None:
        """Return the row of a member on this rank; None if it lives on another one."""
        return self.local_members.index(member) if member in self.local_members else None

    # -- collective operations of the ranks with members ----------------------------------------------------------------

    def all_gather(self, values: Tensor) -> Tensor:
        """Return small values of all members [N, …], on the host, given those of this rank's members [n, …]."""
        import torch

        local = values.detach().cpu()
        if self.member_comm.world_size == 1:
            return local
        return torch.from_numpy(self.member_comm.all_gather(local.numpy(), self.placement))

    def all_gather_json(self, value: Any) -> list[Any]:
        """Return the values that the ranks pass, as a list by rank; every rank gets it. Values must fit JSON."""
        if self.member_comm.world_size == 1:
            return [value]
        return [json.loads(each) for each in self.member_comm.all_gather_bytes(json.dumps(value).encode())]

    def from_owner(self, member: int, value: Any) -> Any:
        """Return, on every rank, the value that the rank of that member passes.

        All ranks call this; values must fit JSON.
        """
        return self.all_gather_json(value)[self.placement.locations()[member][0]]

    def broadcast(self, value: T) -> T:
        """Return the value that the first rank passes; it must fit JSON."""
        if self.member_comm.world_size == 1:
            return value
        content = json.dumps(value).encode() if self.is_first else None
        return json.loads(self.member_comm.broadcast(content))  # type: ignore[no-any-return]

    def all_gather_list(self, values: Sequence[T]) -> list[T]:
        """Return the values of all members [N], given those of this rank's members [n]; values must fit JSON."""
        if not values:
            return []
        by_rank, locations = self.all_gather_json(list(values)), self.placement.locations()
        return [by_rank[rank][row] for rank, row in (locations[member] for member in range(self.num_members))]

    def run_io(self, work: Callable[[], T]) -> list[T]:
        """Call `work`, which reads or writes files, on each rank. Return the results of all ranks, which must fit JSON.

        Raises:
            OSError: The work failed on some rank; raised on all of them.
        """
        if self.member_comm.world_size == 1:
            return [work()]
        result, failure = None, None
        try:
            result = work()
        except OSError as error:
            failure = [error.errno, f"{error.strerror or error} on {self.job.hosts[self.job.rank]}"]
        answers = self.all_gather_json([result, failure])
        for _, failure in answers:
            if failure is not None:
                raise OSError(*failure)
        return [result for result, _ in answers]

    def fetch_to_first(self, state: State, members: Sequence[int]) -> State:
        """Return copies of these members on the first rank, and tensors without rows on the others.

        All ranks call this.
        """
        others: list[Sequence[int]] = [[] for _ in self.placement.ranks[1:]]
        return self.member_comm.fetch(state, self.placement, [members, *others])

    # -- the end of a run -----------------------------------------------------------------------------------------------

    def finish(self, error: Exception | None = None) -> None:
        """End the run on all ranks with members, and release the spares.

        Args:
            error: Why the run ends; None: it succeeded. The first rank raises the error, the others exit with its code.
        """
        code = _code(error) if error is not None else 0
        if self.job is not self.comm:
            self.job.all_gather_bytes(str(code).encode())
        if error is not None:
            raise error if self.is_first else SystemExit(code)

    def wait(self) -> None:
        """Wait, as a spare, for the end of the other ranks.

        Raises:
            RankLost: A rank was lost, whose members this spare may get.
            SystemExit: The run failed.
        """
        code = max(int(each) for each in self.job.all_gather_bytes(b"0"))
        if code:
            raise SystemExit(code)


@contextmanager
def open_job(connect: Callable[[], Communicator]) -> Iterator[Communicator]:
    """Connect the ranks of a job, and yield the communicator.

    If this rank fails in the block, end ranks that wait for it.
    """
    from ganherd.comm.communicator import RankLost

    comm = connect()
    try:
        yield comm
    except RankLost as error:  # a run handles this itself, so there is none yet; each rank gets the error and ends
        if not comm.latest.is_loss_reporter():
            raise SystemExit(75) from None
        raise Interrupted(f"{error}, before the run had begun: start the job again.") from error
    except BaseException as error:
        comm.latest.fail(_code(error), last_words=_last_words(error))
        raise
    if comm.survives_loss:
        with suppress(RankLost):  # all ranks are done, so it does not matter if one is lost now
            comm.latest.close()
        return
    comm.close()


def run_on_all_ranks(comm: Communicator | None, work: Callable[[], T]) -> T:
    """Call `work` on every rank and return this rank's result. If it raises a `UserError` on any rank, end all ranks.

    Raises:
        UserError: On the lowest rank on which it was raised, with the name of the rank.
        SystemExit: On the other ranks.
    """
    if comm is None or comm.world_size == 1:
        return work()
    mistake, result = "", None
    try:
        with refused_if_too_large():
            result = work()
    except UserError as error:
        mistake = str(error)
    mistakes = [each.decode() for each in comm.all_gather_bytes(mistake.encode())]
    mistaken = [rank for rank, each in enumerate(mistakes) if each]
    if not mistaken:
        return result  # type: ignore[return-value]
    if comm.rank != mistaken[0]:
        raise SystemExit(2)
    raise UserError(f"rank {comm.rank} on {comm.hosts[comm.rank]}: {mistake}" if comm.rank else mistake)


def run_on_first_rank(comm: Communicator, work: Callable[[], T]) -> T:
    """Call `work` on the first rank, and return its result, which must fit JSON, on all.

    A `UserError` ends all ranks.
    """
    result = run_on_all_ranks(comm, lambda: work() if comm.rank == 0 else None)
    if comm.world_size == 1:
        return result  # type: ignore[return-value]
    return json.loads(comm.broadcast(json.dumps(result).encode() if comm.rank == 0 else None))  # type: ignore[no-any-return]


def cores_per_rank(comm: Communicator) -> int:
    """Return the number of cores for this rank: those it is bound to, divided by the ranks bound to the same cores."""
    cores = own_cores()
    cores_by_rank = [json.loads(each) for each in comm.all_gather_bytes(json.dumps(cores).encode())]
    host = comm.hosts[comm.rank]
    sharing = sum(other == host and bound == cores for other, bound in zip(comm.hosts, cores_by_rank, strict=True))
    share: int = max(1, len(cores) // sharing)
    return share


def _code(error: BaseException) -> int:
    """Return the exit code of the command for an error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)


def _last_words(error: BaseException) -> str:
    """Return what the command would print about an error.

    >>> _last_words(Interrupted("stopped at step 9.")), _last_words(SystemExit(75))
    ('ganherd: stopped at step 9.', '')
    """
    if isinstance(error, (UserError, Interrupted, RunFailed)):
        return f"ganherd: {error}"
    return "" if isinstance(error, SystemExit) else "".join(traceback.format_exception(error)).rstrip()
