"""`ganherd compare`: equal budgets and equal images, scores with intervals, and resuming a comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from recipes import tiny_recipe

import ganherd
from ganherd.compare import compare_recipes, comparison_page, comparison_text, differences, downstream, entry
from ganherd.recipe import recipe_file
from ganherd.util.errors import Interrupted

METRICS = ("--metrics", "diversity,kid", "--network", "pixels", "-n", 40)


@pytest.fixture
def two(data) -> tuple[str, str]:
    """Two recipes; the second one's critic sees twice as many images in a step."""
    quick = {"watch": {"every": 0}, "checkpoint_every": 0}
    Path("a.yaml").write_text(yaml.safe_dump(tiny_recipe(data, run=quick)))
    Path("b.yaml").write_text(yaml.safe_dump(tiny_recipe(data, run=quick, train={"n_critic": 2})))
    return "a.yaml", "b.yaml"


@pytest.fixture(autouse=True)
def plain_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training ends with its mixture, without scores and report of its own: these have tests elsewhere."""
    monkeypatch.setattr("ganherd.api.FINISHERS", ())


def compared(cli, *words: object) -> dict:
    answer = cli("compare", *words, *METRICS, "--json", "-q")
    assert answer.code == 0, answer
    assert answer.err == "" and answer.out.count("\n") == 1
    return json.loads(answer.out)


def times(folder: str | Path) -> dict[str, int]:
    """When the runs were last written."""
    return {str(p): p.stat().st_mtime_ns for p in Path(folder).glob("*/*/run.json")}


def test_equal_steps_and_equal_images(cli, two) -> None:
    found = compared(cli, *two, "--budget", "4steps", "--seeds", 2)
    folder = Path(found["compare"])
    assert folder == Path("comparisons/a-vs-b") and found["state"] == "finished"
    assert {k: v for k, v in json.loads((folder / "compare.json").read_text()).items()} == {
        k: v for k, v in found.items() if k != "compare"
    }
    budget, images = (found["bases"][basis]["entries"] for basis in ("budget", "images"))
    assert [row["steps"] for row in budget.values()] == [4, 4]
    assert [row["images"] for row in budget.values()] == [4 * 8 * 3, 2 * 4 * 8 * 3]  # steps × batch × members
    assert [row["images"] for row in images.values()] == [96, 96]
    assert [row["run"] for row in images.values()] == ["budget/a", "images/b"]
    for row in budget.values():
        assert row["members"] == 3 and row["device"] == "cpu"
        assert row["parameters"] == 3 * (row["generator_parameters"][0] + row["discriminator_parameters"])
        assert 0 < row["device_seconds"] < row["wall_seconds"]
        assert [len(row["scores"][name]["per_seed"]) for name in ("diversity", "kid")] == [2, 2]
    apart = found["bases"]["budget"]["differences"]["b"]["diversity"]
    pairs = [budget[name]["scores"]["diversity"]["per_seed"] for name in "ab"]
    assert apart["per_seed"] == pytest.approx(np.subtract(pairs[1], pairs[0]))
    assert apart["value"] == pytest.approx(np.mean(apart["per_seed"]))
    assert apart["interval"]["low"] <= apart["value"] <= apart["interval"]["high"]
    text = (folder / "compare.html").read_text()
    assert "At equal images seen" in text and "http" not in text.replace("http-equiv", "").replace(
        "http://www.w3.org", ""
    )
    assert (
        "<th>network</th>" in text and text.count(">pixels</td>") >= 2
    )  # no number without its samples and its network
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_run_at_equal_images_equals_the_longer_run_there(cli, two) -> None:
    found = compared(cli, *two, "--budget", "4steps", "--seeds", 1, "-o", "out")
    assert found["bases"]["images"]["entries"]["b"]["steps"] == 2
    alone = ganherd.train("b.yaml", ["train.budget=2steps"], run="alone", quiet=True)
    ours, theirs = (Path(p) / "mixture" / "generators.safetensors" for p in ("out/images/b", alone.path))
    assert ours.read_bytes() == theirs.read_bytes()
    apart = found["bases"]["budget"]["differences"]["b"]["diversity"]
    assert apart["verdict"] == "undecided" and "interval" not in apart  # one seed says nothing of luck


def test_images_of_both_phases_count(cli, two, data) -> None:
    """Equal budgets are of both phases together, and so are images and seconds."""
    one = tiny_recipe(data, data={"partition": "all"}, herd={"members": 1}, run={"watch": {"every": 0}})
    Path("one.yaml").write_text(yaml.safe_dump(one))
    herd = {"first": {"recipe": "one.yaml", "share": 0.5}}
    Path("c.yaml").write_text(yaml.safe_dump(tiny_recipe(data, herd=herd, run={"watch": {"every": 0}})))
    found = compared(cli, "a.yaml", "c.yaml", "b.yaml", "--budget", "8steps", "--seeds", 1)
    budget, images = (found["bases"][basis]["entries"] for basis in ("budget", "images"))
    assert [(row["steps"], row["first"]) for row in budget.values()] == [(8, 0), (4, 4), (8, 0)]
    assert [row["images"] for row in budget.values()] == [8 * 8 * 3, 4 * 8 + 4 * 8 * 3, 2 * 8 * 8 * 3]
    assert [row["images"] for row in images.values()] == [120, 128, 96]  # whole steps that see no more
    parts = [
        json.loads((Path(found["compare"]) / "budget" / name / "run.json").read_text()) for name in ("c-first", "c")
    ]
    assert budget["c"]["device_seconds"] == pytest.approx(sum(part["seconds"] for part in parts))
    alike = compared(cli, "c.yaml", "one.yaml", "--budget", "8steps", "--seeds", 1)["bases"]["images"]["entries"]
    assert [(row["steps"], row["first"], row["images"]) for row in alike.values()] == [(2, 2, 64), (8, 0, 64)]


def test_parameters_count_nets_taken_from_the_first_phase(data, tmp_path) -> None:
    one = tiny_recipe(data, data={"partition": "all"}, herd={"members": 1})
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
    made = tiny_recipe(data, herd={"first": {"recipe": str(tmp_path / "one.yaml"), "share": 0.5}})
    del made["nets"]
    found, first = entry.look_at(recipe_file.load(made)), entry.look_at(recipe_file.load(one))
    assert (found.generators, found.discriminator) == (first.generators, first.discriminator)
    assert found.parameters == 3 * first.parameters


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
    found = compared(cli, *words)
    assert begun == ["out/budget/a", "out/budget/b", "out/budget/b", "out/images/b"]
    before = times("out")
    assert compared(cli, *words) == found and times("out") == before
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


def test_for_people(cli, two) -> None:
    answer = cli("compare", *two, "--budget", "2steps", "--seeds", 2, "--metrics", "diversity", "-n", 40)
    for words in ("a against b on small.npz, 2 seeds each", "At equal steps: 2 for each", "At equal images seen", "paired by seed",
                  "device s", "comparisons/a-vs-b/compare.html"):  # fmt: skip
        assert words in answer.out
    assert "a: 2steps, 2 seeds" in answer.err


def test_points_are_not_called_images(cli) -> None:
    few = ("--set", "data.points=60", "--metrics", "modes", "-n", 50)
    answer = cli("compare", "r15-gan", "r15-apart4", "--budget", "2steps", "--seeds", 1, *few)
    assert "At equal points seen" in answer.out and "images" not in answer.out
    found = Path("comparisons/r15-gan-vs-r15-apart4")
    labels = comparison_page.draw(json.loads((found / "compare.json").read_text())).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["in 2steps", "equal points"]
    assert "images" not in (found / "compare.html").read_text().split("<body", 1)[1]


def test_impossible_comparisons_are_refused(cli, two, data) -> None:
    a, b = two
    assert "at least two recipes" in cli("compare", a, "--budget", "2steps").sentence
    assert "--budget" in cli("compare", a, b).sentence
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


def test_a_verdict_needs_an_interval_without_zero() -> None:
    def verdict(metric: str, first: list[float], other: list[float]) -> str:
        a, b = ({"value": float(np.mean(v)), "per_seed": v, "seeds": [0, 1, 2]} for v in (first, other))
        return differences.difference(metric, a, b)["verdict"]

    assert verdict("fid", [5.0, 6.0, 7.0], [3.0, 4.1, 5.0]) == "better"
    assert verdict("fid", [3.0, 4.0, 5.0], [5.0, 6.1, 7.0]) == "worse"
    assert verdict("fid", [5.0, 6.0, 7.0], [3.0, 9.0, 5.0]) == "undecided"
    assert (
        verdict("modes", [14.0, 13.0], [15.0, 14.0]) == "undecided"
    )  # that two differ by the same tells nothing of the spread
    assert verdict("fid", [0.3, 0.2], [0.3 - 0.1, 0.1]) == "undecided"  # nor does rounding
    assert verdict("modes", [14.0] * 6, [15.0] * 6) == "better"
    assert verdict("label_accuracy", [0.5, 0.6, 0.7], [0.7, 0.81, 0.9]) == "better"
    assert verdict("diversity", [1.5, 1.6, 1.7], [1.2, 1.31, 1.4]) == "better"  # nearer to 1, from above
    assert verdict("density", [0.9, 0.91, 0.89], [1.1, 1.11, 1.09]) == "undecided"  # as far from 1, on the other side
    assert verdict("density", [0.9, 0.91, 0.89], [1.3, 1.31, 1.28]) == "worse"


@pytest.mark.parametrize(
    ("metric", "goal"),
    [("fid", "lower is better"), ("recall", "higher is better"), ("diversity", "1 is best"), ("density", "1 is best")],
)
def test_panel_title_names_the_direction_of_the_verdict(metric: str, goal: str) -> None:
    entries = {name: {"scores": {metric: {"value": 1.0}}} for name in ("a", "b")}
    training = {"recipes": {"a": {}, "b": {}}, "seeds": 1, "budget": "10steps"}
    drawn = comparison_page.draw(
        {"bases": {"budget": {"entries": entries}}, "training": training, "data": {"name": "x"}}
    )
    assert goal in drawn.axes[0].get_title(loc="left")


def test_unequal_device_seconds_get_a_note() -> None:
    rows = {name: {"device_seconds": s} for name, s in (("a", 20.0), ("b", 15.0))}
    facts = {
        "training": {"recipes": {"a": {}, "b": {}}, "seeds": 2, "budget": "20s"},
        "bases": {"budget": {"entries": rows}},
    }
    assert any("not equal (15.0 to 20.0)" in note for note in comparison_text.notes(facts, "budget"))
    rows["b"]["device_seconds"] = 19.8
    assert not any("not equal" in note for note in comparison_text.notes(facts, "budget"))


def test_time_budget_is_spent_on_training_only(monkeypatch, data, tmp_path) -> None:
    from ganherd.training import budget, session

    seen = {}
    monkeypatch.setattr(budget, "measure_rate", lambda *_: 30.0)  # member-steps a second: ten steps of three members
    monkeypatch.setattr(session.Session, "train", lambda self, closing: seen.update(vars(self.budget)))
    monkeypatch.setattr(session.Session, "finish", lambda self: None)
    asked = compare_recipes.ComparisonRequest.of([_file(tmp_path, data, n) for n in ("a", "b")], "5s", 1)
    assert asked.is_time
    session.train(asked.recipes["a"], tmp_path / "run", quiet=True, counts_all=True)
    assert seen["deadline"] == 5.0 and seen["steps"] == 50 and seen["closing"] is None


def _file(folder: Path, data: Path, name: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(data)))
    return str(path)


def scored(**values: list[float]) -> dict:
    """The scores of one recipe: those of its seeds, their mean, and an interval that all others overlap."""
    common = {"samples": 10, "network": "pixels", "seed": 0, "interval": {"low": 0.0, "high": 9.0}}
    return {
        n: {"value": sum(v) / len(v), "per_seed": v, "seeds": [*range(len(v))], **common} for n, v in values.items()
    }


def facts_of(scores: dict[str, dict], seeds: int) -> dict:
    took = {"members": 1, "parameters": 2, "generator_parameters": [1], "discriminator_parameters": 1, "steps": 5, "images": 40,
            "device": "cpu", "device_seconds": 1.0, "wall_seconds": 1.0}  # fmt: skip
    basis = {"entries": {name: {**took, "scores": own} for name, own in scores.items()},
             "differences": differences.differences(scores)}  # fmt: skip
    training = {"recipes": dict.fromkeys(scores), "budget": "5steps", "seeds": seeds}
    return {"training": training, "data": {"name": "digits"}, "bases": {"budget": basis, "images": basis}}


def test_a_star_needs_a_paired_difference_to_all_others() -> None:
    """Intervals that overlap do not matter: seeds that go up and down together are told apart."""
    a = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0], recall=[0.1, 0.2, 0.3])
    b = scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5], recall=[0.2, 0.31, 0.4])
    assert differences.better({"a": a, "b": b}) == {"fid": "b", "recall": "b"}
    assert differences.better({"a": a, "b": b, "c": scored(fid=[5.0, 4.0, 6.0], recall=[0.0, 0.1, 0.2])}) == {
        "recall": "b"
    }
    text = comparison_text.text(facts_of({"a": a, "b": b}, 3))
    by_score = {line.split()[0]: line for line in text.split("difference")[0].splitlines() if line}
    assert "4.000 *" not in text and by_score["fid"].index("*") > by_score["fid"].index("5.003")
    assert "*" not in by_score["kid"] and "~" not in text and "overlap" not in text
    one = comparison_text.text(facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[1.0])}, 1))
    assert "*" not in one and "~" not in one


def test_picture_names_omitted_scores_and_uses_the_units_of_the_table() -> None:
    names = ("fid", "ifid", "kid", "label_accuracy", "precision", "recall", "coverage", "density")
    facts = facts_of({n: scored(**{name: [0.5, 0.6] for name in names}) for n in "ab"}, 2)
    drawn = comparison_page.draw(facts, "compare.html")
    assert drawn.get_supxlabel() == "Not drawn, but in compare.html: coverage, density."
    accuracy, precision = drawn.axes[3], drawn.axes[4]
    assert accuracy.yaxis.get_major_formatter()(0.5, 0) == "50 %"
    assert "%" not in precision.yaxis.get_major_formatter()(0.5, 0)
    few = facts_of({n: scored(fid=[0.5, 0.6]) for n in "ab"}, 2)
    assert not comparison_page.draw(few, "compare.html").get_supxlabel()


def test_the_page_draws_what_was_measured() -> None:
    rows = {n: {"scores": {"fid": {"value": 2.0}, "modes": {"value": 8}, "skipped": {"kid": "why"}}} for n in "ab"}
    assert comparison_page.panels({"budget": {"entries": rows}}) == ["fid", "modes"]


# -- downstream -------------------------------------------------------------------------------------------------------


def test_downstream_table_files_and_json(cli, run, monkeypatch) -> None:
    monkeypatch.setattr("ganherd.compare.downstream_classifier.STEPS", (5, 5))
    copy = Path(shutil.copytree(run, "copy"))
    answer = cli(
        "compare", "--downstream", copy, "--per-class", "2,9999", "--seeds", 2, "--generated", 20, "--json", "-q"
    )
    assert answer.code == 0, answer
    found = json.loads(answer.out)["downstream"]["copy"]
    assert [row["real"] for row in found["rows"]] == [0, 2, "all"] and found["left_out"] == [9999]
    for row in found["rows"]:
        assert (row["alone"] is None) == (row["real"] == 0) == (row["difference"] is None)
        assert len(row["with"]["per_seed"]) == 2 and 0 <= row["with"]["value"] <= 1
    with np.load(run.parent / "small.npz") as kept:
        assert found["held_out"] + found["seen"] == len(kept["y"])
    assert Path("copy/downstream.png").is_file() and json.loads(Path("copy/downstream.json").read_text()) == found
    text = cli(
        "compare", "--downstream", copy, "--per-class", "2", "--seeds", 1, "--generated", 5, "-o", "out", "-q"
    ).out
    assert "every difference is undecided" in text and Path("out/copy/downstream.png").is_file()
    assert "that the mixture was trained on" in text


def test_good_images_help_and_bad_ones_do_not(run, monkeypatch) -> None:
    """The yardstick measures: the real images themselves stand in for generated ones, then noise does."""
    monkeypatch.setattr("ganherd.compare.downstream_classifier.STEPS", (30, 30))
    from ganherd.compare.downstream_classifier import Images
    from ganherd.data.dataset import load
    from ganherd.runs.folder import RunFolder

    data = load(RunFolder(run).recipe.data)
    noise = np.random.default_rng(0).integers(0, 256, data.x.shape).astype(np.uint8)
    asked = downstream.DownstreamRequest([1], seeds=1)
    gained = {}
    for name, x in (("real", data.x), ("noise", noise)):
        monkeypatch.setattr(downstream, "_generated", lambda made, count, seed, x=x: Images(x, data.y))
        rows = downstream.measure_run(run, asked)["rows"]
        gained[name] = rows[1]["difference"]["value"]
    assert gained["real"] > 0.1 and gained["noise"] < gained["real"] / 2


def test_downstream_needs_labels_and_runs(cli, run) -> None:
    assert "no run folder nowhere" in cli("compare", "--downstream", "nowhere").sentence
    assert "--budget applies to recipes" in cli("compare", "--downstream", run, "--budget", "3s").sentence
    assert "--per-class 1,x" in cli("compare", "--downstream", run, "--per-class", "1,x").sentence
