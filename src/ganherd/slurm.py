"""Write a Slurm batch script that trains a recipe, saves before its time limit, and requeues itself."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

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
    """Return the batch script."""
    job.check()
    parts = [
        "#!/bin/bash",
        f"{MARK}: trains into {job.run}. Submit it again to resume.",
        *(f"#SBATCH {line}" for line in _directives(job)),
        "",
        f"run={shlex.quote(str(job.run))}",
        *(f"module load {shlex.quote(module)}" for module in job.modules),
        f"export OMP_NUM_THREADS={job.cpus_per_rank}",
        *([] if job.launcher == "mpiexec" else [_CPUS]),
        *([f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={max(10, job.notice - 10)}"] if job.launcher == "torchrun" else []),
        *_which(job),
        _BODY.format(ask=_ASK_TORCHRUN if job.launcher == "torchrun" else _ASK, launch=_launch(job)),
    ]
    if job.launcher == "torchrun":
        parts.append('[ -n "$stop" ] && [ "$code" -ne 0 ] && code=75  # torchrun ends with 1 if it was asked to end')
    if "ulfm" in job.launcher_options and not job.array:
        parts.append(_UNFINISHED)
    return "\n".join([*parts, _END])


def _directives(job: Job) -> list[str]:
    """Return the directives of sbatch."""
    one = job.launcher == "torchrun"  # a torchrun for each node starts the ranks there
    lines = [
        f"--job-name=ganherd-{job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={1 if one else job.ranks_per_node}",
        f"--cpus-per-task={job.cpus_per_rank * (job.ranks_per_node if one else 1)}",
        f"--time={slurm_time(job.time)}",
        f"--signal=B:USR1@{job.notice}",
        "--requeue",
        "--open-mode=append",
        f"--output=ganherd-{job.name}-{'%A_%a' if job.array else '%j'}.log",
    ]
    lines += [f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []
    lines += [f"--partition={job.partition}"] if job.partition else []
    lines += [f"--account={job.account}"] if job.account else []
    lines += [f"--array=0-{job.array - 1}"] if job.array else []
    return lines


def _which(job: Job) -> list[str]:
    """Return the lines that choose between a new run and resuming; a job of an array uses the same words for both."""
    new = " ".join([*map(shlex.quote, job.words), "--run", '"$run"'])
    if job.array:
        each = job.members_each
        return [
            f"first=$((SLURM_ARRAY_TASK_ID * {each}))",
            f'words=({new} --members "$first-$((first + {each - 1}))")',
            'again="${words[*]}"',
        ]
    again = " ".join(["--resume", '"$run"', *map(shlex.quote, job.again)])
    return [f'if [ -e "$run/run.json" ]; then words=({again}); else words=({new}); fi', 'again="--resume $run"']


def _launch(job: Job) -> str:
    """Return the command that starts the ranks, up to the arguments of `ganherd train`."""
    inside = ["apptainer", "exec", *(["--nv"] if job.gpus_per_node else []), job.container] if job.container else []
    options = shlex.split(job.launcher_options)
    ranks = job.nodes * job.ranks_per_node
    if job.launcher == "srun":
        # end the other ranks if one dies: they would wait for it for ever
        words = ["srun", "--kill-on-bad-exit=1", *options, *inside, "ganherd", "train"]
    elif job.launcher == "mpiexec":
        words = ["mpiexec", "-n", str(ranks), *options, *inside, "ganherd", "train"]
    else:
        meet = ["--rdzv-backend", "c10d", "--rdzv-id", "JOB", "--rdzv-endpoint", "FIRST:29400"]
        size = ["--nnodes", str(job.nodes), "--nproc-per-node", str(job.ranks_per_node), "--max-restarts", "3"]
        words = [
            "srun",
            *inside,
            "torchrun",
            *size,
            *meet,
            *options,
            "-m",
            "--",
            "ganherd",
            "train",
        ]  # it would read --run as its own
    line = " ".join(shlex.quote(word) for word in words)
    first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29400"'
    return line.replace("FIRST:29400", first).replace("--rdzv-id JOB", '--rdzv-id "$SLURM_JOB_ID"')


# since Slurm 22.05 srun takes one core for a task, whatever the job has; the srun of mpiexec starts no ranks, but its daemons
_CPUS = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
_ASK = 'kill -USR1 "$job" 2>/dev/null'
# torchrun passes SIGTERM on to its ranks, and SIGUSR1 ends it; srun itself would answer SIGTERM by killing all
_ASK_TORCHRUN = 'scancel --signal=TERM "$id"'

# with lost ranks allowed, mpiexec ends with 0 even if all are lost
_UNFINISHED = """[ "$code" -eq 0 ] && ! grep -q '"state": "finished"' "$run/run.json" && code=1"""

_BODY = """
id=$SLURM_JOB_ID
[ -n "${{SLURM_ARRAY_JOB_ID:-}}" ] && id=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
stop=""
job=""
ask() {{ # the ranks save their members and end with 75
    stop=$1
    [ -n "$job" ] && {ask}
}}
trap 'ask USR1' USR1 # the time limit is near
trap 'ask TERM' TERM # cancelled, or preempted

{launch} "${{words[@]}}" &
job=$!
[ -n "$stop" ] && ask "$stop"
while
    wait "$job"
    kill -0 "$job" 2>/dev/null
do :; done # a signal ends the waiting, not the job
wait "$job"
code=$?"""

_END = """
if [ "$code" -eq 75 ] && [ "$stop" != TERM ] && scontrol requeue "$id"; then # Slurm itself puts a preempted job back
    echo "ganherd: the run is saved, and job $id is in the queue again"
elif [ "$code" -ne 0 ]; then
    echo "ganherd: ended with code $code; submit this script again to resume, or run: ganherd train $again" >&2
fi
exit "$code"
"""
