"""`ganherd train`: start or resume a run, or show what it would train."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ganherd.cli.options import Json, Quiet, Set, Trust, print_json, say, show
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator
    from ganherd.recipe.schema import Recipe
    from ganherd.training.finish import Run


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a packaged recipe, or a YAML file. Default: digits-wcgan.")
    ] = None,
    sets: Set = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", "--run-dir", help="Folder of the new run. Default: runs/NNNNN-NAME. Under torchrun, use --run-dir."
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume this run exactly.")] = None,
    retrain: Annotated[
        str | None, typer.Option(help="With --resume: retrain these classes of a finished run, e.g. cat,dog or 3.")
    ] = None,
    grow: Annotated[
        Path | None,
        typer.Option(help="Keep the classes of this finished run, and train the classes that are new in the data."),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            help="Train only these members, e.g. 0-9, as one of several jobs that share --run. Members must never meet."
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Length of the training, e.g. 5000steps, 20epochs, 90s, 10m, 2h.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of replicas with different seeds.")] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of ranks to start on this machine. mpiexec, srun and torchrun start their own."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be trained, its memory and its time.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how each layer would run (kernel, PyTorch or vmap), and why.")
    ] = False,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe or resume a run, in one process or as a rank of a job."""
    from ganherd.comm.backends.detect import connect, detect

    engine = detect(os.environ)
    overrides = list(sets or [])
    overrides += [f"train.budget={budget}"] if budget else []
    overrides += [f"herd.seeds={seeds}"] if seeds is not None else []
    if grow is not None:
        recipe = _grown(grow, recipe, resume, overrides)
    if retrain is not None:
        _check_retrain(resume, recipe or sets or seeds, engine != "local" or ranks)
    if resume and run:
        raise UserError("--resume uses the folder of the run: leave --run out.")
    if resume and dry_run:
        raise UserError("--dry-run is for new runs: use `ganherd status` for this one.")
    if resume and explain:
        raise UserError("--explain is for new runs: leave --resume out and name the recipe.")
    if members is not None and (engine != "local" or ranks is not None or resume or run is None):
        raise UserError(
            "--members is for one of several jobs with the same --run: give it, and neither --ranks nor --resume."
        )
    if dry_run or explain:
        if members is not None:
            raise UserError("--dry-run and --explain show the whole herd: leave --members out.")
        if ranks is not None or engine != "local":
            raise UserError("--dry-run and --explain run in one process: leave --ranks out, and start no job.")
        _look(recipe, overrides, explain, trust_code, as_json)
        return
    if retrain is not None:
        from ganherd.training.variants.retrain import prepare

        assert resume is not None
        message = prepare(resume, retrain, budget, trust_code)
        if not quiet:
            say(message)
        overrides = []  # the checkpoint has the budget
    if members is not None:
        assert run is not None
        _part(recipe, run, members, overrides, trust_code, as_json, quiet)
        return
    if engine == "local" and (ranks or 1) == 1:
        _trained(_train(None, recipe, run, resume, overrides, trust_code, quiet), as_json)
        return
    if engine == "local":
        from ganherd.cli.main import main
        from ganherd.training.ranks.spawn import spawn
        from ganherd.training.variants import phases

        loaded = _load(recipe, resume, overrides, trust_code)  # report mistakes once, before any rank starts
        if resume is None:
            phases.refuse(loaded)
        raise typer.Exit(spawn(main, ranks or 1, _without_ranks(sys.argv[1:])))
    if ranks is not None:
        raise UserError(
            "--ranks starts ranks on this machine, but this process already is a rank of a job: leave it out."
        )
    from ganherd.comm.ranks import open_job

    with open_job(lambda: connect(engine)) as comm:
        done = _train(comm, recipe, run, resume, overrides, trust_code, quiet)
    if comm.latest.rank == 0:  # after the job: a closed output must not look like a failed rank
        _trained(done, as_json)


def _grown(grow: Path, recipe: str | None, resume: Path | None, overrides: list[str]) -> str:
    """Return the recipe of a grown run (by default that of the finished run), and add the run to `overrides`."""
    from ganherd.runs.folder import RunFolder

    if resume is not None:
        raise UserError("--grow starts a new run: leave --resume out.")
    overrides.append(f"herd.grow_from={grow}")
    return str(RunFolder.open(grow).recipe_path) if recipe is None else recipe


def _check_retrain(resume: Path | None, more: Any, ranks: Any) -> None:
    if resume is None:
        raise UserError("--retrain needs a finished run: name it with --resume.")
    if more:
        raise UserError("--retrain uses the recipe of the run: of its settings, only --budget can be given.")
    if ranks:
        raise UserError("--retrain runs in one process: leave the ranks out.")


def _look(recipe: str | None, overrides: list[str], explain: bool, trust_code: bool, as_json: bool) -> None:
    """Run --explain or --dry-run."""
    loaded = _load(recipe, None, overrides, trust_code)
    if explain:
        from ganherd.herd.engine import explain as explaining
        from ganherd.training.setup import net_guard
        from ganherd.training.setup.assemble import assemble

        assembly = assemble(loaded, trust_code=True)
        reports = [net_guard.facts(report) for _, report in net_guard.checked(assembly)]
        facts = explaining.explain(assembly.herd, reports)
        show(json.dumps(facts) if as_json else explaining.render_text(facts))
        return
    from ganherd.training.setup import dry_run as dry

    if as_json:
        show(json.dumps(dry.describe(loaded)))
        return
    shown: list[str] = []

    def show_known(facts: Mapping[str, Any]) -> None:
        shown.extend(facts["notes"])
        show(dry.known(facts))
        say("measuring memory and time…")

    show(dry.measured(dry.describe(loaded, show_known), shown))


def _train(
    comm: Communicator | None,
    recipe: str | None,
    run: Path | None,
    resume: Path | None,
    overrides: list[str],
    trust_code: bool,
    quiet: bool,
) -> Run:
    """Train in this process, or as one of the ranks of `comm`, which all call this."""
    from ganherd.comm.ranks import run_on_all_ranks
    from ganherd.recipe import recipe_file

    loaded = run_on_all_ranks(comm, lambda: _load(recipe, resume, overrides, trust_code))
    if comm is not None:
        from ganherd.comm.handshake import agree

        run_on_all_ranks(
            comm, lambda: agree(comm, "recipe", f"{recipe_file.dump(loaded)}run: {run}\nresume: {resume}\n")
        )
        from ganherd.training.ranks.restarts import begun

        if again := comm.broadcast(str(begun(run, os.environ) or "").encode() if comm.rank == 0 else None):
            path = Path(again.decode())
            if resume is None:  # the same command as before: the recipe of the user trusts the same code
                from ganherd.recipe.trust import vouches_for
                from ganherd.runs.folder import RunFolder

                trust_code |= run_on_all_ranks(comm, lambda: vouches_for(loaded, RunFolder.open(path).recipe))
            resume, overrides = path, []
    from ganherd import api
    from ganherd.training import session

    if resume:
        return session.resume(resume, overrides, quiet, trust_code, comm, finishers=api.FINISHERS)
    name = Path(recipe or recipe_file.DEFAULT).stem
    return session.train(loaded, run, name, quiet, job=comm, finishers=api.FINISHERS)


def _part(
    recipe: str | None, run: Path, members: str, overrides: list[str], trust_code: bool, as_json: bool, quiet: bool
) -> None:
    """Run --members: start or resume some members of a run; the last of the jobs joins all."""
    loaded = _load(recipe, None, overrides, trust_code)
    refuse_meeting(loaded, "--members")
    from ganherd import api
    from ganherd.runs.folder import RunFolder, unfinished
    from ganherd.training.variants import job_parts, phases

    phases.refuse(loaded)

    done = job_parts.train_part(loaded, run, members, quiet, finishers=api.FINISHERS)
    if done.folder.info.part is None or as_json:
        _trained(done, as_json)
        return
    left = ", ".join(unfinished(RunFolder(run)))
    show(f"members {members} of {run} are trained" + (f"; left are {left}." if left else "."))


def refuse_meeting(recipe: Recipe, option: str) -> None:
    """Refuse to train a herd as several jobs unless its members never meet."""
    if recipe.strategy.meets or recipe.herd.seeds > 1:
        raise UserError(f"{option} is for herds of one seed whose members never meet: take strategy independent.")


def _load(recipe: str | None, resume: Path | None, overrides: list[str], trust_code: bool) -> Recipe:
    """Return the recipe of a new run, after checking that its code is trusted, or that of the run to resume."""
    from ganherd.recipe import recipe_file
    from ganherd.runs.folder import RunFolder

    if resume is None:
        from ganherd.recipe import trust

        source = recipe_file.DEFAULT if recipe is None else recipe
        loaded = recipe_file.load(source, overrides)
        trust.check_recipe(loaded, source, trust_code)
        return loaded
    folder = RunFolder.open(resume)
    if recipe is not None:  # a recipe that is given with --resume must be that of the run
        from ganherd.training.setup.identity import refuse_changes

        refuse_changes(folder.recipe, recipe_file.load(recipe, overrides), folder)
    return recipe_file.load(folder.recipe_path, overrides)


def _without_ranks(words: list[str]) -> list[str]:
    """Return the words of the command without `--ranks N`.

    >>> _without_ranks(["train", "--ranks", "2", "--quiet"]), _without_ranks(["train", "--ranks=2"])
    (['train', '--quiet'], ['train'])
    """
    at = [i for i, word in enumerate(words) if word == "--ranks"]
    return [w for i, w in enumerate(words) if i not in at and i - 1 not in at and not w.startswith("--ranks=")]


def _trained(run: Any, as_json: bool) -> None:
    path, info = _from_here(run.path), run.folder.info
    if as_json:
        print_json({"run": str(path), "state": info.state, "step": info.step, "scores": run.scores})
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
        from ganherd.scoring import table

        show("\n" + table(run.scores))
    show(f"\nMore samples: ganherd sample {name} -n 64 -o grid.png")


def _from_here(path: Path) -> Path:
    """Return the path as people would type it here: relative if it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
