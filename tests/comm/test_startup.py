"""Ranks that wait for one that never comes end with a sentence, and soon; nobody waits for ever."""

from __future__ import annotations

import subprocess

import pytest
import warm_python
from processes import environment

from comm.launch import HERE, job
from comm.test_ulfm import need_ulfm
from ganherd.comm.backends.rendezvous import start_timeout
from ganherd.training.ranks.spawn import _free_port
from ganherd.util.errors import UserError


@pytest.mark.further(but=["0"])
@pytest.mark.mpi
@pytest.mark.parametrize("victim", [0, 2])
def test_under_ulfm_a_rank_that_dies_at_the_start_ends_the_job(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need_ulfm()
    monkeypatch.setenv("GANHERD_START_TIMEOUT", "8")
    code, said = job("mpi", 3, "rank_dies_at_start.py", victim, options=("--with-ft", "ulfm"))
    assert code != 0, said
    assert "waited 8 seconds for the other ranks" in said and "start the job again" in said, said
    assert "GANHERD_START_TIMEOUT" in said and "Traceback" not in said, said


def test_without_a_launcher_ranks_name_the_one_that_is_missing() -> None:
    """As a script of one's own starts them: nobody else would notice."""
    port = str(_free_port())
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GANHERD_START_TIMEOUT": "8"}
    words = [warm_python.python(), str(HERE / "rank_dies_at_start.py"), "1"]
    first = subprocess.run(words, env=environment(**names, RANK="0"), capture_output=True, text=True, timeout=120)
    assert first.returncode == 2, first
    assert "seconds for rank 1, which did not start" in first.stderr and "Traceback" not in first.stderr


def test_a_job_that_torchrun_started_ends_if_a_rank_dies_at_the_start() -> None:
    code, said = job("torch", 2, "rank_dies_at_start.py", 1)
    assert code != 0, said


@pytest.mark.parametrize("text", ["", "soon", "-1", "inf", "nan"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="GANHERD_START_TIMEOUT"):
        start_timeout({"GANHERD_START_TIMEOUT": text})
