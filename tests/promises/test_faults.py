"""A run survives a killed rank: the herd, its records and its mixture equal those of the undisturbed run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import processes
import pytest
import run_files
import tiny_runs
import torch
import warm_python

from comm.launch import mpiexec, torchrun
from comm.test_ulfm import need_ulfm
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training.setup.assemble import assemble
from promises.test_ranks import assert_same_herd, recipe
from promises.test_ranks import words as ranks_of

pytestmark = pytest.mark.usefixtures("brief")
HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "faults.json"
EVERY = {"ulfm": 4, "torchrun": 6}  # steps between copies in memory, and between checkpoints
BUDGET = "24steps"


def launch(launcher: str, ranks: int, folder: Path, runs: list[dict[str, Any]]) -> tuple[int, str]:
    """Launch ranks that train these runs, one of which is killed in each run; return (exit code, output)."""
    words = {
        "forked": lambda: ranks_of("forked", ranks),
        "ulfm": lambda: (*mpiexec(), "--with-ft", "ulfm", "-n", str(ranks), warm_python.python()),
        "torchrun": lambda: (*torchrun(), "--max-restarts", str(len(runs)), "--nproc-per-node", str(ranks)),
    }[launcher]()
    program = [str(HERE / "rank_is_killed.py"), "mpi" if launcher == "ulfm" else "torch", str(folder), json.dumps(runs)]
    environment = processes.environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    done = subprocess.run(
        [*words, *program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540
    )
    return done.returncode, done.stdout


def repeated(folder: Path, name: str, launcher: str) -> tuple[int, int]:
    """Return the step at which a rank was killed, and the number of steps that were repeated after it."""
    killed = json.loads((folder / f"{name}.killed").read_text())["step"]
    events = RunFolder(folder / name).events()
    told = {kind: [event for event in events if event["event"] == kind] for kind in ("lost", "restart")}
    # at the start of this run is noticed who was killed at the very end of the one before
    told["lost"] = [loss for loss in told["lost"] if loss["source"] != "start"]
    again = [event["step"] for event in events if event["event"] == "resume"]
    expected = {"lost": len(again) * (launcher == "ulfm"), "restart": len(again) * (launcher == "torchrun")}
    assert len(again) <= 1 and {kind: len(each) for kind, each in told.items()} == expected, (told, again)
    lost = [event["repeated"] for each in told.values() for event in each]
    return killed, max([0, *(killed - step for step in again), *lost])


def steps_made(folder: Path, name: str) -> dict[int, Counter[int]]:
    """Of each member, how often an engine made each of its steps, on ranks that were lost too."""
    found: dict[int, Counter[int]] = {}
    for path in folder.glob(f"{name}.steps-*"):
        for line in path.read_text().splitlines():
            member, step = map(int, line.split())
            found.setdefault(member, Counter())[step] += 1
    return found


def repeated_by_those_left(folder: Path, name: str) -> int:
    """The most steps that a member did again whose rank was not lost."""
    losses = [event for event in RunFolder(folder / name).events() if event["event"] == "lost"]
    lost = {member for loss in losses for member in loss["members"]}
    return max(sum(s.values()) - len(s) for member, s in steps_made(folder, name).items() if member not in lost)


def difference(run: Path, other: Path) -> float:
    """The largest one of any number of the two herds."""
    nets = assemble(RunFolder(other).recipe, begins=False).herd.nets
    found, expected = (checkpoint.load(run_files.last_checkpoint(path), nets).state for path in (run, other))
    names = [name for name in expected if name.startswith(("g.", "d.", "set."))]
    return max(float((found[name].double() - expected[name].double()).abs().max()) for name in names)


# -- killed ranks -------------------------------------------------------------------------------------------------------

KILLS: list[
    dict[str, Any]
] = [  # of three ranks under ULFM, of which the gap herd leaves one as a spare; of two under torchrun
    {"name": "gap", "victim": 0, "step": 9, "seconds": 0.0, "herd": {"members": 2}},
    {"name": "cellular", "victim": 1, "step": 10, "seconds": 0.01, "herd": {}},
]


@pytest.mark.further(but=["ulfm"])
@pytest.mark.parametrize("launcher", [pytest.param("ulfm", marks=pytest.mark.mpi), "torchrun"])
def test_the_herd_is_the_same_after_a_rank_was_killed(launcher: str, plain_images: Path, tmp_path: Path) -> None:
    """The first one, which keeps lock and records, and another; the events tell who was lost and what became of its members,
    which a spare takes over where there is one."""
    if launcher == "ulfm":
        need_ulfm()
    runs = []
    for kill in KILLS:
        settings = recipe(plain_images, kill["name"], "17steps", buddy_every=4)
        runs.append({**kill, "recipe": {**settings, "herd": kill["herd"]}})
    code, said = launch(launcher, 3 if launcher == "ulfm" else 2, tmp_path, runs)
    assert code == 0, said
    for run in runs:
        name = run["name"]
        tiny_runs.train(tmp_path / f"{name}-alone", run["recipe"])
        assert_same_herd(tmp_path / name, tmp_path / f"{name}-alone")
        assert repeated(tmp_path, name, launcher)[1] <= EVERY[launcher]
    if launcher == "ulfm":
        lost = [event for event in RunFolder(tmp_path / "gap").events() if event["event"] == "lost"]
        facts = {key: lost[0][key] for key in ("ranks", "members", "homes", "source")}
        assert facts == {"ranks": [0], "members": [0], "homes": [1], "source": "memory"}
        assert RunFolder(tmp_path / "gap").info.ranks.members == [[0], [1]]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("launcher", [pytest.param("ulfm", marks=pytest.mark.mpi), "torchrun"])
@pytest.mark.parametrize("strategy", ["independent", "gap", "cellular"])
def test_twenty_random_kills_do_not_change_the_herd(
    launcher: str, strategy: str, plain_images: Path, tmp_path: Path
) -> None:
    """A random rank at a random moment. A job under ULFM starts with four ranks and loses one in each of three runs."""
    if launcher == "ulfm":
        need_ulfm()
    goes_alone = launcher == "ulfm" and strategy == "independent"  # only the members of the lost rank go back
    draw, made = random.Random(f"{launcher} {strategy}"), recipe(plain_images, strategy, BUDGET, buddy_every=4)
    runs: list[dict[str, Any]] = [
        {
            "name": f"{number:02d}",
            "recipe": made,
            "victim": draw.randrange(12),
            "step": draw.randrange(1, 25),
            "seconds": draw.uniform(0.0, 0.2),
        }
        for number in range(20)
    ]
    each, ranks = (3, 4) if launcher == "ulfm" else (20, 2)
    for first in range(0, 20, each):
        code, said = launch(launcher, ranks, tmp_path, runs[first : first + each])
        assert code == 0, said
    tiny_runs.train(tmp_path / "alone", made)
    rows = []
    for run in runs:
        assert_same_herd(tmp_path / run["name"], tmp_path / "alone")
        killed, again = repeated(tmp_path, run["name"], launcher)
        assert again <= EVERY[launcher], run
        others = repeated_by_those_left(tmp_path, run["name"]) if goes_alone else again
        assert others == 0 or not goes_alone, run
        rows.append([killed, again, others, difference(tmp_path / run["name"], tmp_path / "alone")])
    at, steps, by_others, off = zip(*rows, strict=True)
    found = {
        "launcher": launcher,
        "strategy": strategy,
        "ranks": "4, 3 and 2" if launcher == "ulfm" else "2",
        "kills": len(rows),
        "finished_and_equal": len(rows),
        "of_the_first_rank": sum(run["victim"] % (ranks - n % each) == 0 for n, run in enumerate(runs))
        if launcher == "ulfm"
        else sum(run["victim"] % ranks == 0 for run in runs),
        "killed_at_steps": list(at),
        "interval": EVERY[launcher],
        "most_steps_repeated": max(steps),
        **({"most_repeated_by_members_of_ranks_left": max(by_others)} if goes_alone else {}),
        "largest_difference": max(off),
    }
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    kept = [row for row in known if (row["launcher"], row["strategy"]) != (launcher, strategy)]
    ordered = sorted([*kept, found], key=lambda row: (row["launcher"], row["strategy"]))
    RESULTS.write_text(
        json.dumps({"command": "make test-long", "torch": torch.__version__, "rows": ordered}, indent=1) + "\n"
    )


@pytest.mark.long
@pytest.mark.mpi
def test_losing_a_rank_and_its_buddy_resumes_from_the_checkpoint(plain_images: Path, tmp_path: Path) -> None:
    """Lose two of four ranks: members without a copy in memory are restored from the checkpoint."""
    need_ulfm()
    settings = recipe(plain_images, "gap", BUDGET, buddy_every=4)
    kill = {"name": "run", "recipe": settings, "victim": 1, "also": [2], "step": 9, "seconds": 0.0}
    code, said = launch("ulfm", 4, tmp_path, [kill])
    assert code == 0, said
    tiny_runs.train(tmp_path / "alone", settings)
    assert_same_herd(tmp_path / "run", tmp_path / "alone")
    lost = [event for event in RunFolder(tmp_path / "run").events() if event["event"] == "lost"]
    assert sorted(rank for event in lost for rank in event["ranks"]) == [1, 2], lost
    assert len(lost) == 2 or (lost[0]["source"], lost[0]["step"]) == ("checkpoint", 6), lost


@pytest.mark.long
def test_torchrun_resumes_its_run_without_a_given_path(plain_images: Path, tmp_path: Path) -> None:
    """Without --run the folder has a number: restarted ranks resume in it and create no other folder."""
    written, run = tmp_path / "recipe.yaml", tmp_path / "runs" / "00001-recipe"
    written.write_text(json.dumps(recipe(plain_images, "gap", "400steps")))
    command = [
        *torchrun(),
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "-m",
        "--",
        "ganherd",
        "train",
        str(written),
    ]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    processes.kill_rank(process, run, 0)
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 0, said
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert [line["step"] for line in RunFolder(run).metrics()] == list(range(5, 401, 5))
    assert [line["event"] for line in RunFolder(run).events()].count("resume") == 1


# -- disks --------------------------------------------------------------------------------------------------------------


@pytest.mark.further
def test_a_checkpoint_that_one_rank_lacks_is_used_by_none(plain_images: Path, tmp_path: Path) -> None:
    """One rank's disk may only be read: all end at that checkpoint, and go on from the one before. Then its part of the newest
    one is gone, and a later one was never finished: again all go on from the one before."""
    run, made = tmp_path / "run", recipe(plain_images, "gap", "14steps")
    code, said = launch("forked", 2, tmp_path, [{"name": "run", "recipe": made, "refused": 7}])
    assert code and said.count("ganherd: the checkpoint of step 12 could not be written (Read-only file system") == 1, (
        said
    )
    assert run_files.steps(run)[-1] == 6 and not list((run / "checkpoints").glob(".*"))
    code, said = launch("forked", 2, tmp_path, [{"name": "run", "recipe": made}])
    assert code == 0, said
    tiny_runs.train(tmp_path / "alone", made)
    assert_same_herd(run, tmp_path / "alone")
    sorted(run_files.last_checkpoint(run).glob("*.safetensors"))[-1].unlink()
    half = run / "checkpoints" / ".step-00000020.new"
    half.mkdir()
    (half / "herd-000-002.safetensors").write_bytes(b"half")
    RunFolder(run).write_info(state="interrupted")
    code, said = launch("forked", 2, tmp_path, [{"name": "run", "recipe": made}])
    assert code == 0, said
    assert not half.exists()
    assert_same_herd(run, tmp_path / "alone")
    assert [event["step"] for event in RunFolder(run).events() if event["event"] == "resume"] == [6, 12]
