"""Scores tell good mixtures from bad ones, say what they were measured with, and claim no more than that."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganherd.metrics.distributions.histogram import class_histogram, expected_by_chance, total_variation
from ganherd.metrics.diversity import diversity, spread
from ganherd.metrics.label_accuracy import label_accuracy
from ganherd.metrics.metric_registry import title_of
from ganherd.scoring import METRICS, brief, contexts, full, known_metrics, score, score_contexts, score_run
from ganherd.util.errors import UserError
from ganherd.util.terminal.screen import as_text

Replay = Callable[..., Any]


def test_real_held_out_data_scores_as_a_perfect_mixture(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, samples=1000)
    assert list(found) == known_metrics(None) and set(found) <= set(METRICS)
    assert found["kid"]["value"] < 0.01 and found["fid"]["value"] < 1
    assert found["label_accuracy"]["value"] >= 0.97
    assert found["histogram"]["value"] <= 2.5 * found["histogram"]["by_chance"]
    assert 0.9 <= found["diversity"]["value"] <= found["diversity"]["mean"] <= 1.1


def test_every_number_has_its_samples_network_resizing_and_seed(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, samples=200, seed=7)
    for name, entry in found.items():
        assert list(entry)[:4] == ["value", "samples", "network", "seed"], name
        assert entry["samples"] == 200 and entry["seed"] == 7 and entry["network"] and entry["resizing"] == "none"
    assert found["label_accuracy"]["held_out_accuracy"] >= 0.97
    assert set(found["label_accuracy"]["per_class"]) == set(digits.labels)
    assert json.loads(json.dumps(found)) == found


def test_what_is_done_to_large_images_stands_beside_every_number(
    rgb: Any, replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganherd.features.classifier.STEPS", (5, 5))  # its accuracy does not matter here,
    monkeypatch.setenv("GANHERD_CACHE", str(tmp_path))  # and no other test shall use it
    large = dataclasses.replace(rgb, x=np.repeat(rgb.x, 2, 2), x_test=np.repeat(rgb.x_test, 2, 2))  # 64 × 32
    found = score(replay(large), large, ["label_accuracy", "histogram", "classifier_score", "fid", "diversity"], 40)
    judged = {"label_accuracy", "histogram", "classifier_score", "fid"}
    assert {name for name, entry in found.items() if entry["resizing"] == "averaged down to 32 × 32"} == judged
    assert found["diversity"]["resizing"] == "none"  # by the pixels themselves
    assert "resizing averaged down to 32 × 32." in as_text(*full(found))


def test_labels_are_asked_equally_and_no_more_samples_claimed_than_used(digits: Any, replay: Replay) -> None:
    mixture = replay(digits)
    found = score(mixture, digits, ["label-accuracy"], samples=1003)
    counts = Counter({label: n for n, label in mixture.calls})
    assert set(counts) == set(range(10)) and set(counts.values()) == {100, 101}
    assert found["label_accuracy"]["samples"] == sum(counts.values()) == 1003


def test_fewer_samples_than_labels(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, samples=3)
    assert found["label_accuracy"]["samples"] == 3
    assert len(found["label_accuracy"]["per_class"]) == 3
    assert found["diversity"]["value"] is None and "warning" in found["diversity"]


def test_a_swapped_class_shows_in_label_accuracy_alone_for_that_class(digits: Any, replay: Replay) -> None:
    def swap(samples: Any) -> Any:
        ones = np.flatnonzero(digits.y_test == 1)
        x = samples.x.copy()
        x[samples.y == 0] = digits.x_test[ones[: len(x)][np.arange((samples.y == 0).sum()) % len(ones)]]
        return dataclasses.replace(samples, x=x)

    found = score(replay(digits, change=swap), digits, samples=500)["label_accuracy"]
    assert found["per_class"]["0"] <= 0.05
    assert min(v for k, v in found["per_class"].items() if k != "0") >= 0.9
    assert found["value"] == pytest.approx(np.mean(list(found["per_class"].values())))


def test_a_collapsed_member_is_the_diversity_score(digits: Any, replay: Replay) -> None:
    def collapse(samples: Any) -> Any:
        x = samples.x.copy()
        x[samples.y == 4] = x[samples.y == 4][:1]
        return dataclasses.replace(samples, x=x)

    found = score(replay(digits, change=collapse), digits, ["diversity"], samples=500)["diversity"]
    assert found["value"] == found["per_class"]["4"] == 0
    assert found["mean"] > 0.8


def test_the_histogram_is_measured_against_the_mixtures_own_weights(digits: Any, replay: Replay) -> None:
    weights = np.array([0.55, *[0.05] * 9])
    skewed = dataclasses.replace(replay(digits), weights=weights)
    found = score(skewed, digits, ["histogram"], samples=1000)["histogram"]
    assert found["value"] < 0.06 and found["expected"]["0"] == pytest.approx(0.55)
    everything_zero = replay(digits, change=lambda s: dataclasses.replace(s, x=np.repeat(s.x[:1], len(s.x), 0)))
    assert score(everything_zero, digits, ["histogram"], samples=200)["histogram"]["value"] > 0.85


def test_tvd_is_a_name_of_the_histogram(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, ["TVD"], samples=100)
    assert list(found) == ["histogram"] and found["histogram"]["value"] <= 1


@pytest.mark.parametrize(("kind", "decides"), [("classes", True), ("others", False), ("none", False), ("like", False)])
def test_the_histogram_is_that_of_the_network_asked_for_where_it_tells_the_classes(
    digits: Any, replay: Replay, kind: str, decides: bool
) -> None:
    """One that sees the same class everywhere: ten logits decide; eleven, none or those of an Inception do not."""
    from torch import Tensor, nn
    from torch.nn import functional as F

    from ganherd.features.networks import Network
    from ganherd.features.real_features import RealFeatures

    class AllTheSame(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            three = F.one_hot(x.new_full((len(x),), 3).long(), 11 if kind == "others" else 10).float()
            return x.flatten(1).float(), None if kind == "none" else three

    reference = RealFeatures(digits, "mine")
    reference.__dict__["network"] = Network("mine", AllTheSame(), "none", None, as_inception=kind == "like")
    entry = score(replay(digits), digits, ["histogram"], samples=300, reference=reference)["histogram"]
    assert (entry["network"] == "mine") == decides == (entry["per_class"]["3"] == 1.0) == (entry["value"] > 0.8)
    by_member = score(replay(digits), digits, ["histogram"], samples=300, reference=reference, per="member")
    assert (by_member["histogram"]["per_member"]["4"] == 1.0) == decides


def test_unlabelled_data_leaves_out_what_needs_labels_and_says_why(digits: Any, replay: Replay) -> None:
    bare = dataclasses.replace(digits, labels=(), y=np.full_like(digits.y, -1), y_test=np.full_like(digits.y_test, -1))
    mixture = dataclasses.replace(replay(digits), dataset=bare, label_of=np.full(10, -1))
    found = score(mixture, bare, samples=300)
    assert set(found) == {"diversity", "fid", "kid", "skipped"}
    assert found["fid"]["network"] == "pixels"
    assert found["skipped"] == dict.fromkeys(["label_accuracy", "histogram"], "the data has no labels")
    assert found["diversity"]["per_class"].keys() == {"all"} and found["diversity"]["value"] > 0.9


def test_members_without_a_class_on_labelled_data(digits: Any, replay: Replay) -> None:
    mixture = dataclasses.replace(replay(digits), label_of=np.full(10, -1))
    found = score(mixture, digits, samples=400)
    assert set(found) == {"histogram", "diversity", "fid", "kid", "skipped"}
    assert "no label can be asked for" in found["skipped"]["label_accuracy"]
    assert found["histogram"]["reference"] == "label frequencies of the data" and found["histogram"]["value"] < 0.15


def test_points_are_scored_too(ring: Any, replay: Replay) -> None:
    found = score(replay(ring), ring, samples=400)
    assert found["label_accuracy"]["value"] > 0.98
    assert found["diversity"]["network"] == "coordinates" and found["diversity"]["value"] > 0.7


def test_nan_samples_name_the_member(ring: Any, replay: Replay) -> None:
    def poison(samples: Any) -> Any:
        x = samples.x.copy()
        x[samples.member == 5] = np.nan
        return dataclasses.replace(samples, x=x)

    with pytest.raises(UserError, match=r"member 5 .*NaN"):
        score(replay(ring, change=poison), ring, ["diversity"], samples=80)


def test_a_weak_classifier_is_said_to_be_weak(ring: Any, replay: Replay) -> None:
    rng = np.random.default_rng(0)
    noisy = dataclasses.replace(ring, y=rng.integers(0, 8, len(ring.y)), y_test=rng.integers(0, 8, len(ring.y_test)))
    entry = score(replay(noisy), noisy, ["label_accuracy"], samples=80)["label_accuracy"]
    assert entry["held_out_accuracy"] < 0.5 and "right on only" in entry["warning"]


@pytest.mark.parametrize(
    ("metrics", "samples", "says"), [(["diversty"], 10, "did you mean 'diversity"), (None, 0, "at least one sample")]
)
def test_wrong_requests_are_one_sentence(
    ring: Any, replay: Replay, metrics: list[str] | None, samples: int, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        score(replay(ring), ring, metrics, samples=samples)


def test_scoring_against_other_data_is_refused(ring: Any, digits: Any, replay: Replay) -> None:
    with pytest.raises(UserError, match="shape"):
        score(replay(ring), digits)
    with pytest.raises(UserError, match="labels"):
        score(replay(ring), dataclasses.replace(ring, labels=tuple("hgfedcba")))


def test_progress_is_told(ring: Any, replay: Replay) -> None:
    told: list[str] = []
    score(replay(ring), ring, samples=16, progress=told.append)
    assert any("drawing 16 samples" in line for line in told) and "label accuracy" not in told  # no bare names


def test_pure_functions() -> None:
    assert label_accuracy(np.array([1, 1]), np.array([1, 0]), ["a", "b"]) == (0.5, {"a": 0.0, "b": 1.0})
    assert class_histogram(np.array([1, 1, 1, 0]), 3).tolist() == [0.25, 0.75, 0.0]
    assert total_variation(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1.0
    rng = np.random.default_rng(0)
    p = np.full(10, 0.1)
    by_hand = np.mean([total_variation(rng.multinomial(500, p) / 500, p) for _ in range(400)])
    assert expected_by_chance(p, 500) == pytest.approx(by_hand, rel=0.05)
    x = rng.integers(0, 255, (50, 1, 4, 4), dtype=np.uint8)
    assert spread(x) == pytest.approx(np.std(x.reshape(50, -1).astype(float), 0, ddof=1).mean())
    wide = rng.integers(0, 255, (300_000, 31), dtype=np.uint8)  # some pixels at a time, and to the last bit the same
    assert spread(wide) == wide.astype(float).std(0, ddof=1).mean()
    flat = diversity(x, np.zeros(50, int), np.zeros((9, 1, 4, 4), np.uint8), np.zeros(9, int), ("a",))
    assert flat == {"a": None}


def test_data_that_does_not_vary_is_the_reason_why_there_is_no_diversity(digits: Any, replay: Replay) -> None:
    """More samples would not help."""
    same = dataclasses.replace(digits, x=np.full_like(digits.x, 7))
    warning = score(replay(same), same, ["diversity"], samples=30)["diversity"]["warning"]
    assert warning == "no class has two samples and data that vary: no class of the data has two rows that differ"


def test_the_registry_needs_no_torch() -> None:
    code = "import sys; from ganherd.scoring import METRICS as M; print('torch' in sys.modules, 'fid' in M)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True"]


def test_the_table_leaves_no_number_alone(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, samples=30)
    short, long = as_text(*brief(found)), as_text(*full(found))
    assert "30 samples, seed 0" in short
    for name, entry in found.items():
        assert (
            entry["network"] in short and f"\n{title_of(name)}: 30 samples, network {entry['network']}, seed 0" in long
        )
    assert "diversity: a class has only 3 samples" in short and "diversity: a class has only 3 samples" in long
    left_out = as_text(*brief({"skipped": {"histogram": "the data has no labels"}}))
    assert left_out == "class histogram is left out: the data has no labels."


def test_a_misspelt_metric_is_told_before_a_run_is_opened() -> None:
    with pytest.raises(UserError, match="did you mean 'diversity"):
        score_run("no/such/run", ["diversety"])
    with pytest.raises(UserError, match="no/such/run"):
        score_run("no/such/run")


def test_features_are_freed_after_scoring_and_samples_stay(digits: Any, replay: Replay) -> None:
    each = contexts(replay(digits), digits, 60)
    drawn = each[0].drawn
    score_contexts(each, ["fid", "diversity"])
    assert not {"features", "member_features", "cache"} & set(vars(each[0])) and each[0].drawn is drawn
