"""Under a real torchrun ranks answer what one process would, and a killed rank's group comes back."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import processes
import pytest
import recipes
import typer

from comm.launch import job, torchrun
from ganherd.cli.main import app
from ganherd.comm.backends.detect import connect
from ganherd.util.errors import UserError

LONG = pytest.mark.long


@pytest.mark.further("forked-5")
@pytest.mark.parametrize(
    ("start", "ranks"),
    [
        ("forked", 1),
        ("torch", 2),
        ("forked", 3),
        ("forked", 5),
        *(pytest.param("torch", n, marks=LONG) for n in (1, 3, 5)),
    ],
)
def test_ranks_answer_as_one_process(start: str, ranks: int, tmp_path: Path) -> None:
    """By torchrun, and by hand: the variables are the same, but nobody holds the store for them."""
    code, said = job(start, ranks, "rank_as_local.py", "torch", tmp_path)
    assert code == 0, said
    done = sorted(json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert done == [[rank, ranks] for rank in range(ranks)], said


@pytest.mark.further
def test_the_group_of_a_killed_rank_meets_again(tmp_path: Path) -> None:
    code, said = job("torch", 2, "rank_that_dies.py", "killed", tmp_path, options=("--max-restarts", "1"))
    assert code == 0, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1", "1-1"], said


@pytest.mark.further
def test_a_killed_rank_is_noticed(tmp_path: Path) -> None:
    """Without torchrun, which ends the other ranks, often before they have noticed."""
    code, said = job("forked", 2, "rank_that_dies.py", "killed", tmp_path)
    assert code == 1 and not list(tmp_path.iterdir()), said
    assert "RankLost: rank 0 waited for another rank, which is gone" in said


@pytest.mark.further
def test_all_ranks_end_if_the_first_is_killed_even_if_they_wait_for_a_live_one(tmp_path: Path) -> None:
    code, said = job("torch", 3, "rank_that_dies.py", "first", tmp_path, options=("--max-restarts", "1"))
    assert code == 0, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1", "1-1", "2-1"], said


def test_describe_loss_names_restarts_or_the_resume_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from ganherd.comm.backends.torchrun import Torch

    comm = object.__new__(Torch)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert comm.describe_loss("ganherd train --resume RUN") == "torchrun starts all ranks again, 2 times at most."
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    ends = "The job ends; resume with: ganherd train --resume RUN"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert comm.describe_loss("ganherd train --resume RUN") == f"{ends} (torchrun --max-restarts 3 does so by itself)"
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # as for ranks that `ganherd train --ranks` starts
    assert comm.describe_loss("ganherd train --resume RUN") == ends


def test_a_lost_rank_is_reported_with_the_reason_of_gloo() -> None:
    from ganherd.comm.backends.torchrun import Torch

    comm = object.__new__(Torch)
    comm.rank = 2
    said = "[/gloo/tcp/pair.cc:537] Read error [127.0.0.1]:81: reset by peer. This is typically caused by bugs. GLHF!"
    reason = "Read error [127.0.0.1]:81: reset by peer"
    assert str(comm._rank_lost(RuntimeError(said))) == f"rank 2 waited for another rank, which is gone ({reason})"


@pytest.mark.gpu
def test_on_a_gpu_ranks_answer_as_one_process(tmp_path: Path) -> None:
    """One rank has the GPU for itself, and NCCL; two share it, and their messages go through the host."""
    for ranks in (1, 2):
        code, said = job("torch", ranks, "rank_on_gpu.py", tmp_path)
        assert code == 0, said
        assert len(list(tmp_path.glob(f"{ranks}-*"))) == ranks, said


def test_no_option_of_train_is_taken_by_torchrun() -> None:
    """torchrun reads abbreviations of its own options even among the words of the program that it starts."""
    from torch.distributed.run import get_args_parser

    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    for parameter in command.params:
        names = [name for name in parameter.opts if name.startswith("-")]
        assert not names or any(_passes(get_args_parser(), name) for name in names), names


def _passes(parser: argparse.ArgumentParser, option: str) -> bool:
    """Whether the option reaches the program behind `-m`."""
    try:
        return parser.parse_args(["-m", "ganherd", "train", option, "x"]).training_script_args == ["train", option, "x"]
    except SystemExit:
        return False


@pytest.mark.further
def test_torchrun_trains_a_run_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    recipe, run = recipes.write_recipe(tmp_path, budget="6steps", net="tiny"), tmp_path / "run"
    scores = ("--set", "run.scores=false")
    words = ("-m", "ganherd", "train", str(recipe), "--run-dir", str(run), "--quiet", "--json", *scores)
    done = subprocess.run(
        [*torchrun(), "--nproc-per-node", "2", *words],
        env=processes.environment(), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == str(run)


def test_an_incomplete_torchrun_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="start with torchrun, which sets them, or unset them"):
        connect("torch")
