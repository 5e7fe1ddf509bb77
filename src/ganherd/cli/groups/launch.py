"""`ganherd launch`: write scripts that start a run on a cluster."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ganherd.cli.completion import complete_recipe, complete_run
from ganherd.cli.options import Budget, Quiet, Seeds, Set, examples, named_run, recipe_overrides, refuse
from ganherd.util.errors import UserError
from ganherd.util.paths import RUNS
from ganherd.util.text import say

if TYPE_CHECKING:
    from ganherd.recipe.schema import Recipe
    from ganherd.runs.folder import RunFolder

launch_app = typer.Typer(help="Start runs on a cluster.", no_args_is_help=True)


@launch_app.command(
    "slurm", epilog=examples("ganherd launch slurm digits-wcgan --nodes 2 --ranks-per-node 4 --time 12h")
)
def launch_slurm(
    recipe: Annotated[
        str | None, typer.Argument(help="A packaged recipe, or a YAML file.", autocompletion=complete_recipe)
    ] = None,
    sets: Set = None,
    run: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/NAME.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Resume this run: a folder, @last or @TAG.", callback=named_run, autocompletion=complete_run),
    ] = None,
    budget: Budget = None,
    seeds: Seeds = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of hosts.")] = 1,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Processes on each host; use one for each GPU.")] = 1,
    cpus_per_rank: Annotated[int, typer.Option(min=1, help="Cores of each process.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each host.")] = 0,
    time: Annotated[
        str, typer.Option(help="Time limit of one job, e.g. 90m, 12h, 1-12:00:00. The next job resumes the run.")
    ] = "1h",
    notice: Annotated[
        int, typer.Option(min=10, help="Seconds before the time limit at which members are saved.")
    ] = 120,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account.")] = None,
    module: Annotated[list[str] | None, typer.Option(help="Load this module; may be repeated.")] = None,
    container: Annotated[str | None, typer.Option(help="Apptainer image to run in.")] = None,
    launcher: Annotated[str, typer.Option(help="Launcher: srun, mpiexec or torchrun.")] = "srun",
    launcher_options: Annotated[
        str, typer.Option(help="Options of the launcher, e.g. '--mpi=pmix' or '--with-ft ulfm'.")
    ] = "",
    array: Annotated[
        int, typer.Option(min=0, help="Number of jobs in a job array; each trains some of the members.")
    ] = 0,
    members_each: Annotated[int, typer.Option(min=1, help="Members of each job of the array.")] = 1,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File of the script. Default: ganherd-NAME.sh.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the script with sbatch.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the script, and write nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a batch script that trains a recipe or resumes a run, and requeues itself until the run is finished."""
    from ganherd import slurm
    from ganherd.recipe import recipe_file
    from ganherd.runs.folder import RunFolder

    refuse(
        (
            resume and (recipe or run),
            "--resume uses the folder and the recipe of the run: leave the recipe and --run out.",
        ),
        (
            resume and array,
            "The jobs of an array resume by themselves: give the recipe and --run again instead of --resume.",
        ),
    )
    overrides = recipe_overrides(sets, budget, seeds)
    words = [f"--set={each}" for each in overrides]
    if resume is not None:
        RunFolder.open(resume)
        where, new = resume, words
    else:
        name = recipe_file.DEFAULT if recipe is None else recipe
        loaded = recipe_file.load(name, overrides)
        if array:
            from ganherd.cli.train_command import refuse_meeting

            refuse_meeting(loaded, "--array")
        where, new = run or RUNS / Path(name).stem, [name, *words]
        _note_existing(RunFolder(where), loaded)
    job = slurm.Job(
        tuple(new), where, tuple(words) if resume is not None else (), nodes, ranks_per_node, cpus_per_rank, gpus_per_node, time,
        notice, partition, account, tuple(module or ()), container, launcher, launcher_options, array, members_each,
    )  # fmt: skip
    text, path = slurm.script(job), output or Path(f"ganherd-{job.name}.sh")
    if not quiet or dry_run:
        print(text, end="", flush=True)
    if dry_run:
        return
    if path.exists() and slurm.MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"{path} exists and was not written by ganherd: name another file with -o.")
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    if not submit:
        say(f"\nwritten to {path}; submit it with: sbatch {path}")
        return
    if shutil.which("sbatch") is None:
        raise UserError(f"{path} is written, but there is no sbatch here: submit it on a login node of the cluster.")
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"sbatch refused {path}: {done.stderr.strip() or done.stdout.strip()}")
    say(done.stdout.strip())


def _note_existing(folder: RunFolder, recipe: Recipe) -> None:
    """Say that the job will resume the run of this folder if there is one.

    Raises:
        UserError: The run has another recipe.
    """
    from ganherd.training.setup.identity import refuse_changes

    if folder.info_path.is_file():
        refuse_changes(folder.recipe, recipe, folder, data_may_move=True)
        say(f"note: {folder.path} exists, and the job resumes it; --run names another folder.")
