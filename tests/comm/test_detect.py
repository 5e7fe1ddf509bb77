"""How a process was started is read from its environment alone, and no communicator is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import environment

from ganherd.comm.backends.detect import connect, detect, with_launcher
from ganherd.util.errors import UserError

SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
STEP = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "local"),
        ({"OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "2"}, "mpi"),  # Open MPI
        ({"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}, "local"),
        ({"PMI_RANK": "0", "PMI_SIZE": "3"}, "mpi"),  # MPICH, Intel MPI
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "local"),
        ({"PMIX_RANK": "0"}, "mpi"),  # any other that talks PMIx: only MPI can say how many there are
        (STEP, "mpi"),  # srun
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, "local"),  # a step of one task, as an interactive shell
        (SLURM, "local"),  # a batch script is one process, however many tasks its job has
        ({**SLURM, "OMPI_COMM_WORLD_SIZE": "8"}, "mpi"),  # mpiexec within it
        (TORCHRUN, "torch"),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, "local"),
        ({**STEP, **TORCHRUN}, "torch"),  # torchrun started by srun, one on each host
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torch"),  # by hand
        ({"WORLD_SIZE": "2"}, "local"),
        ({"PMI_SIZE": "many"}, "local"),
    ],
)
def test_the_launcher_is_detected_from_the_environment(environ: dict[str, str], name: str) -> None:
    assert detect(environ) == name


def test_neither_detecting_nor_reading_heartbeats_imports_torch_or_mpi() -> None:
    program = (
        "import os, pathlib, sys\nfrom ganherd.comm.backends.detect import detect\ndetect(os.environ)\n"
        "from ganherd.comm.heartbeat import read\nread(pathlib.Path('.'))\n"
        "print([name for name in ('torch', 'mpi4py', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_single_process_gets_the_local_communicator() -> None:
    comm = connect("local", {})
    assert (comm.rank, comm.world_size, comm.local_rank) == (0, 1, 0)
    assert comm.broadcast(b"x") == b"x" and comm.all_gather_bytes(b"y") == [b"y"] and comm.new_group([0]) is comm
    comm.barrier()
    comm.close()


def test_an_unknown_communicator_is_named() -> None:
    with pytest.raises(UserError, match="no communicator 'smoke': choose local, mpi or torch"):
        connect("smoke", {})


@pytest.mark.parametrize(
    ("engine", "environ", "words"),
    [
        ("mpi", {"PMI_SIZE": "4"}, "mpiexec -n 4 COMMAND"),
        ("mpi", {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_mpi_ft_enable": "1"}, "mpiexec --with-ft ulfm -n 4 COMMAND"),
        ("mpi", {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "srun -n 4 COMMAND"),
        ("torch", {"GANHERD_RANKS": "4", "LOCAL_WORLD_SIZE": "4"}, "COMMAND --ranks 4"),
        ("torch", {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4"}, "torchrun --nproc-per-node 4 -m -- COMMAND"),
        ("torch", {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}, "torchrun … -m -- COMMAND"),
        ("torch", {"RANK": "0", "WORLD_SIZE": "4"}, "COMMAND"),
    ],
)
def test_the_resume_command_includes_its_launcher(engine: str, environ: dict[str, str], words: str) -> None:
    assert with_launcher("COMMAND", engine, 4, environ) == words
