"""Ranks on several hosts: they find each other, one is killed, a cable is cut, and the others go on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_runs

from comm.hosts import Host, hosts, missing, mpiexec, torchrun
from comm.launch import mpiexec as local_mpiexec
from comm.test_ulfm import need_ulfm
from ganherd.runs.folder import RunFolder
from promises.test_ranks import assert_same_herd, recipe

PROGRAM = Path(__file__).parent / "rank_over_hosts.py"
LONG = pytest.mark.long


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if reason := missing():
        pytest.skip(reason)
    yield tmp_path


def until(folder: Path, *names: str) -> list[int]:
    """The processes of these ranks, once they are there."""
    for _ in range(6000):
        found = [path.read_text() for name in names if (path := folder / f"{name}.pid").exists()]
        if len(found) == len(names) and all(found):  # written, too
            return [int(text) for text in found]
        threading.Event().wait(0.01)
    raise AssertionError(f"{names} never came: {sorted(path.name for path in folder.iterdir())}")


def names(made: list[Host]) -> list[str]:
    return [f"{'-'.join(host.name for host in made)}-rank{rank}" for rank in range(len(made))]


@pytest.mark.further
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=LONG)])
def test_torchrun_restarts_and_continues_without_a_host_that_is_cut_off(count: int, folder: Path) -> None:
    with hosts(count, folder) as made:
        nodes = f"{count - 1}:{count}"
        running = [host.start(torchrun(made[0], host, nodes, PROGRAM, folder), GANHERD_LOST_AFTER="3") for host in made]
        processes = until(folder, *names(made))
        for name in names(made):
            (folder / f"{name}.pid").unlink()
        os.kill(processes[-1], signal.SIGKILL)
        # torchrun does not count alike on all hosts how often it has started them; they meet all the same
        until(folder, *names(made))
        made[-1].cut()
        until(folder, *names(made[:-1]))
        (folder / "stop").touch()
        said = running[0].communicate(timeout=60)[0]
        assert running[0].returncode == 0, said
        assert all((folder / f"{name}.done").exists() for name in names(made[:-1])), said


@pytest.mark.further
def test_a_herd_trained_over_two_hosts_is_that_of_one_process(folder: Path) -> None:
    """By the command, as a user would: the same files, seen by both, and nothing else in common."""
    np.savez(folder / "data.npz", x=np.random.default_rng(0).integers(0, 256, (60, 1, 6, 6), np.uint8))
    made, run = recipe(folder / "data.npz", "cellular"), folder / "run"
    (folder / "recipe.yaml").write_text(json.dumps(made))
    words = ["-m", "--", "ganherd", "train", folder / "recipe.yaml", "--run", run, "--quiet"]
    with hosts(2, folder) as two:
        running = [host.start(torchrun(two[0], host, "2", *words)) for host in two]
        tiny_runs.train(folder / "alone", made)
        said = [each.communicate(timeout=120)[0] for each in running]
        assert [each.returncode for each in running] == [0, 0], said
    assert sorted(RunFolder(run).info.ranks.hosts) == ["host1", "host2"]
    assert_same_herd(run, folder / "alone")


@pytest.mark.further
@pytest.mark.mpi
@pytest.mark.parametrize("lost", ["killed", pytest.param("cut", marks=LONG)])
def test_mpi_continues_without_a_lost_rank_on_another_host(lost: str, folder: Path) -> None:
    need_ulfm()
    # mpiexec hears of a process that dies; that a host is silent only the ranks can notice, where they are asked to
    watch = ["--mca", "mpi_ft_detector", "1", "--mca", "mpi_ft_detector_thread", "1"]
    watch += ["--mca", "mpi_ft_detector_period", "0.5", "--mca", "mpi_ft_detector_timeout", "3"]
    quiet = [
        word for word in local_mpiexec() if word != "--oversubscribe"
    ]  # with which all would be put on the first host
    start = [*quiet, "--with-ft", "ulfm", *(watch if lost == "cut" else [])]
    with hosts(2, folder) as made:
        running = made[0].start(mpiexec(made, folder, start, PROGRAM, folder))
        processes = until(folder, *names(made))
        if lost == "cut":
            made[1].cut()
        else:
            os.kill(processes[1], signal.SIGKILL)
        until(folder, *names(made[:1]))
        (folder / "stop").touch()
        if lost == "killed":
            said = running.communicate(timeout=60)[0]
            assert running.returncode == 0 and (folder / "host1-rank0.done").exists(), said
