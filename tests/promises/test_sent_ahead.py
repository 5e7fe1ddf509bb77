"""Members travel while a meeting continues: the order of events on real ranks, stops without loss, and the traffic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import run_files
import warm_python

from ganherd.comm import heartbeat
from ganherd.comm.placement import border
from ganherd.runs import checkpoint, run_status, status_text
from ganherd.runs.folder import RunFolder
from ganherd.training.setup.assemble import assemble
from ganherd.util.text import size

HERE = Path(__file__).parent
STRATEGIES: dict[str, dict[str, Any]] = {
    "gap": {"herd": {"members": 4}, "strategy": {"name": "gap", "gap": {"every": "4steps"}}},
    "cellular": {
        "strategy": {
            "name": "cellular",
            "cellular": {
                "grid": [2, 2],
                "iteration": "4steps",
                "fitness": {"samples": 8},
                "mixing": {"when": "iteration", "samples": 16},
            },
        },
    },
    "torus": {
        "strategy": {
            "name": "cellular",
            "cellular": {"grid": [4, 4], "iteration": "2steps", "fitness": {"samples": 4}, "mixing": {"when": "off"}},
        },
    },
}


def recipe(folder: Path, strategy: str, steps: int) -> dict[str, Any]:
    path = folder / "data.npz"
    if not path.exists():
        np.savez(path, x=np.random.default_rng(0).integers(0, 256, (40, 1, 6, 6), np.uint8))
    return {
        "data": {"source": str(path), "partition": "all"},
        "nets": {
            "latent": 3,
            "generator": {"name": "small", "width": 4, "batch_norm": True},
            "discriminator": {"name": "small", "width": 4},
        },
        "loss": {"name": "non-saturating"},
        "train": {"batch": 4, "budget": f"{steps}steps"},
        "engine": {"name": "fused", "threads": 1, "device": "cpu"},
        "run": {"record_every": 3, "checkpoint_every": 4, "sample_every": 0, "sprites": 0, "watch": {"every": 0}},
        **STRATEGIES[strategy],
    }


def launch(ranks: int, program: str, *words: str) -> None:
    command = [warm_python.python(), str(HERE.parent / "comm" / "forked.py"), str(ranks), str(HERE / program), *words]
    environment = processes.environment(PYTHONPATH=os.pathsep.join([str(HERE.parent), *sys.path]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    jobs = [word for name in ("gap", "cellular") for word in (name, json.dumps(recipe(folder, name, 12)))]
    launch(2, "rank_sends_ahead.py", str(folder), *jobs)
    return folder


def order(folder: Path, name: str) -> str:
    """What a rank did, up to its last checkpoint: the mixture comes after that. Both ranks did the same."""
    logs = [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]
    assert logs[0] == logs[1]
    return " ".join(logs[0][: len(logs[0]) - logs[0][::-1].index("save")])


def test_members_travel_while_mixtures_evolve_and_checkpoints_are_written(two_ranks: Path) -> None:
    """Nothing is sent ahead at the first step, nor at the last, after which there is no meeting."""
    mixture = "mixture begin wait"  # what is known of the neighbours' samples
    iteration = f"begin begin {mixture} save wait wait"  # generators, then discriminators
    assert order(two_ranks, "cellular") == f"save begin wait {iteration} {iteration} {mixture} save"


def test_swapped_nets_travel_while_a_checkpoint_is_written(two_ranks: Path) -> None:
    assert order(two_ranks, "gap") == "save begin save wait begin save wait save"


@pytest.mark.parametrize("strategy", ["gap", "cellular"])
def test_a_stop_during_an_exchange_changes_nothing(strategy: str, two_ranks: Path) -> None:
    stopped, undisturbed = two_ranks / f"{strategy}-stopped", two_ranks / strategy
    saved = [line["step"] for line in RunFolder(stopped).events() if line["event"] == "resume"]
    assert saved == [8]
    run_files.assert_same_run(stopped, undisturbed, sprites=False)


@pytest.mark.further(but=["iteration"])
@pytest.mark.parametrize("mixing", ["off", "iteration"])
def test_a_rank_of_a_torus_gets_its_border_and_nothing_else(mixing: str, tmp_path: Path) -> None:
    """4×4 cells on four ranks: at each of three iterations the slices of eight cells, however the herd is trained; and, where
    mixtures evolve, what is known of the samples of these eight."""
    run, ranks, iterations = tmp_path / "run", 4, 3
    made = recipe(tmp_path, "torus", 2 * iterations)
    made["strategy"]["cellular"]["mixing"] = {"when": mixing, "samples": 16}
    launch(ranks, "rank_trains.py", "torch", json.dumps(["begin", made, str(run)]))
    nets = assemble(RunFolder(run).recipe, begins=False).herd.nets
    state = checkpoint.load(run_files.last_checkpoint(run), nets).state
    an_individual = [value for name, value in state.items() if name.startswith(("g.", "d.", "set.lr_"))]
    a_slice = sum(value[0].numel() * value.element_size() for value in an_individual)
    a_summary = 0
    if mixing == "iteration":
        features = 36  # without labels the pixels stand for themselves
        a_summary = 8 * (features + features**2 + 1)  # mean, covariance, number of samples
    beats = heartbeat.read(run / "ranks")
    assert [len(beat.members) for beat in beats] == [4] * ranks
    for beat in beats:
        assert beat.exchanges == iterations
        assert beat.received == iterations * border(4, 4, 1, 4) * (a_slice + a_summary)
        assert beat.gathered == iterations * (16 - 4) * (a_slice + a_summary)
        assert beat.bytes_received >= beat.received
    told = status_text.text(run_status.describe(run))
    assert f"{iterations} exchanges: {size(8 * (a_slice + a_summary))} came to a rank each time" in told
    assert f"an all-gather would have brought {size(12 * (a_slice + a_summary))}" in told
