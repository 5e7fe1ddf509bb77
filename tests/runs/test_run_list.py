"""The list of runs: what it reads from each folder, and folders of strangers, which must stay harmless."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import recipes
import tiny_runs

from ganherd.runs.run_list import RunSummary, list_runs, newest_run
from ganherd.util.errors import UserError


def a_run(path: Path, age: float = 0.0, **info: object) -> Path:
    """Write a run.json with these keys; it was written `age` seconds after the epoch of these tests."""
    path.mkdir(parents=True)
    facts = {"state": "finished", "step": 5, "budget": {"steps": 5}, "recipe": "little", "changes": ["train.batch=3"]}
    (path / "run.json").write_text(json.dumps(facts | info))
    (path / "recipe.yaml").write_text("about: little\n")
    os.utime(path / "run.json", (1e9 + age, 1e9 + age))
    return path


def only(folder: Path) -> RunSummary:
    (run,) = list_runs(folder)
    return run


def test_a_trained_run_is_listed_with_its_recipe_state_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.skip_products(monkeypatch)
    monkeypatch.chdir(tmp_path)
    recipes.write_recipe(tmp_path, budget="7steps")
    assert tiny_runs.command("train", "little.yaml", "--set", "train.batch=4", "--quiet") == 0
    run = only(Path("runs"))
    assert (run.name, run.recipe, run.changes) == ("00001-little", "little", ("train.batch=4",))
    assert (run.state, run.step, run.steps, run.problem) == ("finished", 7, 7, "")
    files = {path: path.stat().st_size for path in Path(run.path).rglob("*") if path.is_file()}
    assert run.bytes == sum(files.values())
    assert run.checkpoint_bytes == sum(n for path, n in files.items() if "checkpoints" in path.parts) > 0


def test_the_steps_of_an_unfinished_run_come_from_its_records_and_checkpoints(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", state="interrupted", step=None, budget={"steps": 90})
    (run / "metrics.jsonl").write_text('{"step": 10}\n{"step": 20}\n')
    assert (only(tmp_path).step, only(tmp_path).steps, only(tmp_path).state) == (20, 90, "interrupted")
    (run / "checkpoints/step-00000023").mkdir(parents=True)
    assert only(tmp_path).step == 23


def test_a_run_whose_process_is_gone_is_listed_as_killed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", state="running", step=None)
    (run / ".lock").touch()
    assert only(tmp_path).state == "killed"


def test_fid_and_verdict_come_from_the_scores(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a")
    assert (only(tmp_path).fid, only(tmp_path).verdict) == (None, None)
    scores = {"scores": {"fid": {"value": 2.5, "samples": 1000}}, "verdict": {"word": "good", "reason": "fine"}}
    (run / "scores.json").write_text(json.dumps(scores))
    assert (only(tmp_path).fid, only(tmp_path).samples, only(tmp_path).verdict) == (2.5, 1000, "good")


def test_a_verdict_on_another_step_is_not_shown(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", step=5)
    (run / "scores.json").write_text(json.dumps({"verdict": {"word": "good", "reason": "fine", "step": 4}}))
    assert only(tmp_path).verdict is None


def test_a_run_never_has_more_steps_than_its_length(tmp_path: Path) -> None:
    a_run(tmp_path / "a", step=9, budget={"steps": 5})
    assert (only(tmp_path).step, only(tmp_path).steps) == (9, 9)


def test_sizes_can_be_left_out(tmp_path: Path) -> None:
    a_run(tmp_path / "a")
    (run,) = list_runs(tmp_path, sizes=False)
    assert (run.bytes, run.state) == (0, "finished") and only(tmp_path).bytes > 0


def test_a_folder_whose_name_has_too_many_digits_is_no_checkpoint(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", state="interrupted", step=None)
    (run / f"checkpoints/step-{'9' * 5000}"[:250]).mkdir(parents=True)
    assert only(tmp_path).step == 0


def test_the_run_that_was_active_last_comes_last_and_is_the_newest(tmp_path: Path) -> None:
    a_run(tmp_path / "b", age=1.0)
    a_run(tmp_path / "c", age=9.0)
    a_run(tmp_path / "compared/a", age=5.0)  # a comparison holds runs, too
    assert [run.name for run in list_runs(tmp_path)] == ["b", "compared/a", "c"]
    assert newest_run(tmp_path) == tmp_path / "c"
    assert newest_run(tmp_path / "nowhere") is None


def test_a_run_can_be_listed_by_itself_and_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    assert only(a_run(tmp_path / "a")).name == "a"
    with pytest.raises(UserError, match="there is no folder"):
        list_runs(tmp_path / "nowhere")


def link_inside(run: Path) -> None:
    (run / "samples").symlink_to(run.parent)


def pipe_inside(run: Path) -> None:
    os.mkfifo(run / "metrics.jsonl")


def lock_is_a_pipe(run: Path) -> None:
    os.mkfifo(run / ".lock")


def huge_info(run: Path) -> None:
    with (run / "run.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse


def huge_scores(run: Path) -> None:
    with (run / "scores.json").open("wb") as file:
        file.truncate(1 << 40)


def deep_info(run: Path) -> None:
    (run / "run.json").write_text('{"a":' + "[" * 200_000)


def info_is_a_list(run: Path) -> None:
    (run / "run.json").write_text("[]")


def odd_types(run: Path) -> None:
    (run / "run.json").write_text('{"state": 3}')


def scores_are_a_list(run: Path) -> None:
    (run / "scores.json").write_text('{"scores": [1]}')


def info_is_a_folder(run: Path) -> None:
    (run / "run.json").unlink()
    (run / "run.json").mkdir()


def many_files(run: Path) -> None:
    (run / "many").mkdir()
    for number in range(40):
        (run / "many" / str(number)).touch()


BROKEN = {
    link_inside: "samples is a link",
    pipe_inside: "metrics.jsonl is neither a file nor a folder",
    lock_is_a_pipe: ".lock is neither a file nor a folder",
    huge_info: "bytes, and at most",
    huge_scores: "bytes, and at most",
    deep_info: "nested too deeply",
    info_is_a_list: "no JSON object",
    odd_types: "state",
    scores_are_a_list: "not what ganherd writes",
    info_is_a_folder: "not a regular file",
    many_files: "more than 30 files",
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_broken_folder_is_one_row_with_its_reason(tmp_path: Path, spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganherd.runs.run_list._MOST_FILES", 30)
    a_run(tmp_path / "good")
    spoil(a_run(tmp_path / "bad", state="running"))
    by_name = {run.name: run for run in list_runs(tmp_path)}
    assert by_name["good"].problem == "" and by_name["good"].state == "finished"
    assert BROKEN[spoil] in by_name["bad"].problem


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = a_run(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/link").symlink_to(elsewhere)
    assert "a link, which is not followed" in only(tmp_path / "runs").problem
    assert newest_run(tmp_path / "runs") is None


def test_escapes_of_a_stranger_do_not_reach_the_terminal(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    a_run(Path("runs/a\x1b[31m\nred"), state="finished\x1b]0;x\x07", recipe="r\x1b[2J", changes=["a=\r\n\x1b[0m"])
    a_run(Path("runs/long"), recipe="y" * 60_000)
    answer = cli("runs")
    assert answer.code == 0
    assert "\x1b" not in answer.out and "\x07" not in answer.out and "\r" not in answer.out
    lines = answer.out.splitlines()
    assert len(lines) == 7 and all(len(line) <= 140 for line in lines)  # header, two runs with their notes, the sum
    found = json.loads(cli("runs", "--json").out)["runs"]
    assert {run["recipe"][:1] for run in found} == {"r", "y"}


@pytest.mark.parametrize("columns", [80, 140])
def test_the_list_fits_the_terminal(cli, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    a_run(Path("runs/00001-folder-perclass-small"), changes=["train.budget=90s", "x=" + "y" * 300])
    lines = cli("runs").out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any("00001-folder-perclass-small" in line for line in lines)
    assert any("little, train.budget=90s" in line for line in lines)


def test_without_runs_the_list_says_how_to_get_one(cli) -> None:
    assert cli("runs").out == "There are no runs in runs; `ganherd train` makes one.\n"
    assert "there is no folder nowhere" in cli("runs", "nowhere").sentence


def test_a_finished_run_records_the_memory_that_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)
    tiny_runs.train(tmp_path / "run", recipes.noise_recipe(tmp_path, "3steps"))
    memory = only(tmp_path / "run").memory
    assert memory is not None and 20 << 20 < memory < 1 << 40
