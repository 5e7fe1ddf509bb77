"""A verdict tells herds of known kinds apart, names the members that are not good, and survives in scores.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from score_fixtures import FakeDataset

import verdict_data
from ganherd import scoring
from ganherd.api import ScoreFinisher
from ganherd.data.dataset import load
from ganherd.features.material import ScoringContext
from ganherd.features.real_features import RealFeatures
from ganherd.mixture import mixture
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.runs.models import EventRecord
from ganherd.runs.results.verdict_record import MemberVerdict, VerdictRecord, read_verdict
from ganherd.scoring.one_run import keep
from ganherd.scoring.verdicts.course import courses
from ganherd.scoring.verdicts.evidence import Evidence, RealRows, compare, pixels
from ganherd.scoring.verdicts.joining import join_replicas, judge_herd
from ganherd.scoring.verdicts.judgement import Course, judge
from ganherd.scoring.verdicts.measurement import EvidenceCollector, Part
from ganherd.training.finish import Product
from ganherd.util.errors import UserError
from verdict_herds import RIGHT, FakedHerd

GOOD = Evidence(
    samples=500, real=1000, compared=500, distance=0.02, fid=0.3, real_fid=0.2, precision=1.0, coverage=0.95, recall=0.9,
    missing=0.0, spread=0.95, variety=0.9, detail=1.0, copies=0.05, nearer=0.5, copied=20, held_out=200,
)  # fmt: skip
Make = Callable[[np.random.Generator, int, int], np.ndarray]


@pytest.mark.parametrize(
    ("changes", "course", "word"),
    [
        ({}, Course(5000), "good"),
        ({"finite": False}, Course(5000), "unstable"),
        ({}, Course(5000, frozenset({"diverged"}), frozenset({"diverged"})), "unstable"),
        ({"distance": 2.0}, Course(5000, began=frozenset({"nan"})), "unstable"),
        ({"compared": 10}, Course(5000), "cannot be judged"),
        ({"copies": 0.6, "nearer": 0.95}, Course(5000), "memorising"),
        ({"copies": 0.6, "nearer": 0.95, "copied": 1, "variety": 0.01}, Course(5000), "collapsed"),
        ({"spread": 0.1}, Course(5000), "collapsed"),
        ({"spread": 0.7, "main_spread": 0.2, "distance": 0.6, "precision": 0.1}, Course(5000), "collapsed"),
        ({"spread": 1.4, "main_spread": 0.2, "distance": 6.0, "precision": 0.0}, Course(5000), "unlike the data"),  # noise
        ({"spread": 0.1}, Course(600), "undertrained"),
        ({"missing": 0.3}, Course(60), "undertrained"),
        ({"missing": 0.3}, Course(600), "collapsed"),
        ({"spread": 0.1}, Course(60, began=frozenset({"collapse"})), "collapsed"),
        ({"spread": 0.45, "variety": 0.45, "detail": 0.5, "distance": 1.5}, Course(5000), "unlike the data"),
        ({"missing": 0.3}, Course(5000), "collapsed"),
        ({"precision": 0.1, "distance": 0.5}, Course(5000), "unlike the data"),
        ({"distance": 0.5}, Course(5000), "undertrained"),
        ({"recall": 0.05}, Course(5000), "undertrained"),
        ({"recognised": 0.3, "recognised_real": 0.95}, Course(5000), "unlike the data"),
        ({"recognised": 0.3, "recognised_real": 0.4}, Course(5000), "good"),  # the classifier itself knows nothing
    ],
)  # fmt: skip
def test_each_kind_of_evidence_has_its_word(changes: dict[str, Any], course: Course, word: str) -> None:
    verdict = judge(replace(GOOD, **changes), course)
    assert verdict.word == word
    assert verdict.reason and "\n" not in verdict.reason
    assert bool(verdict.try_next) == (word != "good")


def test_a_reason_agrees_with_its_numbers() -> None:
    narrow, alike = (
        judge(replace(GOOD, **few), Course(5000)) for few in ({"spread": 0.1}, {"spread": 1, "variety": 0})
    )
    assert narrow.word == alike.word == "collapsed"
    assert narrow.reason.startswith("its samples hardly vary: their spread is 0.10 of the data's")
    assert alike.reason.startswith("many of its samples are alike: the distance between neighbouring samples is 0.00")
    assert judge(replace(GOOD, real=1, compared=0)).reason.startswith("there is only 1 real row to compare with")
    assert judge(replace(GOOD, samples=1, compared=0)).reason == "there is only 1 sample"


def test_images_that_are_all_recognised_can_still_be_collapsed() -> None:
    means = replace(GOOD, recognised=0.999, recognised_real=0.99, spread=0.2, variety=0.2, recall=0.0, distance=0.9)
    assert judge(means, Course(5000)).word == "collapsed"


@pytest.mark.parametrize("percent", [3, 9])
def test_noise_on_top_of_a_mean_image_is_no_variation(percent: int) -> None:
    rows = verdict_data.digits()
    x, held_out = rows.x[rows.y == 3], rows.x_test[rows.y_test == 3]
    noise = 2.55 * percent * np.random.default_rng(0).standard_normal((128, *x.shape[1:]))
    means = (x.mean(0) + noise).round().clip(0, 255).astype(np.uint8)
    evidence = compare(pixels(means), means, RealRows(pixels(x), x, held_out))
    assert evidence.main_spread is not None and evidence.main_spread < 0.2
    assert judge(evidence, Course(5000)).word == "collapsed"


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.integers(0, 2, (400, 3)),
        lambda rng: rng.integers(0, 2, (400, 1)),
        lambda rng: rng.poisson(0.2, (400, 4)),
        lambda rng: np.ones((400, 3)),
        lambda rng: np.random.default_rng(5).integers(0, 256, (6, 1, 8, 8))[rng.integers(0, 6, 400)],
    ],
    ids=["three bits", "one bit", "counts", "constant", "six images"],
)
def test_rows_that_mostly_repeat_have_not_collapsed_unless_they_vary_less_than_the_data(
    draw: Callable[[np.random.Generator], np.ndarray],
) -> None:
    rng = np.random.default_rng(0)
    x, held_out, fresh = (draw(rng).astype(np.float32) for _ in range(3))
    real = RealRows(pixels(x), x, held_out)
    assert judge(compare(pixels(fresh), fresh, real), Course(5000)).word == "good"
    alike = np.repeat(x[:1], 400, axis=0)
    if x.std(0).any():
        assert judge(compare(pixels(alike), alike, real), Course(5000)).word == "collapsed"


def test_a_class_without_one_end_of_its_widest_direction_has_collapsed() -> None:
    rows = verdict_data.digits()
    x = rows.x[rows.y == 4]
    flat = x.reshape(len(x), -1).astype(np.float64)
    along = (flat - flat.mean(0)) @ np.linalg.svd(flat - flat.mean(0), full_matrices=False)[2][0]
    real = RealRows(pixels(x), x, rows.x_test[rows.y_test == 4])
    fresh = x[np.random.default_rng(0).choice(np.flatnonzero(along < np.quantile(along, 0.65)), 128)]
    noisy = (fresh + 8.0 * np.random.default_rng(1).standard_normal(fresh.shape)).round().clip(0, 255).astype(np.uint8)
    assert compare(pixels(noisy), noisy, real).missing == 0.25
    assert judge(replace(compare(pixels(noisy), noisy, real), copies=None), Course(5000)).word == "collapsed"


# -- herds of known kinds -------------------------------------------------------------------------------------------------


def _fresh_digits() -> tuple[FakeDataset, list[np.ndarray]]:
    """Return digits 0 to 3, and real rows of each that neither trains nor holds out: what a perfect generator makes."""
    rows = verdict_data.digits()
    x, y = (np.concatenate(pair) for pair in ((rows.x, rows.x_test), (rows.y, rows.y_test)))
    parts: list[list[np.ndarray]] = [[], [], []]
    for k in range(4):
        own = np.random.default_rng(k).permutation(np.flatnonzero(y == k))
        for part, cut in zip(parts, np.split(own, [80, 110]), strict=True):
            part.append(cut)
    train, held = np.concatenate(parts[0]), np.concatenate(parts[1])
    labels = tuple("0123")
    return FakeDataset("four digits", x[train], y[train], x[held], y[held], labels), [x[r] for r in parts[2]]


def _fresh_points() -> tuple[FakeDataset, list[np.ndarray]]:
    rows = verdict_data.blobs()
    fresh = np.concatenate([rows.x[700:], rows.x_test[100:]])
    none = np.full(700, -1)
    return FakeDataset("points", rows.x[:700], none, rows.x_test[:100], none[:100], (), 0.0, 5.0), [fresh]


def _makers(data: FakeDataset, fresh: list[np.ndarray]) -> dict[str, Make]:
    """Return a function for each kind of herd that makes samples of a member."""
    groups = [data.x[data.y == k] for k in range(len(data.labels))] or [data.x]
    noise = 4.0 if data.is_image else 0.003

    def cast(x: np.ndarray) -> np.ndarray:
        return x.round().clip(0, 255).astype(np.uint8) if data.is_image else x.astype(np.float32)

    def real(random: np.random.Generator, m: int, n: int) -> np.ndarray:
        """Return points between fresh rows and one of their nearest neighbours, so that no two are equal."""
        rows = fresh[m % len(fresh)].astype(np.float64)
        flat = rows.reshape(len(rows), -1)
        near = np.linalg.norm(flat[:, None] - flat[None], axis=2).argsort(1)[:, 1:4]
        first = np.resize(random.permutation(len(rows)), n)
        other = near[first, random.integers(3, size=n)]
        share = random.uniform(0, 0.4, (n, *[1] * (rows.ndim - 1)))
        return cast(rows[first] * (1 - share) + rows[other] * share)

    def jitter(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
        return cast(x + noise * random.standard_normal(x.shape))

    def drop(random: np.random.Generator, m: int, n: int) -> np.ndarray:
        x, known = (
            real(random, m, 4 * n),
            groups[m % len(groups)].reshape(len(groups[m % len(groups)]), -1).astype(float),
        )
        across = np.linalg.svd(known - known.mean(0), full_matrices=False)[2][0]
        line = np.quantile((known - known.mean(0)) @ across, 0.55)
        return x[(x.reshape(len(x), -1) - known.mean(0)) @ across < line][:n]

    def noises(random: np.random.Generator, m: int, n: int) -> np.ndarray:
        return cast(random.uniform(0, 255, (n, *data.shape)) if data.is_image else random.uniform(-12, 12, (n, 2)))

    return {
        "healthy": real,
        "collapsed": lambda r, m, n: jitter(r, fresh[m % len(fresh)][r.integers(2, size=n)]),
        "mean images": lambda r, m, n: jitter(r, np.repeat(groups[m % len(groups)].mean(0)[None], n, 0)),
        "noise": noises,
        "memorised": lambda r, m, n: cast(groups[m % len(groups)][r.integers(len(groups[m % len(groups)]), size=n)]),
        "wrong normalisation": lambda r, m, n: cast(real(r, m, n) / 2 + (127.5 if data.is_image else 6.0)),
        "dropped modes": drop,
    }


def _verdict(data: FakeDataset, members: int, make: Make) -> VerdictRecord:
    label_of = np.arange(members) if data.labels else np.full(members, -1)
    herd = FakedHerd(data.labels, data.shape, label_of, np.full(members, 1 / members), make, 5000, 0)
    collector = EvidenceCollector(RealFeatures(data, "pixels"))  # type: ignore[arg-type]
    context = ScoringContext(herd, data, samples=320)  # type: ignore[arg-type]
    parts = list(collector.parts(context))
    return judge_herd(collector.herd(context), parts, [Course(5000)] * members, steps=5000)


@pytest.fixture(scope="module")
def sets() -> dict[str, tuple[FakeDataset, dict[str, Make], int]]:
    images, points = _fresh_digits(), _fresh_points()
    return {"images": (images[0], _makers(*images), 4), "points": (points[0], _makers(*points), 2)}


@pytest.mark.parametrize("name", ["images", "points"])
@pytest.mark.parametrize(
    "kind", ["healthy", "collapsed", "mean images", "noise", "memorised", "wrong normalisation", "dropped modes"]
)
def test_a_herd_of_a_known_kind_gets_a_right_verdict(name: str, kind: str, sets: Any) -> None:
    data, makers, members = sets[name]
    verdict = _verdict(data, members, makers[kind])
    assert verdict.word in RIGHT[kind], verdict.sentence


@pytest.mark.parametrize("name", ["images", "points"])
def test_one_bad_member_is_named_and_no_other(name: str, sets: Any) -> None:
    data, makers, members = sets[name]
    verdict = _verdict(data, members, lambda r, m, n: makers["collapsed" if m == 1 else "healthy"](r, m, n))
    assert verdict.word == "collapsed" and verdict.exit_code == 1
    assert [one.member for one in verdict.members if one.word != "good"] == [1]
    assert f"1 of {members} members is not good: member 1" in verdict.reason


def test_classes_whose_samples_are_not_finite_make_a_herd_unstable() -> None:
    data, fresh = _fresh_points()
    data = replace(data, labels=("a", "b"), y=np.arange(len(data.x)) % 2)

    def make(random: np.random.Generator, m: int, n: int) -> np.ndarray:
        return fresh[0][random.integers(len(fresh[0]), size=n)]

    def broken_if_asked(n: int, label: Any = None, **more: Any) -> Any:
        drawn = herd.sample(n, None, **more)
        return drawn if label is None else replace(drawn, x=np.full_like(drawn.x, np.nan))

    herd = FakedHerd(data.labels, data.shape, np.full(1, -1), np.ones(1), make, 5000, 0, takes_label=True)
    broken = replace(herd)
    object.__setattr__(broken, "sample", broken_if_asked)
    collector = EvidenceCollector(RealFeatures(data, "pixels"))  # type: ignore[arg-type]
    parts = list(collector.parts(ScoringContext(broken, data, samples=320)))  # type: ignore[arg-type]
    assert [(part.name, part.evidence.finite) for part in parts] == [("classes", False)]
    verdict = judge_herd(GOOD, parts, [Course(5000)], steps=5000)
    assert verdict.word == "unstable" and "not finite" in verdict.reason


# -- joining --------------------------------------------------------------------------------------------------------------


def _part(member: int, weight: float = 0.25, **changes: Any) -> Part:
    return Part(f"member {member}", replace(GOOD, **changes), member, weight)


def test_a_member_that_the_mixture_does_not_use_is_judged_but_does_not_count() -> None:
    parts = [_part(0, 0.5), _part(1, 0.5), _part(2, 0.0, spread=0.01)]
    verdict = judge_herd(GOOD, parts, steps=5000)
    assert verdict.word == "good" and verdict.members[2].word == "collapsed"
    parts[0] = _part(0, 0.5, spread=0.01)
    reason = judge_herd(GOOD, parts, steps=5000).reason
    assert "1 of the 2 members that the mixture uses is not good: member 0 collapsed" in reason


def test_members_that_share_data_leave_the_word_to_a_mixture_with_a_definite_failure() -> None:
    parts = [replace(_part(0, 0.5, distance=0.5), shares_data=True), replace(_part(1, 0.5), shares_data=True)]
    verdict = judge_herd(replace(GOOD, missing=0.25), parts, steps=5000)
    assert [one.word for one in verdict.members] == ["undertrained", "good"]
    assert verdict.word == "collapsed" and "25 % of the data" in verdict.reason
    assert "1 of 2 members is not good: member 0 undertrained" in verdict.reason
    by_class = judge_herd(replace(GOOD, missing=0.25), [_part(0, 0.5, distance=0.5), _part(1, 0.5)], steps=5000)
    assert by_class.word == "undertrained"  # the mixture misses the class of its undertrained member


@pytest.mark.parametrize(("undertrained", "word"), [(2, "collapsed"), (5, "collapsed"), (6, "undertrained")])
def test_a_definite_failure_leads_unless_most_members_are_undertrained(undertrained: int, word: str) -> None:
    poor = [_part(m, 0.1, distance=0.5) for m in range(undertrained)]
    good = [_part(m, 0.1) for m in range(undertrained + 1, 10)]
    verdict = judge_herd(GOOD, [*poor, _part(undertrained, 0.1, spread=0.01), *good], steps=5000)
    assert verdict.word == word and f"{undertrained + 1} of 10 members are not good" in verdict.reason


def test_an_alarm_that_lasts_makes_its_member_unstable_and_is_named() -> None:
    lines = [{"step": 40, "event": "diverged", "member": 2, "name": "member 2"}]
    own = courses(3, 5000, map(EventRecord.parse, lines))
    verdict = judge_herd(GOOD, [_part(m) for m in range(3)], own, steps=5000)
    assert verdict.word == "unstable" and "member 2 unstable" in verdict.reason and "lr_g" in verdict.try_next


def test_an_alarm_about_samples_yields_to_the_samples_of_the_mixture() -> None:
    lines = [{"step": 40, "event": "alarm", "what": "collapse", "member": 0, "name": "member 0"}]
    verdict = judge_herd(GOOD, [_part(0), _part(1)], courses(2, 5000, map(EventRecord.parse, lines)), steps=5000)
    assert verdict.word == "good" and all(one.word == "good" for one in verdict.members)


def test_seeds_are_good_only_if_all_are() -> None:
    good = judge_herd(GOOD, [_part(0), _part(1)], steps=5000)
    bad = judge_herd(replace(GOOD, spread=0.01), [_part(0, spread=0.01), _part(1)], steps=5000, replica=1)
    assert join_replicas([good, good], [7, 8]).word == "good"
    both = join_replicas([good, bad], [7, 8])
    assert both.word == "collapsed" and "1 of 2 seeds" in both.reason and "8 (collapsed)" in both.reason
    member = both.of_member(0, replica=1)
    assert member is not None and member.word == "collapsed" and len(both.members) == 4


def test_members_that_cannot_be_judged_do_not_make_a_herd_bad() -> None:
    verdict = judge_herd(GOOD, [_part(0, compared=5), _part(1, compared=5)], steps=5000)
    assert verdict.word == "good" and "2 of 2 members cannot be judged one by one" in verdict.reason


# -- records and commands -------------------------------------------------------------------------------------------------


def test_a_file_without_a_verdict_or_with_a_damaged_one_has_none(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    assert read_verdict(path) is None
    for content in ({"scores": {}}, {"scores": {}, "verdict": {"word": "splendid"}}, {"verdict": 3}, []):
        path.write_text(json.dumps(content))
        assert read_verdict(path) is None


def test_other_scores_leave_the_verdict_in_place(run: Path, tmp_path: Path) -> None:
    folder = _copy(run, tmp_path)
    before = read_verdict(folder / "scores.json")
    assert before is not None
    keep(folder, {"fid": {"value": 1.0}}, ["fid"])
    assert read_verdict(folder / "scores.json") == before
    assert json.loads((folder / "scores.json").read_text())["scores"]["fid"] == {"value": 1.0}


def test_a_short_training_is_undertrained_in_status_check_and_file(run: Path, tmp_path: Path, cli: Any) -> None:
    folder = _copy(run, tmp_path)
    verdict = read_verdict(folder / "scores.json")
    assert verdict is not None and verdict.word == "undertrained" and verdict.step == 6
    assert "--resume RUN" in verdict.sentence  # the file may be moved
    shown = verdict.for_run(f"ganherd train --resume {folder}").sentence
    assert f"verdict: {shown}" in cli("status", folder).out
    answer = cli("check", folder, "--json")
    facts = json.loads(answer.out)
    assert answer.code == 1 == facts["exit_code"] and facts["word"] == "undertrained" and len(facts["members"]) == 3


def test_json_of_each_command_names_the_run_in_the_advice(run: Path, tmp_path: Path, cli: Any) -> None:
    folder = _copy(run, tmp_path)
    again = f"ganherd train --resume {folder} --budget"
    status = json.loads(cli("status", folder, "--json").out)
    assert again in status["verdict"]["try_next"]
    for options in ((), ("--again",)):  # the recorded verdict, and a new one
        checked = json.loads(cli("check", folder, "--json", *options).out)
        assert again in checked["try_next"] and not any("RUN" in one["try_next"] for one in checked["members"])
    assert again in json.loads(cli("score", folder, "--json").out)["verdict"]["try_next"]
    assert again in json.loads(cli("train", "--resume", folder, "--json").out)["verdict"]["try_next"]
    stored = read_verdict(folder / "scores.json")
    assert stored is not None and "--resume RUN" in stored.try_next


def test_a_run_that_cannot_be_judged_still_finishes_with_its_scores(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any) -> None:
        raise UserError("there is nothing to judge")

    monkeypatch.setattr("ganherd.scoring.verdicts.run_verdict.judge_contexts", refuse)
    folder, lines = RunFolder(_copy(run, tmp_path)), list[str]()
    product = Product(folder, folder.recipe, load(folder.recipe.data), mixture.load(folder.path), lines.append)
    ScoreFinisher().on_mixture(product)
    assert "no verdict: there is nothing to judge" in lines
    content = json.loads(folder.scores_path.read_text())
    assert "diversity" in content["scores"] and "verdict" not in content


def test_a_metric_that_cannot_be_loaded_costs_neither_the_run_nor_its_other_scores(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = scoring.known_metrics

    def refuse(*words: Any, more: Any = (), **settings: Any) -> list[str]:
        if more:
            raise UserError("the metric memorisation cannot be loaded.")
        return known(*words, **settings)

    monkeypatch.setattr("ganherd.scoring.known_metrics", refuse)
    folder, lines = RunFolder(_copy(run, tmp_path)), list[str]()
    recipe = recipe_file.load(folder.recipe, ["run.metrics=[memorisation]"])
    ScoreFinisher().on_mixture(Product(folder, recipe, load(recipe.data), mixture.load(folder.path), lines.append))
    assert "run.metrics are not scored: the metric memorisation cannot be loaded." in lines
    content = json.loads(folder.scores_path.read_text())
    assert content["scores"]["skipped"] == {"memorisation": "the metric memorisation cannot be loaded"}
    assert "diversity" in content["scores"] and "verdict" in content


def test_check_computes_what_is_missing_and_stores_it(run: Path, tmp_path: Path, cli: Any) -> None:
    folder = _copy(run, tmp_path)
    (folder / "scores.json").unlink()
    answer = cli("check", folder)
    assert answer.code == 1 and answer.out.startswith("undertrained: after 6 steps")
    stored = read_verdict(folder / "scores.json")
    assert stored is not None
    assert stored.for_run(f"ganherd train --resume {folder}").sentence == answer.out.splitlines()[0]


def test_check_exits_0_if_a_run_is_good_and_2_if_it_cannot_be_judged(run: Path, tmp_path: Path, cli: Any) -> None:
    folder = _copy(run, tmp_path)
    good = VerdictRecord(word="good", reason="its samples vary like the data", step=6)
    keep(folder, {}, verdict=good)
    assert cli("check", folder).code == 0
    keep(folder, {}, verdict=good.model_copy(update={"step": 5}))  # of another mixture, so it is judged again
    assert cli("check", folder).code == 1
    few = cli("check", folder, "-n", 8)
    assert few.code == 2 and few.out.startswith("cannot be judged: there are only 8 samples")


def test_scoring_a_run_prints_its_verdict_below_the_table(run: Path, tmp_path: Path, cli: Any) -> None:
    folder = _copy(run, tmp_path)
    assert "\nverdict  undertrained: " in cli("score", folder).out
    assert json.loads(cli("score", folder, "--json").out)["verdict"]["word"] == "undertrained"
    assert "\nverdict  " not in cli("score", folder, "--metrics", "fid").out


def test_what_was_measured_of_a_mixture_that_has_changed_is_not_kept(
    run: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training may be resumed while its mixture is scored."""
    folder = _copy(run, tmp_path)
    cli("score", folder)
    before, read = (folder / "scores.json").read_bytes(), mixture.load

    def load_and_change(*args: Any) -> Any:
        loaded = read(*args)
        (folder / "mixture/mixture.json").touch()
        return loaded

    monkeypatch.setattr(mixture, "load", load_and_change)
    for words in (["score", folder], ["score", folder, "--metrics", "fid", "-n", "2000"], ["check", folder, "--again"]):
        answer = cli(*words)
        assert answer.code == 2 and "changed meanwhile, so the result was discarded" in answer.err
        assert (folder / "scores.json").read_bytes() == before


def test_a_good_verdict_says_if_copies_cannot_be_told() -> None:
    known = Evidence(500, 500, 250, True, 0.0, 0.1, 0.1, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0)
    assert "whether it copies training rows is not known" in judge(known).reason
    assert "copies" not in judge(replace(known, copies=0.05, nearer=0.5, held_out=100)).reason


def test_undertrained_names_what_is_too_low_only() -> None:
    known = Evidence(500, 500, 250, True, 0.0, 0.1, 0.2, 0.4, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0)
    judged = judge(known)
    assert judged.word == "undertrained"
    assert judged.reason == "its samples differ from the data: only 40 % of them lie where the data is"


def test_a_young_collapse_is_advised_to_train_longer() -> None:
    """Also if an alarm was raised: other settings are worth a try only if it stays."""
    alike = Evidence(500, 500, 250, True, 0.5, 0.1, 0.2, 0.4, 0.2, 1.0, 0.0, 0.1, 0.1, 0.1)
    young, old = (judge(alike, Course(steps, began=frozenset({"collapse"}))) for steps in (300, 5000))
    assert young.word == old.word == "collapsed"
    assert young.try_next.startswith("train longer") and "optim.lr_g" in young.try_next
    assert old.try_next.startswith("try a lower optim.lr_g")


def test_a_record_from_a_stranger_may_have_unknown_keys_but_no_unknown_word() -> None:
    known = {"name": "member 0", "word": "good", "reason": "", "later": 1}
    assert MemberVerdict.parse(known).word == "good"
    with pytest.raises(ValueError, match="word"):
        MemberVerdict.parse({**known, "word": "perfect"})


def _copy(run: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(run, tmp_path / "copy"))
