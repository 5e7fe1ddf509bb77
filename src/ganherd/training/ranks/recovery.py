"""A run that outlives its ranks: who is left takes the lost members up, from copies in memory or the newest checkpoint.

When a rank is lost, all others leave what they were doing, wherever that was, and come to `Recovery.through`. There they find
each other again and resume the run, as a new job of fewer ranks would: members are placed anew over all that are left, spares
among them. So a rescue is a resume, with copies in memory beside the checkpoints on the disk. Members that meet go back
together, to one step; where they never do, the lost ones go back alone (`alone`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ganherd.comm.buddies import Buddies
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.launch_command import with_launcher
from ganherd.comm.ranks import Ranks
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import snapshot
from ganherd.training.ranks.restarts import restarts
from ganherd.training.ranks.solo_recovery import ArrivalMark, Back, SoloRecovery
from ganherd.training.setup.build_strategy import never_meet
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import Interrupted, UserError

if TYPE_CHECKING:
    from ganherd.training.conclude import Run
    from ganherd.training.loop import Trainer

_LOCK = 60.0  # seconds that the system, or a file server, may take to let go of a dead process's lock


class Recovery:
    """What a rank knows across losses: who is left, where the run lies, and copies of members in memory."""

    def __init__(self, job: Communicator) -> None:
        self.job = job  # of those that are left by now
        self.path: Path | None = None  # of the run, once it is founded
        self.named = ""  # the same, as the first rank was told it
        self.reached: int | None = None  # the step that ranks had come to before torchrun started them again
        self.done: Run | None = None  # what the first rank has made, when all is made
        self.signals = StopRequest()  # which came while no loop listened, between a loss and the first step after it
        self.trainer: Trainer | None = None  # which heard of the last loss
        self.alone = SoloRecovery()
        self._started = tuple(range(job.world_size))  # of each rank, the number that it was started with
        self._homes: tuple[tuple[int, ...], ...] = ()  # the members of each rank, spares included
        self._losses: list[dict[str, Any]] = []  # that no event tells of yet
        self._was_lost = False  # whether anyone ever was
        self._buddies = Buddies()

    def through(self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: str | Path | None = None) -> Run:
        """`begin`, and after every loss `resume`, until the run ends on all ranks that are left. `path`: where a new run will
        lie; none: where `begin` says."""
        with self.signals if self.job.survives_loss else nullcontext():
            return self._through(begin, resume, path)

    def _through(self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: str | Path | None) -> Run:
        work = begin
        while True:
            try:
                done = work()
                if self.job.survives_loss:  # who has nothing left to do stays until the first rank has not either
                    self.job.agree()
                return done
            except RankLost as error:
                if not self.job.survives_loss:
                    raise self.ended(error) from error
            while True:
                with suppress(RankLost):  # another one, meanwhile
                    work = self._regrouped(begin, resume, None if path is None else Path(path))
                    break

    @property
    def asked(self) -> str:
        """The signal that this rank was asked to stop by."""
        return self.signals.name

    def again(self) -> str:
        """The command that goes on with the run on ranks as there are now; the same on all of them."""
        if not (name := self.named or self.path):
            return "the same command"
        return with_launcher(RunFolder(name).again, self.job.name, self.job.world_size)

    def found(self, told: bytes) -> Path:
        """Where the run lies, as `announced` by the first rank."""
        path, self.named = json.loads(told)
        self.path = Path(path)
        return self.path

    def ended(self, error: RankLost, more: str = "") -> Interrupted | SystemExit:
        """How this rank ends where the job cannot go on without a lost one: one of those that are left says it."""
        with suppress(ValueError):  # torchrun asks who is left to end: not before this is said
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self.job.is_loss_reporter():
            return SystemExit(75)
        if self.named:  # it is this job's
            with suppress(OSError, UserError):
                folder, state = RunFolder(str(self.path)), "restarting" if self.job.restarts_left else "interrupted"
                if folder.info.get("state") == "running":  # and not finished but for its report
                    folder.write_info(state=state)
        return Interrupted(f"{error}{more}. {self.job.describe_loss(self.again())}")

    def _regrouped(
        self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: Path | None
    ) -> Callable[[], Run]:
        """What those that are left do next; called by all of them."""
        left = self.job.shrink()
        homeless = [member for rank in left.lost if self._homes for member in self._homes[rank]]
        hosts = [self.job.hosts[rank] for rank in left.lost] if self.job.hosts else []
        ranks = [self._started[rank] for rank in left.lost]
        step = self.trainer.step if self.trainer else 0
        self._losses.append({"ranks": ranks, "hosts": hosts, "members": sorted(homeless), "noticed": step})
        self._started = tuple(self._started[rank] for rank in left.before)
        is_over = self.job.rank == 0 and self.done is not None
        self.job.successor = left.comm
        self.job, self._was_lost = left.comm, True
        self._homes = tuple(self._homes[rank] for rank in left.before) if self._homes else ()
        stands = self.alone.stands(self.trainer)
        told = [is_over, self.asked, str(self.path or ""), step, stands, self._losses]
        said = map(json.loads, self.job.all_gather_bytes(json.dumps(told).encode()))
        over, asked, paths, steps, stood, untold = zip(*said, strict=True)
        if (speaker := self.alone.agree(stood, self.trainer)) is not None:
            self._losses = untold[speaker]  # who knows most of the files knows what they do not tell yet
        self._losses[-1]["noticed"] = max(steps)
        self.trainer = None  # what it had is in the hold by now, or comes from copies
        found = next((Path(each) for each in paths if each), None)
        if found is None and path is not None and (path / "run.json").is_file():
            found = path  # by the first rank, which could tell nobody
        if any(over):
            return lambda: self.done or _nothing_left(found)
        if any(asked):
            return lambda: self._stop(next(each for each in asked if each), found)
        self.done = None
        return begin if found is None else lambda: resume(found)

    def _stop(self, asked: str, found: Path | None) -> NoReturn:
        """A rank that ends since it was asked to is no reason to go on."""
        again = f"resume it with: {self.again()}" if found else "nothing had begun"
        if self.job.rank:
            raise SystemExit(75)
        if found:
            with suppress(OSError):
                RunFolder(found).write_info(state="interrupted")
        raise Interrupted(f"stopped by {asked}, and a rank was lost; the last checkpoint is whole. {again}")

    @staticmethod
    def outlives(ranks: Ranks) -> bool:
        """Whether these ranks can go on without one of them."""
        return ranks.job.survives_loss and ranks.member_comm.world_size > 1

    # -- where members go on ------------------------------------------------------------------------------------------

    def lock(self, folder: RunFolder) -> TextIO:
        """The run's, which a lost rank may have held a moment ago."""
        began = time.monotonic()
        while True:
            try:
                return folder.lock()
            except UserError:
                if not self._was_lost or time.monotonic() - began > _LOCK:
                    raise
                time.sleep(0.05)

    def placed(self, ranks: Ranks) -> None:
        """Is told where members live from now on."""
        self._homes = ranks.members_by_rank

    def remembered(self, ranks: Ranks, folder: RunFolder) -> checkpoint.Checkpoint | None:
        """This rank's members as they were in memory, after a loss; None where the newest checkpoint is newer, or is needed
        since the copies of some died with both who had them. Called by all ranks, spares too."""
        if not self._was_lost:
            return None
        if never_meet(folder.recipe):
            return self.alone.returned(self.job, ranks, self._buddies, folder) if self.alone.step is not None else None
        found = self._buddies.find(self.job, range(ranks.num_members))
        if found.step is None or found.missing:
            return None
        facts = found.facts[0]
        fits = self.job.rank == 0 and _is_newest(found.step, facts, folder)
        if not self.job.broadcast(b"memory" if fits else b"" if self.job.rank == 0 else None):
            return None
        rows = found.fetch(self.job, ranks.members_by_rank)
        return checkpoint.Checkpoint(checkpoint.path_of(folder.checkpoints, found.step), found.step, rows, facts)

    def keep(self, trainer: Trainer) -> None:
        """Copies of all members and of what all know, each rank's in its own memory and the next one's."""
        facts = {**snapshot.facts(trainer), "saved": trainer.saved, "bytes": trainer.ends}
        ranks, told = trainer.ranks, facts if trainer.ranks.is_first else None
        self._buddies.refresh(ranks.member_comm, ranks.placement, snapshot.state(trainer), trainer.step, told)

    def caught_up(self, back: Back, repeated: int) -> None:
        """Is told, on all ranks, that the lost members have come to the others, and how many steps they did again for it."""
        last, known = self._losses[-1], {member for loss in self._losses for member in loss["members"]}
        last["members"] = sorted({*last["members"], *(back.lost - known)})  # with those on their way to other homes
        for loss in self._losses:
            went_back = not back.lost.isdisjoint(loss["members"])
            if went_back or "alone" not in loss:  # else they came there after a loss before this one, and stayed
                loss |= {"source": back.source, "repeated": repeated if went_back else 0, "alone": True}

    def stand(self, trainer: Trainer) -> None:
        """All members are where they go on, and all ranks know that the losses are told: nothing of before is needed."""
        # before there is a mark: who is lost in here is missed by ranks that hold their members, and know the files
        trainer.together.ends = trainer.ranks.all_gather_json(trainer.ends)[0]
        trainer.mark = ArrivalMark.of(trainer, trainer.arrived)
        self._settled()

    def _settled(self) -> None:
        self.alone.settled()
        self._losses = []

    def tell(self, trainer: Trainer, source: str) -> None:
        """The losses since the run went on last, as events and in words; `source`: where the members' state is from."""
        home = {member: self._started[rank] for rank, own in enumerate(self._homes) for member in own}
        for loss in self._losses:
            back = {"source": source, "repeated": max(0, loss["noticed"] - trainer.step), "alone": False}
            if trainer.arrived:  # and only the lost members went back
                back = {name: loss[name] for name in back}
            homes = [home[member] for member in loss["members"]]
            trainer.event("lost", **{name: loss[name] for name in ("ranks", "hosts", "members")}, homes=homes, **back)
            hosts = loss["hosts"] or ["?"] * len(loss["ranks"])
            names = " and ".join(f"rank {r} on {host}" for r, host in zip(loss["ranks"], hosts, strict=True))
            moved = f"; {_moved(loss['members'])} elsewhere" if loss["members"] else ""
            then = "the others stay at" if back["alone"] else "all go on from"
            trainer.progress.say(f"lost {names}{moved}; {then} step {trainer.step:,} ({back['source']}).")
        if not trainer.goes_alone:  # else all have to know of it first: see `stand`
            self._settled()
        if self.reached is not None:
            number, repeated = restarts(os.environ), max(0, self.reached - trainer.step)
            trainer.event("restart", launcher="torchrun", number=number, source=source, repeated=repeated)
            trainer.progress.say(
                f"torchrun has started all ranks again (restart {number}); they go on from step {trainer.step:,} ({source}), "
                f"{repeated:,} step{'s' * (repeated != 1)} of before {'is' if repeated == 1 else 'are'} repeated."
            )
            self.reached = None


def announced(folder: RunFolder) -> bytes:
    """What the first rank tells the others of the run's folder: hosts may have other working folders, people read the name."""
    return json.dumps([str(folder.path.absolute()), str(folder.path)]).encode()


def _moved(members: Sequence[int]) -> str:
    """
    >>> _moved([3]), _moved([0, 1])
    ('member 3 goes on', 'members 0, 1 go on')
    """
    one = len(members) == 1
    return f"member{'' if one else 's'} {', '.join(map(str, members))} {'goes' if one else 'go'} on"


def _is_newest(step: int, facts: Mapping[str, Any], folder: RunFolder) -> bool:
    """Whether no checkpoint is newer than copies of that step, and the records that they count on are there."""
    return folder.has_written(facts["bytes"]) and max(checkpoint.steps(folder.checkpoints), default=0) <= step


def _nothing_left(path: Path | None) -> Run:
    from ganherd.training.conclude import Run

    return Run(path or Path(), {})
