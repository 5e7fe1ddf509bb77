"""Continue a run after the loss of a rank, from copies in memory or from the newest checkpoint.

When a rank is lost, `RankLost` ends whatever the other ranks are doing, and they come to `Recovery.through`. There they
regroup and resume the run like a new job of fewer ranks: members are placed on all ranks that are left, spares included. So a
recovery is a resume that also has copies in memory. Members that meet go back together, to one step. If members never meet, only
the lost ones go back (`solo_recovery.py`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ganherd.comm.backends.detect import with_launcher
from ganherd.comm.buddies import Buddies
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.ranks import Ranks, run_on_all_ranks
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.runs.models import TrainerState
from ganherd.training.callbacks import Callback
from ganherd.training.finish import Run
from ganherd.training.ranks import spares
from ganherd.training.ranks.restarts import reached, restarts
from ganherd.training.ranks.signs_of_life import HeartbeatNotes, heartbeat_of
from ganherd.training.ranks.solo_recovery import ArrivalMark, Back, SoloRecovery
from ganherd.training.schedule import is_due
from ganherd.training.setup.build_strategy import never_meet
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import Interrupted, UserError

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer
    from ganherd.training.session import Session
    from ganherd.training.setup.run_source import RunSource

_LOCK = 60.0  # seconds that the system, or a file server, may take to let go of a dead process's lock


class Recovery:
    """Hold what a rank knows across losses: the ranks that are left, the folder of the run, and copies of members."""

    def __init__(self, job: Communicator) -> None:
        self.job = job  # of the ranks that are left
        self.path: Path | None = None  # of the run, once its folder exists
        self.named = ""  # the same, as the user of the first rank wrote it
        self.reached: int | None = None  # the step of the ranks before torchrun restarted them
        self.done: Run | None = None  # the result of the first rank, when everything is finished
        self.signals = StopRequest()  # signals that came between a loss and the first step after it
        self.trainer: Trainer | None = None  # the trainer that the last loss ended
        self.alone = SoloRecovery()
        self._marks: ArrivalMarks | None = None  # of the training, if members continue independently
        self._started = tuple(range(job.world_size))  # the number that each rank was started with
        self._homes: tuple[tuple[int, ...], ...] = ()  # the members of each rank, spares included
        self._losses: list[dict[str, Any]] = []  # losses that no event reports yet
        self._was_lost = False  # whether any rank was ever lost
        self._buddies = Buddies()

    def through(self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: str | Path | None = None) -> Run:
        """Call `begin`, and after every loss `resume`, until the run ends on all ranks that are left.

        Args:
            path: The folder of a new run; None: `begin` chooses it.
        """
        with self.signals if self.job.survives_loss else nullcontext():
            return self._through(begin, resume, path)

    def _through(self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: str | Path | None) -> Run:
        work = begin
        while True:
            try:
                done = work()
                if self.job.survives_loss:  # a rank that is done stays until the first rank is done, too
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
        """The signal by which this rank was asked to stop; empty: none."""
        return self.signals.name

    def again(self) -> str:
        """Return the command that continues the run on the ranks that there are now; it is the same on all of them."""
        if not (name := self.named or self.path):
            return "the same command"
        return with_launcher(RunFolder(name).again, self.job.name, self.job.world_size)

    # -- steps that a session adds for a job --------------------------------------------------------------------------

    def placed(self, ranks: Ranks, source: RunSource) -> checkpoint.Checkpoint | None:
        """Learn where members are from now on; return this rank's members as copies in memory have them, after a loss.

        Called by all ranks, spares too.
        """
        self._homes = ranks.members_by_rank
        if source.folder is None:
            return None
        if self.job.rank == 0:
            self.reached = reached(source.folder)
        return self._remembered(ranks, source.folder)

    def bring_back(self, session: Session) -> None:
        """After a loss, train the lost members to where the others are, if members continue independently."""
        if session.resumed is not None and self.alone.back is not None:
            from ganherd.training.ranks.catch_up import bring_back

            bring_back(self, session, self.alone.back, session.resumed)

    def share(self, ranks: Ranks, folder: RunFolder) -> RunFolder:
        """Return the first rank's folder as every rank sees it; spares learn of it too."""
        if ranks.is_single_process:
            return folder
        if ranks.is_first:
            spares.forget(folder.path)
        path = self._found(ranks.job.broadcast(_announced(folder) if ranks.is_first else None))

        def seen() -> RunFolder:
            there = folder if ranks.is_first else RunFolder(path)
            if not there.info_path.is_file():
                raise UserError(f"the run folder {there.path} is not there: it must lie where all ranks see it.")
            return there

        return run_on_all_ranks(ranks.member_comm, seen)

    def stand_by(self, ranks: Ranks) -> Run:
        """Wait, as a spare, until the other ranks have ended."""
        path = self._found(ranks.job.broadcast(None))
        with StopRequest(), spares.passing_on(path), heartbeat_of(ranks, path):
            ranks.wait()
        return Run(path.absolute(), {})

    def attach(self, session: Session, closing: ExitStack) -> None:
        """Take part in the training of a session."""
        trainer, ranks = session.trainer, session.ranks
        assert trainer is not None
        if not ranks.is_single_process:
            trainer.attach(HeartbeatNotes(closing.enter_context(heartbeat_of(ranks, session.folder.path, trainer))))
        if self.outlives(ranks):
            every = trainer.schedule.settings.buddy_every
            if never_meet(session.herd.recipe):
                self._marks = ArrivalMarks(self, every)
                trainer.attach(self._marks)
            elif every:
                trainer.attach(MemberCopies(self, every))

    def listening(self, session: Session) -> AbstractContextManager[None]:
        """Pass on to the session what spares are asked."""
        return spares.listening(session.ranks, session.folder.path, session.stop)

    def continues(self, session: Session) -> bool:
        """Return whether the ranks that are left continue the run after a loss; they meet again in `through`."""
        if not session.ranks.job.survives_loss:
            return False
        self.trainer, self.signals.name = session.trainer, self.asked or session.stop.name
        return True

    def _found(self, content: bytes) -> Path:
        """Return where the run is, as `_announced` by the first rank."""
        path, self.named = json.loads(content)
        self.path = Path(path)
        return self.path

    def ended(self, error: RankLost, more: str = "") -> Interrupted | SystemExit:
        """Return how this rank ends if the job cannot continue after a loss; only one of the ranks reports it."""
        with suppress(ValueError):  # torchrun ends the ranks that are left: not before this is reported
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self.job.is_loss_reporter():
            return SystemExit(75)
        if self.named:  # it is this job's
            with suppress(OSError, UserError):
                folder, state = RunFolder(str(self.path)), "restarting" if self.job.restarts_left else "interrupted"
                if folder.info.state == "running":  # and not finished except for its report
                    folder.write_info(state=state)
        return Interrupted(f"{error}{more}. {self.job.describe_loss(self.again())}")

    def _regrouped(
        self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: Path | None
    ) -> Callable[[], Run]:
        """Return what the ranks that are left do next; called by all of them."""
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
        mark = self._marks.mark if self.trainer and self._marks else None
        stands = self.alone.stands(mark)
        told = [is_over, self.asked, str(self.path or ""), step, stands, self._losses]
        said = map(json.loads, self.job.all_gather_bytes(json.dumps(told).encode()))
        over, asked, paths, steps, stood, untold = zip(*said, strict=True)
        if (speaker := self.alone.agree(stood, self.trainer, mark)) is not None:
            self._losses = untold[
                speaker
            ]  # the rank that knows most of the files knows which losses they do not report yet
        self._losses[-1]["noticed"] = max(steps)
        self.trainer, self._marks = None, None  # what it had is in the hold by now, or comes from copies
        found = next((Path(each) for each in paths if each), None)
        if found is None and path is not None and (path / "run.json").is_file():
            found = path  # created by the first rank, which could not announce it
        if any(over):
            return lambda: self.done or _nothing_left(found)
        if any(asked):
            return lambda: self._stop(next(each for each in asked if each), found)
        self.done = None
        return begin if found is None else lambda: resume(found)

    def _stop(self, asked: str, found: Path | None) -> NoReturn:
        """Stop: a rank that was lost because it was asked to stop is no reason to continue."""
        again = f"resume it with: {self.again()}" if found else "nothing had begun"
        if self.job.rank:
            raise SystemExit(75)
        if found:
            with suppress(OSError):
                RunFolder(found).write_info(state="interrupted")
        raise Interrupted(f"stopped by {asked}, and a rank was lost; the last checkpoint is whole. {again}")

    @staticmethod
    def outlives(ranks: Ranks) -> bool:
        """Return whether these ranks can continue without one of them."""
        return ranks.job.survives_loss and ranks.member_comm.world_size > 1

    # -- where members continue ------------------------------------------------------------------------------------------

    def lock(self, folder: RunFolder) -> TextIO:
        """Lock the run's folder, which a lost rank may have held a moment ago."""
        began = time.monotonic()
        while True:
            try:
                return folder.lock()
            except UserError:
                if not self._was_lost or time.monotonic() - began > _LOCK:
                    raise
                time.sleep(0.05)

    def _remembered(self, ranks: Ranks, folder: RunFolder) -> checkpoint.Checkpoint | None:
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
        meta = TrainerState.parse(facts)
        return checkpoint.Checkpoint(checkpoint.path_of(folder.checkpoints, found.step), found.step, rows, meta)

    def keep(self, trainer: Trainer) -> None:
        """Copy all members and the state of the run into the memory of each rank and of the next one."""
        state, ranks = trainer.state, trainer.ranks
        facts = {**state.facts(trainer.seconds), "saved": state.saved, "bytes": trainer.recorder.ends}
        shared = facts if ranks.is_first else None
        self._buddies.refresh(ranks.member_comm, ranks.placement, state.tensors(), trainer.step, shared)

    def caught_up(self, back: Back, repeated: int) -> None:
        """Note, on all ranks, that the lost members have caught up, and how many steps they repeated for it."""
        last, known = self._losses[-1], {member for loss in self._losses for member in loss["members"]}
        last["members"] = sorted({*last["members"], *(back.lost - known)})  # with those on their way to other homes
        for loss in self._losses:
            went_back = not back.lost.isdisjoint(loss["members"])
            if went_back or "alone" not in loss:  # else they came there after a loss before this one, and stayed
                loss |= {"source": back.source, "repeated": repeated if went_back else 0, "alone": True}

    def stand(self, trainer: Trainer) -> ArrivalMark:
        """Forget what was kept for the losses so far: all members are where they continue, and all losses are reported."""
        # before there is a mark: a rank that is lost in here is missed by ranks that hold their members, and know the files
        trainer.sync.share_ends(trainer.recorder.ends)
        mark = ArrivalMark.of(trainer, trainer.state.arrived)
        self._settled()
        return mark

    def _settled(self) -> None:
        self.alone.settled()
        self._losses = []

    def tell(self, trainer: Trainer, source: str) -> None:
        """Report the losses since the run was continued last, as events and messages. `source`: where the state comes from."""
        if not trainer.ranks.job.detects_loss:  # the launcher would end all at once
            trainer.progress.say(f"should a rank be killed, the job ends; go on with: {self.again()}")
        home = {member: self._started[rank] for rank, own in enumerate(self._homes) for member in own}
        for loss in self._losses:
            back = {"source": source, "repeated": max(0, loss["noticed"] - trainer.step), "alone": False}
            if trainer.state.arrived:  # and only the lost members went back
                back = {name: loss[name] for name in back}
            homes = [home[member] for member in loss["members"]]
            trainer.event("lost", **{name: loss[name] for name in ("ranks", "hosts", "members")}, homes=homes, **back)
            hosts = loss["hosts"] or ["?"] * len(loss["ranks"])
            names = " and ".join(f"rank {r} on {host}" for r, host in zip(loss["ranks"], hosts, strict=True))
            moved = f"; {_moved(loss['members'])} elsewhere" if loss["members"] else ""
            then = "the others stay at" if back["alone"] else "all go on from"
            trainer.progress.say(f"lost {names}{moved}; {then} step {trainer.step:,} ({back['source']}).")
        if self._marks is None:  # else all have to know of it first: see `stand`
            self._settled()
        if self.reached is not None:
            number, repeated = restarts(os.environ), max(0, self.reached - trainer.step)
            trainer.event("restart", launcher="torchrun", number=number, source=source, repeated=repeated)
            trainer.progress.say(
                f"torchrun has started all ranks again (restart {number}); they go on from step {trainer.step:,} ({source}), "
                f"{repeated:,} step{'s' * (repeated != 1)} of before {'is' if repeated == 1 else 'are'} repeated."
            )
            self.reached = None


class MemberCopies(Callback):
    """Copy all members into the memory of the next rank at an interval, if members that meet go back together."""

    def __init__(self, recovery: Recovery, every: int) -> None:
        self._recovery, self.every = recovery, every

    def on_train_start(self, trainer: Trainer) -> None:
        self._recovery.keep(trainer)

    def on_stop_end(self, trainer: Trainer, step_seconds: float) -> None:
        if is_due(trainer.step, self.every):
            self._recovery.keep(trainer)


class ArrivalMarks(Callback):
    """Mark the arrival at every stop, and copy members there at an interval, if only lost members go back."""

    def __init__(self, recovery: Recovery, every: int) -> None:
        self._recovery, self.every = recovery, every
        self._first = 0  # the step at which the training began
        self.mark: ArrivalMark | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        self._first = trainer.step
        self.mark = self._recovery.stand(trainer)

    def on_arrival(self, trainer: Trainer) -> None:
        self.mark = ArrivalMark.of(trainer)
        # members that were moved to other ranks need new copies there
        if self.every and (is_due(trainer.step, self.every) or trainer.step == self._first):
            self._recovery.keep(trainer)

    def on_repair(self, trainer: Trainer, row: int) -> None:
        if self.mark is not None:
            self.mark.spare(row, trainer.herd.state)


def _announced(folder: RunFolder) -> bytes:
    """Return what the first rank announces of the run's folder: an absolute path for the ranks, and the name for people."""
    return json.dumps([str(folder.path.absolute()), str(folder.path)]).encode()


def _moved(members: Sequence[int]) -> str:
    """
    >>> _moved([3]), _moved([0, 1])
    ('member 3 goes on', 'members 0, 1 go on')
    """
    one = len(members) == 1
    return f"member{'' if one else 's'} {', '.join(map(str, members))} {'goes' if one else 'go'} on"


def _is_newest(step: int, facts: Mapping[str, Any], folder: RunFolder) -> bool:
    """Return whether no checkpoint is newer than copies of that step, and the records that belong to them exist."""
    return folder.has_written(facts["bytes"]) and max(checkpoint.steps(folder.checkpoints), default=0) <= step


def _nothing_left(path: Path | None) -> Run:
    return Run(path or Path(), {})
