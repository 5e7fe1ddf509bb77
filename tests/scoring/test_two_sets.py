"""`ganherd score` between any two: data, folders, .npz files and runs; several side by side, the better one marked."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_python

import ganherd
from ganherd.api import ScoreFinisher
from ganherd.data.dataset import Dataset, load
from ganherd.features import networks
from ganherd.metrics.metric_registry import title_of
from ganherd.recipe.schema import DataConfig
from ganherd.runs.results.verdict_record import VerdictRecord
from ganherd.scoring import ScoredRun, brief, full, score_run, score_sets
from ganherd.scoring import side_by_side as side_by_side_blocks
from ganherd.scoring.two_sets import GivenSet
from ganherd.util.errors import UserError
from ganherd.util.terminal.screen import as_text

CHEAP = ["fid", "kid", "diversity"]


@pytest.fixture(scope="module")
def digits_data() -> Dataset:
    return load(DataConfig(source="digits"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    settings = ["train.budget=3steps", "engine.name=loop"]
    ganherd.train("digits-wcgan", settings, run=folder, quiet=True, finishers=[ScoreFinisher()])
    return folder


@pytest.fixture
def held_out(digits_data: Dataset, tmp_path: Path) -> Path:
    file = tmp_path / "fake.npz"
    np.savez(file, x=digits_data.x_test, y=digits_data.y_test, labels=np.array(digits_data.labels))
    return file


@pytest.mark.further
def test_an_npz_against_known_data(held_out: Path, digits_data: Dataset) -> None:
    found = score_sets("digits", str(held_out), ["label_accuracy", "ifid", *CHEAP], per="class")
    n = len(digits_data.x_test)
    assert {entry["samples"] for entry in found.values()} == {n}
    assert (
        found["fid"]["real_samples"] == 1797 and found["fid"]["real"] == "digits"
    )  # all of it: nothing was trained here
    assert found["label_accuracy"]["value"] > 0.97 and found["fid"]["value"] < 0.5
    assert sum(found["ifid"]["per_class_samples"].values()) == n


def test_classes_of_a_set_are_compared_with_the_datas_and_not_with_its_own(
    digits_data: Dataset, tmp_path: Path
) -> None:
    """A file of sevens alone is as far from ten classes as it can be."""
    own = np.flatnonzero(digits_data.y == 7)
    np.savez(tmp_path / "7.npz", x=digits_data.x[own], y=digits_data.y[own], labels=np.array(digits_data.labels))
    found = score_sets("digits", str(tmp_path / "7.npz"), ["histogram"])["histogram"]
    share = np.bincount(load(DataConfig(source="digits", holdout=0.0)).y, minlength=10)[7] / 1797
    assert (
        found["value"] == pytest.approx(1 - share, abs=0.02) and found["reference"] == "label frequencies of the data"
    )


def test_a_folder_of_images_is_the_same_set(held_out: Path, tmp_path: Path) -> None:
    from PIL import Image

    with np.load(held_out) as arrays:
        for i, (x, y) in enumerate(zip(arrays["x"], arrays["y"], strict=True)):
            file = tmp_path / "folder" / str(y) / f"{i:04d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[0]).save(file)
    one, two = (
        score_sets("digits", str(s), ["fid", "ifid"], network="pixels") for s in (held_out, tmp_path / "folder")
    )
    for name in ("fid", "ifid"):
        assert one[name]["value"] == pytest.approx(two[name]["value"], rel=1e-6)


def test_two_files_are_read_with_the_same_range(digits_data: Dataset, tmp_path: Path) -> None:
    """Dark images in -1 … 1 and images in 0 … 1 look alike; the same images used to get a large distance silently."""
    x = digits_data.x_test.astype(np.float32)
    for name, values in (("unit", x / 255), ("signed", x / 127.5 - 1), ("half", x / 512)):
        np.savez(tmp_path / f"{name}.npz", x=values)
    np.savez(tmp_path / "bytes.npz", x=digits_data.x_test)
    unit, signed, half, whole = (str(tmp_path / f"{name}.npz") for name in ("unit", "signed", "half", "bytes"))
    with pytest.raises(
        UserError, match=r"unit.npz has .* read as 0 … 1, and .*signed.npz .* read as -1 … 1: save both as"
    ):
        score_sets(unit, signed, ["fid"], network="pixels")
    assert score_sets(unit, half, ["fid"], network="pixels")["fid"]["value"] > 1  # the same range, darker images
    for fake in (unit, signed):  # bytes have one range only, so the file of floats alone is read by its values
        lines: list[str] = []
        same = score_sets(whole, fake, ["fid"], network="pixels", progress=lines.append)["fid"]["value"]
        assert same < 0.1 and any(line.startswith(f"{fake}: float values in") for line in lines)


def test_more_samples_than_there_are_are_not_claimed(held_out: Path, digits_data: Dataset) -> None:
    told: list[str] = []
    found = score_sets("digits", str(held_out), CHEAP, samples=5000, network="pixels", progress=told.append)
    assert {entry["samples"] for entry in found.values()} == {len(digits_data.x_test)}
    assert any("not 5,000: all of them are used" in line for line in told)
    some = score_sets("digits", str(held_out), CHEAP, samples=99, network="pixels")
    assert {entry["samples"] for entry in some.values()} == {99}


def test_rows_of_a_given_set_are_drawn_once() -> None:
    given = GivenSet("g", np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10) % 2, ("a", "b"))
    for seed in range(5):
        assert len(np.unique(given.sample(7, seed=seed).x[:, 0])) == 7
        assert (given.sample(3, label=1, seed=seed).y == 1).all()
    assert len(given.sample(99).x) == 10 and len(given.sample(99, label=0).x) == 5
    assert not np.array_equal(given.sample(5, seed=1).x, given.sample(5, seed=2).x)


def test_a_run_against_its_data_another_run_and_a_set(run: Path, held_out: Path) -> None:
    for real, fake in (("digits", run), (run, run), (held_out, run), (run, held_out)):
        found = score_sets(str(real), str(fake), CHEAP, samples=120, network="pixels")
        assert set(found) == set(CHEAP) and found["fid"]["samples"] == 120, (real, fake)
    itself = score_sets(str(run), str(run), ["kid"], samples=120, network="pixels")["kid"]
    apart = score_sets("digits", str(run), ["kid"], samples=120, network="pixels")["kid"]
    assert abs(itself["value"]) < apart["value"] / 10


def test_labels_go_by_name_and_are_left_aside_where_they_do_not_fit(digits_data: Dataset, tmp_path: Path) -> None:
    x, y = digits_data.x_test, digits_data.y_test
    names = np.array(digits_data.labels)[::-1]
    np.savez(tmp_path / "turned.npz", x=x, y=9 - y, labels=names)  # the same labels in another order
    np.savez(tmp_path / "other.npz", x=x, y=y, labels=np.array([f"class {k}" for k in range(10)]))
    turned = score_sets("digits", str(tmp_path / "turned.npz"), ["label_accuracy"])
    assert turned["label_accuracy"]["value"] > 0.97
    told: list[str] = []
    found = score_sets("digits", str(tmp_path / "other.npz"), ["label_accuracy", "kid"], progress=told.append)
    assert "kid" in found and "label_accuracy" in found["skipped"]
    assert any("left aside" in line for line in told)


@pytest.mark.parametrize(
    ("real", "fake", "settings", "says"),
    [
        ("digits", "ring8", {}, "same shape"),
        ("digits", "nowhere", {}, "neither a known name nor a file"),
        ("digits", "digits:test", {}, "no held-out split"),
        ("digits", "digits", {"per": "member"}, "needs a run"),
        ("digits", "digits", {"network": "incption"}, "did you mean 'inception"),
    ],
)
def test_what_cannot_be_is_one_sentence(real: str, fake: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        score_sets(real, fake, CHEAP, samples=30, **settings)


def test_a_run_is_scored_per_member_and_keeps_it(run: Path) -> None:
    found = score_run(run, ["fid", "kid"], samples=200, per="member", network="classifier")
    assert set(found["fid"]["per_member"]) == {str(m) for m in range(10)}
    recorded = json.loads((run / "scores.json").read_text())["scores"]["fid"]
    assert recorded["per_member"] == found["fid"]["per_member"]
    assert recorded["samples"] == 1000  # measured at the end of the training, with more samples
    text = table(found)
    assert "member" in text and text.count("\n") > 11


def test_a_run_is_scored_by_the_network_of_its_recorded_scores(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "copy"
    shutil.copytree(run, own)
    trained = json.loads((own / "scores.json").read_text())["scores"]["fid"]
    assert trained["network"].startswith("classifier")
    monkeypatch.setattr(networks, "choose", lambda data: "inception")  # as if it were here, and the images large
    told: list[str] = []
    assert score_run(own, ["fid"], samples=50, progress=told.append)["fid"]["network"] == trained["network"]
    assert any("as in the run's recorded scores (--network inception is here, too)" in line for line in told)
    assert score_run(own, ["fid"], samples=50, network="pixels")["fid"]["network"] == "pixels"
    assert score_run(own, ["fid"], samples=50)["fid"]["network"] == "pixels"


def entry(value: float, half: float = 0.0, **more: Any) -> dict[str, Any]:
    interval = {"interval": {"low": value - half, "high": value + half, "level": 0.95, "how": "test"}} if half else {}
    return {"value": value, "samples": 100, "network": "pixels", "seed": 0, **interval, **more}


def test_a_run_is_marked_as_better_only_if_the_intervals_decide_it() -> None:
    a = {"fid": entry(3, 0.1), "coverage": entry(0.8, 0.01), "recall": entry(0.7), "kid": entry(1, network="x")}
    b = {"fid": entry(3.1, 0.1), "coverage": entry(0.9, 0.01), "recall": entry(0.5), "kid": entry(2, network="y")}
    c = {"density": entry(1.2, 0.01)}, {"density": entry(0.9, 0.01)}
    lines = {line.split("  ")[0]: line for line in side_by_side({"a": a | c[0], "b": b | c[1]}).splitlines()}
    assert "3.000 ~" in lines["FID"] and "3.100 ~" in lines["FID"]
    assert "0.900 *" in lines["coverage"] and "0.800 (" in lines["coverage"]
    assert lines["recall"].count("~") == 2  # without intervals nothing is decided
    assert "0.900 *" in lines["density"]  # nearer to 1
    assert lines["KID"].count("?") == 2 and "x / y" in lines["KID"]


def test_intervals_that_overlap_a_little_can_still_decide() -> None:
    """The interval of a difference is narrower than the sum of the two intervals."""
    apart = side_by_side({"a": {"fid": entry(3, 0.1)}, "b": {"fid": entry(3.15, 0.1)}})
    assert "3.000 *" in apart and "~" not in apart


def test_the_command_prints_one_object(held_out: Path) -> None:
    command = [warm_python.python(), "-m", "ganherd", "score", "--real", "digits", "--fake", str(held_out)]
    out = subprocess.run(
        [*command, "--metrics", "fid,prdc", "--network", "pixels", "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(out.stdout)["scores"]
    assert set(found) == {"fid", "precision", "recall", "density", "coverage"} and "features of" in out.stderr
    alone = subprocess.run(command[:-2], capture_output=True, text=True, check=False)
    assert alone.returncode == 2 and "both --real and --fake" in alone.stderr


def test_scores_of_sets_are_written_where_it_is_said(held_out: Path, tmp_path: Path) -> None:
    found = ScoredRun({str(held_out): score_sets("digits", str(held_out), ["fid", "kid"], network="pixels")}, "digits")
    found.write(tmp_path / "deep" / "scores.json")
    kept = json.loads((tmp_path / "deep" / "scores.json").read_text())
    assert (kept["real"], kept["fake"]) == ("digits", str(held_out)) and set(kept["scores"]) == {"fid", "kid"}
    with pytest.raises(UserError, match="cannot be written"):
        found.write(held_out / "scores.json")


def table(scores: dict[str, Any]) -> str:
    return as_text(*full(scores))


def side_by_side(*what: Any) -> str:
    return as_text(*side_by_side_blocks(*what))


# -- the table ----------------------------------------------------------------------------------------------------

FACTS = {"samples": 2500, "network": "somebody", "seed": 3}


@pytest.mark.parametrize(
    ("name", "entry", "says"),
    [
        (
            "modes",
            {"value": 7, "of": 8, "high_quality": 0.973, "reverse_kl": 0.04, "represented": 6, "modes": "a ring"},
            ["7 of 8", "97.3 % high quality", "reverse KL 0.040", "6 represented", "a ring"],
        ),
        ("modes", {"value": 7.5, "of": 8, "per_seed": [7, 8], "std": 0.7071}, ["7.5 of 8", "mean of 2 seeds"]),
        ("stacked_modes", {"value": 1000, "of": 1000, "kl": 0.06, "by_chance": 0.05}, ["1,000 of 1,000", "KL 0.060", "0.050"]),
        (
            "ais",
            {"value": 328.77, "gap": 0.934, "kde": 259.67, "kde_samples": 10_000, "interval": {"low": 320.0, "high": 337.5}},
            ["328.8 nats", "gap of the bounds 0.934", "KDE of 10,000 samples 259.7 nats", "95 % 320.0 nats to 337.5 nats"],
        ),
        (
            "memorisation",
            {"value": 0.12, "by_chance": 0.05, "nearer": 0.61, "ratio": 0.9, "held_out": 359, "training": 1438},
            ["12.0 %", "5.0 % is chance", "61.0 % (50 % is chance)", "0.900", "359 held out, 1,438 trained on"],
        ),
        (
            "label_accuracy",
            {"value": 0.98, "interval": {"low": 0.97, "high": 0.99, "how": "Wilson's"}},
            ["98.0 %", "95 % 97.0 % to 99.0 % (Wilson's)"],
        ),
        ("ifid", {"value": 9.0, "kid": {"value": 0.0123}, "per_class_samples": {"a": 70, "b": 50}}, ["0.01230", "at least 50"]),
    ],
)  # fmt: skip
def test_remarks_are_listed_with_each_number(name: str, entry: dict[str, Any], says: list[str]) -> None:
    text = table({name: {**FACTS, **entry}})
    title = title_of(name)
    assert f"\n{title}: 2,500 samples, network somebody, seed 3" in text
    for words in says:
        assert words in text, words


def test_scores_are_compared_with_those_of_real_data() -> None:
    def standing(name: str, value: float, half: float, **more: Any) -> str:
        (line,) = (
            line
            for line in as_text(*brief({name: entry(value, half, **more)})).splitlines()
            if f"{title_of(name)} " in line
        )
        return line.split("  ")[-1].strip()

    assert standing("label_accuracy", 0.97, 0.02, held_out_accuracy=0.98) == "like real data"
    assert standing("label_accuracy", 0.9, 0.02, held_out_accuracy=0.98) == "worse"
    assert standing("label_accuracy", 0.999, 0.0005, held_out_accuracy=0.98) == "more typical"
    assert standing("fid", 0.2, 0.1, by_chance=0.15) == "like real data"
    assert standing("fid", 0.1, 0.01, by_chance=0.15) == "like real data"  # better than chance is chance
    assert standing("fid", 0.3, 0.1, by_chance=0.15) == "worse"
    assert standing("diversity", 0.5, 0.1) == "less varied" and standing("diversity", 1.5, 0.1) == "more varied"
    assert standing("kid", 0.001, 0.002) == "like real data"
    assert standing("memorisation", 0.2, 0.01, by_chance=0.05) == "more copies"
    assert standing("memorisation", 0.01, 0.005, by_chance=0.05) == "fewer copies"
    assert standing("fid", 0.3, 0.0, by_chance=0.1) == "no interval"
    assert standing("recall", 0.3, 0.1) == "best is 1"  # what real data has is not known: no verdict
    few_held_out = {"held_out_accuracy": 0.98, "held_out_samples": 60}
    assert standing("label_accuracy", 0.95, 0.02, **few_held_out) == "like real data"  # 0.98 of 60 may be 0.95 as well
    redrawn = {"by_chance": 0.15, "real_interval": {"low": 0.05, "high": 0.25}}
    assert standing("fid", 0.26, 0.1, **redrawn) == "like real data" and standing("fid", 0.3, 0.1, **redrawn) == "worse"
    assert standing("modes", 7, 0.5, of=8) == "worse" and standing("modes", 8, 0.5, of=8) == "like real data"


def test_the_short_table_fits_80_columns_and_names_samples_networks_and_warnings() -> None:
    same = {"warning": "there are too few samples to say more than this about what real data would have here"}
    scores = {
        "label_accuracy": {
            **FACTS,
            "value": 0.997,
            "interval": {"low": 0.991, "high": 0.999},
            "held_out_accuracy": 0.994,
        },
        "kid": {**FACTS, "value": 0.00102, "interval": {"low": -0.00094, "high": 0.00298}},
        "classifier_score": {**FACTS, "value": 9.5, "interval": {"low": 9.4, "high": 9.6}, **same},
        "recall": {**FACTS, "samples": 20, "value": 0.9, **same},
        "skipped": {"ais": "it takes long"},
    }
    lines = as_text(*brief(scores), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split("  ")[0] == "score" and lines[0].endswith("compared") and lines[1].endswith("like real data")
    text = " ".join(lines)
    assert "2,500 (label accuracy, KID, classifier score), 20 (recall), seed 3. Network: somebody." in text
    assert text.count("too few samples") == 1 and "classifier score, recall: there are" in text
    assert "AIS is left out: it takes long." in text


def test_side_by_side_has_intervals_and_remarks() -> None:
    ring = {"of": 8, "high_quality": 0.9, "reverse_kl": 0.1, "represented": 5, "modes": "a ring"}
    spans = [{"low": 2.0, "high": 4.0}, {"low": 3.5, "high": 6.5}, {"low": 8.0, "high": 9.0}]
    runs = {
        run: {"modes": {**FACTS, **ring, "value": 8 - i}, "fid": {**FACTS, "value": v, "interval": spans[i]}}
        for i, (run, v) in enumerate((("a", 3.0), ("b", 5.0), ("c", 8.5)))
    }
    text = side_by_side(runs)
    assert "8 of 8 ~" in text and "7 of 8 ~" in text  # they have no interval
    assert "3.000 * (2.000 to 4.000)" in text and "5.000 (3.500 to 6.500)" in text and "8.500 (8.000 to 9.000)" in text
    assert "b: modes: 90.0 % high quality" in text


def test_runs_side_by_side_have_the_lines_that_were_asked_for() -> None:
    each = {"per_class": {"cat": 3.5, "dog": 4.5}, "per_class_samples": {"cat": 50, "dog": 60}}
    runs = {name: {"ifid": {**FACTS, **each, "value": 4.0}, "skipped": {"ais": "no"}} for name in ("a", "b")}
    with_parts, without = (side_by_side(runs, parts) for parts in (True, False))
    for name in ("a", "b"):
        assert f"{name}: class  IFID   samples" in with_parts and f"{name}: class" not in without
    assert with_parts.count("cat       3.500  50") == 2
    both = ScoredRun(runs, per="class"), ScoredRun(runs)
    assert ("a: class" in str(both[0]), "a: class" in str(both[1])) == (True, False)


def test_a_set_without_labels_says_so(digits_data: Dataset, tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", x=digits_data.x_test[:40])
    found = score_sets("digits", str(tmp_path / "bare.npz"), ["label_accuracy", "diversity", "memorisation"])
    assert found["skipped"]["label_accuracy"] == "the samples carry none of the data's labels"
    assert "there are only 40 samples" in found["diversity"]["warning"]
    assert "x_train and x_test" in found["skipped"]["memorisation"]


def test_nothing_is_said_of_a_mean_that_is_not_there() -> None:
    entry = {**FACTS, "value": None, "mean": None, "per_class": {"cat": None, "dog": None}}
    assert "least in" not in table({"diversity": entry})


def test_members_and_neighbourhoods_have_lines_of_their_own() -> None:
    many = {str(m): m / 100 for m in range(40)}
    entry = {**FACTS, "value": 0.2, "per_member": many, "per_member_samples": dict.fromkeys(many, 256)}
    cells = {"per_neighbourhood": {"0": 0.5}, "per_neighbourhood_samples": {"0": 768}}
    text = table({"fid": {**entry, **cells}})
    assert (
        "member  FID     samples" in text and "29      0.290   256" in text and "… and 10 more in scores.json" in text
    )
    assert "neighbourhood  FID    samples" in text and "0              0.500  768" in text


def test_a_run_without_a_verdict_has_none_next_to_one_that_has() -> None:
    scores = {"fid": {**FACTS, "value": 1.0}}
    verdict = VerdictRecord(word="good", reason="its samples vary like the data")
    facts = ScoredRun({"a": scores, "b": scores}, verdicts={"b": verdict}).facts()["runs"]
    assert "verdict" not in facts["a"] and facts["b"]["verdict"]["word"] == "good"
