"""Carry out a `ganherd train` command: in this process, as a rank (process) of a job, or as one of several jobs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ganherd.cli.options import print_json, print_result, refuse, show_verdict
from ganherd.util.errors import UserError
from ganherd.util.host import wake_gpu
from ganherd.util.paths import from_here
from ganherd.util.process_clock import process_began
from ganherd.util.terminal.screen import show_screen
from ganherd.util.text import say, show

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator
    from ganherd.recipe.schema import Recipe
    from ganherd.training.finish import TrainedRun


@dataclass
class TrainCommand:
    """The arguments of a `ganherd train` command, and methods that carry it out."""

    recipe: str | None  # name or file; at first it may be the user's own data
    run: Path | None  # folder of the new run
    resume: Path | None  # the run to resume
    overrides: list[str]  # settings as key=value
    trust_code: bool
    as_json: bool
    verbose: bool
    quiet: bool
    name: str | None = None  # name of the new run; None: that of the recipe
    recipe_name: str | None = None  # name of the recipe in run.json; None: that of its file
    grown_from: Path | None = None  # --grow: the finished run whose classes are kept
    chosen: str = ""  # a message: which recipe and settings were chosen for the user's own data

    def take_own_data(self, recipe_name: str | None, grows: bool) -> None:
        """If the argument is the user's own data, choose a recipe and settings for it.

        Args:
            recipe_name: The value of --recipe.
            grows: Whether --grow is given; then the recipe of that run is used, if --recipe names none.
        """
        from ganherd.cli.own_data import is_own_data, refuse_misspelt
        from ganherd.recipe.sources.data_address import short_name

        source = self.recipe
        if source:
            refuse_misspelt(source)
        if source is None or not is_own_data(source):
            refuse(
                (
                    source and recipe_name,
                    f"{source} is not a folder or file of data, and --recipe names another recipe: leave one of them out.",
                )
            )
            self.recipe = recipe_name if source is None else source
            return
        refuse((self.resume, f"--resume uses the data of the run: leave {source} out."))
        if grows and recipe_name is None:
            self.name, self.recipe = short_name(source), None
            self.overrides = [f"data.source={source}", *self.overrides]
            return
        from ganherd import recommend

        choice = recommend.choose_for(source, recipe_name, self.overrides)
        self.name, self.recipe, self.overrides = short_name(source), choice.recipe, list(choice.sets)
        self.chosen = choice.text()

    def show_choice(self) -> None:
        """Print which recipe was chosen for the user's own data, unless --quiet is given."""
        if self.chosen and not self.quiet:
            say(self.chosen)

    def load(self) -> Recipe:
        """Return the recipe with its overrides: that of a new run, after a check of its code, or of the run to resume.

        Raises:
            UserError: The recipe has a mistake, names code that is not trusted, or is not that of the run to resume.
        """
        from ganherd.recipe import recipe_file, trust
        from ganherd.runs.folder import RunFolder

        if self.resume is None:
            source = recipe_file.DEFAULT if self.recipe is None else self.recipe
            loaded = recipe_file.load(source, self.overrides)
            trust.check_recipe(loaded, source, self.trust_code)
            return loaded
        folder = RunFolder.open(self.resume)
        if self.recipe is not None:  # a recipe that is given with --resume must be that of the run
            from ganherd.training.setup.identity import refuse_changes

            refuse_changes(folder.recipe, recipe_file.load(self.recipe, self.overrides), folder, data_may_move=True)
        return recipe_file.load(folder.recipe_path, self._overrides_of_resume())

    def _overrides_of_resume(self) -> list[str]:
        """Return the overrides that a resumed run gets.

        If a recipe is given, too, these are the few that may differ. The others are already in the run: `load` compares them.
        """
        from ganherd.recipe import recipe_file

        if self.recipe is None:
            return self.overrides
        free = ["run.scores", "run.metrics", "data.source"]
        if recipe_file.load(self.recipe, self.overrides).herd.first is None:
            free.append("train.budget")  # otherwise the second phase, which is resumed, has a part of the budget
        return [override for override in self.overrides if override.partition("=")[0] in free]

    def grow(self, finished: Path) -> None:
        """Apply --grow: train new classes in addition to those of a finished run.

        The recipe is that of the finished run, unless another one is given.
        """
        from ganherd.recipe.sources.option_override import OptionOverride
        from ganherd.runs.folder import RunFolder

        self.grown_from = finished
        self.overrides.append(OptionOverride.of("herd.grow_from", finished, f"--grow {finished}"))
        if self.recipe is None:
            folder = RunFolder.open(finished)
            self.recipe, self.recipe_name = str(folder.recipe_path), folder.info.recipe
            self.name = self.name or f"{finished.name.lstrip('0123456789-') or finished.name}-grown"

    def look(self, explain: bool) -> None:
        """Carry out --explain if `explain` is set, otherwise --dry-run: print what would be trained."""
        self.show_choice()
        loaded = self.load()
        if explain:
            from ganherd.herd.engine import explain as explaining
            from ganherd.training.setup import net_guard
            from ganherd.training.setup.assemble import assemble

            assembly = assemble(loaded, trust_code=True)
            reports = [net_guard.facts(report) for _, report in net_guard.checked(assembly)]
            facts = explaining.explain(assembly.herd, reports)
            print_result(self.as_json, facts, explaining.render_text(facts))
            return
        from ganherd.training.setup import dry_run as dry

        if self.as_json:
            print_json(dry.describe(loaded, began=process_began()))
            return
        shown: list[str] = []

        def show_known(facts: Mapping[str, Any]) -> None:
            shown.extend(facts["notes"])
            show(dry.known(facts))
            say("measuring memory and time…")

        show(dry.measured(dry.describe(loaded, show_known, process_began()), shown))

    def prepare_retraining(self, classes: str, budget: str | None) -> None:
        """Apply --retrain: write the checkpoint from which some classes of a finished run are retrained.

        Args:
            classes: The value of --retrain, e.g. cat,dog.
            budget: The length of the retraining; None: the default.
        """
        from ganherd.training.variants.retrain import prepare

        assert self.resume is not None
        message = prepare(self.resume, classes, budget, self.trust_code)
        if not self.quiet:
            say(message)
        self.overrides = []  # the budget is in the checkpoint

    def train_part(self, members: str) -> None:
        """Carry out --members: train some members of a run as one of several jobs; the last one joins all members.

        Args:
            members: The value of --members, e.g. 0-9.
        """
        self.show_choice()
        loaded = self.load()
        refuse_meeting(loaded, "--members")
        from ganherd import api
        from ganherd.runs.folder import RunFolder, unfinished
        from ganherd.training.variants import job_parts, phases

        phases.refuse(loaded)
        assert self.run is not None
        settings = (loaded, self.run, members, self.quiet)
        done = job_parts.train_part(*settings, finishers=api.FINISHERS, began=process_began(), origin=self.origin)
        if done.folder.info.part is None or self.as_json:
            self.show(done)
            return
        left = ", ".join(unfinished(RunFolder(self.run)))
        show(f"members {members} of {self.run} are trained" + (f"; left are {left}." if left else "."))

    def start_ranks(self, ranks: int, budget: str | None) -> None:
        """Start this command as several processes (ranks) on this machine, and exit with their code.

        Args:
            ranks: The number of processes.
            budget: The length of the whole run; None: that of the recipe.
        """
        from ganherd.cli.main import main
        from ganherd.training.ranks.spawn import spawn
        from ganherd.training.setup.identity import refuse_objects

        loaded = self.load()  # report mistakes once, before any rank starts
        refuse_objects(loaded, (), ranks)
        resolved = ["--budget", budget] if budget else []  # appended, because the last of equal options counts
        resolved += ["--resume", str(self.resume)] if self.resume else []
        resolved += ["--grow", str(self.grown_from)] if self.grown_from else []
        words = [word for word in _without_ranks(sys.argv[1:]) if word != "--ui"]  # this process serves the page
        raise typer.Exit(spawn(main, ranks, [*words, *resolved]))

    def train_in_job(self, engine: str) -> None:
        """Train as one rank (process) of a job; the first rank prints the result.

        Args:
            engine: The kind of job, as `detect` returns it, e.g. "mpi".
        """
        from ganherd.comm.backends.detect import connect
        from ganherd.comm.ranks import open_job

        with open_job(lambda: connect(engine)) as comm:
            done = self.train(comm)
        if comm.latest.rank == 0:  # print after the job, because a closed output must not look like a failed rank
            self.show(done)

    def train(self, comm: Communicator | None = None) -> TrainedRun:
        """Start or resume the run and train it to the end, in this process or as one of the ranks of `comm`.

        All ranks of `comm` must call this.
        """
        from ganherd.comm.ranks import run_on_all_ranks

        if comm is None or comm.rank == 0:
            self.show_choice()
        loaded = run_on_all_ranks(comm, self.load)
        if comm is not None:
            self._agree(loaded, comm)
        elif loaded.engine.device in ("auto", "cuda"):
            wake_gpu()
        from ganherd import api
        from ganherd.training import session

        began = process_began()
        if self.resume:
            settings = (self._overrides_of_resume(), self.quiet, self.trust_code, comm)
            return session.resume(self.resume, *settings, finishers=api.FINISHERS, began=began)
        settings_of_run: Any = {"job": comm, "finishers": api.FINISHERS, "began": began, "origin": self.origin}
        return session.train(loaded, self.run, self.name or self.origin["recipe"], self.quiet, **settings_of_run)

    @property
    def origin(self) -> dict[str, Any]:
        """The name of the recipe and the settings that replaced its own, for run.json."""
        from ganherd.recipe import recipe_file

        recipe = self.recipe_name or Path(self.recipe or recipe_file.DEFAULT).stem
        return {"recipe": recipe, "changes": self.overrides}

    def _agree(self, loaded: Recipe, comm: Communicator) -> None:
        """Check that all ranks have the same recipe. If a restarted job has begun the run already, resume it."""
        from ganherd.comm.handshake import agree
        from ganherd.comm.ranks import run_on_all_ranks, run_on_first_rank
        from ganherd.recipe import recipe_file
        from ganherd.recipe.trust import vouches_for
        from ganherd.runs.folder import RunFolder
        from ganherd.training.ranks.restarts import begun
        from ganherd.training.variants import phases

        text = f"{recipe_file.dump(loaded)}run: {self.run}\nresume: {self.resume}\n"
        run_on_all_ranks(comm, lambda: agree(comm, "recipe", text))
        two = self.resume is None and phases.pending(loaded) is not None
        again = run_on_first_rank(comm, lambda: str(begun(self.run, os.environ, two) or ""))
        if not again:
            return
        path = Path(again)
        if not run_on_first_rank(comm, (path / "run.json").is_file):
            self.run = path  # the run is in its first phase, which this command resumes
            return
        if self.resume is None:  # the same command was started before, so its recipe trusts the same code
            self.trust_code |= run_on_all_ranks(comm, lambda: vouches_for(loaded, RunFolder.open(path).recipe))
        self.resume, self.overrides = path, []

    def show(self, run: TrainedRun) -> None:
        """Print where the results of a trained run are, its scores and its verdict; with --json, an object."""
        path, info = from_here(run.path), run.folder.info
        if self.as_json:
            judged = {} if run.verdict is None else {"verdict": run.verdict.as_json()}
            print_json({"run": str(path), "state": info.state, "step": info.step, "scores": run.scores, **judged})
            return
        if info.part is not None:
            show(f"{path}: trained; `ganherd train --members` with the same --run joins it with the other parts.")
            return
        folder = type(run.folder)(path)
        picture = folder.samples / "final.png"
        from ganherd.recipe.plugins.recipe_plugins import plugins_of
        from ganherd.util.registry import DATA_SOURCES, DISCRIMINATORS, GENERATORS

        needed = (GENERATORS, DISCRIMINATORS, DATA_SOURCES)  # kinds of plug-ins that `sample` and `score` need
        trust = " --trust-code" if any(registry in needed for registry, _ in plugins_of(folder.recipe)) else ""
        name = shlex.quote(str(path)) + trust
        scores = folder.scores_path if run.scores else f"ganherd score {name}"
        show(f"\npicture  {picture}\nscores   {scores}\nreport   {folder.report_path}")
        if run.scores:
            from ganherd import scoring

            show_screen("", *(scoring.full if self.verbose else scoring.brief)(run.scores))
        show_verdict(run.verdict)
        # rows of a table are written to a .csv, images and points to a picture
        more = "-n 1000 -o rows.csv" if "columns" in run.scores else "-n 64 -o grid.png"
        show(f"\nMore samples: ganherd sample {name} {more}")


def refuse_meeting(recipe: Recipe, option: str) -> None:
    """Raise a `UserError` if a herd cannot be trained as several jobs: its members exchange nets or it has replicas."""
    if recipe.strategy.meets or recipe.herd.seeds > 1:
        raise UserError(f"{option} is for herds of one seed whose members never meet: take strategy independent.")


def _without_ranks(words: list[str]) -> list[str]:
    """Return the arguments of the command without `--ranks N`.

    >>> _without_ranks(["train", "--ranks", "2", "--quiet"]), _without_ranks(["train", "--ranks=2"])
    (['train', '--quiet'], ['train'])
    """
    at = [i for i, word in enumerate(words) if word == "--ranks"]
    return [w for i, w in enumerate(words) if i not in at and i - 1 not in at and not w.startswith("--ranks=")]
