"""Carry out one run: from its recipe, or its last checkpoint, to its finished mixture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ganherd.comm.backends.local import Local
from ganherd.comm.communicator import Communicator, RankLost
from ganherd.comm.ranks import run_on_all_ranks, run_on_first_rank
from ganherd.herd import rng
from ganherd.herd.engine.device import set_precision
from ganherd.herd.engine.engine_trials import compiling_meanwhile
from ganherd.herd.engine.engines import CompileReport, has_kernels
from ganherd.recipe import trust
from ganherd.recipe.schema import Recipe, parse_budget
from ganherd.runs.checkpoint import Checkpoint
from ganherd.runs.folder import RunFolder, next_path
from ganherd.training.budget import SecondPhase
from ganherd.training.callbacks import Callback
from ganherd.training.closing_time import estimate_closing
from ganherd.training.endings import reported_end
from ganherd.training.finish import Finisher, TimeReport, TrainedRun, check_finishers, finish_part, finish_run
from ganherd.training.health import look_interval
from ganherd.training.loop import Trainer
from ganherd.training.ranks import spares
from ganherd.training.ranks.recovery import Recovery
from ganherd.training.recording.progress import Progress
from ganherd.training.recording.series_progress import SeriesProgress
from ganherd.training.recording.tile_record import TileRecord
from ganherd.training.recording.trackers import trackers_of
from ganherd.training.setup import preflight, start_times
from ganherd.training.setup.assemble import PreparedHerd
from ganherd.training.setup.build_strategy import make_strategy
from ganherd.training.setup.engine_plan import apply_plan
from ganherd.training.setup.identity import refuse_changes, versions
from ganherd.training.setup.member_settings import schedules_of
from ganherd.training.setup.rank_herd import build_herd
from ganherd.training.setup.run_source import NewRun, RecordedRun, RunSource
from ganherd.training.stop_request import StopRequest
from ganherd.training.user_callbacks import UserCallback, check_callbacks
from ganherd.training.variants import phases
from ganherd.util import text as printed
from ganherd.util.errors import Interrupted, counted
from ganherd.util.host import give_back
from ganherd.util.memory import refused_if_too_large
from ganherd.util.meter import Detail, ProgressBar
from ganherd.util.paths import RUNS
from ganherd.util.terminal.standard_streams import safe_streams
from ganherd.util.text import duration
from ganherd.util.user_code import importable_from


@dataclass(frozen=True)
class SessionOptions:
    """Options of a session that do not change the result of its run."""

    quiet: bool = False
    trust_code: bool = False
    finishers: tuple[Finisher, ...] = ()
    callbacks: tuple[Callback, ...] = ()  # callbacks of the user
    began: float = field(default_factory=time.monotonic)  # when the command was started: a time budget counts from then
    before: float = 0.0  # in a second phase: seconds of the command's time budget that belong to the first one
    second_phase: SecondPhase | None = None  # in a first phase with a time budget: estimates for the second one
    stopping: tuple[int, ...] = ()  # replicas that are not trained any more from here on
    series: SeriesProgress | None = None  # shows the progress, if the run is one of several

    @property
    def log(self) -> Callable[[str], None]:
        """The function that prints lines for the user."""
        if self.series is not None:
            return self.series.say
        return (lambda text: None) if self.quiet else printed.say

    @property
    def warn(self) -> Callable[[str], None]:
        """The function that prints warnings for the user; `quiet` does not mute them."""
        return printed.say if self.series is None else self.series.warn


class Session:
    """Prepare, train and finish one run in this process, or as one rank of a job.

    New and resumed runs take the same path; `source` supplies what differs. On several ranks, `recovery` continues the
    run after the loss of a rank.
    """

    herd: PreparedHerd
    folder: RunFolder
    trainer: Trainer | None = None
    resumed: Checkpoint | None = None  # the state that the run continues from
    state_from = "start"  # where `resumed` comes from: "start" (None), "checkpoint", or "memory" after a rank was lost

    def __init__(self, source: RunSource, options: SessionOptions, recovery: Recovery | None = None) -> None:
        self.source, self.options, self.recovery = source, options, recovery
        self.job: Communicator = recovery.job if recovery else Local()
        self.log: Callable[[str], None] = (lambda text: None) if self.job.rank > 0 else options.log
        self.warn: Callable[[str], None] = (lambda text: None) if self.job.rank > 0 else options.warn
        self.stop = StopRequest()
        self._created = time.monotonic()
        self._held = ExitStack()  # locks and settings that last until the session ends
        self._training = ExitStack()  # signal handlers and threads that last until the mixture is made

    def run(self) -> TrainedRun:
        """Prepare, train and finish the run, and return it.

        A spare (a rank without members) waits until the others have ended.
        """
        with self._held:
            if self.options.series is not None:
                self._held.enter_context(self.options.series.training(self.source.path))
            if not self.prepare():
                assert self.recovery is not None
                return self.recovery.stand_by(self.ranks)
            self.open()
            with ExitStack() as closing:
                with reported_end(self), self._training:
                    self.train(closing)
                    done = self.finish()
                self._notify_finished(done)  # the run stays finished if a callback fails now
                return done

    def prepare(self) -> bool:
        """Check the request, load the data, build the herd, and plan its engine, its health checks and its length.

        Returns:
            False for a spare: a rank that has no members.
        """
        source = self.source
        recipe = run_on_all_ranks(self.job, lambda: source.accept(self))
        self._held.enter_context(importable_from(recipe.code))
        self._held.enter_context(rng.using(run_on_all_ranks(self.job, lambda: source.streams)))
        self.ranks, herd = build_herd(recipe, source, self.job, self.options.trust_code)
        if self.recovery:
            self.resumed = self.recovery.placed(self.ranks, source)
        if herd is None:
            return False
        self.herd = herd
        preflight.check_nets(herd, self.log, source.plan)
        self.plan = source.choose_plan(self)
        self.own_plan = apply_plan(herd, self.plan)
        self.looks = run_on_all_ranks(herd.ranks.member_comm, lambda: source.looks or look_interval.planned(herd))
        if self.recovery:
            self.recovery.bring_back(self)
        source.restore(self)
        self.budget, self.meetings = source.plan_steps(self)
        herd.herd.rules = replace(herd.herd.rules, schedules=schedules_of(herd.recipe, self.meetings))
        self._planned_at = time.monotonic()
        return True

    def open(self) -> None:
        """Create the run's folder, or update the one that exists, so that all ranks see it."""
        self.folder = self.source.write(self)
        if self.recovery:
            self.folder = self.recovery.share(self.ranks, self.folder)

    def train(self, closing: ExitStack) -> None:
        """Train to the last step.

        What this opens (progress display, callbacks, record files) is closed by `closing`.
        """
        herd, ranks, folder = self.herd, self.ranks, self.folder
        names = [herd.name_of(member) for member in range(herd.size)]
        torus = herd.recipe.torus
        board = None if torus is None else (*torus, herd.recipe.strategy.settings.group_size)
        series = self.options.series
        quiet = self.options.quiet or not ranks.is_first
        self.progress = Progress(names, quiet, board) if series is None else series.progress_of(names)
        closing.callback(self.progress.close)
        users = [UserCallback(each, self.log) for each in (*trackers_of(herd.recipe), *self.options.callbacks)]
        for callback in users:
            closing.callback(callback.close)
        tile_record = [TileRecord(folder)] if has_kernels(herd.herd) else []
        trainer = self.trainer = Trainer(
            herd,
            self.own_plan,
            folder,
            self.budget,
            self.progress,
            self.resumed,
            looks=self.looks,
            strategy=make_strategy(herd, self.meetings),
            callbacks=[*tile_record, *users],
            began=self._planned_at,
        )
        closing.callback(trainer.close)
        trainer.stop_replicas(self.options.stopping)
        if self.recovery:
            self.recovery.attach(self, closing)
        self.progress.say(Detail(self._headline(trainer.step)))
        if self.recovery:
            self.recovery.report(trainer, self.state_from)
        with self.compile_bar() as report:
            trainer.engine.prepare(report)
        trainer.event("resume" if self.resumed else "start", engine=vars(self.own_plan), versions=versions())
        self.progress.start(self.budget.steps, self.budget.limit)
        self.stop.name = self.recovery.signals.name if self.recovery else ""
        self._training.enter_context(self.stop)
        if self.recovery:
            self._training.enter_context(spares.listening(self.ranks, folder.path, self.stop))
        if ranks.is_first and not self.resumed:
            # the start of a run is timed from the start of the command, that of a second phase from its session
            start_times.record_start(
                herd.recipe, time.monotonic() - (self._created if self.options.before else self.options.began)
            )
        trainer.train(self.stop)

    def finish(self) -> TrainedRun:
        """Make the mixture and let the finishers work on it."""
        trainer = self.trainer
        assert trainer is not None
        self.progress.close()
        give_back()  # memory that training has freed but still caches: sampling and scores need blocks of other sizes
        is_part = self.folder.info.part is not None
        since_start = " in all" if self.resumed else ""
        self.progress.say(
            Detail(f"trained in {duration(trainer.seconds)}{since_start}{'.' if is_part else '; making the mixture…'}")
        )
        self.stop.at_once()
        whole = self.options.before + parse_budget(self.source.wanted.train.budget)[1]
        finishers = self.options.finishers
        if not self.options.second_phase:  # the last phase reports the time of the whole command
            finishers = (TimeReport(trainer, whole), *finishers)
        done = finish_part(trainer) if is_part else finish_run(trainer, finishers)
        if self.recovery:
            self.recovery.done = done if self.ranks.is_first else None
        self.ranks.finish()
        return done

    def _notify_finished(self, done: TrainedRun) -> None:
        """Call `on_finish` of all callbacks on the first rank."""
        if self.trainer is not None and self.ranks.is_first:
            self.trainer.notify("on_finish", done)

    @contextmanager
    def compile_bar(self) -> Iterator[CompileReport]:
        """Show a progress bar while kernels are compiled, if any are.

        Yields:
            A function to call with the number of compiled kernels and the number of all kernels.
        """
        with ExitStack() as closing:
            bars: list[ProgressBar] = []

            def report(done: int, total: int) -> None:
                if self.options.series is not None:
                    self.log(Detail(f"kernels compiled: {done:,} of {total:,}"))
                    return
                if not bars:
                    about = "kernels compiled, once for these nets and this GPU"
                    bars.append(
                        closing.enter_context(ProgressBar(about, self.options.quiet or not self.ranks.is_first))
                    )
                bars[0].at(done, total)

            yield report

    def lock(self, folder: RunFolder) -> None:
        """Lock the run's folder until the session ends."""
        self._held.enter_context(self.recovery.lock(folder) if self.recovery else folder.lock())

    @property
    def resume_command(self) -> str:
        """The command that continues the run, on as many ranks as the job has now."""
        if self.recovery and self.recovery.path:
            return self.recovery.again()
        return (self.source.folder or self.folder).again

    def _headline(self, step: int) -> str:
        """Return the line that announces the training: run folder, members, ranks, length and engine."""
        steps, limit, ranks = self.budget.steps, self.budget.limit, self.ranks
        if step >= steps and limit is None:
            return f"{self.folder.path} has made all of its {steps:,} steps; give it a larger --budget to continue."
        over = "" if ranks.is_single_process else f" on {counted(len(ranks.placement.ranks), 'ranks')}"
        plan = self.own_plan.describe(self.herd.herd.num_members)
        length = f"step {step:,} to {steps:,}" if limit is None else f"{duration(limit)} of training"
        return f"{self.folder.path}: {counted(self.herd.size, 'members')}{over}, {length}, {plan}"


@safe_streams("stderr", "stdout")
@refused_if_too_large()
def train(
    recipe: Recipe,
    path: str | Path | None = None,
    name: str = "run",
    quiet: bool = False,
    trust_code: bool = True,
    *,
    counts_all: bool = False,
    job: Communicator | None = None,
    part: range | None = None,
    finishers: Sequence[Finisher] = (),
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    origin: Mapping[str, Any] | None = None,
    planned: int | None = None,
    series: SeriesProgress | None = None,
) -> TrainedRun:
    """Train a recipe in a new run folder. The recipe is the caller's own, so the code that it names is trusted.

    Args:
        path: The new folder; None: the next one below `runs`, called `name`.
        name: The name of the new folder if `path` is None.
        counts_all: Whether a time budget is for the training alone, without the start and the making of the mixture.
        job: The ranks of the job, which all call this; None: run in this process only.
        part: The members to train, if other jobs train the rest of the herd (`variants/job_parts.py`). The run then
            makes no mixture. None: all members.
        finishers: Work on the mixture, for example score it.
        callbacks: The user's callbacks, which are called after ganherd's own; for one process.
        began: When the command was started, on the clock of `time.monotonic`: a time budget counts from then. Default: now.
        origin: The name of the recipe and the settings that replaced its own, for run.json: `recipe` and `changes`.
        planned: The number of steps to which the run will be extended; fractions of the run count from it. None: its budget.
        series: Shows the progress, if this is one of several runs.
    """
    options = replace(_options(quiet, trust_code, finishers, callbacks, began), series=series)
    source = NewRun(recipe, path, name, counts_all, part, origin, planned)
    if phases.pending(recipe) is None:
        return _started(source, options, job)
    if part is not None:
        phases.refuse(recipe)
    return _train_two_phases(source, options, job)


@safe_streams("stderr", "stdout")
def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    trust_code: bool = False,
    job: Communicator | None = None,
    *,
    finishers: Sequence[Finisher] = (),
    callbacks: Sequence[Callback] = (),
    began: float | None = None,
    stopping: Sequence[int] = (),
    series: SeriesProgress | None = None,
) -> TrainedRun:
    """Continue a run exactly from its last checkpoint.

    Args:
        overrides: Settings of the recipe to change; only train.budget, run.scores and run.metrics may differ.
        job: The ranks of the job, which all call this; there may be more or fewer than before. None: run in this
            process only.
        finishers: Work on the mixture, for example score it.
        callbacks: The user's callbacks, which are called after ganherd's own; for one process.
        began: When the command was started, on the clock of `time.monotonic`; a new time budget counts from then. Default: now.
        stopping: Replicas that are not trained any more from here on: the worst trials of a sweep.
        series: Shows the progress, if this is one of several runs.
    """
    options = _options(quiet, trust_code, finishers, callbacks, began)
    options = replace(options, stopping=tuple(stopping), series=series)
    return _continued(Path(path), overrides, options, job)


def _started(source: NewRun, options: SessionOptions, job: Communicator | None) -> TrainedRun:
    """Train a new run in this process, or as one of the ranks of a job."""
    if job is None:
        return Session(source, options).run()
    recovery = Recovery(job.latest)
    return recovery.through(
        lambda: Session(source, options, recovery).run(),
        lambda where: _resumed(RecordedRun(where), options, recovery),
        source.path,
    )


def _continued(path: Path, overrides: Sequence[str], options: SessionOptions, job: Communicator | None) -> TrainedRun:
    """Continue a run in this process, or as one of the ranks of a job."""
    if job is None:
        return _resumed(RecordedRun(path, overrides), options)
    recovery = Recovery(job.latest)
    recovery.path = path

    def again(where: Path) -> TrainedRun:
        return _resumed(RecordedRun(where, overrides), options, recovery)

    return recovery.through(lambda: again(path), again)


def _options(
    quiet: bool, trust_code: bool, finishers: Sequence[Finisher], callbacks: Sequence[Callback], began: float | None
) -> SessionOptions:
    """Check the callbacks and the finishers, and return the options of a session."""
    check_callbacks(callbacks)
    check_finishers(finishers)
    now = time.monotonic() if began is None else began
    return SessionOptions(quiet, trust_code, tuple(finishers), tuple(callbacks), now)


@refused_if_too_large(is_resumed=True)
def _resumed(source: RecordedRun, options: SessionOptions, recovery: Recovery | None = None) -> TrainedRun:
    """Run a session that continues a recorded run."""
    return Session(source, options, recovery).run()


def _times_of_second_phase(herd: PreparedHerd | None, began: float) -> dict[str, Any]:
    """Return the fields of `SecondPhase` except `share`: estimated seconds before and after its training.

    Args:
        herd: The herd of the second phase.
        began: When the command was started, on the clock of `time.monotonic`.
    """
    assert herd is not None
    starts = start_times.recorded_starts(herd.recipe)
    return {
        "closing": estimate_closing(herd).seconds,
        "start": starts[-1] if starts else None,
        "imports": time.monotonic() - began,
    }


def _train_two_phases(whole: NewRun, options: SessionOptions, job: Communicator | None) -> TrainedRun:
    """Train the first phase of a recipe in a folder next to the run's, then the run, which starts from its members.

    Both phases share the budget. If the call is interrupted, the same call continues where it stopped. All ranks of a
    job call this, and train both phases together.
    """
    recipe, name, counts_all = whole.recipe, whole.name, whole.counts_all
    assert recipe.herd.first is not None
    comm = Local() if job is None else job.latest
    where = Path(run_on_first_rank(comm, lambda: str(whole.path or next_path(RUNS, name))))
    log = options.log if comm.rank == 0 else (lambda text: None)
    folder = RunFolder(where).first
    first, then = run_on_all_ranks(comm, lambda: (phases.before(recipe), phases.after(recipe, folder.path)))

    def foresee() -> PreparedHerd:
        preflight.check_request(then, where)  # mistakes in the second phase are reported before the first one
        return phases.foreseen(phases.after(recipe), first)

    herd = run_on_all_ranks(comm, lambda: foresee() if comm.rank == 0 else None)
    is_begun = run_on_first_rank(comm, folder.info_path.is_file)
    log(Detail(f"first phase: {first.train.budget}, in {folder.path}"))
    unit, amount = parse_budget(first.train.budget)
    second = options
    try:
        if not is_begun:
            if unit == "seconds" and not counts_all:
                second = replace(options, began=options.began + amount, before=amount)
                times = run_on_first_rank(comm, lambda: _times_of_second_phase(herd, options.began))
                options = replace(options, second_phase=SecondPhase(recipe.herd.first.share, **times))
            origin = {"recipe": Path(recipe.herd.first.recipe).stem}
            set_precision(then)  # kernels are compiled for one precision
            # Compile the second phase's kernels meanwhile. They depend on the number of members in this process, which
            # `herd` has right only if there is one process.
            with compiling_meanwhile(herd.herd) if herd and comm.world_size == 1 else nullcontext():
                herd = None  # free its memory for the first phase
                _started(NewRun(first, folder.path, name, counts_all, origin=origin), options, job)
        else:
            refuse_changes(folder.recipe, first, folder)
            if folder.info.state != "finished" or folder.recipe.train.budget != first.train.budget:
                with trust.vouched(first):
                    _continued(folder.path, [f"train.budget={first.train.budget}"], options, job)
                second = replace(options, began=time.monotonic())
    except Interrupted as error:
        why = f"{error.__cause__}. " if isinstance(error.__cause__, RankLost) else ""
        raise Interrupted(
            f"{why}Stopped in the first phase, and nothing is lost: the same command with --run {where} continues it."
        ) from None
    log(Detail(f"second phase: {then.train.budget}, in {where}"))
    return _started(NewRun(then, where, name, counts_all, origin=whole.origin), second, job)
