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
from ganherd.compare import (
    compare_recipes,
    comparison_page,
    comparison_text,
    contenders,
    differences,
    downstream,
    entry,
    score_plots,
)
from ganherd.recipe import recipe_file
from ganherd.util.errors import Interrupted
from ganherd.util.terminal.screen import as_text

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
    words = ("compare", *two, "--budget", "2steps", "--seeds", 2, "--metrics", "diversity", "-n", 40)
    answer = cli(*words)
    assert (
        "diversity" in answer.out.splitlines()[0] and "2 seeds are too few for more." in answer.out
    )  # the answer comes first
    for part in ("a against b on small.npz, 2 seeds each", "At equal steps: 2 for each", "At equal images seen", "(primary)",
                 "comparisons/a-vs-b/compare.html"):  # fmt: skip
        assert part in answer.out.replace("\n", " ")
    assert "a: 2steps, 2 seeds" in answer.err and "paired by seed" not in answer.out and "device s" not in answer.out
    details = cli(*words, "--verbose").out.replace("\n", " ")
    assert "paired by seed" in details and "device s" in details


def test_points_are_not_called_images(cli) -> None:
    few = ("--set", "data.points=60", "--metrics", "modes", "-n", 50)
    answer = cli("compare", "r15-gan", "r15-apart4", "--budget", "2steps", "--seeds", 1, *few)
    assert "At equal points seen" in answer.out and "images" not in answer.out
    found = Path("comparisons/r15-gan-vs-r15-apart4")
    facts = json.loads((found / "compare.json").read_text())
    assert "at equal points seen" in score_plots.draw(facts).get_supxlabel()
    assert "images" not in (found / "compare.html").read_text().split("<body", 1)[1]


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
    entries = {name: {"run": name, "scores": {metric: {"value": 1.0}}} for name in ("a", "b")}
    training = {"recipes": {"a": {}, "b": {}}, "seeds": 1, "budget": "10steps"}
    drawn = score_plots.draw({"bases": {"budget": {"entries": entries}}, "training": training, "data": {"name": "x"}})
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
    monkeypatch.setattr(
        budget, "measure_rate", lambda *_, **__: 30.0
    )  # member-steps a second: ten steps of three members
    monkeypatch.setattr(session.Session, "train", lambda self, closing: seen.update(vars(self.budget)))
    monkeypatch.setattr(session.Session, "finish", lambda self: None)
    those = contenders.contenders([_file(tmp_path, data, n) for n in ("a", "b")])
    asked = compare_recipes.ComparisonRequest.of(those, "5s", 1)
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


def facts_of(scores: dict[str, dict], seeds: int, bases: tuple[str, ...] = ("budget", "images")) -> dict:
    took = {"members": 1, "parameters": 2, "generator_parameters": [1], "discriminator_parameters": 1, "steps": 5, "images": 40,
            "device": "cpu", "device_seconds": 1.0, "wall_seconds": 1.0}  # fmt: skip
    metrics = [metric for own in scores.values() for metric in own]
    basis = {"entries": {name: {**took, "run": name, "scores": own} for name, own in scores.items()},
             **compare_recipes.judged(scores, metrics, over_samples="runs" in bases)}  # fmt: skip
    training = {"recipes": dict.fromkeys(scores), "budget": "5steps", "seeds": seeds}
    return {"training": training, "data": {"name": "digits"}, "bases": dict.fromkeys(bases, basis),
            "primary": differences.primary_of(metrics)}  # fmt: skip


def shown(facts: dict, verbose: bool = False) -> str:
    return as_text(*comparison_text.screen(facts, verbose))


def test_a_star_needs_a_paired_difference_to_all_others() -> None:
    """Intervals that overlap do not matter: seeds that go up and down together are told apart."""
    a = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0], recall=[0.1, 0.2, 0.3])
    b = scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5], recall=[0.2, 0.3001, 0.4])
    assert differences.Differences({"a": a, "b": b}).best() == {"fid": "b", "recall": "b"}
    c = scored(fid=[5.0, 4.0, 6.0], recall=[0.0, 0.1002, 0.2])
    assert differences.Differences({"a": a, "b": b, "c": c}).best() == {"recall": "b"}
    text = shown(facts_of({"a": a, "b": b}, 3), verbose=True)
    by_score = {line.split()[0]: line for line in text.split("difference  ")[0].splitlines() if line}
    assert "4.000 *" not in text and by_score["FID"].index("*") > by_score["FID"].index("5.003")
    assert "*" not in by_score["KID"] and "~" not in text and "overlap" not in text
    one = shown(facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[1.0])}, 1), verbose=True)
    assert "*" not in one and "~" not in one


def test_verdicts_on_other_than_the_primary_score_are_corrected() -> None:
    """By itself each difference is significant; of eleven looks at noise, one would be too."""
    first = {"fid": [5.0, 6.0, 7.0]} | {name: [5.0, 6.0, 7.0] for name in ("kid", "ifid", "recall", "coverage")}
    other = {name: [value + 0.7 + 0.3 * i for i, value in enumerate(values)] for name, values in first.items()}
    other["kid"] = [value + 1 + 0.001 * i for i, value in enumerate(first["kid"])]
    both = {"a": scored(**first), "b": scored(**other)}
    apart = differences.Differences(both).to_first()["b"]
    assert apart["fid"]["p"] == pytest.approx(apart["recall"]["p"]) and apart["fid"]["p"] < 0.05
    assert apart["fid"]["p_corrected"] == apart["fid"]["p"] and apart["fid"]["verdict"] == "worse"  # primary, by itself
    assert apart["recall"]["p_corrected"] == pytest.approx(3 * apart["recall"]["p"])  # one of four has a smaller p
    assert apart["recall"]["p_corrected"] > 0.05 and apart["recall"]["verdict"] == "undecided"
    assert apart["kid"]["verdict"] == "worse"  # certain enough for four looks
    assert differences.Differences(both, primary="recall").to_first()["b"]["recall"]["verdict"] == "better"


def test_seeds_are_paired_by_their_number_or_compared_by_welch() -> None:
    a = {"value": 6.0, "per_seed": [5.0, 6.0, 7.0], "seeds": [0, 1, 2]}
    b = {"value": 3.0, "per_seed": [3.01, 2.0, 4.0], "seeds": [1, 0, 2]}
    paired = differences.difference("fid", a, b)
    assert paired["verdict"] == "better" and sorted(paired["per_seed"]) == pytest.approx([-3.0, -3.0, -2.99])
    other = differences.difference("fid", a, {**b, "seeds": [7, 8, 9]})
    assert "Welch" in other["interval"]["how"] and other["verdict"] == "better" and other["p"] > paired["p"]
    one = {"value": 3.0, "interval": {"low": 2.9, "high": 3.1}}, {"value": 4.0, "interval": {"low": 3.9, "high": 4.1}}
    assert differences.difference("fid", *one)["verdict"] == "undecided"  # one seed says nothing of luck
    assert (
        differences.difference("fid", *one, over_samples=True)["verdict"] == "worse"
    )  # but something of these samples


def test_the_answer_is_one_sentence() -> None:
    a = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0], recall=[0.1, 0.2, 0.3], coverage=[0.5, 0.6, 0.4])
    b = scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5], recall=[0.2, 0.30001, 0.4], coverage=[0.6, 0.4, 0.5])
    first = shown(facts_of({"a": a, "b": b}, 3)).splitlines()[0]
    assert first == (
        "b is better in FID (5.003 against 6.000); it is also better in recall; KID and coverage are undecided; "
        "3 seeds are too few for more."
    )
    swapped = shown(facts_of({"b": b, "a": a}, 3)).splitlines()[0]
    assert swapped == first  # whichever is named first
    one = facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[1.0])}, 1)
    assert shown(one).splitlines()[0].endswith("one seed decides nothing: use --seeds 3 or more.")
    luck = scored(fid=[5.0, 3.0, 9.0])
    open_ = shown(facts_of({"a": a, "luck": luck}, 3)).splitlines()[0]
    assert open_.startswith("FID does not decide between them (a 6.000 and luck 5.667)")
    three = shown(facts_of({"a": a, "b": b, "c": scored(fid=[9.0, 9.99, 11.0])}, 6)).splitlines()[0]
    assert (
        three.startswith("b is better than all others in FID (5.003 against 6.000 and 9.997)")
        and "too few" not in three
    )


def test_no_axis_holds_what_a_score_cannot_be() -> None:
    certain = {
        "value": 0.99,
        "per_seed": [0.98, 1.0],
        "interval": {"low": 0.0, "high": 1.0},
        "samples": 9,
        "network": "x",
    }
    wide = {"value": 3.2, "per_seed": [3.0, 3.4], "interval": {"low": 0.0, "high": 7.039}, "samples": 9, "network": "x"}
    facts = facts_of({n: {"label_accuracy": certain, "fid": wide} for n in "ab"}, 2)
    drawn = score_plots.draw(facts)
    fid, accuracy = drawn.axes[:2]
    assert accuracy.get_xlim()[1] == 1.0 and fid.get_xlim()[0] >= 0.0
    assert fid.get_xlim()[1] < 5  # an interval over two seeds does not press the values together: it ends in an arrow
    assert "An arrow marks an interval that continues" in drawn.get_supxlabel()


def test_cut_intervals_are_said() -> None:
    from ganherd.metrics.statistics.seeds import together

    entries = [{"value": v, "samples": 9, "network": "x", "seed": 0} for v in (0.1, 0.9)]
    score = together(entries, [0, 1], (0.0, float("inf")))
    assert score["interval"]["low"] == 0.0 and score["interval"]["how"].endswith("cut at 0")
    assert "cut" not in together(entries, [0, 1])["interval"]["how"]
    facts = facts_of({"a": {"fid": score}, "b": scored(fid=[1.0, 2.0])}, 2)
    assert "it is cut there: FID of a" in shown(facts, verbose=True)


def test_page_begins_with_the_answer_and_keeps_stars_and_warnings(tmp_path: Path) -> None:
    a, b = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0]), scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5])
    a["kid"]["warning"] = "only 12 samples"
    for own in (a, b):
        own["skipped"] = {"ais": "it takes long"}
    facts = facts_of({"a": a, "b": b}, 3)
    (tmp_path / "a" / "samples").mkdir(parents=True)
    (tmp_path / "a" / "samples" / "final.png").write_bytes(b"\x89PNG")
    page = str(comparison_page.render(facts, tmp_path))
    order = [
        page.index(words)
        for words in ("b is better in FID", "samples of a", "<svg", "KID of a: only 12 samples.", "Differences")
    ]
    assert order == sorted(order)
    assert "5.003 (0.000 to 9.000) *" in page and "* better than all others." in page
    assert '<span class="pill good">better</span>' in page and '<span class="pill">undecided</span>' in page
    assert "AIS is left out: it takes long." in page
    assert "KID of a: only 12 samples." in shown(facts) and "AIS is left out" in shown(facts)


def test_picture_names_omitted_scores_and_uses_the_units_of_the_table() -> None:
    names = ("fid", "ifid", "kid", "label_accuracy", "precision", "recall", "coverage", "density")
    facts = facts_of({n: scored(**{name: [0.5, 0.6] for name in names}) for n in "ab"}, 2)
    drawn = score_plots.draw(facts, "compare.html")
    assert drawn.get_supxlabel().replace("\n", " ").endswith("Not drawn, but in compare.html: coverage, density.")
    accuracy, precision = drawn.axes[3], drawn.axes[4]
    assert accuracy.xaxis.get_major_formatter()(0.5, 0) == "50 %"
    assert "%" not in precision.xaxis.get_major_formatter()(0.5, 0)
    few = facts_of({n: scored(fid=[0.5, 0.6]) for n in "ab"}, 2)
    assert "Not drawn" not in score_plots.draw(few, "compare.html").get_supxlabel()


def test_the_page_draws_what_was_measured() -> None:
    rows = {n: {"scores": {"fid": {"value": 2.0}, "modes": {"value": 8}, "skipped": {"kid": "why"}}} for n in "ab"}
    assert score_plots.panels({"bases": {"budget": {"entries": rows}}}) == ["fid", "modes"]


# -- what is compared -------------------------------------------------------------------------------------------------


def test_settings_of_one_recipe_are_compared(cli, two) -> None:
    words = (
        "compare",
        "a.yaml",
        "--vary",
        "optim.lr_g=1e-4,5e-4",
        "--seeds",
        1,
        "--set",
        "train.budget=2steps",
        *METRICS,
    )
    found = json.loads(cli(*words, "--json", "-q").out)
    assert list(found["bases"]["budget"]["entries"]) == ["lr_g=1e-4", "lr_g=5e-4"]
    assert [recipe["optim"]["lr_g"] for recipe in found["training"]["recipes"].values()] == [1e-4, 5e-4]
    assert found["training"]["budget"] == "2steps"  # that of the recipe, because no other was given
    assert Path(found["compare"]) == Path("comparisons/a,lr_g=1e-4-vs-lr_g=5e-4")
    assert found["primary"] == "diversity" and "one seed decides nothing" in found["answer"]


def test_recipes_have_overrides_of_their_own(cli, two) -> None:
    found = compared(cli, "a.yaml:optim.lr_g=1e-4:train.batch=4", "b.yaml", "--budget", "1steps", "--seeds", 1)
    (name, first), (_, second) = found["training"]["recipes"].items()
    assert name == "a,lr_g=1e-4,batch=4" and (first["optim"]["lr_g"], first["train"]["batch"]) == (1e-4, 4)
    assert second["train"]["batch"] == 8
    assert [row["images"] for row in found["bases"]["budget"]["entries"].values()] == [4 * 3, 2 * 8 * 3]


def test_names_of_contenders_are_unique_and_fit_a_folder() -> None:
    made = contenders.contenders(
        ["x/net.yaml:nets.generator=my.module:Class", "y/net.yaml"], ["optim.lr_g=1,2", "optim.lr_d=1,2"]
    )
    names = [one.name for one in made]
    assert len(set(names)) == 8 and names[0] == "net,generator=my.module-Class,lr_g=1,lr_d=1"
    assert made[0].overrides == ("nets.generator=my.module:Class", "optim.lr_g=1", "optim.lr_d=1")
    alike = contenders.contenders(["r:a.lr=1", "r:b.lr=1"])
    assert [one.name for one in alike] == ["a.lr=1", "b.lr=1"]
    many = contenders.contenders(["r"], [f"optim.lr_g={','.join(str(n) for n in range(100))}"])
    assert len(contenders.folder_name(many)) <= 120 and "/" not in contenders.folder_name(many)


def test_finished_runs_are_compared_as_they_are(cli, run, tmp_path) -> None:
    one, two = (Path(shutil.copytree(run, tmp_path / name)) for name in ("one", "two"))
    before = (one / "scores.json").read_bytes() if (one / "scores.json").is_file() else None
    found = compared(cli, one, two)
    assert found["answer"].startswith("diversity does not decide between them")
    assert "one seed each" in found["answer"] and list(found["bases"]) == ["runs"]
    after = (one / "scores.json").read_bytes() if (one / "scores.json").is_file() else None
    assert before == after  # scores of a run are not replaced by those of a comparison
    assert found["bases"]["runs"]["entries"]["one"]["steps"] > 0
    assert compared(cli, one, two) == found  # it may be repeated
    assert Path(found["compare"], "compare.html").is_file()
    assert "is for recipes" in cli("compare", one, two, "--budget", "1steps").sentence
    assert "compare either recipes or finished runs" in cli("compare", one, "digits-wcgan").sentence
    assert "two different runs" in cli("compare", one, one).sentence
    other = Path(found["compare"]) / "compare.json"
    other.write_text("{}")
    assert "holds no comparison of runs" in cli("compare", one, two, *METRICS).sentence


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
