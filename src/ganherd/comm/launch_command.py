"""Reconstruct the launcher command that resumes a run on the current ranks, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

RANKS = "GANHERD_RANKS"  # the number of ranks, set by `ganherd train --ranks`
ULFM = "OMPI_MCA_mpi_ft_enable"  # is 1 under Open MPI's mpiexec --with-ft ulfm


def with_launcher(command: str, backend: str, ranks: int, environ: Mapping[str, str] = os.environ) -> str:
    """Return a `ganherd` command as it is launched on this many ranks. Hosts and options of the site are not known.

    Args:
        command: The command in one process.
        backend: The name of the communicator.
        ranks: The number of ranks.
        environ: The environment of a rank.

    >>> with_launcher("ganherd train --resume run", "mpi", 4, {"PMI_SIZE": "4"})
    'mpiexec -n 4 ganherd train --resume run'
    >>> with_launcher("ganherd train --resume run", "torch", 2, {"GANHERD_RANKS": "2"})
    'ganherd train --resume run --ranks 2'
    >>> with_launcher("ganherd train --resume run", "local", 1, {})
    'ganherd train --resume run'
    """
    if ranks == 1 or backend == "local":
        return command
    if backend == "mpi":
        if environ.get("SLURM_STEP_NUM_TASKS") == str(ranks) and "OMPI_COMM_WORLD_SIZE" not in environ:
            return f"srun -n {ranks} {command}"
        return f"mpiexec{' --with-ft ulfm' if environ.get(ULFM) == '1' else ''} -n {ranks} {command}"
    if RANKS in environ:
        return f"{command} --ranks {ranks}"
    if "TORCHELASTIC_RUN_ID" in environ:
        is_one_host = environ.get("LOCAL_WORLD_SIZE") == str(ranks)
        return f"torchrun {f'--nproc-per-node {ranks}' if is_one_host else '…'} -m -- {command}"
    return command
