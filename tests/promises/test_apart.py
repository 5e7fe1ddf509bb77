"""Asynchronous exchange: ranks run ahead of a slow rank up to the bound and no further; without a bound nothing changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
import run_files
import tiny_runs

from comm.test_ulfm import need_ulfm
from ganherd.comm import heartbeat
from ganherd.runs import checkpoint, run_status, status_text
from ganherd.runs.folder import RunFolder
from ganherd.strategies.cellular.topology import torus
from ganherd.training.setup.assemble import assemble
from promises import test_faults, test_ranks

pytestmark = pytest.mark.usefixtures("brief")
HERE = Path(__file__).parent
SPAN, LEG, STALENESS, SLOW = 2, 4, 2, 1
ITERATIONS = 2 * LEG


def recipe(data: Path, budget: str = "16steps", every: int = SPAN, **exchange: Any) -> dict[str, Any]:
    """Six cells, and eight iterations; something is due after each of them."""
    kept = {"checkpoint_every": 2 * every, "sample_every": 0, "buddy_every": every, "watch": {"every": every}}
    made = test_ranks.recipe(data, "cellular", budget, record_every=every, **kept)
    cells = {**made["strategy"]["cellular"], "iteration": f"{SPAN}steps", **exchange}
    return {**made, "strategy": {"name": "cellular", "cellular": cells}}


def apart(data: Path, budget: str = "16steps", every: int = SPAN, **exchange: Any) -> dict[str, Any]:
    return recipe(data, budget, every, exchange="async", **{"staleness": STALENESS, "rejoin": LEG, **exchange})


def happened(run: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in RunFolder(run).events() if line["event"] == event]


@pytest.fixture(
    scope="module",
    params=[
        ("forked", 2),
        pytest.param(("mpi", 3), marks=[pytest.mark.mpi, pytest.mark.further]),
        pytest.param(("torch", 2), marks=pytest.mark.long),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def runs(
    request: pytest.FixtureRequest, brief: None, plain_images: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Of the same ranks: one whose second rank is slow, and others that go by themselves."""
    (engine, ranks), folder = request.param, tmp_path_factory.mktemp("apart")
    made = {
        "slow": apart(plain_images),
        "sync": recipe(plain_images),
        "never stale": apart(plain_images, staleness=0),
        "never apart": apart(plain_images, rejoin=1),
        "sync, in between": recipe(plain_images, every=3),
        "never stale, in between": apart(plain_images, every=3, staleness=0),
    }
    jobs = [{"recipe": each, "run": str(folder / name)} for name, each in made.items()]
    jobs[0]["slow"] = SLOW
    program = [str(HERE / "rank_goes_apart.py"), "mpi" if engine == "mpi" else "torch", *map(json.dumps, jobs)]
    environment = processes.environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    words = [*test_ranks.words(engine, ranks), *program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_ranks_run_ahead_of_a_slow_one_up_to_the_bound(runs: Path) -> None:
    """All are together after four iterations. At the third since then the slow rank's nets are two iterations old, and stay so."""
    told = happened(runs / "slow", "exchange")
    assert [(line["step"], line["iteration"]) for line in told] == [(SPAN * i, i) for i in range(ITERATIONS)]
    for rank in range(len(told[0]["most"])):
        most, mean = ([line[name][rank] for line in told] for name in ("most", "mean"))
        assert all(-STALENESS <= m <= n <= STALENESS for m, n in zip(mean, most, strict=True)), (most, mean)
        assert most[0] == most[LEG] == 0
        if rank != SLOW:
            assert most == [0, 1, 2, 2] * 2
    assert "neighbours' nets were up to 2 iterations old" in status_text.text(run_status.describe(runs / "slow"))


def test_records_and_checkpoints_wait_for_all_ranks_and_no_event_is_lost(runs: Path) -> None:
    run = RunFolder(runs / "slow")
    assert [line["step"] for line in run.metrics()] == run_files.steps(run.path)[1:] == [8, 16]
    assert [line["step"] for line in happened(run.path, "mixture")] == [8, 16]
    for name, at in (("tournament", 0), ("replacement", SPAN)):
        lines = happened(run.path, name)
        assert [line["step"] for line in lines] == [SPAN * i + at for i in range(ITERATIONS)]
        assert all(len(value) == 6 for line in lines for value in line.values() if isinstance(value, list))


def test_a_rank_gets_its_border_once_an_iteration(runs: Path) -> None:
    run = runs / "slow"
    nets = assemble(RunFolder(run).recipe, begins=False).herd.nets
    state = checkpoint.load(run_files.last_checkpoint(run), nets).state
    parts = [
        value for name, value in state.items() if name.startswith(("g.", "d.")) or name in ("set.lr_g", "set.lr_d")
    ]
    a_slice = sum(value[0].numel() * value.element_size() for value in parts)
    a_summary = 8 * (36 + 36**2 + 1)  # mean, covariance and number of samples of 6 × 6 pixels
    for beat in heartbeat.read(run / "ranks"):
        border = {other for cell in beat.members for other in torus(2, 3).neighbours(cell)} - {*beat.members}
        assert (beat.exchanges, beat.received) == (ITERATIONS, len(border) * (ITERATIONS * a_slice + 2 * a_summary))


def test_zero_staleness_equals_the_synchronous_run(runs: Path) -> None:
    """Bit for bit: herd, mixture, records and events, wherever these fall."""
    run_files.assert_same_run(runs / "never stale", runs / "sync")
    run_files.assert_same_run(runs / "never stale, in between", runs / "sync, in between")


def test_ranks_that_never_run_ahead_equal_the_synchronous_run(runs: Path) -> None:
    """Bit for bit, although members travel asynchronously."""
    run = runs / "never apart"
    assert {number for line in happened(run, "exchange") for number in line["most"]} == {0}
    lines = (run / "events.jsonl").read_text().splitlines(True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"event": "exchange"' not in line))
    run_files.assert_same_run(run, runs / "sync")


def test_one_process_has_no_stale_neighbours(plain_images: Path, tmp_path: Path) -> None:
    tiny_runs.train(tmp_path / "sync", recipe(plain_images, "9steps"))
    tiny_runs.train(tmp_path / "async", apart(plain_images, "9steps"))
    run_files.assert_same_run(tmp_path / "async", tmp_path / "sync")


@pytest.mark.further
def test_a_stop_waits_for_all_ranks_and_the_run_resumes_on_other_ranks(plain_images: Path, tmp_path: Path) -> None:
    """On more ranks, on one, and further than was planned: from the middle of an iteration."""
    settings = apart(plain_images, "15steps", rejoin=4)
    code, said = test_ranks.launch("forked", 2, [["stop", settings, str(tmp_path / name)] for name in ("three", "one")])
    assert code == 0, said
    for name in ("three", "one"):
        assert RunFolder(tmp_path / name).info.state == "interrupted" and run_files.steps(tmp_path / name)[-1] == 8
    further = [["resume", [], str(tmp_path / "three")], ["resume", ["train.budget=19steps"], str(tmp_path / "three")]]
    code, said = test_ranks.launch("forked", 3, further)
    assert code == 0, said
    tiny_runs.resume(tmp_path / "one")
    for name, iterations, end in (("three", 10, 19), ("one", 8, 15)):
        run = RunFolder(tmp_path / name)
        assert run.info.state == "finished" and run_files.steps(run.path)[-1] == end
        assert [line["iteration"] for line in happened(run.path, "tournament")] == list(range(iterations))
        assert happened(run.path, "replacement")[-1]["step"] == end // SPAN * SPAN


@pytest.mark.further(but=["torchrun"])
@pytest.mark.parametrize("launcher", [pytest.param("ulfm", marks=pytest.mark.mpi), "torchrun"])
def test_a_run_survives_a_killed_rank(launcher: str, plain_images: Path, tmp_path: Path) -> None:
    """All go back to a step at which they were together; no line is there twice, and none is missing."""
    if launcher == "ulfm":
        need_ulfm()
    kill = {"name": "run", "recipe": apart(plain_images, "18steps", rejoin=3), "victim": 1, "step": 9, "seconds": 0.0}
    code, said = test_faults.launch(launcher, 3 if launcher == "ulfm" else 2, tmp_path, [kill])
    assert code == 0, said
    run = RunFolder(tmp_path / "run")
    (again,) = happened(run.path, "resume")
    assert again["step"] in (6, 12), again  # the others may have been further
    assert run.info.state == "finished"
    assert [line["step"] for line in run.metrics()] == [6, 12, 18]
    for name in ("tournament", "replacement", "exchange"):
        assert [line["iteration"] for line in happened(run.path, name)] == list(range(9))
