"""The command that goes on with a run on ranks as they are now: the words of the launcher, as far as the environment tells."""

from __future__ import annotations

import os
from collections.abc import Mapping

RANKS = "GANHERD_RANKS"  # set for ranks that `ganherd train --ranks` starts: how many
ULFM = "OMPI_MCA_mpi_ft_enable"  # is 1 under Open MPI's mpiexec --with-ft ulfm


def with_launcher(command: str, engine: str, ranks: int, environ: Mapping[str, str] = os.environ) -> str:
    """A `ganherd` command as it is started on so many ranks. Hosts and options of the site are not known here.

    >>> with_launcher("ganherd train --resume run", "mpi", 4, {"PMI_SIZE": "4"})
    'mpiexec -n 4 ganherd train --resume run'
    >>> with_launcher("ganherd train --resume run", "torch", 2, {"GANHERD_RANKS": "2"})
    'ganherd train --resume run --ranks 2'
    >>> with_launcher("ganherd train --resume run", "local", 1, {})
    'ganherd train --resume run'
    """
    if ranks == 1 or engine == "local":
        return command
    if engine == "mpi":
        if environ.get("SLURM_STEP_NUM_TASKS") == str(ranks) and "OMPI_COMM_WORLD_SIZE" not in environ:
            return f"srun -n {ranks} {command}"
        return f"mpiexec{' --with-ft ulfm' if environ.get(ULFM) == '1' else ''} -n {ranks} {command}"
    if RANKS in environ:
        return f"{command} --ranks {ranks}"
    if "TORCHELASTIC_RUN_ID" in environ:
        is_one_host = environ.get("LOCAL_WORLD_SIZE") == str(ranks)
        return f"torchrun {f'--nproc-per-node {ranks}' if is_one_host else '…'} -m -- {command}"
    return command
