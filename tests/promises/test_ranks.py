"""Promise 2: ranks do not matter. One process and R ranks, of MPI or torchrun, give the same herd, records and mixture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brief_command
import numpy as np
import processes
import pytest
import run_files
import tiny_runs
import torch
import warm_python
from PIL import Image

from comm.launch import mpiexec, torchrun
from ganherd.comm import heartbeat
from ganherd.runs import checkpoint, run_status, status_text
from ganherd.runs.folder import RunFolder
from ganherd.runs.records import PROCESS_EVENTS
from ganherd.training.setup.assemble import assemble
from promises import narrow

pytestmark = pytest.mark.usefixtures("brief")
HERE = Path(__file__).parent
LONG = pytest.mark.long
STRATEGIES: dict[str, dict[str, Any]] = {
    "independent": {"herd": {"members": 5}},
    "resting": {"herd": {"members": 5}, "train": {"stop": {"patience": 5, "metric": "gap", "least": 0.4}}},
    # members that learn far too fast collapse, and are rolled back for it
    "alarmed": {
        "herd": {"members": 5},
        "optim": {"lr_g": [0.0002, 0.5, 0.5, 0.0002, 0.5]},
        "run": {"watch": {"every": 1, "collapse": "rollback"}},
    },
    # a member loses a little more than this says: it is repaired, though nothing is wrong with it
    "a neighbour's weights": {"herd": {"members": 5}, "run": {"repair": {"policy": "neighbour", "diverged": 1.41}}},
    "rolled back": {"herd": {"members": 5}, "run": {"repair": {"policy": "rollback", "diverged": 1.41}}},
    "gap": {"herd": {"members": 3, "seeds": 2}, "strategy": {"name": "gap", "gap": {"every": "3steps", "warmup": "2"}}},
    "cellular": {
        "strategy": {
            "name": "cellular",
            "cellular": {
                "grid": [2, 3],
                "iteration": "4steps",
                "fitness": {"samples": 16},
                "mutation": {"strength": 0.3},
                "mixing": {"when": "iteration", "samples": 64, "generations": 3},
            },
        },
    },
    # opponents of the whole neighbourhood, more offspring than individuals, and nets that expire
    "policies": {
        "strategy": {
            "name": "cellular",
            "cellular": {
                "grid": [2, 3],
                "iteration": "4steps",
                "offspring": 2,
                "max_age": 1,
                "opponents": "neighbourhood",
                "fitness": {"samples": 16},
                "mixing": {"when": "iteration", "samples": 64, "generations": 3},
            },
        },
    },
    "comma": {
        "strategy": {
            "name": "cellular",
            "cellular": {
                "grid": [2, 2],
                "iteration": "4steps",
                "offspring": 3,
                "survival": "comma",
                "opponents": "partner",
                "fitness": {"samples": 16},
                "mixing": {"when": "iteration", "samples": 64, "generations": 3, "keep": "best"},
            },
        },
    },
    # a graph of the recipe's own in the middle, and a score of which more is better
    "rewired": {
        "strategy": {
            "name": "cellular",
            "cellular": {
                "grid": [2, 3],
                "iteration": "4steps",
                "fitness": {"samples": 16},
                "rewire": [{"at": 1, "topology": "graph", "graph": [[1, 5], [2], [0, 3], [4], [0], []]}],
                "mixing": {"when": "iteration", "samples": 64, "generations": 3, "score": "coverage"},
            },
        },
    },
}


def recipe(data: Path, strategy: str, budget: str = "", **run: Any) -> dict[str, Any]:
    """Looks, records and checkpoints all fall between meetings, and a stop between any of these."""
    settings = {"sample_every": 7, "watch": {"every": 3}, **run}
    # resting members converge at step 10: some steps without them follow
    train = {"precision": "float64", "budget": budget or ("14steps" if strategy == "resting" else "11steps")}
    return narrow.recipe(data, {"train": train, "run": settings}, STRATEGIES[strategy])


@pytest.fixture(scope="module")
def alone(brief: None, plain_images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs that everything is held against: of one process."""
    folder = tmp_path_factory.mktemp("alone")
    for strategy in STRATEGIES:
        tiny_runs.train(folder / strategy, recipe(plain_images, strategy))
    happened = {strategy: {line["event"] for line in RunFolder(folder / strategy).events()} for strategy in STRATEGIES}
    assert "converged" in happened["resting"] and "swap" in happened["gap"] and "replacement" in happened["cellular"]
    assert "rewire" in happened["rewired"]
    assert "repair" in happened["a neighbour's weights"] & happened["rolled back"] & happened["alarmed"]
    assert "alarm" in happened["alarmed"]
    return {strategy: folder / strategy for strategy in STRATEGIES}


def words(engine: str, ranks: int) -> tuple[str, ...]:
    starts: dict[str, Callable[[], tuple[str, ...]]] = {
        "mpi": lambda: (*mpiexec(), "-n", str(ranks), warm_python.python()),
        "torch": lambda: (*torchrun(), "--nproc-per-node", str(ranks)),
        "forked": lambda: (warm_python.python(), str(HERE.parent / "comm" / "forked.py"), str(ranks)),
    }
    return starts[engine]()


def launch(engine: str, ranks: int, jobs: list[list[Any]]) -> tuple[int, str]:
    """Launch this many ranks that do these jobs one after another; return (exit code, output)."""
    program = [str(HERE / "rank_trains.py"), "mpi" if engine == "mpi" else "torch", *map(json.dumps, jobs)]
    environment = processes.environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    done = subprocess.run(
        [*words(engine, ranks), *program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout


def close(one: Any, other: Any, tolerance: float) -> bool:
    """Of what JSON holds: the same, numbers up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(close(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance * max(1.0, abs(one))
    return bool(one == other)


def assert_same_herd(
    run: Path, other: Path, names: tuple[str, ...] = ("metrics.jsonl", "events.jsonl"), sprites: bool = True
) -> None:
    """Every tensor of the last checkpoint and every record to 1e-9, every event exactly, sprites to one grey level."""
    nets = assemble(RunFolder(other).recipe, begins=False).herd.nets
    assert run_files.steps(run)[-1] == run_files.steps(other)[-1]
    found, expected = (checkpoint.load(run_files.last_checkpoint(path), nets) for path in (run, other))
    assert found.state.keys() == expected.state.keys()
    for name, value in expected.state.items():
        assert torch.allclose(found.state[name].double(), value.double(), 1e-9, 1e-9), name
    free = run_files.CLOCK_FIELDS | run_files.PROCESS_FIELDS
    for name in names:
        lines = [
            [
                {k: v for k, v in line.items() if k not in free}
                for line in run_files.json_lines(path / name)
                if line.get("event") not in PROCESS_EVENTS
            ]
            for path in (run, other)
        ]
        assert close(*lines, 0.0 if name == "events.jsonl" else 1e-9), (name, lines)
    mixtures = [run_files.tensors(path / "mixture") for path in (run, other)]
    for name, value in mixtures[1].items():
        assert torch.allclose(mixtures[0][name].double(), value.double(), 1e-9, 1e-9), name
    for path in (other / "sprites").glob("*.webp") if sprites else ():
        sheets = [np.asarray(Image.open(folder / "sprites" / path.name)).astype(int) for folder in (run, other)]
        assert np.abs(sheets[0] - sheets[1]).max() <= 1, path.name
    if sprites:
        assert len(list((run / "sprites").iterdir())) == len(list((other / "sprites").iterdir())) >= 3
    assert RunFolder(run).info.state == "finished"


# -- ranks do not matter ------------------------------------------------------------------------------------------------


@pytest.mark.further(but=["mpi-3"])
@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        ("torch", 2),
        ("forked", 3),
        ("forked", 5),
        pytest.param("mpi", 2, marks=[pytest.mark.mpi, LONG]),
        pytest.param("mpi", 3, marks=pytest.mark.mpi),
        pytest.param("mpi", 5, marks=[pytest.mark.mpi, LONG]),
        pytest.param("forked", 7, marks=LONG),  # with spares
        pytest.param("torch", 3, marks=LONG),
        pytest.param("torch", 5, marks=LONG),
    ],
)
def test_the_same_herd_on_any_number_of_ranks(
    engine: str, ranks: int, plain_images: Path, alone: dict[str, Path], tmp_path: Path
) -> None:
    jobs = [["begin", recipe(plain_images, strategy), str(tmp_path / strategy)] for strategy in STRATEGIES]
    code, said = launch(engine, ranks, jobs)
    assert code == 0, said
    for strategy, other in alone.items():
        assert_same_herd(tmp_path / strategy, other)


@LONG
def test_a_cell_on_each_of_sixteen_ranks_and_a_spare(plain_images: Path, tmp_path: Path) -> None:
    """As many ranks as a 4×4 grid can have, and one more: the herd of one process; four neighbours' cells come to each."""
    settings = recipe(plain_images, "cellular", "20steps")
    settings["strategy"] = {"name": "cellular", "cellular": {**settings["strategy"]["cellular"], "grid": [4, 4]}}
    tiny_runs.train(tmp_path / "alone", settings)
    code, said = launch("forked", 17, [["begin", settings, str(tmp_path / "run")]])
    assert code == 0, said
    assert_same_herd(tmp_path / "run", tmp_path / "alone")
    beats = heartbeat.read(tmp_path / "run" / "ranks")
    assert [len(beat.members) for beat in beats] == [1] * 16 + [0]
    for beat in beats[:16]:
        assert beat.exchanges == 5 and beat.received * 15 == beat.gathered * 4


@pytest.mark.further
def test_a_run_stopped_on_two_ranks_resumes_on_three_and_on_one(
    plain_images: Path, alone: dict[str, Path], tmp_path: Path
) -> None:
    """One rank is asked to stop, all do at the same step; what they left is whole."""
    code, said = launch(
        "forked", 2, [["stop", recipe(plain_images, strategy), str(tmp_path / strategy)] for strategy in STRATEGIES]
    )
    assert code == 0, said
    for strategy in STRATEGIES:
        assert RunFolder(tmp_path / strategy).info.state == "interrupted"
        assert 7 <= run_files.steps(tmp_path / strategy)[-1] < 11
    others = [strategy for strategy in STRATEGIES if strategy != "independent"]
    code, said = launch("forked", 3, [["resume", [], str(tmp_path / strategy)] for strategy in others])
    assert code == 0, said
    tiny_runs.resume(tmp_path / "independent")
    for strategy, other in alone.items():
        assert_same_herd(tmp_path / strategy, other)
        ranks = RunFolder(tmp_path / strategy).info.ranks
        written = [len(own) for own in (ranks.members if ranks else None) or []]
        expected = {"independent": [], "gap": [2, 2, 2], "cellular": [2, 2, 2], "rewired": [2, 2, 2]}
        expected |= {"policies": [4, 4, 4], "comma": [3, 3, 6]}
        assert written == expected.get(strategy, [2, 2, 1])


def test_two_phases_on_ranks_are_those_of_one_process(plain_images: Path, tmp_path: Path) -> None:
    """Also if the ranks are stopped in the first phase, whose only member leaves two of them without one."""
    first = tmp_path / "first.yaml"
    first.write_text(
        json.dumps(narrow.recipe(plain_images, {"data": {"partition": "all", "diet": 1}, "herd": {"members": 1}}))
    )
    both = recipe(plain_images, "independent", "20steps")
    both["herd"] = {"members": 5, "first": {"recipe": str(first), "share": 0.5}}
    tiny_runs.train(tmp_path / "alone", both)
    ways = [("begin", "run"), ("stop", "stopped"), ("begin", "stopped")]
    code, said = launch("forked", 3, [[how, both, str(tmp_path / name)] for how, name in ways])
    assert code == 0, said
    for name in ("run", "stopped"):
        for phase in ("-first", ""):
            assert_same_herd(tmp_path / f"{name}{phase}", tmp_path / f"alone{phase}")
    events = [line["event"] for line in run_files.json_lines(tmp_path / "stopped-first" / "events.jsonl")]
    assert "resume" in events


@pytest.mark.further
def test_faster_ranks_get_more_members_and_the_herd_is_the_same(
    plain_images: Path, alone: dict[str, Path], tmp_path: Path
) -> None:
    strategies = ("gap", "cellular")
    jobs = [["unlike", recipe(plain_images, strategy), str(tmp_path / strategy)] for strategy in strategies]
    even = {**recipe(plain_images, "gap"), "engine": {"name": "fused", "threads": 1, "device": "cpu", "balance": False}}
    code, said = launch("forked", 3, [*jobs, ["unlike", even, str(tmp_path / "even")]])
    assert code == 0, said
    for strategy in strategies:
        assert_same_herd(tmp_path / strategy, alone[strategy])
        written = RunFolder(tmp_path / strategy).info.ranks
        assert [len(own) for own in written.members] == [4, 1, 1] and written.weights == [3.0, 1.1, 1.2]
    written = RunFolder(tmp_path / "even").info.ranks
    assert [len(own) for own in written.members] == [2, 2, 2] and written.weights is None


# -- commands -------------------------------------------------------------------------------------------------------------


def test_started_ranks_stop_with_a_checkpoint_and_resume(plain_images: Path, tmp_path: Path) -> None:
    """As under a batch system: SIGTERM, exit 75, the same command again with --resume."""
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps(recipe(plain_images, "gap", "100000steps")))
    command = [warm_python.python(), brief_command.__file__, "train", "--ranks", "2"]
    process = subprocess.Popen(
        [*command, str(written), "--run", str(run)], env=processes.environment(), stderr=subprocess.PIPE, text=True
    )
    processes.wait_until_underway(process, run)
    seen = run_status.describe(run)
    assert [rank.beat.members for rank in seen.ranks] == [(0, 1, 2), (3, 4, 5)] and seen.state == "running"
    assert "rank 1 on " in status_text.text(seen)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 75, said
    assert said.count(f"resume it with: ganherd train --resume {run} --ranks 2\n") == 1, said
    step = run_files.steps(run)[-1]
    assert RunFolder(run).info.state == "interrupted" and f"stopped by SIGTERM at step {step:,}." in said
    done = subprocess.run(
        [*command, "--resume", str(run), "--budget", f"{step + 3}steps", "--json"],
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"scores": None, "verdict": None} == {
        "run": str(run),
        "state": "finished",
        "step": step + 3,
        "scores": None,
        "verdict": None,
    }


@pytest.mark.further
def test_a_stop_signal_to_a_spare_rank_stops_all(plain_images: Path, tmp_path: Path) -> None:
    """It has no members, and waits in one message for the end of the others."""
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps({**recipe(plain_images, "gap", "100000steps"), "herd": {"members": 2}}))
    command = [warm_python.python(), "-m", "ganherd", "train", "--ranks", "3", str(written), "--run", str(run)]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True)
    beat = run / "ranks" / "rank-002.json"
    processes.wait_until_underway(process, run, beat)
    assert json.loads(beat.read_text())["members"] == []
    os.kill(json.loads(beat.read_text())["pid"], signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 75 and said.count("stopped by SIGTERM at step") == 1, said
    assert not (run / "ranks" / "stop").exists() and RunFolder(run).info.state == "interrupted"


@pytest.mark.further(but=["0"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_reported_with_the_command_that_resumes(
    victim: int, plain_images: Path, tmp_path: Path
) -> None:
    """Whoever is left says it, with the name of the run that the user gave."""
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(plain_images, "independent", "100000steps")))
    command = [warm_python.python(), "-m", "ganherd", "train", "--ranks", "3", "recipe.yaml", "--run", "run"]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    processes.kill_rank(process, tmp_path / "run", victim)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 75, said
    assert f"ganherd: rank {victim} was ended by SIGKILL" in said, said
    assert said.count("resume with: ") == 1, said
    assert "The job ends; resume with: ganherd train --resume run --ranks 3\n" in said, said
    assert RunFolder(tmp_path / "run").info.state == "interrupted"


@pytest.mark.mpi
def test_the_resume_command_is_printed_at_the_start_under_a_launcher(plain_images: Path, tmp_path: Path) -> None:
    """MPICH, and Open MPI without ULFM, end all ranks at once, so none can print a message afterwards."""
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps(recipe(plain_images, "gap", "100000steps")))
    command = [*mpiexec(), "-n", "2", warm_python.python(), "-m", "ganherd", "train", str(written), "--run", str(run)]
    process = subprocess.Popen(
        command, env=processes.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    processes.kill_rank(process, run, 1)
    said = process.communicate(timeout=120)[0]
    assert process.returncode != 0, said
    assert said.count(f"the job ends; continue with: mpiexec -n 2 ganherd train --resume {run}\n") == 1, said


@pytest.mark.mpi
@pytest.mark.long
def test_mpiexec_passes_sigusr1_on_and_waits_until_its_ranks_have_saved(plain_images: Path, tmp_path: Path) -> None:
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps(recipe(plain_images, "gap", "100000steps")))
    command = [*mpiexec(), "-n", "2", warm_python.python(), "-m", "ganherd", "train", str(written), "--run", str(run)]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True)
    processes.wait_until_underway(process, run)
    process.send_signal(signal.SIGUSR1)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 75 and f"stopped by SIGUSR1 at step {run_files.steps(run)[-1]:,}." in said, said
    assert RunFolder(run).info.state == "interrupted"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_torchrun_forwards_a_stop_and_the_run_can_be_resumed(
    number: signal.Signals, plain_images: Path, tmp_path: Path
) -> None:
    """torchrun itself ends with 1, whatever its workers end with."""
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps(recipe(plain_images, "cellular", "100000steps")))
    command = [*torchrun(), "--nproc-per-node", "2", "-m", "--", "ganherd", "train", str(written), "--run", str(run)]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True)
    processes.wait_until_underway(process, run)
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    step = run_files.steps(run)[-1]
    assert process.returncode == 1 and said.count(f"ganherd: stopped by {number.name} at step {step}.") == 1, said
    tiny_runs.resume(run, f"{step + 3}steps")
    assert RunFolder(run).info.state == "finished"


@pytest.mark.long
def test_torchrun_restarts_killed_ranks_and_they_resume(plain_images: Path, tmp_path: Path) -> None:
    """The last checkpoint is where the second attempt begins; no record is there twice."""
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps(recipe(plain_images, "gap", "400steps")))
    command = [*torchrun(), "--nproc-per-node", "2", "--max-restarts", "1", "-m", "--", "ganherd", "train"]
    process = subprocess.Popen(
        [*command, str(written), "--run", str(run)], env=processes.environment(), stderr=subprocess.PIPE, text=True
    )
    processes.kill_rank(process, run, 1)
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 0, said
    lines = RunFolder(run).metrics()
    assert [line["step"] for line in lines] == list(range(5, 401, 5))
    events = RunFolder(run).events()
    assert [line["event"] for line in events].count("resume") == 1
    (again,) = [line for line in events if line["event"] == "restart"]
    assert (again["launcher"], again["number"], again["source"]) == ("torchrun", 1, "checkpoint")
    assert 0 <= again["repeated"] <= 400 and "torchrun has started all ranks again (restart 1)" in said, said
    assert RunFolder(run).info.state == "finished"


# -- mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.mpi
def test_ranks_with_different_recipes_are_refused_in_a_sentence(plain_images: Path, tmp_path: Path) -> None:
    words: list[str] = []
    for batch in (4, 8):
        path = tmp_path / f"{batch}.yaml"
        path.write_text(json.dumps(recipe(plain_images, "gap")))
        one = ["-n", "1", warm_python.python(), "-m", "ganherd", "train", str(path), "--set", f"train.batch={batch}"]
        words += [*([":"] if words else []), *one, "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [*mpiexec(), *words], env=processes.environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done
    said = [line for line in done.stderr.splitlines() if line.startswith("ganherd: ")]
    assert len(said) == 1 and "was given another recipe than rank 0 ('batch: 8' in place of 'batch: 4')" in said[0], (
        said
    )
    assert not (tmp_path / "run").exists()


def test_two_jobs_on_one_run_are_refused_in_a_sentence(alone: dict[str, Path]) -> None:
    with RunFolder(alone["gap"]).lock():
        code, said = launch("forked", 2, [["resume", [], str(alone["gap"])]])
    assert code != 0 and said.count("ganherd: ") == 1 and "another process is training in" in said, said
    assert RunFolder(alone["gap"]).info.state == "finished"


def test_a_missing_communicator_is_named(
    plain_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert tiny_runs.command("train", "digits-wcgan", "--run", tmp_path / "run") == 2
    assert "this is an MPI job, but mpi4py is not installed here" in capsys.readouterr().err
    assert tiny_runs.command("train", "digits-wcgan", "--ranks", 2) == 2
    assert "this process already is a rank of a job" in capsys.readouterr().err
