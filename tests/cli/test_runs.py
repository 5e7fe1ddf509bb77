"""Runs by name and tag, longer ones, samples of unfinished ones, and the removal of checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import recipes
import run_files
import tiny_runs
import yaml

import ganherd
from ganherd.runs import clean, run_names
from ganherd.runs.folder import RunFolder
from ganherd.scoring import one_run
from ganherd.training.endings import reported_end
from ganherd.util.errors import Interrupted, UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, its data and a finished run of 30 steps; tests copy them."""
    folder = tmp_path_factory.mktemp("little")
    recipes.write_recipe(folder, net="tiny")
    with pytest.MonkeyPatch.context() as patch:
        tiny_runs.skip_products(patch)
        patch.chdir(folder)
        assert tiny_runs.command("train", "little.yaml", "--quiet") == 0
    return folder


@pytest.fixture
def little(cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, runs/00001-little, of 30 steps in the folder at hand."""
    tiny_runs.skip_products(monkeypatch)
    shutil.copytree(trained, Path.cwd(), dirs_exist_ok=True)
    return Path("runs/00001-little")


def unfinished(run: Path, to: str) -> Path:
    """Copy a run as it was before its mixture was made."""
    copy = Path(shutil.copytree(run, to))
    shutil.rmtree(copy / "mixture")
    info = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(info | {"state": "interrupted", "budget": {"steps": 900}}))
    return copy


@pytest.mark.further
def test_last_and_tags_name_runs_in_every_command(cli, little: Path) -> None:
    other = Path(shutil.copytree(little, "runs/00002-other"))
    os.utime(little / "run.json", (1e9, 1e9))
    assert "@last is runs/00002-other" in cli("status", "@last").err
    assert cli("runs", "tag", "@last", "best").out == "@best is runs/00002-other\n"
    assert cli("runs", "tag", little, "@first").code == 0
    assert json.loads(Path("runs/tags.json").read_text()) == {"best": "00002-other", "first": "00001-little"}
    assert cli("status", "@first").out.startswith("runs/00001-little: finished")
    assert cli("sample", "@best", "-n", 2, "-o", "x.npz").code == 0
    assert "runs/00001-little has made all of its 30 steps" in cli("train", "--resume", "@first").err
    assert "there is no mixture" not in cli("score", "@first", "-n", 50, "--quiet").err
    assert "00002-other @best" in cli("runs").out
    assert cli("runs", "tag", little, "best").code == 0  # the tag moves
    assert run_names.named_run("@best") == little
    shutil.rmtree(other)
    assert "@last is runs/00001-little" in cli("status", "@last").err


def test_unknown_names_are_sentences(cli) -> None:
    assert "there is none" in cli("status", "@last").sentence
    assert "there is no tag @best; `ganherd runs tag RUN best` makes it" in cli("status", "@best").sentence
    assert "there is no run folder nowhere" in cli("runs", "tag", "nowhere", "best").sentence
    assert "there is no tag @best" in cli("compare", "@best", "@last").sentence
    assert "there is no tag @best" in cli("compare", "--downstream", "@best").sentence


@pytest.mark.parametrize("name", ["last", "a/b", "../x", "", "-x", "a b", "x" * 41])
def test_odd_tags_are_refused(cli, little: Path, name: str) -> None:
    with pytest.raises(UserError, match="A tag begins with a letter"):
        run_names.tag(little, name)
    assert not Path("runs/tags.json").exists()


def test_damaged_tags_are_no_tags(cli, little: Path) -> None:
    for text in ("[]", "{", '{"a/b": "x", "good": 3}', '{"x": "a\\u0000b"}'):
        Path("runs/tags.json").write_text(text)
        assert run_names.tags() == {}
    assert cli("runs").code == 0


def test_a_run_outside_of_runs_can_be_tagged(cli, little: Path) -> None:
    elsewhere = Path(shutil.move(little, "elsewhere"))
    assert cli("runs", "tag", elsewhere, "far").code == 0
    assert run_names.named_run("@far") == elsewhere.resolve()


def test_an_unfinished_run_is_sampled_from_its_newest_checkpoint(cli, little: Path) -> None:
    stopped = unfinished(little, "runs/00002-stopped")
    before = {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
    answer = cli("sample", stopped, "-n", 9, "-o", "stopped.npz", "--json")
    assert json.loads(answer.out)["step"] == 30
    assert f"note: {stopped} is not finished" in answer.err and "step 30" in answer.err
    assert {path: path.stat().st_mtime_ns for path in stopped.rglob("*")} == before  # nothing is written
    assert cli("sample", little, "-n", 9, "-o", "finished.npz").code == 0
    ours, theirs = run_files.arrays("stopped.npz"), run_files.arrays("finished.npz")
    assert all((ours[name] == theirs[name]).all() for name in ("x", "y", "member"))
    (run_files.last_checkpoint(stopped) / "state.json").write_text("{}")
    assert "step 28" in cli("sample", stopped, "-n", 9, "-o", "x.npz").err  # the one before it


def test_an_unfinished_run_without_a_checkpoint_or_with_other_data_is_refused(cli, little: Path) -> None:
    stopped = unfinished(little, "runs/00002-stopped")
    info = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps(info | {"data": "0" * 64}))
    assert "has changed since it was started" in cli("sample", stopped, "-o", "x.npz").sentence
    shutil.rmtree(stopped / "checkpoints")
    assert "there is no mixture in" in cli("sample", stopped, "-o", "x.npz").sentence


def test_code_of_an_unfinished_run_is_not_executed(cli, little: Path) -> None:
    stopped = unfinished(little, "runs/00002-stopped")
    Path("evil.py").write_text("open('executed', 'w')\n")
    recipe = yaml.safe_load((stopped / "recipe.yaml").read_text())
    recipe["nets"]["generator"] = {"name": "evil:Generator", "settings": {}}
    recipe["code"] = [str(Path.cwd())]
    (stopped / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert "--trust-code" in cli("sample", stopped, "-o", "x.npz").sentence
    assert not Path("executed").exists()


def test_a_relative_budget_counts_from_the_newest_checkpoint(cli, little: Path) -> None:
    assert cli("train", "--resume", little, "--budget", "+5steps", "--quiet").code == 0
    assert run_files.steps(little)[-1] == 35
    info = json.loads((little / "run.json").read_text())
    assert (info["step"], info["changes"]) == (35, ["train.budget=35steps"])
    assert cli("train", "--resume", little, "--budget", "4epochs", "--quiet").sentence.startswith("the run has done 35")


def test_a_relative_budget_in_epochs_or_time(cli, little: Path) -> None:
    from ganherd.runs.longer_budget import longer_budget

    stopped = unfinished(little, "runs/00002-stopped")
    seconds = json.loads((run_files.last_checkpoint(stopped) / "state.json").read_text())["seconds"]
    assert longer_budget(stopped, "+2m") == f"{seconds + 120:.10g}s"
    (stopped / "metrics.jsonl").write_text('{"step": 28, "epoch": 7.0}\n')
    assert longer_budget(stopped, "+5epochs") == "50steps"  # an epoch has four steps
    for records in (
        "",
        '{"step": 28, "epoch": 0.0}\n',
        '{"step": 28, "epoch": NaN}\n',
        '{"step": 28, "epoch": 1e300}\n',
    ):
        (stopped / "metrics.jsonl").write_text(records)
        with pytest.raises(UserError, match=r"no epochs yet; add steps, e\.g\. \+200steps|not written by ganherd"):
            longer_budget(stopped, "+5epochs")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "+5steps"], "name it with --resume"),
        (["--resume", "runs/00001-little", "--budget", "+5apples"], "must be steps, epochs or time"),
        (["--resume", "runs/00001-little", "--retrain", "0", "--budget", "+5steps"], "leave the + of --budget out"),
    ],
)
def test_a_relative_budget_that_makes_no_sense_is_refused(cli, little: Path, words: list[str], said: str) -> None:
    assert said in cli("train", *words).sentence


def test_a_relative_budget_is_refused_in_a_job_that_may_restart(cli, little: Path, monkeypatch) -> None:
    monkeypatch.setattr("ganherd.comm.backends.detect.detect", lambda environment: "torch")
    assert "would grow whenever the job restarts" in cli("train", "--resume", little, "--budget", "+5steps").sentence


def test_clean_keeps_the_mixture_and_what_was_recorded(cli, little: Path) -> None:
    stopped = unfinished(little, "runs/00002-stopped")
    results = {path.relative_to(little) for path in little.rglob("*") if "checkpoints" not in path.parts}
    assert "add --yes" in cli("runs", "clean").err  # nobody can be asked
    assert run_files.steps(little)
    facts = json.loads(cli("runs", "clean", "--yes", "--json").out)
    assert facts["runs"] == [str(little)] and facts["bytes"] > 0
    assert run_files.steps(little) == [] and list((little / "checkpoints").iterdir()) == []
    assert results <= {path.relative_to(little) for path in little.rglob("*")}
    assert run_files.steps(stopped)  # not finished
    assert cli("sample", little, "-n", 3, "-o", "x.npz").code == 0
    assert "were removed, so it cannot be trained further" in cli("train", "--resume", little).sentence
    assert (little / "mixture/mixture.json").is_file()
    assert "No finished run has checkpoints" in cli("runs", "clean").out
    assert "its checkpoints are all that it has" in cli("runs", "clean", stopped, "--yes").sentence


def test_a_run_that_is_named_twice_is_cleaned_once(cli, little: Path) -> None:
    facts = json.loads(cli("runs", "clean", little, little.absolute(), "runs", "--yes", "--json").out)
    assert facts["runs"] == [str(little)]


def test_a_run_that_was_resumed_meanwhile_keeps_its_checkpoints(cli, little: Path) -> None:
    listed = clean.removable(little)
    RunFolder(little).write_info(state="interrupted")
    with pytest.raises(UserError, match="was resumed in the meantime, so its checkpoints are kept"):
        clean.remove(listed)
    assert run_files.steps(little)


def test_clean_can_keep_the_newest_checkpoint(cli, little: Path) -> None:
    assert cli("runs", "clean", little, "--keep-last", "--yes").code == 0
    assert run_files.steps(little)[-1] == 30
    ganherd.resume(little, ["train.budget=33steps"], quiet=True, finishers=())
    assert run_files.steps(little)[-1] == 33


@pytest.mark.parametrize(("answer", "left"), [(True, False), (False, True)])
def test_clean_asks_first(cli, little: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, left: bool) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: answer)
    assert cli("runs", "clean").code == 0
    assert bool(run_files.steps(little)) == left


def test_clean_leaves_a_run_alone_that_is_being_trained(cli, little: Path) -> None:
    with RunFolder(little).lock():
        assert "another process is training" in cli("runs", "clean", "--yes").err
    assert run_files.steps(little)


def test_scores_of_fewer_samples_replace_none_of_more(cli, little: Path, capsys) -> None:
    def recorded() -> dict[str, tuple[float, int]]:
        scores = json.loads((little / "scores.json").read_text())["scores"]
        return {name: (entry["value"], entry["samples"]) for name, entry in scores.items() if name != "skipped"}

    def keep(**values: tuple[float, int, str]) -> str:
        capsys.readouterr()
        entries = {k: {"value": v, "samples": n, "network": network} for k, (v, n, network) in values.items()}
        one_run.keep(little, {**entries, "skipped": {}}, list(values))
        return capsys.readouterr().err

    keep(fid=(2.0, 1000, "a"), kid=(0.1, 100, "a"))
    message = keep(fid=(3.0, 300, "a"), kid=(0.2, 300, "a"))
    assert recorded() == {"fid": (2.0, 1000), "kid": (0.2, 300)}
    assert "keeps the recorded values of fid, which have more samples" in message
    assert keep(fid=(4.0, 1000, "a")) == "" and recorded()["fid"] == (4.0, 1000)
    assert keep(fid=(9.0, 300, "b")) == "" and recorded()["fid"] == (9.0, 300)  # another network is another score


def test_what_a_recorded_score_lacks_is_added_to_it(cli, little: Path) -> None:
    one_run.keep(little, {"fid": {"value": 2.0, "samples": 1000, "network": "a"}}, ["fid"])
    per = {"per_member": {"0": 5.0}, "per_member_samples": {"0": 300}}
    one_run.keep(little, {"fid": {"value": 3.0, "samples": 300, "network": "a", **per}}, ["fid"])
    fid = json.loads((little / "scores.json").read_text())["scores"]["fid"]
    assert fid == {"value": 2.0, "samples": 1000, "network": "a", **per}


def test_ranks_grow_the_run_that_the_command_named(cli, little: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new run would be @last when the ranks start."""
    started: list[list[str]] = []

    def spawn(main: object, ranks: int, words: list[str]) -> int:
        started.append(words)
        return 0

    monkeypatch.setattr("ganherd.training.ranks.spawn.spawn", spawn)
    monkeypatch.setattr("sys.argv", ["ganherd", "train", "--grow", "@last", "--ranks", "2"])
    assert cli("train", "--grow", "@last", "--ranks", "2").code == 0
    assert started == [["train", "--grow", "@last", "--grow", str(little)]]


@pytest.mark.parametrize(("device", "woken"), [("auto", 1), ("cpu", 0)])
def test_the_gpu_is_started_only_for_runs_that_may_use_it(
    cli, little: Path, monkeypatch: pytest.MonkeyPatch, device: str, woken: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("ganherd.cli.train_command.wake_gpu", lambda: calls.append(1))
    assert cli("train", "little.yaml", "--set", f"engine.device={device}", "--budget", "1steps", "--quiet").code == 0
    assert len(calls) == woken


def test_a_run_is_known_by_the_name_that_the_list_shows(cli, little: Path) -> None:
    assert cli("status", "00001-little").out.startswith("runs/00001-little: finished")
    assert "did you mean 'runs/00001-little'?" in cli("status", "00001-litle").sentence
    assert "`ganherd runs` lists all runs" in cli("status", "nowhere/zebra").sentence
    cli("runs", "tag", little, "best")
    assert "There are @best." in cli("status", "@zebra").sentence


def test_runs_in_the_current_folder_are_listed_and_can_be_the_last(cli, little: Path) -> None:
    os.utime(little / "run.json", (1e9, 1e9))
    shutil.copytree(little, "first")
    shutil.copytree(little, "comparisons/a/budget/fast")
    os.utime("first/run.json", (2e9, 2e9))
    assert "@last is first" in cli("status", "@last").err
    names = [run["name"] for run in json.loads(cli("runs", "--json").out)["runs"]]
    assert names == ["00001-little", "first"]
    (compared,) = json.loads(cli("runs", "list", "comparisons", "--json").out)["runs"]
    assert compared["name"] == "a/budget/fast"


def test_a_run_whose_data_was_moved_is_resumed_from_the_new_place(cli, little: Path) -> None:
    content = (little / "recipe.yaml").read_text()
    source = yaml.safe_load(content)["data"]["source"]
    shutil.copy(source, "moved.npz")
    (little / "recipe.yaml").write_text(content.replace(source, str(Path("gone.npz").absolute())))
    sentence = cli("train", "--resume", little, "--budget", "32steps").sentence
    assert "name its new place with --set data.source=PATH, also when you resume a run" in sentence
    words = ("train", "--resume", little, "--set", "data.source=moved.npz", "--budget")
    assert cli(*words, "32steps", "--quiet").code == 0
    assert yaml.safe_load((little / "recipe.yaml").read_text())["data"]["source"] == str(Path("moved.npz").absolute())
    changes = json.loads((little / "run.json").read_text())["changes"]
    assert changes == ["train.budget=32steps", f"data.source={Path('moved.npz').absolute()}"]
    np.savez("other.npz", x=np.zeros((30, 1, 8, 8), np.uint8), y=np.arange(30) % 3)
    assert (
        "has changed since it was started" in cli(*words[:-2], "data.source=other.npz", "--budget", "34steps").sentence
    )


@pytest.mark.parametrize("error", [Interrupted("stopped by SIGINT at step 30."), UserError("the disk is full.")])
def test_status_says_why_a_run_ended_early_until_it_is_resumed(cli, little: Path, error: Exception) -> None:
    session: Any = SimpleNamespace(resumed=None, folder=RunFolder(little), resume_command="ganherd …")
    with pytest.raises(type(error)), reported_end(session):
        raise error
    assert f"reason for ending: {error}" in cli("status", little).out
    assert json.loads(cli("status", little, "--json").out)["reason"] == str(error)
    assert cli("train", "--resume", little, "--budget", "32steps", "--quiet").code == 0
    assert "reason for ending" not in cli("status", little).out


def test_a_run_that_grew_is_called_after_its_data_or_the_run_it_grew_from(cli, little: Path) -> None:
    (data,) = Path().glob("*.npz")
    arrays = run_files.arrays(data)
    names = {"labels": np.array([*arrays["labels"], "new"])} if "labels" in arrays else {}
    y = np.where(np.arange(len(arrays["y"])) < 10, arrays["y"].max() + 1, arrays["y"])
    np.savez("more.npz", **{**arrays, "y": y, **names})
    assert cli("train", "more.npz", "--grow", little, "--budget", "2steps", "--quiet").code == 0
    info = json.loads(Path("runs/00002-more/run.json").read_text())
    assert info["recipe"] == "little"
