"""Every command on honest input: what it prints for people, the one JSON object for programs, and the files it leaves."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import warm_python
import yaml
from fake_clock import FakeClock
from recipes import LABELS, tiny_recipe

from ganherd.scoring import known_metrics
from ganherd.training.setup import dry_run

METRICS = {"label_accuracy", "histogram", "diversity"}


@pytest.fixture
def mine(data) -> str:
    """A recipe file in the folder at hand."""

    def write(**sections) -> str:
        Path("mine.yaml").write_text(yaml.safe_dump(tiny_recipe(data, **sections)))
        return "mine.yaml"

    return write


def only_json(answer) -> dict:
    """One object on stdout and nothing else there; strict JSON, without NaN."""
    assert answer.code == 0, answer
    assert answer.out.count("\n") == 1

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(answer.out, parse_constant=refuse)


def test_train_json_and_quiet(cli, mine) -> None:
    answer = cli("train", mine(), "--run", "new", "--json", "--quiet", "--budget", "4steps")
    found = only_json(answer)
    assert answer.err == ""
    assert {"run", "state", "step", "scores"} <= set(found)
    assert (found["run"], found["state"], found["step"]) == ("new", "finished", 4)
    assert set(found["scores"]) == set(known_metrics(None, "train"))
    files = {str(p.relative_to("new")) for p in Path("new").rglob("*") if p.is_file()}
    assert files >= {"recipe.yaml", "run.json", "metrics.jsonl", "events.jsonl", "report.html", "scores.json",
                     "mixture/mixture.json", "mixture/generators.safetensors", "samples/final.png"}  # fmt: skip
    assert not [name for name in files if Path(name).name.startswith(".new")]
    info = json.loads(Path("new/run.json").read_text())
    assert {"versions", "seed", "git", "host", "command", "engine", "state", "threads"} <= set(info)
    full = yaml.safe_load(Path("new/recipe.yaml").read_text())
    assert full["train"]["budget"] == "4steps" and full["optim"]["beta2"] == 0.999  # every default is written out


def test_train_for_people(cli, mine) -> None:
    answer = cli("train", mine(), "--run", "new")
    assert answer.code == 0
    for name in ("new/samples/final.png", "new/scores.json", "new/report.html"):
        assert name in answer.out and Path(name).exists()
    assert "label accuracy" in answer.out and "real data has" in answer.out and "verdict" in answer.out
    assert "first picture: new/samples/step-00000006.png" in answer.err
    assert "step 6/6" in answer.err and "3 members" in answer.err  # progress goes to stderr


@pytest.mark.usefixtures("brief")
def test_runs_are_numbered(cli, mine) -> None:
    names = [only_json(cli("train", mine(), "--quiet", "--json", "--budget", "1steps"))["run"] for _ in range(2)]
    assert names == ["runs/00001-mine", "runs/00002-mine"]


def test_a_printed_recipe_is_a_recipe(cli) -> None:
    Path("own.yaml").write_text(cli("recipes", "digits-wcgan").out)
    words = ["--set", "engine={name: loop, threads: 1, chunk: 1}", "--dry-run", "--json"]
    assert only_json(cli("train", "own.yaml", *words))["members"] == 10
    text = only_json(cli("recipes", "digits-wcgan", "--json"))["text"]
    assert text == Path("own.yaml").read_text()
    assert {"name", "about", "task", "device", "length", "data"} == set(
        only_json(cli("recipes", "--json"))["recipes"][0]
    )


def test_dry_run_calls_points_points(cli) -> None:
    found = cli("train", "r15-gan", "--dry-run", "--set", "engine={name: loop, threads: 1, chunk: 1}").out
    assert "r15, 100 points of shape [2]" in found and "1 member with 100 points" in found and "images" not in found


def test_dry_run_separates_thousands_of_steps_and_epochs(cli) -> None:
    found = cli(
        "train", "--dry-run", "--budget", "1500epochs", "--set", "engine={name: loop, threads: 1, chunk: 1}"
    ).out
    assert " steps, 1,500 epochs" in found


def test_dry_run_writes_nothing(cli, mine) -> None:
    name = mine()
    answer = cli("train", name, "--dry-run")
    assert "small" in answer.out and "parameters" in answer.out and "Nothing was written" in answer.out
    found = only_json(cli("train", name, "--dry-run", "--json", "--seeds", 2))
    assert {"members", "generator", "discriminator", "state_bytes", "steps", "seconds"} <= set(found)
    assert (found["members"], found["replicas"], found["steps"]) == (6, 2, 6)
    assert found["generator"]["parameters"] == 8 * 16 + 16 + 16 * 16 + 16 + 16 * 64 + 64
    assert [p.name for p in Path().iterdir()] == ["mine.yaml"]


def test_a_dry_run_says_what_is_known_before_it_measures(cli, mine, monkeypatch, capsys) -> None:
    """Nets that are far too slow here get one step of one member, and what is known is said all the same."""
    before = []

    def step(herd) -> int:
        before.append(capsys.readouterr())
        return 1000

    monkeypatch.setattr(dry_run, "memory_per_member", step)
    monkeypatch.setattr(dry_run, "LONG", 0.0)
    monkeypatch.setattr(
        dry_run.autotune, "choose", lambda *given: pytest.fail("a step takes too long to measure engines")
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name = mine(engine={"device": "auto", "without_gpu": "take folder-perclass-small"})
    answer = cli("train", name, "--dry-run")
    (first,) = before
    assert "members" in first.out and "parameters" in first.out and first.err == "measuring memory and time…\n"
    assert "note: this recipe is meant for a GPU, and PyTorch sees none here: take folder-perclass-small" in first.out
    assert "engine        not chosen yet: one step of one member takes" in answer.out
    assert "6 steps" in answer.out and "measured on one step of one member" in answer.out
    assert "meant for a GPU" not in answer.out  # once is enough
    found = only_json(cli("train", name, "--dry-run", "--json"))
    assert found["measured"] == "one step of one member" and "meant for a GPU" in found["notes"][-1]


@pytest.mark.usefixtures("brief")
def test_training_says_too_that_a_gpu_is_missing(cli, mine, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name = mine(engine={"device": "auto", "without_gpu": "take folder-perclass-small"}, run={"scores": False})
    assert "none here: take folder-perclass-small" in cli("train", name, "--run", "new").err
    assert "GPU" not in cli("train", name, "--run", "asked", "--set", "engine.device=cpu").err


def test_seeds_are_stacked_and_scored_apart(cli, seeds_run) -> None:
    kept = json.loads((seeds_run / "scores.json").read_text())["scores"]
    for scores in (kept, only_json(cli("score", seeds_run, "--json", "--quiet"))["scores"]):
        for entry in (scores[name] for name in METRICS):
            assert len(entry["per_seed"]) == 2 and entry["seeds"] == [0, 1]
            assert entry["value"] == pytest.approx(sum(entry["per_seed"]) / 2)
            assert entry["std"] is not None and "replica" not in entry
    # what the end of the training measured comes out the same again, and beside it stands what `score` adds to that
    again = json.loads((seeds_run / "scores.json").read_text())["scores"]
    assert set(kept) == set(known_metrics(None, "train")) and set(again) == set(known_metrics(None, "score"))
    assert {name: again[name] for name in kept} == kept
    assert "means of 2 seeds" in cli("score", seeds_run, "--quiet").out
    assert "mean of 2 seeds, standard deviation" in cli("score", seeds_run, "--quiet", "--verbose").out.replace(
        "\n", " "
    )
    alone = only_json(cli("sample", seeds_run, "-o", "x.npz", "--json"))
    assert alone["samples"] == 64


def test_score(cli, run) -> None:
    copy = Path(shutil.copytree(run, "copy"))
    answer = cli("score", copy, "-n", 90, "--seed", 3, "--json")
    found = only_json(answer)["scores"]
    assert set(found) == set(known_metrics(None, "score")) and answer.err != ""
    for entry in (found[name] for name in METRICS):
        assert {"value", "samples", "network", "seed"} <= set(entry) and (entry["samples"], entry["seed"]) == (90, 3)
    assert 0 <= found["label_accuracy"]["held_out_accuracy"] <= 1
    some = cli("score", copy, "--metrics", "diversity", "--json", "--quiet")
    assert set(only_json(some)["scores"]) == {"diversity"} and some.err == ""
    assert set(json.loads((copy / "scores.json").read_text())["scores"]) == set(found)  # the others are kept
    text = cli("score", copy, "--quiet").out
    assert all(name.replace("_", " ") in text for name in METRICS) and "1,000" in text
    both = only_json(cli("score", copy, run, "--json", "--quiet", "-n", 30))["runs"]
    assert set(both) == {"copy", str(run)} and set(both["copy"]["scores"]) == set(found)
    told = cli("score", copy, "--metrics", "diversity", "-q", "-o", "out/scores.json", "--json")
    assert json.loads(Path("out/scores.json").read_text()) == only_json(told)
    one = Path(shutil.copytree(run, "other"))
    contest = only_json(cli("score", copy, one, "--metrics", "gam2", "-n", 20, "--json", "--quiet"))["runs"]
    assert {entry["scores"]["gam2"]["samples"] for entry in contest.values()} == {20}


def test_report_and_status(cli, run) -> None:
    copy = Path(shutil.copytree(run, "copy"))
    (copy / "report.html").unlink()
    assert only_json(cli("report", copy, "--json")) == {"reports": ["copy/report.html"]}
    page = (copy / "report.html").read_text()
    assert all(label in page for label in LABELS) and "could not be read" not in page
    assert "Nearest training images" in page and (copy / "pictures" / "map.svg").is_file()
    found = only_json(cli("status", copy, "--json"))
    assert (found["state"], found["step"], found["steps"], found["members"]) == ("finished", 6, 6, 3)
    assert {"rate", "seconds_left", "heartbeat", "losses", "alarms"} <= set(found)
    assert "finished, step 6 of 6" in cli("status", copy).out


def test_data_list_and_inspect(cli, data) -> None:
    rows = only_json(cli("data", "list", "--json"))["sources"]
    assert {"digits", "mnist", "cifar10", "ring8"} <= {row["name"] for row in rows}
    assert "digits" in cli("data", "list").out
    found = only_json(cli("data", "inspect", data, "--json"))
    assert found["shape"] == [1, 8, 8] and [row["name"] for row in found["classes"]] == list(LABELS)
    assert Path(found["contact_sheet"]).exists()
    assert "3 classes" in cli("data", "inspect", data).out
    assert only_json(cli("data", "inspect", "ring8", "--json"))["kind"] == "points"


def test_doctor(cli) -> None:
    rows = only_json(cli("doctor", "--json"))["rows"]
    assert {"what", "found", "needed_for", "how_to_get"} <= set(rows[0])
    assert "PyTorch" in cli("doctor").out


def test_bench(cli, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", warm_python.python())  # each row is measured in a process of its own
    answer = cli("bench", "fusion", "--net", "small", "--sizes", "2", "--seconds", "0.05", "--json", "--device", "cpu")
    rows = only_json(answer)["rows"]
    assert [row["engine"] for row in rows][:2] == ["loop", "fused"]
    for row in rows:
        assert row["members"] == 2 and row["member_steps_per_second"] > 0 and row["peak_bytes"] > 0
    assert sum(row["chosen"] for row in rows) == 1


@pytest.mark.usefixtures("brief")
def test_a_finished_run_says_that_it_is(cli, run) -> None:
    copy = shutil.copytree(run, "finished")
    steps = json.loads(Path(copy, "run.json").read_text())["step"]
    answer = cli("train", "--resume", copy)
    assert f"finished has made all of its {steps} steps; give it a larger --budget" in answer.err
    assert not re.search(r"step [\d,]+ to ", answer.err)


@pytest.mark.usefixtures("brief")
def test_a_run_without_a_mixture_names_both_ways_to_one(cli, run) -> None:
    copy = shutil.copytree(run, "stopped")
    shutil.rmtree("stopped/mixture")
    steps = json.loads(Path(copy, "run.json").read_text())["step"]
    said = cli("score", copy).sentence
    assert (
        f"Resume it with `ganherd train --resume stopped`; with --budget {steps}steps it ends where it stands" in said
    )
    assert cli("train", "--resume", copy, "--budget", f"{steps}steps", "--quiet").code == 0
    assert cli("sample", copy, "-n", 3, "-o", "x.npz").code == 0


@pytest.mark.usefixtures("brief")
def test_a_time_budget_ends_at_100_percent_and_reports_the_time(cli, mine, monkeypatch) -> None:
    """Planned by a rate that was measured too high; what is left is never more than the time."""
    clock = FakeClock(step=0.25)
    clock.install(monkeypatch, measured_step=0.01)
    monkeypatch.setattr("ganherd.cli.train_command.process_began", lambda: clock.now - 1.0)
    answer = cli("train", mine(), "--run", "new", "--budget", "8s")
    steps = json.loads(Path("new/run.json").read_text())["step"]
    lines = re.findall(r"^step .*%.*", answer.err, re.M)
    assert all(int(left) <= 7 for left in re.findall(r"^step .* (\d+) s left", answer.err, re.M))
    assert lines[-1].startswith(f"step {steps}/{steps}  100%")
    assert re.search(rf"Mixture saved after (7\.[89]|8\.[012]) s of the 8 s budget, with {steps} steps", answer.err)


@pytest.mark.usefixtures("brief")
def test_a_resumed_run_reports_its_whole_training_time_as_such(cli, run) -> None:
    copy = shutil.copytree(run, "copy")
    shutil.rmtree("copy/samples")
    answer = cli("train", "--resume", copy, "--budget", "+2steps")
    assert re.search(r"^trained in \d+ s in all; making the mixture…$", answer.err, re.M)
    answer = cli("train", "--resume", copy, "--budget", "+2steps")
    assert "next picture: " in answer.err and "first picture: " not in answer.err


def test_resume_with_a_longer_budget(cli, run) -> None:
    copy = shutil.copytree(run, "copy")
    found = only_json(cli("train", "--resume", copy, "--budget", "8steps", "--json", "--quiet"))
    assert (found["step"], found["state"]) == (8, "finished")
    assert [json.loads(line)["step"] for line in (Path(copy) / "metrics.jsonl").open()] == [2, 4, 6, 8]
    assert (
        only_json(cli("train", "--resume", copy, "--json", "--quiet"))["step"] == 8
    )  # nothing left to do, and it says so
