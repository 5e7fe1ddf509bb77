"""Continue a run after the loss of a rank, from copies in memory or from the newest checkpoint.

A rank is lost if its process dies. Then `RankLost` ends whatever the other ranks are doing, and they return to
`Recovery.through`. There they regroup and resume the run like a new job of fewer ranks: members are placed on all
remaining ranks, including spares (ranks without members). So a recovery is a resume that also has copies of the members
in memory. If members meet, all of them go back to the step of the copies. If members never meet, only those of the lost
rank go back (`solo_recovery.py`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ganherd.comm.backends.detect import with_launcher
from ganherd.comm.buddies import Buddies
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.ranks import Ranks, run_on_all_ranks
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, saved_steps
from ganherd.runs.models import TrainerState
from ganherd.training.callbacks import Callback
from ganherd.training.finish import TrainedRun
from ganherd.training.ranks import spares
from ganherd.training.ranks.catch_up import catch_up
from ganherd.training.ranks.restarts import reached, restarts
from ganherd.training.ranks.signs_of_life import HeartbeatNotes, heartbeat_of
from ganherd.training.ranks.solo_recovery import ArrivalMark, LostMembers, SoloRecovery
from ganherd.training.schedule import is_due
from ganherd.training.setup.build_strategy import never_meet
from ganherd.training.stop_request import StopRequest
from ganherd.util.errors import Interrupted, UserError

if TYPE_CHECKING:
    from ganherd.training.loop import Trainer
    from ganherd.training.session import Session
    from ganherd.training.setup.run_source import RunSource

_LOCK = 60.0  # seconds that the system, or a file server, may take to release the lock of a dead process


class Recovery:
    """Let this rank continue the run after other ranks are lost.

    It knows the remaining ranks, the run's folder, copies of members, and which losses of ranks have yet to be
    reported.
    """

    def __init__(self, job: Communicator) -> None:
        self.job = job  # the communicator of all ranks that are left
        self.path: Path | None = None  # the run's folder, once it exists
        self.named = ""  # the path as the user of the first rank wrote it
        self.reached: int | None = None  # the step of the ranks before torchrun restarted them
        self.done: TrainedRun | None = None  # the result of the first rank, when everything is finished
        self.signals = StopRequest()  # signals that came between the loss of a rank and the first step after it
        self.trainer: Trainer | None = None  # the trainer that was interrupted by the last loss of a rank
        self.solo = SoloRecovery()
        self._marks: ArrivalMarks | None = None  # of the training, if members never meet
        self._started = tuple(range(job.world_size))  # for each remaining rank, the number that it was started with
        self._homes: tuple[tuple[int, ...], ...] = ()  # the members of each rank; empty for a spare
        self._losses: list[dict[str, Any]] = []  # facts about lost ranks that no event reports yet
        self._was_lost = False  # whether any rank was ever lost
        self._buddies = Buddies()

    def through(
        self, begin: Callable[[], TrainedRun], resume: Callable[[Path], TrainedRun], path: str | Path | None = None
    ) -> TrainedRun:
        """Train a run, and resume it whenever a rank is lost, until it ends on all remaining ranks.

        Return the finished run.

        Args:
            begin: Starts or continues the run; called first.
            resume: Continues the run in a folder; called after each loss of a rank, if the run's folder exists by then.
            path: The folder of a new run; None: `begin` chooses it.
        """
        work = begin
        with self.signals if self.job.survives_loss else nullcontext():
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

    def again(self) -> str:
        """Return the command with which the user continues the run on as many ranks as remain.

        It is the same on all ranks.
        """
        if not (name := self.named or self.path):
            return "the same command"
        return with_launcher(RunFolder(name).again, self.job.name, self.job.world_size)

    # -- steps that a session adds for a job --------------------------------------------------------------------------

    def placed(self, ranks: Ranks, source: RunSource) -> checkpoint.Checkpoint | None:
        """Note which members each rank has now.

        After the loss of a rank, return this rank's members from copies in memory.

        Called by all ranks, including spares.

        Returns:
            The state that the run continues from. None if no rank was lost, if the newest checkpoint is newer than the
            copies, or if copies of a member are missing because both ranks that had them were lost.
        """
        self._homes, folder = ranks.members_by_rank, source.folder
        if folder is not None and self.job.rank == 0:
            self.reached = reached(folder)
        if folder is None or not self._was_lost:
            return None
        if never_meet(folder.recipe):
            return self.solo.place(self.job, ranks, self._buddies, folder)
        return self._from_copies(ranks, folder)

    def _from_copies(self, ranks: Ranks, folder: RunFolder) -> checkpoint.Checkpoint | None:
        """Return the state of this rank's members from copies of one step on all ranks; see `placed` for None."""
        copies = self._buddies.find(self.job, range(ranks.num_members))
        if copies.step is None or copies.missing:
            return None
        facts, decision = copies.facts[0], None
        if self.job.rank == 0:
            is_newest = max(saved_steps(folder.checkpoints), default=0) <= copies.step
            decision = b"memory" if is_newest and folder.has_written(facts["bytes"]) else b""
        if not self.job.broadcast(decision):
            return None
        rows = copies.fetch(self.job, ranks.members_by_rank)
        path = checkpoint.path_of(folder.checkpoints, copies.step)
        return checkpoint.Checkpoint(path, copies.step, rows, TrainerState.parse(facts))

    def bring_back(self, session: Session) -> None:
        """After the loss of a rank, train its members to the step of the others, if members never meet.

        Called by all ranks.
        """
        lost, resumed, folder, ranks = self.solo.lost, session.resumed, session.source.folder, session.ranks
        if lost is None or resumed is None:
            return
        assert folder is not None

        def work() -> tuple[int, list[str]]:
            result = catch_up(session.herd, session.own_plan, folder, session.looks, lost, resumed, heart)
            self.solo.hold(ranks.local_members, resumed)
            self.note_return(lost, resumed.step - lost.step)
            return result

        with heartbeat_of(ranks, folder.path) as heart:
            each = ranks.all_gather_json(run_on_all_ranks(ranks.member_comm, work))
        self.note_return(lost, max(repeated for repeated, _ in each))
        for sentence in dict.fromkeys(sentence for _, damaged in each for sentence in damaged):
            session.warn(f"{sentence}; the checkpoint before it is used.")

    def share(self, ranks: Ranks, folder: RunFolder) -> RunFolder:
        """Send the path of the run's folder from the first rank to all others, spares included, and return the folder.

        Raises:
            UserError: A rank does not see the folder, for example because it is on the disk of another machine.
        """
        if ranks.is_single_process:
            return folder
        if ranks.is_first:
            spares.forget(folder.path)
        # the absolute path, for the ranks, and the path as the user wrote it, for messages
        announced = json.dumps([str(folder.path.absolute()), str(folder.path)]).encode()
        path = self._announced_path(ranks.job.broadcast(announced if ranks.is_first else None))

        def seen() -> RunFolder:
            there = folder if ranks.is_first else RunFolder(path)
            if not there.info_path.is_file():
                raise UserError(f"the run folder {there.path} is not there: it must be on a disk that all ranks see.")
            return there

        return run_on_all_ranks(ranks.member_comm, seen)

    def stand_by(self, ranks: Ranks) -> TrainedRun:
        """Wait, as a spare, until the other ranks have ended, and return the run without scores."""
        path = self._announced_path(ranks.job.broadcast(None))
        with StopRequest(), spares.passing_on(path), heartbeat_of(ranks, path):
            ranks.wait()
        return TrainedRun(path.absolute(), {})

    def attach(self, session: Session, closing: ExitStack) -> None:
        """Add callbacks to the session's trainer: heartbeats, and copies of members if the job can survive a loss.

        Args:
            closing: Ends the heartbeats when the training ends.
        """
        trainer, ranks = session.trainer, session.ranks
        assert trainer is not None
        if not ranks.is_single_process:
            trainer.attach(HeartbeatNotes(closing.enter_context(heartbeat_of(ranks, session.folder.path, trainer))))
        if ranks.job.survives_loss and ranks.member_comm.world_size > 1:
            every = trainer.schedule.settings.buddy_every
            if never_meet(session.herd.recipe):
                self._marks = ArrivalMarks(self, every)
                trainer.attach(self._marks)
            elif every:
                trainer.attach(MemberCopies(self, every))

    def continues(self, session: Session) -> bool:
        """Return whether the remaining ranks continue the run after a loss; if so, `through` regroups them."""
        if not session.ranks.job.survives_loss:
            return False
        self.trainer, self.signals.name = session.trainer, self.signals.name or session.stop.name
        return True

    def _announced_path(self, content: bytes) -> Path:
        """Store and return the run's path. `content`: JSON from the first rank: [absolute path, path for messages]."""
        path, self.named = json.loads(content)
        self.path = Path(path)
        return self.path

    def ended(self, error: RankLost, more: str = "") -> Interrupted | SystemExit:
        """Return the exception that ends this rank if the job cannot continue after the loss of a rank.

        One of the remaining ranks gets an exception with a message, which reports the loss; the others exit with code
        75.

        Args:
            more: Continues the message of `error`.
        """
        # torchrun ends the remaining ranks, which must not happen before the loss is reported
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self.job.is_loss_reporter():
            return SystemExit(75)
        if self.named:  # the first rank has announced the folder, so it belongs to this job
            with suppress(OSError, UserError):
                folder, state = RunFolder(str(self.path)), "restarting" if self.job.restarts_left else "interrupted"
                if folder.info.state == "running":  # a finished run that only lacks its report stays finished
                    folder.write_info(state=state)
        return Interrupted(f"{error}{more}. {self.job.describe_loss(self.again())}")

    def _regrouped(
        self, begin: Callable[[], TrainedRun], resume: Callable[[Path], TrainedRun], path: Path | None
    ) -> Callable[[], TrainedRun]:
        """Connect the remaining ranks, exchange what they know, and return the function that each of them calls next.

        The function starts the run (`begin`) if it has no folder yet, or calls `resume`; it ends this rank if a rank
        received a signal to stop, and returns the result if the first rank had already finished the run.
        """
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
        position = self.solo.position(mark)
        report = [is_over, self.signals.name, str(self.path or ""), step, position, self._losses]
        reports = map(json.loads, self.job.all_gather_bytes(json.dumps(report).encode()))
        over, asked, paths, steps, positions, unreported = zip(*reports, strict=True)
        if (speaker := self.solo.agree(positions, self.trainer, mark)) is not None:
            # This rank knows the longest record files, so its list of losses is the one that they do not report yet.
            self._losses = unreported[speaker]
        self._losses[-1]["noticed"] = max(steps)
        self.trainer, self._marks = None, None  # `solo` holds its members by now, or they come from copies
        run_path = next((Path(each) for each in paths if each), None)
        if run_path is None and path is not None and (path / "run.json").is_file():
            run_path = path  # created by the first rank, which could not announce it
        if any(over):
            return lambda: self.done or TrainedRun(run_path or Path(), {})
        if any(asked):
            return lambda: self._stop(next(filter(None, asked)), run_path)
        self.done = None
        return begin if run_path is None else lambda: resume(run_path)

    def _stop(self, asked: str, run_path: Path | None) -> NoReturn:
        """End this rank after a loss, because a rank received the signal `asked`."""
        again = f"resume it with: {self.again()}" if run_path else "nothing had begun"
        if self.job.rank:
            raise SystemExit(75)
        if run_path:
            with suppress(OSError):
                RunFolder(run_path).write_info(state="interrupted")
        raise Interrupted(f"stopped by {asked}, and a rank was lost; the last checkpoint is whole. {again}")

    # -- where members continue ------------------------------------------------------------------------------------------

    def lock(self, folder: RunFolder) -> TextIO:
        """Lock the run's folder, and return the lock file.

        If the lost rank held the lock, wait until it is released.
        """
        began = time.monotonic()
        while True:
            try:
                return folder.lock()
            except UserError:
                if not self._was_lost or time.monotonic() - began > _LOCK:
                    raise
                time.sleep(0.05)

    def copy_members(self, trainer: Trainer) -> None:
        """Copy this rank's members and the state of the run into the memory of this rank and of the next one.

        Called by all ranks at the same step.
        """
        state, ranks = trainer.state, trainer.ranks
        facts = {**state.facts(trainer.seconds), "saved": state.saved, "bytes": trainer.recorder.ends}
        shared = facts if ranks.is_first else None
        self._buddies.refresh(ranks.member_comm, ranks.placement, state.tensors(), trainer.step, shared)

    def note_return(self, lost: LostMembers, repeated: int) -> None:
        """Note for each unreported loss of ranks that its members have caught up, and how many steps they repeated.

        Called on all ranks. Members that were lost, but are listed for no loss yet, are added to the last one: they
        were on their way to a new rank when it happened.

        Args:
            lost: The lost members, and where their state came from.
            repeated: The number of steps that were trained again.
        """
        last, known = self._losses[-1], {member for loss in self._losses for member in loss["members"]}
        last["members"] = sorted({*last["members"], *(lost.on_all_ranks - known)})
        for loss in self._losses:
            went_back = not lost.on_all_ranks.isdisjoint(loss["members"])
            if went_back or "alone" not in loss:  # otherwise its members caught up before, and did not go back again
                loss |= {"source": lost.source, "repeated": repeated if went_back else 0, "alone": True}

    def start_over(self, trainer: Trainer) -> ArrivalMark:
        """Discard what was stored because ranks were lost: all members are in place, and all losses are reported.

        Returns:
            The mark of the step at which the training starts; see `ArrivalMark`.
        """
        # If a rank is lost in this exchange, the others still have what is discarded below.
        trainer.sync.share_ends(trainer.recorder.ends)
        mark = ArrivalMark.of(trainer, trainer.state.arrived)
        self._clear()
        return mark

    def _clear(self) -> None:
        """Discard the held members, and the facts about lost ranks, which are reported by now."""
        self.solo.clear()
        self._losses = []

    def report(self, trainer: Trainer, source: str) -> None:
        """Report the ranks that were lost since the run was last resumed, as events and messages.

        Args:
            source: The origin of the state of the run: "start", "checkpoint" or "memory".
        """
        if not trainer.ranks.job.detects_loss:  # the launcher ends all ranks at once
            trainer.progress.say(f"should a rank be killed, the job ends; continue with: {self.again()}")
        home = {member: self._started[rank] for rank, own in enumerate(self._homes) for member in own}
        for loss in self._losses:
            back = {"source": source, "repeated": max(0, loss["noticed"] - trainer.step), "alone": False}
            if trainer.state.arrived:  # only the lost members went back
                back = {name: loss[name] for name in back}
            homes = [home[member] for member in loss["members"]]
            trainer.event("lost", **{name: loss[name] for name in ("ranks", "hosts", "members")}, homes=homes, **back)
            hosts = loss["hosts"] or ["?"] * len(loss["ranks"])
            names = " and ".join(f"rank {r} on {host}" for r, host in zip(loss["ranks"], hosts, strict=True))
            moved = f"; {_moved(loss['members'])} elsewhere" if loss["members"] else ""
            then = "the others stay at" if back["alone"] else "all continue from"
            trainer.progress.say(f"lost {names}{moved}; {then} step {trainer.step:,} ({back['source']}).")
        if self._marks is None:  # otherwise `start_over` discards the losses, when all ranks know of the report
            self._clear()
        if self.reached is not None:
            number, repeated = restarts(os.environ), max(0, self.reached - trainer.step)
            trainer.event("restart", launcher="torchrun", number=number, source=source, repeated=repeated)
            trainer.progress.say(
                f"torchrun has started all ranks again (restart {number}); they continue from step {trainer.step:,} ({source}), "
                f"{repeated:,} step{'s' * (repeated != 1)} of before {'is' if repeated == 1 else 'are'} repeated."
            )
            self.reached = None


class MemberCopies(Callback):
    """Copy all members into the memory of the next rank every `every` steps.

    Used if members meet: then all members go back to the copies after the loss of a rank.
    """

    def __init__(self, recovery: Recovery, every: int) -> None:
        self._recovery, self.every = recovery, every

    def on_start(self, trainer: Trainer) -> None:
        self._recovery.copy_members(trainer)

    def on_stop_end(self, trainer: Trainer, step_seconds: float) -> None:
        if is_due(trainer.step, self.every):
            self._recovery.copy_members(trainer)


class ArrivalMarks(Callback):
    """Save an `ArrivalMark` at every stop, and copy members into the memory of the next rank every `every` steps.

    Used if members never meet: then only the members of a lost rank go back to the copies.
    """

    def __init__(self, recovery: Recovery, every: int) -> None:
        self._recovery, self.every = recovery, every
        self._first = 0  # the step at which the training began
        self.mark: ArrivalMark | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._first = trainer.step
        self.mark = self._recovery.start_over(trainer)

    def on_arrival(self, trainer: Trainer) -> None:
        self.mark = ArrivalMark.of(trainer)
        # members that were moved to other ranks need new copies there
        if self.every and (is_due(trainer.step, self.every) or trainer.step == self._first):
            self._recovery.copy_members(trainer)

    def on_repair(self, trainer: Trainer, row: int) -> None:
        if self.mark is not None:
            self.mark.save_row(row, trainer.herd.state)


def _moved(members: Sequence[int]) -> str:
    """Return a phrase for a message: which members continue.

    >>> _moved([3]), _moved([0, 1])
    ('member 3 continues', 'members 0, 1 continue')
    """
    one = len(members) == 1
    return f"member{'' if one else 's'} {', '.join(map(str, members))} continue{'s' * one}"
