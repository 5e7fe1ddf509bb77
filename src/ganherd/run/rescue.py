"""A run that outlives its ranks: who is left takes the lost members up, from copies in memory or the newest checkpoint.

When a rank is lost, all others leave what they were doing, wherever that was, and come to `Rescue.through`. There they find
each other again and resume the run, as a new job of fewer ranks would: members are placed anew over all that are left, spares
among them, and all go back to one step. So a rescue is a resume, with copies in memory beside the checkpoints on the disk.
Members that never meet go back together too: it costs them the steps of one interval, and keeps the records whole.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ganherd.comm import heartbeat
from ganherd.comm.again import with_launcher
from ganherd.comm.base import Communicator, RankLost
from ganherd.comm.buddies import Buddies
from ganherd.errors import Interrupted, UserError
from ganherd.run import checkpoint, snapshot
from ganherd.run.folder import RunFolder
from ganherd.run.ranks import Ranks

if TYPE_CHECKING:
    from ganherd.run.conclude import Run
    from ganherd.run.loop import Trainer

_LOCK = 60.0  # seconds that the system, or a file server, may take to let go of a dead process's lock


class Rescue:
    """What a rank knows across losses: who is left, where the run lies, and copies of members in memory."""

    def __init__(self, job: Communicator) -> None:
        self.job = job  # of those that are left by now
        self.path: Path | None = None  # of the run, once it is founded
        self.named = ""  # the same, as the first rank was told it
        self.reached: int | None = None  # the step that ranks had come to before torchrun started them again
        self.done: Run | None = None  # what the first rank has made, when all is made
        self.asked = ""  # the signal that this rank was asked to stop by
        self.step = 0  # that this rank had come to when it heard of the last loss
        self._started = tuple(range(job.size))  # of each rank, the number that it was started with
        self._homes: tuple[tuple[int, ...], ...] = ()  # the members of each rank, spares included
        self._losses: list[dict[str, Any]] = []  # that no event tells of yet
        self._was_lost = False  # whether anyone ever was
        self._buddies = Buddies()

    def through(self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: str | Path | None = None) -> Run:
        """`begin`, and after every loss `resume`, until the run ends on all ranks that are left. `path`: where a new run will
        lie; none: where `begin` says."""
        work = begin
        while True:
            try:
                done = work()
                if self.job.goes_on:  # who has nothing left to do stays until the first rank has not either
                    self.job.agreed()
                return done
            except RankLost as error:
                if not self.job.goes_on:
                    raise self.ended(error) from error
            while True:
                with suppress(RankLost):  # another one, meanwhile
                    work = self._regrouped(begin, resume, None if path is None else Path(path))
                    break

    def again(self) -> str:
        """The command that goes on with the run on ranks as there are now; the same on all of them."""
        if not (name := self.named or self.path):
            return "the same command"
        return with_launcher(RunFolder(name).again, self.job.name, self.job.size)

    def found(self, told: bytes) -> Path:
        """Where the run lies, as `announced` by the first rank."""
        path, self.named = json.loads(told)
        self.path = Path(path)
        return self.path

    def ended(self, error: RankLost, more: str = "") -> Interrupted | SystemExit:
        """How this rank ends where the job cannot go on without a lost one: one of those that are left says it."""
        with suppress(ValueError):  # torchrun asks who is left to end: not before this is said
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self.job.is_teller():
            return SystemExit(75)
        if self.named:  # it is this job's
            with suppress(OSError, UserError):
                folder, state = RunFolder(str(self.path)), "restarting" if self.job.restarts_left else "interrupted"
                if folder.info.get("state") == "running":  # and not finished but for its report
                    folder.write_info(state=state)
        return Interrupted(f"{error}{more}. {self.job.after_loss(self.again())}")

    def _regrouped(
        self, begin: Callable[[], Run], resume: Callable[[Path], Run], path: Path | None
    ) -> Callable[[], Run]:
        """What those that are left do next; called by all of them."""
        left = self.job.survivors()
        homeless = [member for rank in left.lost if self._homes for member in self._homes[rank]]
        hosts = [self.job.hosts[rank] for rank in left.lost] if self.job.hosts else []
        ranks = [self._started[rank] for rank in left.lost]
        self._losses.append({"ranks": ranks, "hosts": hosts, "members": sorted(homeless), "noticed": self.step})
        self._started = tuple(self._started[rank] for rank in left.before)
        is_over = self.job.rank == 0 and self.done is not None
        self.job.successor = left.comm
        self.job, self._was_lost = left.comm, True
        self._homes = tuple(self._homes[rank] for rank in left.before) if self._homes else ()
        told = self.job.collect(json.dumps([is_over, self.asked, str(self.path or ""), self.step]).encode())
        over, asked, paths, steps = zip(*map(json.loads, told), strict=True)
        self._losses[-1]["noticed"] = max(steps)
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
        self._homes = ranks.homes

    def remembered(self, ranks: Ranks, folder: RunFolder) -> checkpoint.Checkpoint | None:
        """This rank's members as they were in memory, after a loss; None where the newest checkpoint is newer, or is needed
        since the copies of some died with both who had them. Called by all ranks, spares too."""
        if not self._was_lost:
            return None
        found = self._buddies.find(self.job, range(ranks.size))
        if found.step is None or found.missing:
            return None
        facts = found.facts[0]
        fits = self.job.rank == 0 and _is_newest(found.step, facts, folder)
        if not self.job.broadcast(b"memory" if fits else b"" if self.job.rank == 0 else None):
            return None
        rows = found.fetch(self.job, ranks.homes)
        return checkpoint.Checkpoint(checkpoint.path_of(folder.checkpoints, found.step), found.step, rows, facts)

    def keep(self, trainer: Trainer) -> None:
        """Copies of all members and of what all know, each rank's in its own memory and the next one's."""
        facts = {**snapshot.facts(trainer), "saved": trainer.saved}
        facts["bytes"] = {name: lines.end for name, lines in trainer.lines.items()}
        ranks, told = trainer.ranks, facts if trainer.ranks.is_first else None
        self._buddies.refresh(ranks.everyone, ranks.placement, snapshot.state(trainer), trainer.step, told)

    def tell(self, trainer: Trainer, source: str) -> None:
        """The losses since the run went on last, as events and in words; `source`: where the members' state is from."""
        home = {member: self._started[rank] for rank, own in enumerate(self._homes) for member in own}
        for loss in self._losses:
            members, repeated = loss["members"], max(0, loss.pop("noticed") - trainer.step)
            homes = [home[member] for member in members]
            trainer.event("lost", **loss, homes=homes, source=source, repeated=repeated)
            hosts = loss["hosts"] or ["?"] * len(loss["ranks"])
            names = " and ".join(f"rank {r} on {host}" for r, host in zip(loss["ranks"], hosts, strict=True))
            moved = f"; {_moved(members)} elsewhere" if members else ""
            trainer.progress.say(f"lost {names}{moved}; all go on from step {trainer.step:,} ({source}).")
        self._losses = []
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
    paths = {"metrics": folder.metrics_path, "events": folder.events_path}
    whole = all(path.is_file() and path.stat().st_size >= facts["bytes"][name] for name, path in paths.items())
    return whole and max(checkpoint.steps(folder.checkpoints), default=0) <= step


def _nothing_left(path: Path | None) -> Run:
    from ganherd.run.conclude import Run

    return Run(path or Path(), {})


# -- torchrun, which starts all ranks again --------------------------------------------------------------------------


def launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """What torchrun's restarts have in common: the name of its job, or else its process; None: it is not torchrun's.

    >>> launcher({"TORCHELASTIC_RUN_ID": "7c0f"}), launcher({})
    ('torchrun 7c0f', None)
    """
    name = environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return None
    return f"torchrun {name if name not in ('', 'none') else f'{os.getppid()} on {platform.node()}'}"


def restarts(environ: Mapping[str, str]) -> int:
    """How often torchrun has started this process's group again."""
    return int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def reached(folder: RunFolder) -> int | None:
    """The step to which ranks had come that torchrun has started again, by their last signs of life; else none.

    Asked by the first rank, before any rank of now gives one.
    """
    if not restarts(os.environ):
        return None
    with suppress(UserError):
        return max([0, *(beat.step for beat in heartbeat.read(folder.path / "ranks"))])
    return 0


def begun(run: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The run that an earlier attempt of this torchrun began, and that is to be gone on with; asked by the first rank."""
    if not restarts(environ):
        return None
    if run is not None:
        return run if (run / "run.json").is_file() else None
    for path in sorted(Path("runs").glob("*/run.json"), reverse=True):
        with suppress(UserError):
            info = RunFolder(path.parent).info
            if info.get("launcher") == launcher(environ) and info.get("state") != "finished":
                return path.parent
    return None
