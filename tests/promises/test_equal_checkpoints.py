"""Promises 2 and 3 for every strategy: a checkpoint's tensors and events are the same after a SIGKILL and on other ranks."""

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
import warm_python

from ganherd.runs.folder import RunFolder
from promises import narrow
from promises.test_ranks import assert_same_herd, launch

pytestmark = pytest.mark.usefixtures("brief")
HERE = Path(__file__).parent
TORUS = {"grid": [2, 2], "iteration": "4steps", "fitness": {"samples": 16}, "mixing": {"samples": 32, "generations": 2}}
# members that learn far too fast collapse: there are alarms, and what follows them
HERDS: dict[str, dict[str, Any]] = {
    "independent": {"herd": {"members": 4}, "run": {"watch": {"every": 1, "collapse": "reseed"}}},
    "rolled back": {"herd": {"members": 4}, "run": {"watch": {"every": 1, "collapse": "rollback"}}},
    "gap": {
        "herd": {"members": 4},
        "strategy": {"name": "gap", "gap": {"every": "3steps"}},
        "run": {"watch": {"every": 1, "collapse": "neighbour"}},
    },
    "cellular": {
        "strategy": {"name": "cellular", "cellular": TORUS},
        "run": {"watch": {"every": 1, "collapse": "neighbour"}},
    },
}
KILL = 11
AUTO: dict[str, Any] = {
    "run": {"record_every": 5, "checkpoint_every": 40, "watch": {"every": "auto"}},
    "train": {"batch": 4, "budget": "100steps"},
    "optim": {"lr_g": 0.0002},
}


def recipe(data: Path, herd: str, **changes: Any) -> dict[str, Any]:
    """Records, meetings, checkpoints and the kill all fall on different steps."""
    own = {"optim": {"lr_g": [0.0002, 0.5, 0.5, 0.0002]}, "train": {"budget": "17steps"}}
    return narrow.recipe(data, own, HERDS[herd], changes)


@pytest.fixture(scope="module")
def killed(plain_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that died between two checkpoints, after a record."""
    folder = tmp_path_factory.mktemp("killed")
    kill([[recipe(plain_images, herd), str(folder / herd), KILL] for herd in HERDS])
    return folder


def kill(jobs: list[list[Any]]) -> None:
    """Train these runs, each in a process that dies at the given step: [recipe, run, step]."""
    environment = processes.environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    subprocess.run(
        [warm_python.python(), str(HERE / "dies_at.py"), *map(json.dumps, jobs)],
        env=environment,
        check=True,
        timeout=240,
    )


@pytest.mark.parametrize("herd", HERDS)
def test_every_tensor_and_event_is_the_same_after_sigkill(
    herd: str, plain_images: Path, killed: Path, tmp_path: Path
) -> None:
    assert run_files.steps(killed / herd)[-1] == 6 and RunFolder(killed / herd).metrics()[-1]["step"] == 10
    tiny_runs.resume(killed / herd)
    tiny_runs.train(tmp_path / "straight", recipe(plain_images, herd))
    run_files.assert_same_run(killed / herd, tmp_path / "straight")
    assert {"alarm", "repair"} <= {line["event"] for line in RunFolder(killed / herd).events()}


@pytest.mark.further
def test_every_event_is_the_same_on_one_process_and_on_three_ranks(plain_images: Path, tmp_path: Path) -> None:
    recipes = {herd: recipe(plain_images, herd, train={"precision": "float64", "budget": "17steps"}) for herd in HERDS}
    code, said = launch(
        "forked", 3, [["begin", made, str(tmp_path / "three" / herd)] for herd, made in recipes.items()]
    )
    assert code == 0, said
    for herd, made in recipes.items():
        tiny_runs.train(tmp_path / "one" / herd, made)
        assert_same_herd(tmp_path / "three" / herd, tmp_path / "one" / herd)


@pytest.mark.further
def test_automatic_health_checks_are_the_same_after_sigkill(plain_images: Path, tmp_path: Path) -> None:
    """The recipe has no interval between looks."""
    run = tmp_path / "auto"
    kill([[recipe(plain_images, "independent", **AUTO), str(run), 75]])
    every = RunFolder(run).info.watch.every
    assert run_files.steps(run)[-1] == 40 < every < 75  # so that a look is taken again
    tiny_runs.resume(run)
    tiny_runs.train(tmp_path / "straight", recipe(plain_images, "independent", **AUTO))
    run_files.assert_same_run(run, tmp_path / "straight")
    assert [line["looked"] for line in RunFolder(run).metrics() if "looked" in line] == [every]
