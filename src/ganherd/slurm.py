"""Write a Slurm batch script that trains a recipe, saves before its time limit, and requeues itself."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader

from ganherd.util.errors import UserError

LAUNCHERS = ("srun", "mpiexec", "torchrun")
MARK = "# Written by `ganherd launch slurm`"  # in its second line: such a file may be overwritten
_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}")  # as sbatch reads it
_NAME = re.compile(r"[A-Za-z0-9_./+:@%=,-]+")


@dataclass(frozen=True)
class Job:
    """What to train, and the resources of the job."""

    words: tuple[str, ...]  # arguments of `ganherd train` for a new run: the recipe and its settings
    run: Path
    again: tuple[str, ...] = ()  # further arguments when the run is resumed
    nodes: int = 1
    ranks_per_node: int = 1
    cpus_per_rank: int = 1
    gpus_per_node: int = 0
    time: str = "1:00:00"
    notice: int = 120  # seconds before the time limit at which members are saved
    partition: str | None = None
    account: str | None = None
    modules: tuple[str, ...] = ()
    container: str | None = None  # an Apptainer image
    launcher: str = "srun"
    launcher_options: str = ""
    array: int = 0  # number of jobs, each of which trains some of the members; 0: one job
    members_each: int = 1  # members of each job of the array

    @property
    def name(self) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]", "-", self.run.name) or "run"

    def check(self) -> None:
        """Raise a `UserError` for settings that Slurm or the shell would not accept."""
        if 0 < _seconds(slurm_time(self.time)) <= self.notice:  # 0 is no limit
            raise UserError(
                f"--time {self.time} is not longer than the {self.notice} seconds of --notice: nothing would be trained."
            )
        if self.launcher not in LAUNCHERS:
            raise UserError(
                f"there is no launcher {self.launcher!r}: choose {', '.join(LAUNCHERS[:-1])} or {LAUNCHERS[-1]}."
            )
        named = [("--partition", self.partition), ("--account", self.account), *(("--module", m) for m in self.modules)]
        for option, value in named:
            if value is not None and not _NAME.fullmatch(value):
                raise UserError(f"{option} {value!r} is not a valid name for Slurm or `module`.")
        if not str(self.run).isprintable():
            raise UserError(
                "The name of the run folder must consist of printable characters: choose another with --run."
            )
        if self.array and self.nodes * self.ranks_per_node > 1:
            raise UserError("The jobs of an array have one rank each: leave --nodes and --ranks-per-node at 1.")


def slurm_time(text: str) -> str:
    """Return a time limit in the form of sbatch.

    >>> slurm_time("90m"), slurm_time("36h"), slurm_time("1-12:00:00")
    ('1:30:00', '36:00:00', '1-12:00:00')
    """
    if match := re.fullmatch(r"(\d+)([mh])", text):
        minutes = int(match[1]) * (60 if match[2] == "h" else 1)
        return f"{minutes // 60}:{minutes % 60:02d}:00"
    if not _TIME.fullmatch(text):
        raise UserError(f"--time {text}: write 90m, 12h, hours:minutes:seconds, or days-hours.")
    return text


def _seconds(time: str) -> int:
    """Return the seconds of a time limit of sbatch.

    >>> _seconds("3"), _seconds("0:02:30"), _seconds("1-12")
    (180, 150, 129600)
    """
    days, _, clock = time.rpartition("-")
    units = (3600, 60, 1) if days or time.count(":") == 2 else (60, 1)
    fields = (int(field) * unit for field, unit in zip(clock.split(":"), units, strict=False))
    return 86400 * int(days or 0) + sum(fields)


def script(job: Job) -> str:
    """Return the batch script: the template slurm.sh.j2, filled in."""
    job.check()
    environment = Environment(
        loader=PackageLoader("ganherd", ""), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quote"] = shlex.quote
    return environment.get_template("slurm.sh.j2").render(
        job=job,
        mark=MARK,
        time=slurm_time(job.time),
        torchrun=job.launcher == "torchrun",
        new=" ".join([*map(shlex.quote, job.words), "--run", '"$run"']),
        again=_resuming(*job.again),
        checked=_resuming(*job.words),
        launch=_launch(job),
    )


def _resuming(*words: str) -> str:
    """Return arguments of `ganherd train` that resume the run."""
    return " ".join([*map(shlex.quote, words), "--resume", '"$run"'])


def _launch(job: Job) -> str:
    """Return the command that starts the ranks, up to the arguments of `ganherd train`."""
    inside = ["apptainer", "exec", *(["--nv"] if job.gpus_per_node else []), job.container] if job.container else []
    options = shlex.split(job.launcher_options)
    if job.launcher == "srun":
        # end the other ranks if one dies: they would wait for it for ever
        return shlex.join(["srun", "--kill-on-bad-exit=1", *options, *inside, "ganherd", "train"])
    if job.launcher == "mpiexec":
        ranks = str(job.nodes * job.ranks_per_node)
        return shlex.join(["mpiexec", "-n", ranks, *options, *inside, "ganherd", "train"])
    counts = ["--nnodes", str(job.nodes), "--nproc-per-node", str(job.ranks_per_node), "--max-restarts", "3"]
    start = shlex.join(["srun", *inside, "torchrun", *counts, "--rdzv-backend", "c10d"])
    meet = (
        '--rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29400"'
    )
    # after -m and --, torchrun does not take --run for its own
    return f"{start} {meet} {shlex.join([*options, '-m', '--', 'ganherd', 'train'])}"
