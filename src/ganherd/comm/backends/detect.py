"""Detect which launcher started this process, connect its ranks, and return the command that starts the job again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.comm.communicator import Communicator

NAMES = ("local", "mpi", "torch")
RANKS = "GANHERD_RANKS"  # the number of ranks, set by `ganherd train --ranks`
ULFM = "OMPI_MCA_mpi_ft_enable"  # is 1 under Open MPI's mpiexec --with-ft ulfm


def detect(environ: Mapping[str, str]) -> str:
    """Return the name of the communicator for this process: `mpi`, `torch`, or `local` if it was started alone.

    If launchers are nested, the innermost one counts: torchrun inside a Slurm allocation is torchrun.

    >>> detect({"PMI_RANK": "0", "PMI_SIZE": "4"}), detect({"RANK": "1", "WORLD_SIZE": "2"}), detect({})
    ('mpi', 'torch', 'local')
    """
    if "TORCHELASTIC_RUN_ID" in environ or ("RANK" in environ and "WORLD_SIZE" in environ):
        return "torch" if _number(environ, "WORLD_SIZE") > 1 else "local"
    if started := launched(environ):
        return "mpi" if started > 1 else "local"
    return "mpi" if "PMIX_RANK" in environ else "local"


def launched(environ: Mapping[str, str]) -> int:
    """Return the number of ranks that an MPI launcher announces in the environment; 0 without a launcher.

    Slurm's numbers count only inside a step, which srun creates: a batch script or a shell in an allocation of many tasks
    is one process.

    >>> launched({"SLURM_NTASKS": "8"}), launched({"SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"})
    (0, 8)
    """
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if ranks := _number(environ, name):
            return ranks
    if "SLURM_STEP_ID" in environ:
        return _number(environ, "SLURM_STEP_NUM_TASKS") or _number(environ, "SLURM_NTASKS")
    return 0


def connect(name: str, environ: Mapping[str, str] = os.environ) -> Communicator:
    """Return the communicator of that name, connected to all ranks, whose hosts are known. Every rank calls this.

    Raises:
        UserError: The ranks cannot work together, or one of them died while they started.
    """
    # Loading PyTorch from a file server may take minutes, so it is imported before the watchdog starts to count.
    import torch.distributed  # noqa: F401

    from ganherd.comm.backends.rendezvous import start_watchdog
    from ganherd.comm.communicator import RankLost
    from ganherd.comm.handshake import introduce

    with start_watchdog(environ):
        try:
            comm = _create(name, environ)
            introduce(comm)
        except RankLost as error:
            raise UserError(f"{error}, while the ranks were started: start the job again.") from error
    return comm


def _create(name: str, environ: Mapping[str, str]) -> Communicator:
    """Return the communicator of that name, before the handshake."""
    if name == "mpi":
        from ganherd.comm.backends.mpi import Mpi

        comm = Mpi.world()
        _refuse_unconnected(comm.world_size, environ)
        return comm
    if name == "torch":
        from ganherd.comm.backends.torchrun import Torch

        return Torch()
    if name == "local":
        from ganherd.comm.backends.local import Local

        return Local()
    raise UserError(f"there is no communicator {name!r}: choose {', '.join(NAMES[:-1])} or {NAMES[-1]}.")


def _refuse_unconnected(world_size: int, environ: Mapping[str, str]) -> None:
    """Raise a UserError if several ranks were launched but MPI sees one.

    Such ranks would all train the same run. It is the most common mistake with MPI.
    """
    started = launched(environ)
    if world_size > 1 or started <= 1:
        return
    if "SLURM_STEP_ID" in environ and "OMPI_COMM_WORLD_SIZE" not in environ and "PMI_SIZE" not in environ:
        raise UserError(
            f"srun started {started} ranks, but MPI sees one: try srun --mpi=pmix or --mpi=pmi2 (`srun --mpi=list` shows the "
            "choices), or start with the mpiexec of mpi4py's MPI."
        )
    raise UserError(
        f"mpiexec started {started} ranks, but MPI sees one: this mpiexec belongs to another MPI than mpi4py's "
        "(`ganherd doctor` names it); start with that one's mpiexec."
    )


def with_launcher(command: str, backend: str, ranks: int, environ: Mapping[str, str] = os.environ) -> str:
    """Return a `ganherd` command with the launcher that starts it on this many ranks, without the site's own options.

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


def _number(environ: Mapping[str, str], name: str) -> int:
    """Return the number in an environment variable; 0 if it is missing or not a number."""
    value = environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else 0
