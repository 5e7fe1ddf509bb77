"""Help by groups with examples that parse, suggestions that fit, and words that a shell completes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ganherd.cli.completion import complete_recipe, complete_run, complete_setting, complete_training
from ganherd.cli.main import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that has no commands below it, with the words that lead to it."""
    if not hasattr(command, "commands"):
        yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_help_ends_with_examples_that_parse(cli, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("ganherd.runs.run_names.named_run", Path)  # no run has the name @last here
    answer = cli(*words, "--help")
    assert answer.code == 0 and "Example" in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    lines = [line.strip() for line in ALL[words].epilog.splitlines()[1:]]
    assert lines and any(line.startswith(f"ganherd {words[0]}") for line in lines)
    for line in lines:
        name, *given = shlex.split(line.partition(" > ")[0])
        assert name == "ganherd"
        path = next(tuple(given[:n]) for n in (2, 1) if tuple(given[:n]) in ALL or (*given[:n], "list") in ALL)
        path = path if path in ALL else (*path, "list")
        ALL[path].make_context("ganherd", given[len([word for word in path if word in given]) :])


def test_commands_are_grouped_in_the_order_of_the_work(cli) -> None:
    out = cli("--help").out
    at = [out.index(f"\n{title}:\n") for title in ("Train", "Results", "Runs", "Data and recipes", "This machine")]
    assert at == sorted(at)
    assert at[0] < out.index("launch ") < at[1] < out.index("ensemble ") < at[2] < out.index("runs ", at[2]) < at[3]


def test_options_of_experts_have_their_own_group(cli) -> None:
    out = cli("score", "--help").out
    assert out.index("--output") < out.index("Annealed importance sampling") < out.index("--ais-points")


SAID = [
    (["train", "--lr", "3"], "--set optim.lr_g=VALUE or --set optim.lr_d=VALUE"),
    (["train", "--epochs", "5"], "use --budget 20epochs, 5000steps or 10m"),
    (["train", "--gpu"], "use --set engine.device=VALUE"),
    (["train", "--batch-size=3"], "use --set train.batch=VALUE"),
    (["train", "--seed", "3"], "use --set run.seed=7, or --seeds 5"),
    (["train", "--bugdet", "5m"], "did you mean '--budget'? See `ganherd train --help`."),
    (["sample", "x", "--lr", "3"], "No such option: --lr. See `ganherd sample --help`."),
    (["launch", "slurm", "--epochs", "3"], "use --budget 20epochs, 5000steps or 10m"),
    (["compare", "ring8", "--outdir", "x"], "No such option: --outdir; did you mean"),
    (["train", "mnist"], "did you mean 'mnist-wcgan'? `ganherd recipes mnist` lists others"),
    (["train", "cifar10"], "did you mean 'cifar10-perclass'?"),
    (["train", "--set", "epochs=4"], "did you mean 'train.budget', e.g. --budget 20epochs?"),
    (["train", "--set", "optim.learning_rate=4"], "did you mean 'optim.lr_g' or 'optim.lr_d'?"),
    (["train", "--budget", "5"], "--budget 5 has no unit: write 5steps, 5epochs, 5s, 5m or 5h."),
    (["compare", "ring8", "r15", "--budget", "60"], "--budget 60 has no unit"),
    (["trian"], "No such command 'trian'; did you mean 'train'? See `ganherd --help`."),
    (["resume"], "No such command 'resume'; use `ganherd train --resume RUN`. See `ganherd --help`."),
    (["list"], "`ganherd runs` for runs, `ganherd recipes` for recipes"),
    (["data", "lst"], "did you mean 'list'? See `ganherd data --help`."),
    (["train", "digits-wcgan", "pictures"], "use `ganherd train FOLDER --recipe RECIPE` to train a recipe on your own"),
    (
        ["export", "x", "-o", "y", "--format", "onxx"],
        "Invalid value for '--format': 'onxx' is not one of 'torch', 'onnx'",
    ),
    (["zebra"], "No such command 'zebra'. See `ganherd --help`."),
]


@pytest.mark.parametrize(("words", "said"), SAID, ids=lambda value: str(value))
def test_suggestions_fit(cli, words: list[str], said: str) -> None:
    assert said in cli(*words).sentence


def test_flags_show_no_type(cli) -> None:
    for words in (("status",), ("runs", "clean")):
        out = cli(*words, "--help").out
        assert "<bool>" not in out and "as one JSON object" in out and "-h" in out
    assert "Usage: ganherd status" in cli("status", "-h").out


def test_a_misspelt_folder_is_recognised(cli) -> None:
    Path("pictures").mkdir()
    assert "neither a recipe nor a folder 'pictres'; did you mean 'pictures'?" in cli("train", "pictres").sentence


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, a tag, pictures and a recipe."""
    monkeypatch.chdir(tmp_path)
    for path in ("runs/00001-a", "pictures", "other/run"):
        Path(path).mkdir(parents=True)
    for run in ("runs/00001-a", "other/run"):
        Path(run, "run.json").write_text("{}")
    Path("runs/tags.json").write_text(json.dumps({"best": "00001-a"}))
    for name in ("mine.yaml", "mine.npz", "notes.txt"):
        Path(name).touch()
    return tmp_path


def test_recipes_keys_and_runs_are_completed(here: Path) -> None:
    assert complete_recipe("ring8-g") == ["ring8-gan", "ring8-gap4"]
    assert complete_recipe("mi") == ["mine.yaml"]
    assert complete_training("mi") == ["mine.yaml", "mine.npz"] and complete_training("pic") == ["pictures"]
    assert complete_setting("optim.lr") == ["optim.lr_g=", "optim.lr_d="]
    assert complete_setting("data.partition=") == [f"data.partition={one}" for one in ("by-class", "all", "diet")]
    assert complete_setting("nonsense=") == []
    assert complete_run("@") == ["@last", "@best"] and complete_run("runs/") == ["runs/00001-a"]
    assert complete_run("other/") == ["other/run"] and complete_run("nowhere/") == []


def test_a_shell_gets_completions_without_torch(here: Path) -> None:
    (here / "torch.py").write_text("raise ImportError('torch was imported')\n")
    source = Path(__file__).resolve().parents[2] / "src"
    paths = os.pathsep.join([str(here), str(source), os.environ.get("PYTHONPATH", "")])
    for words, expected in (
        (["train", "ring8-g"], ["ring8-gan", "ring8-gap4"]),
        (["status", "@"], ["@last", "@best"]),
        (["runs", "cl"], ["clean"]),
    ):
        asked = {"COMP_WORDS": " ".join(["ganherd", *words]), "COMP_CWORD": "2", "_GANHERD_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [sys.executable, "-m", "ganherd"],
            env={**os.environ, "PYTHONPATH": paths, **asked},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr
