"""One herd over the ranks of a job: who has which members, what the first rank decides, what all agree on, how they end.

Members live on one rank each; small numbers of all members are known to all ranks, which so come to the same decisions at
the same step. The first rank alone writes records, run.json and the mixture. In one process all of this is nothing.
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
_CODES = {UserError: 2, Interrupted: 75}


@dataclass(frozen=True)
class Ranks:
    """A rank of a job that has members, or a spare that has none yet."""

    job: Communicator  # of all ranks, spares included
    comm: Communicator | None  # of those that have members; None: this one is a spare
    placement: Placement  # of the members over the ranks of `comm`
    homes: tuple[tuple[int, ...], ...]  # the members of each rank of `job`: none of a spare
    weights: tuple[float, ...] | None = None  # how fast each rank of `job` is, where that was measured and counts

    @staticmethod
    def alone(members: int) -> Ranks:
        """All members in this process."""
        from ganherd.comm.backends.local import Local
        from ganherd.comm.communicator import Placement

        comm, all_of_them = Local(), (tuple(range(members)),)
        return Ranks(comm, comm, Placement(all_of_them), all_of_them)

    @staticmethod
    def over(job: Communicator, recipe: Recipe, members: int, weights: Sequence[float] | None = None) -> Ranks:
        """The members of one replica, and those of the others, over the ranks of the job; called by all of them.

        `weights`: how fast each of them is; None: alike.
        """
        from ganherd.comm.communicator import Placement
        from ganherd.comm.placement import place

        grid, together = recipe.strategy.settings.torus, recipe.strategy.settings.group_size
        replicas, each = recipe.herd.seeds, None if weights is None else list(weights)
        found = place(members, job.size, replicas=replicas, grid=grid, together=together, weights=each)
        while each and not found.ranks[0]:  # however slow it is, the first rank writes the run, so it is no spare
            each[0] = 2 * each[0] or min(w for w in each if w)
            found = place(members, job.size, replicas=replicas, grid=grid, together=together, weights=each)
        busy = [rank for rank, own in enumerate(found.ranks) if own]
        placement = Placement(tuple(found.ranks[rank] for rank in busy))
        return Ranks(job, job.among(busy), placement, found.ranks, None if weights is None else tuple(weights))

    # -- who ------------------------------------------------------------------------------------------------------------

    @property
    def everyone(self) -> Communicator:
        """The communicator of those that have members; asked by one of them."""
        assert self.comm is not None, "a spare has nobody to talk to"
        return self.comm

    @property
    def own(self) -> tuple[int, ...]:
        """The members of this rank, ascending; row r of its state is member own[r]."""
        return self.placement.ranks[self.comm.rank] if self.comm is not None else ()

    @property
    def size(self) -> int:
        """Members on all ranks."""
        return self.placement.size

    @property
    def is_first(self) -> bool:
        return self.job.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.job.size == 1

    def row(self, member: int) -> int | None:
        """Where a member lies on this rank; None: it lives elsewhere."""
        return self.own.index(member) if member in self.own else None

    # -- what all know --------------------------------------------------------------------------------------------------

    def gather(self, values: Tensor) -> Tensor:
        """Small numbers of this rank's members [n, …] -> those of all members [N, …], on the host."""
        import torch

        own = values.detach().cpu()
        if self.everyone.size == 1:
            return own
        return torch.from_numpy(self.everyone.gather(own.numpy(), self.placement))

    def told(self, facts: Any) -> list[Any]:
        """What each rank says, as JSON, on every rank."""
        if self.everyone.size == 1:
            return [facts]
        return [json.loads(each) for each in self.everyone.collect(json.dumps(facts).encode())]

    def told_by(self, member: int, facts: Any) -> Any:
        """What the rank of that member says."""
        return self.told(facts)[self.placement.home()[member][0]]

    def decided(self, value: T) -> T:
        """What the first rank says."""
        if self.everyone.size == 1:
            return value
        content = json.dumps(value).encode() if self.is_first else None
        return json.loads(self.everyone.broadcast(content))  # type: ignore[no-any-return]

    def listed(self, values: Sequence[T]) -> list[T]:
        """What JSON can hold of each of this rank's members -> of all members."""
        if not values:
            return []
        by_rank, home = self.told(list(values)), self.placement.home()
        return [by_rank[rank][row] for rank, row in (home[member] for member in range(self.size))]

    def every(self, work: Callable[[], T]) -> list[T]:
        """What the work answers on each rank, as JSON; where the disk of one of them refuses it, `OSError` on all."""
        if self.everyone.size == 1:
            return [work()]
        done, refused = None, None
        try:
            done = work()
        except OSError as error:
            refused = [error.errno, f"{error.strerror or error} on {self.job.hosts[self.job.rank]}"]
        answers = self.told([done, refused])
        for _, refused in answers:
            if refused is not None:
                raise OSError(*refused)
        return [done for done, _ in answers]

    def to_first(self, state: State, members: Sequence[int]) -> State:
        """Copies of these members on the first rank; nothing on the others."""
        nobody: list[Sequence[int]] = [[] for _ in self.placement.ranks]
        return self.everyone.fetch(state, self.placement, [members, *nobody[1:]])

    # -- how it ends ----------------------------------------------------------------------------------------------------

    def end(self, error: Exception | None = None) -> None:
        """What all ranks come to at the same place, for good (no error) or not: the first one says it, spares hear of it."""
        code = _code(error) if error is not None else 0
        if self.job is not self.comm:
            self.job.collect(str(code).encode())
        if error is not None:
            raise error if self.is_first else SystemExit(code)

    def wait(self) -> None:
        """A spare waits for the end of the others; `RankLost` where one of them is lost, whose members it may get."""
        code = max(int(each) for each in self.job.collect(b"0"))
        if code:
            raise SystemExit(code)


@contextmanager
def job(connect: Callable[[], Communicator]) -> Iterator[Communicator]:
    """A communicator for as long as it is needed. A rank that ends with an error ends the others, if they wait for it."""
    from ganherd.comm.communicator import RankLost

    comm = connect()
    try:
        yield comm
    except RankLost as error:  # which the run itself outlives, or explains; every rank hears of it and ends by itself
        if not comm.latest.is_teller():
            raise SystemExit(75) from None
        raise Interrupted(f"{error}, before the run had begun: start the job again.") from error
    except BaseException as error:
        comm.latest.fail(_code(error), last_words=_last_words(error))
        raise
    if comm.goes_on:
        with suppress(RankLost):  # all are done: who is lost now is missed by nobody
            comm.latest.close()
        return
    comm.close()


def together(comm: Communicator | None, work: Callable[[], T]) -> T:
    """Does some work on every rank. A user's mistake on one of them is the end of all: the lowest that has one tells it."""
    if comm is None or comm.size == 1:
        return work()
    mistake, done = "", None
    try:
        with refused_if_too_large():
            done = work()
    except UserError as error:
        mistake = str(error)
    mistakes = [each.decode() for each in comm.collect(mistake.encode())]
    found = [rank for rank, each in enumerate(mistakes) if each]
    if not found:
        return done  # type: ignore[return-value]
    if comm.rank != found[0]:
        raise SystemExit(2)
    raise UserError(f"rank {comm.rank} on {comm.hosts[comm.rank]}: {mistake}" if comm.rank else mistake)


def cores(comm: Communicator) -> int:
    """The share of this host's cores that a rank may use: those that it is bound to, by the ranks that are bound to the same."""
    own = own_cores()
    everyone = [json.loads(each) for each in comm.collect(json.dumps(own).encode())]
    beside = sum(host == comm.hosts[comm.rank] and one == own for host, one in zip(comm.hosts, everyone, strict=True))
    result: int = max(1, len(own) // beside)
    return result


def _code(error: BaseException) -> int:
    """The exit code that the command will have."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)


def _last_words(error: BaseException) -> str:
    """Return what the command would report of an error.

    >>> _last_words(Interrupted("stopped at step 9.")), _last_words(SystemExit(75))
    ('ganherd: stopped at step 9.', '')
    """
    if isinstance(error, (UserError, Interrupted, RunFailed)):
        return f"ganherd: {error}"
    return "" if isinstance(error, SystemExit) else "".join(traceback.format_exception(error)).rstrip()
