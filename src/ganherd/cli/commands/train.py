"""`ganherd train`: start or resume a run, or show what it would train."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ganherd.cli.completion import complete_recipe, complete_run, complete_training
from ganherd.cli.options import (
    Budget,
    Json,
    Quiet,
    Seeds,
    Set,
    Trust,
    Verbose,
    named_run,
    print_json,
    print_result,
    recipe_overrides,
    refuse,
    show_verdict,
    with_unit,
)
from ganherd.util.errors import UserError
from ganherd.util.host import wake_gpu
from ganherd.util.paths import from_here
from ganherd.util.process_clock import process_began
from ganherd.util.terminal.screen import show_screen
from ganherd.util.text import say, show

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator
    from ganherd.recipe.schema import Recipe
    from ganherd.training.finish import Run

EXISTING, SEVERAL, LOOK = (
    "From an existing run",
    "Several processes",
    "Without training",
)  # groups of options in the help


@dataclass
class TrainCommand:
    """The arguments of a `ganherd train` command."""

    recipe: str | None
    run: Path | None
    resume: Path | None
    overrides: list[str]
    trust_code: bool
    as_json: bool
    verbose: bool
    quiet: bool
    name: str | None = None  # of the run folder; default: that of the recipe
    chosen: str = ""  # what was chosen for the user's own data, for people

    def take_own_data(self, asked: str | None, grows: bool) -> None:
        """Choose recipe and settings if the argument is the user's own data.

        Args:
            asked: The recipe that --recipe names.
            grows: The recipe is that of the run that --grow names.
        """
        from ganherd.cli.own_data import is_own_data

        source = self.recipe
        if source is None or not is_own_data(source):
            refuse(
                (source and asked, f"{source} is no data of yours, and --recipe names a recipe: leave one of them out.")
            )
            self.recipe = asked if source is None else source
            return
        refuse((self.resume, f"--resume uses the data of the run: leave {source} out."))
        if grows and asked is None:
            self.recipe, self.overrides = None, [f"data.source={source}", *self.overrides]
            return
        from ganherd import recommend

        choice = recommend.choose_for(source, asked, self.overrides)
        self.name, self.recipe, self.overrides = Path(source).stem, choice.recipe, list(choice.sets)
        self.chosen = choice.text()

    def show_choice(self) -> None:
        """Report what was chosen for the user's own data."""
        if self.chosen and not self.quiet:
            say(self.chosen)

    def load(self) -> Recipe:
        """Return the recipe of a new run, after checking that its code is trusted, or that of the run to resume."""
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

            refuse_changes(folder.recipe, recipe_file.load(self.recipe, self.overrides), folder)
        return recipe_file.load(folder.recipe_path, self.overrides)


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|PICTURES",
            help="A packaged recipe, a YAML file, or your own data: a folder of images, an .npz or an .npy, for which a recipe "
            "is chosen. Default: digits-wcgan.",
            autocompletion=complete_training,
        ),
    ] = None,
    asked: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="Train this recipe; with your own data, instead of a chosen one.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    sets: Set = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", "--run-dir", help="Folder of the new run. Default: runs/NNNNN-NAME. Under torchrun, use --run-dir."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume this run exactly: a folder, @last or @TAG.",
            callback=named_run,
            autocompletion=complete_run,
            rich_help_panel=EXISTING,
        ),
    ] = None,
    retrain: Annotated[
        str | None,
        typer.Option(
            help="With --resume: retrain these classes of a finished run, e.g. cat,dog or 3.", rich_help_panel=EXISTING
        ),
    ] = None,
    grow: Annotated[
        Path | None,
        typer.Option(
            help="Keep the classes of this finished run, and train the classes that are new in the data.",
            callback=named_run,
            autocompletion=complete_run,
            rich_help_panel=EXISTING,
        ),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            help="Train only these members, e.g. 0-9, as one of several jobs that share --run. Members must never meet.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    budget: Budget = None,
    seeds: Seeds = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of ranks to start on this machine. mpiexec, srun and torchrun start their own.",
            rich_help_panel=SEVERAL,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be trained, its memory and its time.", rich_help_panel=LOOK),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show how each layer would run (kernel, PyTorch or vmap), and why.", rich_help_panel=LOOK
        ),
    ] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Show the run in a browser while it trains; see `ganherd ui`.")
    ] = False,
    trust_code: Trust = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe or your own images, or resume a run, in one process or as a rank of a job."""
    from ganherd.comm.backends.detect import detect

    engine, look = detect(os.environ), dry_run or explain
    in_job, retrains, is_part = engine != "local" or ranks is not None, retrain is not None, members is not None
    refuse(
        (grow and resume, "--grow starts a new run: leave --resume out."),
        (retrains and not resume, "--retrain needs a finished run: name it with --resume."),
        (
            retrains and (data or asked or sets or seeds),
            "--retrain uses the recipe of the run: of its settings, only --budget can be given.",
        ),
        (retrains and in_job, "--retrain runs in one process: leave the ranks out."),
        (resume and run, "--resume uses the folder of the run: leave --run out."),
        (resume and dry_run, "--dry-run is for new runs: use `ganherd status` for this one."),
        (resume and explain, "--explain is for new runs: leave --resume out and name the recipe."),
        (
            is_part and (in_job or resume or run is None),
            "--members is for one of several jobs with the same --run: give it, and neither --ranks nor --resume.",
        ),
        (look and is_part, "--dry-run and --explain show the whole herd: leave --members out."),
        (ui and look, "--ui shows a run that trains: leave --dry-run and --explain out."),
        (
            ui and engine != "local",
            "--ui starts a page next to one process: leave it out of jobs, and start `ganherd ui RUN` on the login node.",
        ),
        (look and in_job, "--dry-run and --explain run in one process: leave --ranks out, and start no job."),
        (
            engine != "local" and ranks,
            "--ranks starts ranks on this machine, but this process already is a rank of a job: leave it out.",
        ),
    )
    if budget is not None and with_unit(budget) and budget.startswith("+"):
        budget = _longer(budget, resume, retrains, engine != "local")
    overrides = recipe_overrides(sets, budget, seeds)
    command = TrainCommand(data, run, resume, overrides, trust_code, as_json, verbose, quiet)
    command.take_own_data(asked, grows=grow is not None)
    if grow is not None:
        _grow(command, grow)
    if look:
        _look(command, explain)
        return
    if retrain is not None:
        _prepare_retraining(command, retrain, budget)
    if ui:
        from ganherd.ui.serve import page_beside

        page: AbstractContextManager[None] = page_beside(run or resume or Path("runs"), quiet)
    else:
        page = nullcontext()
    with page:
        _start(command, members, engine, ranks, budget)


def _start(command: TrainCommand, members: str | None, engine: str, ranks: int | None, budget: str | None) -> None:
    """Train in this process, as a part of a run, as a rank of a job, or on several ranks of this machine."""
    if members is not None:
        _train_part(command, members)
    elif engine != "local":
        _train_in_job(command, engine)
    elif ranks is None or ranks == 1:
        wake_gpu()
        _show_trained(_train(command, None), command)
    else:
        _start_ranks(command, ranks, budget)


def _longer(budget: str, resume: Path | None, retrains: bool, in_job: bool) -> str:
    """Return `--budget +200steps` as the whole length of the run that is resumed."""
    refuse(
        (resume is None, f"--budget {budget} makes a run longer: name it with --resume, or leave the + out."),
        (retrains, "--retrain takes the length of the retraining: leave the + of --budget out."),
        (in_job, f"--budget {budget} would grow whenever the job restarts: give the whole length, without the +."),
    )
    from ganherd.runs.longer_budget import longer_budget

    assert resume is not None
    return longer_budget(resume, budget)


def _grow(command: TrainCommand, finished: Path) -> None:
    """Apply --grow: train new classes in addition to those of a finished run, with its recipe unless another one is given."""
    from ganherd.runs.folder import RunFolder

    command.overrides.append(f"herd.grow_from={finished}")
    if command.recipe is None:
        command.recipe = str(RunFolder.open(finished).recipe_path)


def _look(command: TrainCommand, explain: bool) -> None:
    """Run --explain or --dry-run."""
    command.show_choice()
    loaded = command.load()
    if explain:
        from ganherd.herd.engine import explain as explaining
        from ganherd.training.setup import net_guard
        from ganherd.training.setup.assemble import assemble

        assembly = assemble(loaded, trust_code=True)
        reports = [net_guard.facts(report) for _, report in net_guard.checked(assembly)]
        facts = explaining.explain(assembly.herd, reports)
        print_result(command.as_json, facts, explaining.render_text(facts))
        return
    from ganherd.training.setup import dry_run as dry

    if command.as_json:
        print_json(dry.describe(loaded, began=process_began()))
        return
    shown: list[str] = []

    def show_known(facts: Mapping[str, Any]) -> None:
        shown.extend(facts["notes"])
        show(dry.known(facts))
        say("measuring memory and time…")

    show(dry.measured(dry.describe(loaded, show_known, process_began()), shown))


def _prepare_retraining(command: TrainCommand, classes: str, budget: str | None) -> None:
    """Apply --retrain: write the checkpoint from which some classes of a finished run are retrained."""
    from ganherd.training.variants.retrain import prepare

    assert command.resume is not None
    message = prepare(command.resume, classes, budget, command.trust_code)
    if not command.quiet:
        say(message)
    command.overrides = []  # the checkpoint has the budget


def _train_part(command: TrainCommand, members: str) -> None:
    """Run --members: start or resume some members of a run; the last job to finish joins all members."""
    command.show_choice()
    loaded = command.load()
    refuse_meeting(loaded, "--members")
    from ganherd import api
    from ganherd.runs.folder import RunFolder, unfinished
    from ganherd.training.variants import job_parts, phases

    phases.refuse(loaded)
    assert command.run is not None
    settings = (loaded, command.run, members, command.quiet)
    done = job_parts.train_part(*settings, finishers=api.FINISHERS, began=process_began())
    if done.folder.info.part is None or command.as_json:
        _show_trained(done, command)
        return
    left = ", ".join(unfinished(RunFolder(command.run)))
    show(f"members {members} of {command.run} are trained" + (f"; left are {left}." if left else "."))


def _start_ranks(command: TrainCommand, ranks: int, budget: str | None) -> None:
    """Start this command on several ranks of this machine, and exit with their code; `budget` is the whole length."""
    from ganherd.cli.main import main
    from ganherd.training.ranks.spawn import spawn
    from ganherd.training.variants import phases

    loaded = command.load()  # report mistakes once, before any rank starts
    if command.resume is None:
        phases.refuse(loaded)
    resolved = ["--budget", budget] if budget else []  # the last of equal options counts
    resolved += ["--resume", str(command.resume)] if command.resume else []
    words = [word for word in _without_ranks(sys.argv[1:]) if word != "--ui"]
    raise typer.Exit(spawn(main, ranks, [*words, *resolved]))


def _train_in_job(command: TrainCommand, engine: str) -> None:
    """Train as one rank of a job; the first rank shows the result."""
    from ganherd.comm.backends.detect import connect
    from ganherd.comm.ranks import open_job

    with open_job(lambda: connect(engine)) as comm:
        done = _train(command, comm)
    if comm.latest.rank == 0:  # after the job: a closed output must not look like a failed rank
        _show_trained(done, command)


def _train(command: TrainCommand, comm: Communicator | None) -> Run:
    """Train in this process, or as one of the ranks of `comm`, which all call this."""
    from ganherd.comm.ranks import run_on_all_ranks
    from ganherd.recipe import recipe_file

    if comm is None or comm.rank == 0:
        command.show_choice()
    loaded = run_on_all_ranks(comm, command.load)
    if comm is not None:
        _agree(command, loaded, comm)
    from ganherd import api
    from ganherd.training import session

    began = process_began()
    if command.resume:
        settings = (command.overrides, command.quiet, command.trust_code, comm)
        return session.resume(command.resume, *settings, finishers=api.FINISHERS, began=began)
    recipe = Path(command.recipe or recipe_file.DEFAULT).stem
    origin, name = {"recipe": recipe, "changes": command.overrides}, command.name or recipe
    settings_of_run: Any = {"job": comm, "finishers": api.FINISHERS, "began": began, "origin": origin}
    return session.train(loaded, command.run, name, command.quiet, **settings_of_run)


def _agree(command: TrainCommand, loaded: Recipe, comm: Communicator) -> None:
    """Check that all ranks have the same recipe; resume the run if the same command was started before."""
    from ganherd.comm.handshake import agree
    from ganherd.comm.ranks import run_on_all_ranks
    from ganherd.recipe import recipe_file
    from ganherd.recipe.trust import vouches_for
    from ganherd.runs.folder import RunFolder
    from ganherd.training.ranks.restarts import begun

    text = f"{recipe_file.dump(loaded)}run: {command.run}\nresume: {command.resume}\n"
    run_on_all_ranks(comm, lambda: agree(comm, "recipe", text))
    if again := comm.broadcast(str(begun(command.run, os.environ) or "").encode() if comm.rank == 0 else None):
        path = Path(again.decode())
        if command.resume is None:  # the same command as before: the recipe of the user trusts the same code
            command.trust_code |= run_on_all_ranks(comm, lambda: vouches_for(loaded, RunFolder.open(path).recipe))
        command.resume, command.overrides = path, []


def refuse_meeting(recipe: Recipe, option: str) -> None:
    """Refuse to train a herd as several jobs unless its members never meet."""
    if recipe.strategy.meets or recipe.herd.seeds > 1:
        raise UserError(f"{option} is for herds of one seed whose members never meet: take strategy independent.")


def _without_ranks(words: list[str]) -> list[str]:
    """Return the arguments of the command without `--ranks N`.

    >>> _without_ranks(["train", "--ranks", "2", "--quiet"]), _without_ranks(["train", "--ranks=2"])
    (['train', '--quiet'], ['train'])
    """
    at = [i for i, word in enumerate(words) if word == "--ranks"]
    return [w for i, w in enumerate(words) if i not in at and i - 1 not in at and not w.startswith("--ranks=")]


def _show_trained(run: Run, command: TrainCommand) -> None:
    path, info = from_here(run.path), run.folder.info
    if command.as_json:
        judged = {} if run.verdict is None else {"verdict": run.verdict.as_json()}
        print_json({"run": str(path), "state": info.state, "step": info.step, "scores": run.scores, **judged})
        return
    if info.part is not None:
        show(f"{path}: trained; `ganherd train --members` with the same --run joins it with the other parts.")
        return
    folder = type(run.folder)(path)
    picture = folder.samples / "final.png"
    from ganherd.nets.catalog import is_foreign

    trust = " --trust-code" if any(is_foreign(net.name) for net in folder.recipe.nets.all) else ""
    name = shlex.quote(str(path)) + trust
    scores = folder.scores_path if run.scores else f"ganherd score {name}"
    show(f"\npicture  {picture}\nscores   {scores}\nreport   {folder.report_path}")
    if run.scores:
        from ganherd import scoring

        show_screen("", *(scoring.full if command.verbose else scoring.brief)(run.scores))
    show_verdict(run.verdict)
    show(f"\nMore samples: ganherd sample {name} -n 64 -o grid.png")
