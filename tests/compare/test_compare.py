"""`ganherd compare`: equal budgets and equal images, scores with intervals, and resuming a comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from comparisons import METRICS, compared
from recipes import tiny_recipe

import ganherd
from ganherd.compare import compare_recipes, comparison_page, contenders, entry, score_plots
from ganherd.compare.comparison_tasks import planned_tasks
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import Interrupted


def times(folder: str | Path) -> dict[str, int]:
    """When the runs were last written."""
    return {str(p): p.stat().st_mtime_ns for p in Path(folder).glob("*/*/run.json")}


@pytest.mark.further
def test_equal_steps_and_equal_images(cli, two) -> None:
    comparison = compared(cli, *two, "--budget", "4steps", "--seeds", 2)
    folder = Path(comparison["compare"])
    assert folder == Path("comparisons/a-vs-b") and comparison["state"] == "finished"
    assert {k: v for k, v in json.loads((folder / "compare.json").read_text()).items()} == {
        k: v for k, v in comparison.items() if k != "compare"
    }
    budget, images = (comparison["bases"][basis]["entries"] for basis in ("budget", "images"))
    assert [row["steps"] for row in budget.values()] == [4, 4]
    assert [row["images"] for row in budget.values()] == [4 * 8 * 3, 2 * 4 * 8 * 3]  # steps × batch × members
    assert [row["images"] for row in images.values()] == [96, 96]
    assert [row["run"] for row in images.values()] == ["budget/a", "images/b"]
    for row in budget.values():
        assert row["members"] == 3 and row["device"] == "cpu"
        assert row["parameters"] == 3 * (row["generator_parameters"][0] + row["discriminator_parameters"])
        assert 0 < row["device_seconds"] < row["wall_seconds"]
        assert [len(row["scores"][name]["per_seed"]) for name in ("diversity", "kid")] == [2, 2]
    apart = comparison["bases"]["budget"]["differences"]["b"]["diversity"]
    pairs = [budget[name]["scores"]["diversity"]["per_seed"] for name in "ab"]
    assert apart["per_seed"] == pytest.approx(np.subtract(pairs[1], pairs[0]))
    assert apart["value"] == pytest.approx(np.mean(apart["per_seed"]))
    assert apart["interval"]["low"] <= apart["value"] <= apart["interval"]["high"]
    text = (folder / "compare.html").read_text()
    assert "At equal images seen" in text and "http" not in text.replace("http-equiv", "").replace(
        "http://www.w3.org", ""
    )
    assert ">network</th>" in text and text.count(">pixels</td>") >= 2  # no number without its samples and its network
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.further
def test_run_at_equal_images_equals_the_longer_run_there(cli, two) -> None:
    comparison = compared(cli, *two, "--budget", "4steps", "--seeds", 1, "-o", "out")
    assert comparison["bases"]["images"]["entries"]["b"]["steps"] == 2
    alone = ganherd.train("b.yaml", ["train.budget=2steps"], run="alone", quiet=True)
    ours, theirs = (Path(p) / "mixture" / "generators.safetensors" for p in ("out/images/b", alone.path))
    assert ours.read_bytes() == theirs.read_bytes()
    apart = comparison["bases"]["budget"]["differences"]["b"]["diversity"]
    assert apart["verdict"] == "undecided" and "interval" not in apart  # one seed says nothing of luck


@pytest.mark.further
def test_images_of_both_phases_count(cli, two, data) -> None:
    """Equal budgets are of both phases together, and so are images and seconds."""
    one = tiny_recipe(data, data={"partition": "all"}, herd={"members": 1}, run={"watch": {"every": 0}})
    Path("one.yaml").write_text(yaml.safe_dump(one))
    herd = {"first": {"recipe": "one.yaml", "share": 0.5}}
    Path("c.yaml").write_text(yaml.safe_dump(tiny_recipe(data, herd=herd, run={"watch": {"every": 0}})))
    comparison = compared(cli, "a.yaml", "c.yaml", "b.yaml", "--budget", "8steps", "--seeds", 1)
    budget, images = (comparison["bases"][basis]["entries"] for basis in ("budget", "images"))
    assert [(row["steps"], row["first"]) for row in budget.values()] == [(8, 0), (4, 4), (8, 0)]
    assert [row["images"] for row in budget.values()] == [8 * 8 * 3, 4 * 8 + 4 * 8 * 3, 2 * 8 * 8 * 3]
    assert [row["images"] for row in images.values()] == [120, 128, 96]  # whole steps that see no more
    parts = [
        json.loads((Path(comparison["compare"]) / "budget" / name / "run.json").read_text())
        for name in ("c-first", "c")
    ]
    assert budget["c"]["device_seconds"] == pytest.approx(sum(part["seconds"] for part in parts))
    alike = compared(cli, "c.yaml", "one.yaml", "--budget", "8steps", "--seeds", 1)["bases"]["images"]["entries"]
    assert [(row["steps"], row["first"], row["images"]) for row in alike.values()] == [(2, 2, 64), (8, 0, 64)]


def test_parameters_count_nets_taken_from_the_first_phase(data, tmp_path) -> None:
    one = tiny_recipe(data, data={"partition": "all"}, herd={"members": 1})
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
    made = tiny_recipe(data, herd={"first": {"recipe": str(tmp_path / "one.yaml"), "share": 0.5}})
    del made["nets"]
    comparison, first = entry.look_at(recipe_file.load(made)), entry.look_at(recipe_file.load(one))
    assert (comparison.generators, comparison.discriminator) == (first.generators, first.discriminator)
    assert comparison.parameters == 3 * first.parameters


@pytest.mark.further
def test_repeated_comparison_does_only_what_is_missing(cli, two, monkeypatch) -> None:
    from ganherd.training import session

    monkeypatch.setattr(comparison_page, "write", lambda facts, folder: {})
    begin, begun = session.train, []

    def interrupted(recipe, path, name, *rest, **settings):
        begun.append(str(path))
        if name == "b":
            raise Interrupted("stopped by SIGTERM at step 1.")
        return begin(recipe, path, name, *rest, **settings)

    words = (*two, "--budget", "4steps", "--seeds", 1, "-o", "out")
    monkeypatch.setattr(session, "train", interrupted)
    stopped = cli("compare", *words, *METRICS, "-q")
    assert stopped.code == 75 and "the same command resumes it" in stopped.err
    assert json.loads(Path("out/compare.json").read_text())["state"] == "running"
    (Path("out/budget/b")).mkdir()  # as a kill before the first word of a run leaves it
    (Path("out/budget/b") / "recipe.yaml").write_text("")
    monkeypatch.setattr(session, "train", lambda *a, **k: begun.append(str(a[1])) or begin(*a, **k))
    comparison = compared(cli, *words)
    assert begun == ["out/budget/a", "out/budget/b", "out/budget/b", "out/images/b"]
    before = times("out")
    assert compared(cli, *words) == comparison and times("out") == before
    shutil.rmtree("out/images")
    info = Path("out/budget/a/run.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"state": "interrupted"}))
    again = compared(cli, *words)
    assert [row["steps"] for row in again["bases"]["budget"]["entries"].values()] == [4, 4]
    assert len(begun) == 5  # the run was resumed, the one that was missing began anew
    other = cli("compare", *words, "--metrics", "diversity", "-n", 40, "--json", "-q")
    assert set(json.loads(other.out)["bases"]["images"]["entries"]["b"]["scores"]) == {"diversity"}
    assert len(begun) == 5  # other scores need no other runs
    refused = cli("compare", *words, "--set", "train.batch=9", "-q").sentence
    assert "a.train.batch: 8 -> 9; b.train.batch: 8 -> 9" in refused and "choose another -o" in refused


@pytest.mark.further
def test_answer_comes_first_and_details_need_verbose(cli, two) -> None:
    words = ("compare", *two, "--budget", "2steps", "--seeds", 2, "--metrics", "diversity", "-n", 40)
    answer = cli(*words)
    assert (
        "diversity" in answer.out.splitlines()[0] and "2 seeds decide little." in answer.out
    )  # the answer comes first
    for part in ("a against b on small.npz, 2 seeds each", "At equal steps: 2 for each", "At equal images seen", "(primary)",
                 "comparisons/a-vs-b/compare.html"):  # fmt: skip
        assert part in answer.out.replace("\n", " ")
    assert "2 recipes, 2steps each, 2 seeds" in answer.err
    assert "paired by seed" not in answer.out and "device s" not in answer.out
    details = cli(*words, "--verbose").out.replace("\n", " ")
    assert "paired by seed" in details and "device s" in details


def test_progress_is_few_lines_on_stderr(cli, two, monkeypatch) -> None:
    monkeypatch.setattr(comparison_page, "write", lambda facts, folder: {})
    words = ("compare", *two, "--budget", "4steps", "--seeds", 1, "--metrics", "diversity,kid", "-n", 40, "--json")
    answer = cli(*words)
    assert json.loads(answer.out)["state"] == "finished"
    lines = answer.err.splitlines()
    tasks = [line.partition(":")[0] for line in lines if line.startswith(("training", "scoring"))]
    trainings = [f"training {n} of 3{done}" for n in (1, 2, 3) for done in ("", " done")]
    assert tasks == [*trainings, *(f"scoring {n} of 3" for n in (1, 2, 3))]
    assert "training 3 of 3: b (equal images)" in lines
    notes = [line for line in lines if not line.startswith(("training", "scoring"))]
    assert len(notes) == len(set(notes)) <= 5
    assert cli(*words, "-o", "quiet", "--quiet").err == ""


def test_tasks_of_a_comparison_are_planned_by_the_images_they_see(cli, two, tmp_path) -> None:
    entries = {name: entry.look_at(recipe_file.load(f"{name}.yaml", ["train.budget=4steps"])) for name in "ab"}

    def run_of(basis: str, name: str) -> RunFolder:
        return RunFolder(tmp_path / basis / name)

    trainings = [task for task in planned_tasks(entries, run_of) if task.kind == "training"]
    assert [(task.name, task.work) for task in trainings] == [("a", 96), ("b", 192), ("b (equal images)", 96)]
    assert [task.path for task in trainings] == [tmp_path / path for path in ("budget/a", "budget/b", "images/b")]
    entries = {name: entry.look_at(recipe_file.load(f"{name}.yaml", ["train.budget=90s"])) for name in "ab"}
    timed = planned_tasks(entries, run_of)
    assert [task.seconds for task in timed if task.kind == "training"] == [90, 90, 90]
    assert [task.is_limit for task in timed] == [False, False, True, False, False, False]


@pytest.mark.further
def test_metrics_that_recipes_name_are_compared(cli, two) -> None:
    more = ("--set", "run.metrics=[memorisation]", "--network", "pixels", "-n", 40)
    answer = cli("compare", *two, "--budget", "2steps", "--seeds", 1, *more, "--json", "-q")
    entries = json.loads(answer.out)["bases"]["budget"]["entries"]
    assert all({"diversity", "memorisation"} <= set(row["scores"]) for row in entries.values())


@pytest.mark.further
def test_points_are_not_called_images(cli) -> None:
    few = ("--set", "data.points=60", "--metrics", "modes", "-n", 50)
    answer = cli("compare", "r15-gan", "r15-apart4", "--budget", "2steps", "--seeds", 1, *few)
    assert "At equal points seen" in answer.out and "images" not in answer.out
    comparison = Path("comparisons/r15-gan-vs-r15-apart4")
    facts = json.loads((comparison / "compare.json").read_text())
    assert "at equal points seen" in score_plots.draw(facts).get_supxlabel()
    assert "images" not in (comparison / "compare.html").read_text().split("<body", 1)[1]


def test_impossible_comparisons_are_refused(cli, two, data) -> None:
    a, b = two
    assert "at least two recipes" in cli("compare", a, "--budget", "2steps").sentence
    different = cli("compare", a, f"{b}:train.budget=7steps").sentence
    assert "different budgets (a " in different and "b,budget=7steps 7steps" in different and "--budget" in different
    assert "at least two values" in cli("compare", a, "--vary", "optim.lr_g=1").sentence
    assert "no metric named 'fdi'" in cli("compare", a, b, "--budget", "2steps", "--metrics", "fdi").sentence
    assert "--per-class needs --downstream" in cli("compare", a, b, "--budget", "1s", "--per-class", "3").sentence
    other = cli("compare", a, "ring8", "--budget", "2steps", "-q").sentence
    assert "a and ring8 do not train on the same data" in other
    assert not Path("comparisons").exists()
    compared(cli, a, b, "--budget", "1steps", "--seeds", 1, "-o", "out")
    told = cli("compare", a, b, "--budget", "2steps", "--seeds", 1, "-o", "out").sentence
    assert "(budget: 1steps -> 2steps)" in told
    Path("full").mkdir()
    Path("full/file").write_text("")
    assert "holds no comparison" in cli("compare", a, b, "--budget", "1steps", "-o", "full").sentence
    Path("out/compare.json").write_text("[]")
    assert "not what `ganherd compare` writes" in cli("compare", a, b, "--budget", "1steps", "-o", "out").sentence


def test_images_are_counted_each_time_they_are_seen(data) -> None:
    from ganherd.recipe import recipe_file

    recipe = recipe_file.load(tiny_recipe(data, train={"n_critic": 3, "skip_d": 1}))
    seen = entry.look_at(recipe)
    assert [seen.images(steps) for steps in (0, 1, 2, 3)] == [
        0,
        72,
        72,
        144,
    ]  # at every second step, three batches of 8
    assert [seen.steps(images, 100) for images in (0, 72, 143, 144)] == [1, 2, 2, 4]
    assert seen.steps(10**9, 100) == 100


def test_time_budget_is_spent_on_training_only(monkeypatch, data, tmp_path) -> None:
    from ganherd.training import budget, session

    seen = {}
    monkeypatch.setattr(
        budget, "measure_rate", lambda *_, **__: 30.0
    )  # member-steps a second: ten steps of three members
    monkeypatch.setattr(session.Session, "train", lambda self, closing: seen.update(vars(self.budget)))
    monkeypatch.setattr(session.Session, "finish", lambda self: None)
    recipes = contenders.contenders([_file(tmp_path, data, n) for n in ("a", "b")])
    request = compare_recipes.ComparisonRequest.of(recipes, "5s", 1)
    assert request.is_time
    session.train(request.recipes["a"], tmp_path / "run", quiet=True, counts_all=True)
    assert seen["deadline"] == 5.0 and seen["steps"] == 50 and seen["closing"] is None


def _file(folder: Path, data: Path, name: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(data)))
    return str(path)
