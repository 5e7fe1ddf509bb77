"""The source of a run: a recipe to train in a new folder, or a folder whose run is continued from its last checkpoint.

Both supply the same steps to `Session`, which starts and resumes runs on one path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganherd.comm.ranks import run_on_all_ranks
from ganherd.herd import rng
from ganherd.herd.engine.engines import Plan
from ganherd.recipe import recipe_file, trust
from ganherd.recipe.absolute_paths import absolute_source
from ganherd.recipe.plugins.recipe_plugins import plugins_of
from ganherd.recipe.schema import Recipe
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder, next_path, saved_steps
from ganherd.runs.models import RanksRecord
from ganherd.training.budget import Budget, Timing, extend_budget, measure, measure_closing, plan_budget
from ganherd.training.health.look_interval import LookInterval
from ganherd.training.setup import identity, preflight
from ganherd.training.setup.build_strategy import plan_meetings
from ganherd.training.setup.disk import advice_on
from ganherd.training.setup.engine_plan import choose_plan
from ganherd.training.setup.member_data import MemberData
from ganherd.util import files
from ganherd.util.errors import Interrupted, UserError
from ganherd.util.files import JsonObject, atomic_write
from ganherd.util.paths import RUNS
from ganherd.util.user_code import importable_from

if TYPE_CHECKING:
    from ganherd.training.session import Session


class RunSource(ABC):
    """The steps of a session that differ between a new run and a resumed one."""

    path: str | Path | None = None  # the folder of the run; None: the next one below `runs`
    folder: RunFolder | None = None  # the folder of a resumed run; None: a new run
    begins = True  # whether the run starts with its first step; False: it continues from a checkpoint
    part: range | None = None  # the members to train, if other jobs train the rest; None: all
    placed_before: RanksRecord | None = None  # what run.json records about the ranks
    plan: Plan | None = None  # the recorded engine and its settings; None: not chosen yet
    looks: LookInterval | None = None  # the recorded interval of health checks; None: not chosen yet
    wanted: Recipe  # the recipe with the budget of this command, which may differ from that of a resumed run

    @abstractmethod
    def accept(self, session: Session) -> Recipe:
        """Check the request, lock an existing folder and return the recipe; called by all ranks."""

    @abstractmethod
    def choose_plan(self, session: Session) -> Plan:
        """Choose the engine, or return the recorded one."""

    @abstractmethod
    def plan_steps(self, session: Session) -> tuple[Budget, dict[str, int]]:
        """Return the length of the run, and by name the spans of its strategy and schedules in steps."""

    @abstractmethod
    def write(self, session: Session) -> RunFolder:
        """Create the run's folder, or update the existing one, on the first rank, and return it.

        Called by all ranks.
        """

    @property
    def streams(self) -> int:
        """The version of the random streams."""
        return rng.version()

    def accept_data(self, data: MemberData) -> None:  # noqa: B027 - a new run takes any data
        """Raise `UserError` if the run was started with other data."""

    def restore(self, session: Session) -> None:  # noqa: B027 - a new herd has its first weights
        """Put the state of the last checkpoint into the herd, if there is one."""


class NewRun(RunSource):
    """A recipe that is trained in a new folder."""

    def __init__(
        self,
        recipe: Recipe,
        path: str | Path | None,
        name: str,
        counts_all: bool = False,
        part: range | None = None,
        origin: Mapping[str, Any] | None = None,
        planned: int | None = None,
    ) -> None:
        """Describe a new run.

        Args:
            path: The new folder; None: the next one below `runs`, called `name`.
            counts_all: Whether a time budget is for the training alone, without the start and the making of the mixture.
            name: The name of the new folder if `path` is None.
            part: The members to train, if other jobs train the rest; None: all.
            origin: The name of the recipe and the settings that replaced its own, for run.json: `recipe` and `changes`.
            planned: The number of steps to which the run will be extended; fractions of the run count from it. None: its budget.
        """
        self.recipe = self.wanted = recipe
        self.planned = planned
        self.path, self.name, self.counts_all, self.part = path, name, counts_all, part
        self.origin = {"recipe": name} if origin is None else origin

    def accept(self, session: Session) -> Recipe:
        """Check the recipe and the folder of a new run, and return the recipe; called by all ranks."""
        if any(plugins_of(self.recipe)):  # read again: importing plug-ins, to check their settings, is only allowed now
            self.recipe = self.wanted = recipe_file.load(self.recipe, is_own=False)
        preflight.check_request(self.recipe, self.path)
        identity.refuse_objects(self.recipe, session.options.callbacks, session.job.world_size)
        return self.recipe

    def choose_plan(self, session: Session) -> Plan:
        """Measure which engine is fastest, and return its plan."""
        with session.compile_bar() as report:
            return choose_plan(session.herd, session.herd.recipe.engine, session.log, report)

    def plan_steps(self, session: Session) -> tuple[Budget, dict[str, int]]:
        """Return the budget in steps and the spans in steps by name, and log notes about length and disk space."""
        herd = session.herd
        began = None if self.counts_all else session.options.began
        budget = plan_budget(
            herd.recipe.train.budget,
            herd.steps_per_epoch,
            partial(self._measure, session, began),
            session.options.second_phase,
            session.options.before,
        )
        meetings = plan_meetings(herd.recipe, herd.steps_per_epoch, self.planned or budget.steps)
        notes = preflight.check_length(herd.recipe, meetings, budget)
        for note in [*notes, *preflight.check_space(herd, budget.steps, self._new_path())]:
            session.log(f"note: {note}")
        return budget, meetings

    def _measure(self, session: Session, began: float | None) -> Timing:
        """Measure the rate and the overheads of the run for a time budget."""
        with session.compile_bar() as report:
            return measure(session.herd, session.own_plan, began, self.part is None, report)

    def write(self, session: Session) -> RunFolder:
        """Create the run's folder on the first rank, and return it."""
        facts, ranks = identity.facts_of(session), session.ranks
        create = partial(self._create, session, facts) if ranks.is_first else lambda: RunFolder(self._new_path())
        return run_on_all_ranks(ranks.member_comm, create)

    def _create(self, session: Session, facts: dict[str, Any]) -> RunFolder:
        """Create and lock the run's folder with recipe.yaml and run.json, and return it."""
        folder = RunFolder.create(self._new_path())
        session.lock(folder)
        try:
            atomic_write(folder.recipe_path, recipe_file.dump(session.herd.recipe))
            folder.write_info(**facts, **self.origin)
        except OSError as error:
            raise UserError(f"nothing can be written to {folder.path}: {error.strerror}.") from error
        return folder

    def _new_path(self) -> Path:
        """Return the path of the new folder: the given one, or the next free number below `runs`."""
        return Path(self.path) if self.path is not None else next_path(RUNS, self.name)


class RecordedRun(RunSource):
    """A run folder whose run is continued from its last checkpoint, or from its first step if it has none."""

    def __init__(self, path: Path, overrides: Sequence[str] = ()) -> None:
        """Describe a run to resume.

        Args:
            overrides: Settings `key=value` that replace those of the recipe; only some may differ (`refuse_changes`).
        """
        self.path: Path = path
        self.overrides = overrides
        self.folder: RunFolder = RunFolder(path)

    def accept(self, session: Session) -> Recipe:
        """Check that the run can be continued, lock its folder, read what run.json records, and return its recipe."""
        self.folder = RunFolder.open(self.path)
        if session.options.trust_code:
            trust.vouch(self.folder.recipe)
        recipe, wanted = self.folder.recipe, recipe_file.load(self.folder.recipe_path, self.overrides)
        if wanted.data.source != recipe.data.source:  # the data was moved
            moved = wanted.data.model_copy(update={"source": absolute_source(wanted.data.source)})
            wanted = wanted.model_copy(update={"data": moved})
        self.wanted = wanted
        identity.refuse_changes(recipe, self.wanted, self.folder, data_may_move=True)
        self.recipe = recipe.model_copy(update={"run": self.wanted.run, "data": self.wanted.data})
        preflight.check_request(self.recipe)
        identity.refuse_objects(self.recipe, session.options.callbacks, session.job.world_size)
        if session.job.rank == 0:
            session.lock(self.folder)
        self.info = self.folder.info
        identity.check_callbacks(self.info, session.options.callbacks, self.folder)
        with importable_from(self.recipe.code):
            for note in identity.changed_plugins(self.info, self.recipe):
                session.warn(f"note: {note}")
        self.plan, self.budget = identity.recorded(self.info, self.folder)
        self.is_training_only = self.info.budget is not None and self.info.budget.training_only
        self.looks = identity.recorded_looks(self.info, self.folder)
        self.meetings = identity.recorded_meetings(self.info, self.recipe, self.folder)
        self.part, self.placed_before = identity.recorded_part(self.info, self.folder), self.info.ranks
        self.begins = not saved_steps(self.folder.checkpoints)
        if self.begins and self.info.state == "finished":
            raise UserError(
                f"the checkpoints of {self.folder.path} were removed, so it cannot be trained further: sample and score it as it "
                "is, or start a new run."
            )
        return self.recipe

    @property
    def streams(self) -> int:
        """The version of the random streams that run.json records."""
        return identity.recorded_streams(self.info, self.folder)

    def accept_data(self, data: MemberData) -> None:
        """Raise a `UserError` if the data is not that with which the run was started."""
        if self.info.data != data.dataset.digest:
            raise UserError(
                f"the data of {self.folder.path} has changed since it was started (its sha256 differs): it cannot be resumed "
                "exactly."
            )

    def choose_plan(self, session: Session) -> Plan:
        """Return the recorded plan, or a new one for the recorded engine if members are on other ranks now."""
        assert self.plan is not None
        before, now = self.placed_before, identity.placed(session.herd.ranks) or {}
        # if members are placed on other ranks now, the recorded size of chunks may not suit them
        if (before.members if before else None) != now.get("members"):
            engine = session.herd.recipe.engine.model_copy(update={"name": self.plan.name})
            return choose_plan(session.herd, engine, session.log)
        return self.plan

    def restore(self, session: Session) -> None:
        """Load the newest checkpoint, or copies from memory, into the herd; without any, the run starts at step 0."""
        herd, ranks = session.herd, session.herd.ranks
        if session.resumed is not None:  # from copies in memory, after the loss of a rank
            session.state_from = "memory"
        elif not self.begins:
            session.state_from = "checkpoint"
            records = {"metrics": self.folder.metrics_path, "events": self.folder.events_path}
            session.resumed, damaged = checkpoint.newest_of_all(self.folder.checkpoints, herd.herd.nets, ranks, records)
            for sentence in damaged:
                session.warn(f"{sentence}; the checkpoint before it is used.")
        if not self.begins:
            assert session.resumed is not None
            run_on_all_ranks(ranks.member_comm, partial(identity.take_up, herd, session.resumed))
        else:
            run_on_all_ranks(ranks.member_comm, lambda: self._check_origins(ranks.all_gather_list(herd.origins)))
            session.log(f"{self.folder.path} has no checkpoint: it starts again from its first step.")

    def _check_origins(self, origins: list[JsonObject]) -> None:
        """Raise a `UserError` if the runs that members start from have changed since this run was started."""
        if [origin.as_json() for origin in self.info.origins or []] != origins:
            raise UserError(f"the runs that {self.folder.path} starts from have changed: it cannot be resumed exactly.")

    def plan_steps(self, session: Session) -> tuple[Budget, dict[str, int]]:
        """Return the recorded budget, or the new one that the user gave, and the recorded spans in steps by name."""
        herd, resumed, budget = session.herd, session.resumed, self.budget
        if self.wanted != self.recipe:
            budget = run_on_all_ranks(
                herd.ranks.member_comm,
                partial(extend_budget, herd, session.own_plan, self.wanted, resumed, session.options.began),
            )
        elif resumed and budget.deadline is not None and resumed.meta.over == budget.deadline:
            budget.end_at(resumed.step)
        elif budget.deadline is not None and not self.is_training_only:
            budget.closing = measure_closing(herd, self.part is None)
        if resumed is None or resumed.step < budget.steps:
            for note in preflight.check_space(herd, budget.steps, self.folder.path):
                session.log(f"note: {note}")
        return budget, self.meetings

    def write(self, session: Session) -> RunFolder:
        """Update the run's folder on the first rank, and return it."""
        ranks = session.herd.ranks
        try:
            ranks.run_io(lambda: self._update(session) if ranks.is_first else None)
        except OSError as error:
            why = f"{error.strerror} while writing to {self.folder.path}. {advice_on(error)}"
            ranks.finish(Interrupted(f"{why}Nothing is lost; resume it with: {session.resume_command}"))
        return self.folder

    def _update(self, session: Session) -> None:
        """Remove leftovers of a killed process, and update run.json and recipe.yaml."""
        now = identity.placed(session.herd.ranks)
        checkpoint.sweep(self.folder.checkpoints)
        files.sweep(self.folder.path)
        facts: JsonObject = {"ranks": now, "engine": vars(session.plan)} if now or self.info.ranks else {}
        before, changes = self.folder.recipe, self.info.changes
        for key, old, new in (
            ("train.budget", before.train.budget, self.wanted.train.budget),
            ("data.source", before.data.source, self.wanted.data.source),
        ):
            if old != new and changes is not None:
                changes = [one for one in changes if not one.startswith(f"{key}=")] + [f"{key}={new}"]
                facts["changes"] = changes
        self.folder.write_info(
            state="running", reason="", budget=session.budget.record(), watch=vars(session.looks), **facts
        )
        if self.wanted != self.folder.recipe:  # after run.json, so that its budget is valid if the process dies here
            atomic_write(self.folder.recipe_path, recipe_file.dump(self.wanted))
