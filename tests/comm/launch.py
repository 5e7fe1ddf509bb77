"""Starts the small programs beside it as the ranks of a real job, and says how the job ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import warm_python
from processes import environment

HERE = Path(__file__).parent


def job(engine: str, ranks: int, program: str, *words: object, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """(exit code, all that was said) of so many ranks of a program, started by `mpi`, by `torch`, or `forked` without either."""
    starts: dict[str, Callable[[], tuple[str, ...]]] = {
        "mpi": lambda: (*mpiexec(), *options, "-n", str(ranks), warm_python.python()),
        "torch": lambda: (*torchrun(), *options, "--nproc-per-node", str(ranks)),
        "forked": lambda: (warm_python.python(), str(HERE / "forked.py"), str(ranks)),
    }
    done = subprocess.run(
        [*starts[engine](), str(HERE / program), *map(str, words)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


@cache
def mpiexec() -> tuple[str, ...]:
    """That of this Python's MPI; Open MPI has to be asked for what others do without."""
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60).stdout
    is_open = "Open MPI" in said or "OpenRTE" in said
    return (found, "--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])) if is_open else (found,)


def torchrun() -> tuple[str, ...]:
    """Return the command that starts ranks by torchrun; programs behind `--no-python` start with an interpreter."""
    return (
        "env",
        f"PYTHON_EXEC={warm_python.python()}",
        warm_python.python(),
        "-m",
        "torch.distributed.run",
        "--standalone",
    )
