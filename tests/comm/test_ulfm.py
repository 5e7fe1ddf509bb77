"""Under Open MPI with `--with-ft ulfm` ranks may be killed: the others notice, find each other, and have the lost members."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from comm.launch import job, mpiexec

LONG = pytest.mark.long
FIVE = ["in_exchange:0", "in_a_part:1", "while_nobody_waits:2"]
SIX = ["in_collective:3", "under_way:0,2:1", "as_the_last:1"]


def need_ulfm() -> None:
    said = subprocess.run([mpiexec()[0], "--version"], capture_output=True, text=True, timeout=60).stdout
    if "Open MPI" not in said or "Open MPI) 4" in said:
        pytest.skip("this mpiexec is not Open MPI 5 or newer, which alone goes on without a lost rank")


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "losses"),
    [
        (5, FIVE),
        (6, SIX),
        *(pytest.param(4, [f"{way}:{rank}"], marks=LONG) for way in ("in_exchange", "under_way") for rank in range(4)),
    ],
)
def test_remaining_ranks_continue_after_a_loss_under_ulfm(ranks: int, losses: list[str], tmp_path: Path) -> None:
    """Also where the first rank is killed, several at once, or one while the others look for survivors."""
    need_ulfm()
    code, said = job("mpi", ranks, "rank_that_goes_on.py", tmp_path, *losses, options=("--with-ft", "ulfm"))
    gone = sum(len(each.split(",")) for loss in losses for each in loss.split(":")[1:])
    assert code == 0, said
    assert len(list(tmp_path.glob(f"*-{ranks - gone}"))) == ranks - gone, said


@pytest.mark.mpi
def test_without_ulfm_the_job_ends_and_names_the_resume_command(tmp_path: Path) -> None:
    code, said = job("mpi", 2, "rank_that_dies.py", "killed", tmp_path)
    assert code != 0 and not list(tmp_path.iterdir()), said
    assert "The job ends; resume with: ganherd train --resume RUN" in said, said
