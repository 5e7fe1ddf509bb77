"""Under a real mpiexec ranks answer what one process would, and send what has to cross alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from processes import environment

from comm.launch import job
from ganherd.comm.backends.detect import connect
from ganherd.util.errors import UserError

LONG = pytest.mark.long


# Five ranks also try 1, 3 and 4 of them by themselves; to start so many takes most of the time.
@pytest.mark.further("5")
@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=LONG), 2, pytest.param(3, marks=LONG), 5])
def test_ranks_answer_as_one_process(ranks: int, tmp_path: Path) -> None:
    code, said = job("mpi", ranks, "rank_as_local.py", "mpi", tmp_path)
    assert code == 0, said
    done = sorted(json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert done == [[rank, ranks] for rank in range(ranks)], said


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "ends"), [("abort", 3), ("fail", 4)])
def test_a_rank_that_fails_ends_the_job(how: str, ends: int, tmp_path: Path) -> None:
    """Else the others would wait for it for ever."""
    code, said = job("mpi", 2, "rank_that_dies.py", how, tmp_path)
    assert code == ends, said
    assert not list(tmp_path.iterdir())


@pytest.mark.mpi
def test_a_rank_that_fails_alone_says_why_before_the_job_ends() -> None:
    code, said = job("mpi", 2, "rank_fails_alone.py")
    assert code == 75, said
    assert said.count("ganherd: memory ran out; resume it with: ganherd train --resume RUN") == 1, said


@pytest.mark.mpi
def test_a_mistake_that_all_ranks_were_given_ends_each_with_its_own_code(tmp_path: Path) -> None:
    code, said = job("mpi", 2, "rank_that_dies.py", "all fail", tmp_path)
    assert code == 5, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-failed", "1-failed"]


@pytest.mark.mpi
def test_ranks_that_do_not_know_of_each_other_are_refused() -> None:
    """As under the mpiexec of another MPI, or srun without its --mpi: each would train the same run."""
    program = (
        "from ganherd.comm.backends.detect import connect\nfrom ganherd.util.errors import UserError\n"
        "for environ in ({'PMI_SIZE': '4'}, {'SLURM_STEP_ID': '0', 'SLURM_NTASKS': '4'}):\n"
        "    try:\n        connect('mpi', environ)\n    except UserError as error:\n        print(error)\n"
    )
    done = subprocess.run(
        [warm_python.python(), "-c", program], env=environment(), capture_output=True, text=True, timeout=60
    )
    sentences = done.stdout.splitlines()
    assert len(sentences) == 2, done.stderr
    assert sentences[0].startswith("mpiexec started 4 ranks, but MPI sees one: ")
    assert sentences[1].startswith("srun started 4 ranks, but MPI sees one: try srun --mpi=pmix")


def test_without_mpi4py_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match=r"mpi4py is not installed here: pip install 'ganherd\[mpi\]'"):
        connect("mpi", {})
