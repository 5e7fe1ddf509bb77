"""Start the processes of a benchmark on this machine: their environment, and the commands of mpiexec and torchrun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ganherd.bench.checkout import FOLDER
from ganherd.util.errors import UserError

LAUNCHERS = ("mpiexec", "torchrun")


def process_environment() -> dict[str, str]:
    """Return the environment of a process that imports `ganherd_benchmarks` and computes in one thread."""
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(FOLDER)) if path]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def command(launcher: str, ranks: int, module: str, words: Sequence[str]) -> list[str]:
    """Return the command that runs a module on this many ranks; one rank needs no launcher.

    >>> command("torchrun", 2, "json.tool", ["x"])[1:]
    ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', '-m', 'json.tool', 'x']
    """
    if ranks == 1:
        return [sys.executable, "-m", module, *words]
    if launcher == "torchrun":
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [sys.executable, *start, "-m", module, *words]
    return [*mpiexec(), "-n", str(ranks), sys.executable, "-m", module, *words]


def mpiexec() -> list[str]:
    """Return the mpiexec of this Python, or of the system, with the options that Open MPI needs and others lack.

    Open MPI counts physical cores, and would bind ranks to them; the number of ranks is checked elsewhere, by cores.
    """
    folders = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])
    path = shutil.which("mpiexec", path=folders)
    if path is None:
        raise UserError(
            "mpiexec was not found: pip install 'ganherd[mpi]' mpich, or choose another one with --launcher torchrun."
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        return [path]
    return [path, "--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]


def run(words: Sequence[str]) -> None:
    """Run a command whose processes compute in one thread each.

    Raises:
        UserError: It failed; the message has the most informative line of its errors.
    """
    done = subprocess.run(words, capture_output=True, text=True, env=process_environment())
    if done.returncode:
        raise UserError(f"the ranks failed: {reason(done.stderr)}")


def reason(said: str) -> str:
    """Return the most informative line of an error.

    >>> reason("Traceback\\n  File x\\nRuntimeError: no memory\\nroot cause")
    'RuntimeError: no memory'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "Error: " in line), lines[-1] if lines else "no message")
