"""KID and IS equal torchmetrics, PRDC equals brute force; per class and per member; no more samples claimed than used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganherd.features import cache
from ganherd.features.lipizzaner import LipizzanerNet
from ganherd.features.real_features import RealFeatures
from ganherd.metrics import frechet
from ganherd.metrics.inception_score import inception_score
from ganherd.metrics.kid import discrepancy, kid
from ganherd.metrics.prdc import prdc
from ganherd.scoring import known_metrics, score, score_seeds
from ganherd.util.errors import UserError
from metrics.test_frechet import AsTheyAre, correlated

Replay = Callable[..., Any]
FEATURES = ["fid", "ifid", "kid", "prdc", "classifier_score"]


def test_kid_equals_torchmetrics_on_the_same_features() -> None:
    from torchmetrics.image.kid import KernelInceptionDistance

    real, fake = correlated(60, 16, 0), correlated(60, 16, 1, shift=0.2)
    theirs = KernelInceptionDistance(feature=AsTheyAre(16), subsets=1, subset_size=60)
    theirs.update(real[:, :, None, None], real=True)
    theirs.update(fake[:, :, None, None], real=False)
    wanted = float(theirs.compute()[0])
    assert float(discrepancy(fake.double(), real.double())) == pytest.approx(wanted, rel=1e-4)
    found = kid(fake, real, subsets=3, size=60)  # all of them each time: subsets in another order
    assert (found.value, found.size) == (pytest.approx(wanted, rel=1e-4), 60)


def test_kid_has_no_bias_for_few_samples_where_the_truth_is_0() -> None:
    values = [kid(correlated_same(100, s), correlated_same(100, s + 500), subsets=20).value for s in range(40)]
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(len(values))


def correlated_same(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))


def test_inception_score_equals_torchmetrics_on_the_same_logits() -> None:
    from torchmetrics.image.inception import InceptionScore

    logits = 3 * torch.randn(500, 10, generator=torch.Generator().manual_seed(0))
    theirs = InceptionScore(feature=AsTheyAre(10), splits=10)
    theirs.update(logits[:, :, None, None])
    torch.manual_seed(4)
    mean, std = theirs.compute()
    torch.manual_seed(4)
    order = torch.randperm(500)  # they shuffle first
    ours = inception_score(logits[order], splits=10)
    assert ours == (pytest.approx(float(mean), rel=1e-5), pytest.approx(float(std), rel=1e-4))


@pytest.mark.parametrize("n", [21, 95, 101, 1001])
def test_as_many_splits_as_are_claimed_about_equally_large(n: int) -> None:
    logits = 3 * torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    parts = [logits[i * n // 10 : (i + 1) * n // 10] for i in range(10)]
    by_hand = np.mean([inception_score(part, 1)[0] for part in parts])
    assert inception_score(logits, 10)[0] == pytest.approx(by_hand, rel=0.05)
    assert len(logits.tensor_split(10)) == 10


def test_the_classifier_score_needs_no_network_but_the_datas_own(
    digits: Any, replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANHERD_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = score(replay(digits), digits, ["classifier_score"], samples=300)["classifier_score"]
    for network, left_out in (("inception", {"fid"}), ("pixels", set())):
        told: list[str] = []
        reference = RealFeatures(digits, network, progress=told.append)
        found = score(replay(digits), digits, ["fid", "classifier_score"], 300, reference=reference, per="member")
        entry = found["classifier_score"]
        assert entry["value"] == pytest.approx(usual["value"]) and set(found.get("skipped", {})) == left_out
        assert set(entry["per_member"]) == {str(m) for m in range(10)} and entry["fewest"] > 1
        assert "real_samples" not in entry  # it is held against no data
        by_class = score(replay(digits), digits, ["classifier_score"], 300, reference=reference, per="class")
        assert set(by_class["classifier_score"]["per_class"]) == set(digits.labels)


@pytest.mark.usefixtures("brief_classifier")
def test_a_score_of_samples_alone_looks_at_no_real_data(digits: Any, replay: Replay) -> None:
    told: list[str] = []
    reference = RealFeatures(dataclasses.replace(digits, x=digits.x[::-1].copy()), "classifier", progress=told.append)
    assert score(replay(digits), digits, ["classifier_score"], 100, reference=reference)["classifier_score"]["samples"]
    assert not any("real samples of" in line for line in told)


@pytest.mark.parametrize("network", ["classifier", "pixels"])
def test_what_mixtures_are_held_against_is_kept_without_the_features(digits: Any, network: str) -> None:
    """A rank that finds moments and classes in the cache neither computes nor holds the features of all images."""
    first = RealFeatures(digits, network)
    moments, seen = first.summary
    assert torch.equal(moments.mean, first.real.moments.mean) and torch.equal(moments.cov, first.real.moments.cov)
    first.forget()
    assert "real" not in vars(first)
    again = RealFeatures(digits, network)
    kept, kept_seen = again.summary
    assert torch.equal(kept.mean, moments.mean) and torch.equal(kept.cov, moments.cov)
    if network == "pixels":  # costs nothing and is never kept
        assert seen is kept_seen is None
    else:
        assert seen is not None and torch.equal(kept_seen, seen) and int(seen.sum()) == len(digits.x)
        assert "real" not in vars(again)


def test_prdc_equals_brute_force() -> None:
    k = 3
    real, fake = correlated(90, 4, 0).double(), correlated(70, 4, 0, shift=0.4).double()

    def away(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a - b).square().sum().sqrt())

    def radius(of: torch.Tensor, i: int) -> float:
        return sorted(away(of[i], of[j]) for j in range(len(of)) if j != i)[k - 1]

    radii = {"real": [radius(real, i) for i in range(90)], "fake": [radius(fake, j) for j in range(70)]}
    far = [[away(r, f) for f in fake] for r in real]
    wanted = {
        "precision": [any(far[i][j] < radii["real"][i] for i in range(90)) for j in range(70)],
        "recall": [any(far[i][j] < radii["fake"][j] for j in range(70)) for i in range(90)],
        "density": [sum(far[i][j] < radii["real"][i] for i in range(90)) / k for j in range(70)],
        "coverage": [any(far[i][j] < radii["real"][i] for j in range(70)) for i in range(90)],
    }
    found = prdc(real, fake, k)
    for name, each in wanted.items():
        assert found.each[name].tolist() == pytest.approx([float(one) for one in each]), name
        assert found.value(name) > 0, name


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_discrete_data_scores_as_the_same_distribution(offset: float) -> None:
    """With 25 different rows every ball has the radius 0; the shares used to be 0, too."""
    rng = torch.Generator().manual_seed(0)
    real, fake, more = (torch.randint(0, 5, (600, 2), generator=rng) * 0.1 + offset for _ in range(3))
    scores = prdc(real, fake)
    assert [scores.value(name) for name in ("precision", "recall", "coverage")] == [1, 1, 1]
    assert scores.tied > 0.9 and scores.counts["recall"].error(0) == scores.counts["coverage"].error(0) == 0
    shifted = prdc(real, torch.where(more > offset + 0.25, more + 0.05, more))  # 9 of 25 rows stay where data is
    assert shifted.value("precision") == pytest.approx(9 / 25, abs=0.06) == shifted.value("coverage")


def test_a_point_at_the_edge_of_a_ball_lies_in_it() -> None:
    real = torch.tensor([[0.0], [1.0], [3.0], [7.0]])  # distances to the next one: 1, 1, 2, 4
    fake = torch.tensor([[-1.0], [11.0], [30.0], [60.0]])  # at the edge of the first ball and of the last
    scores = prdc(real, fake, k=1)
    assert scores.each["precision"].tolist() == [1, 1, 0, 0] and scores.each["coverage"].tolist() == [1, 0, 0, 1]
    assert scores.each["density"].tolist() == [0, 0, 0, 0]  # counts the inside of balls alone
    assert prdc(fake, real, k=1).each["recall"].tolist() == [1, 1, 0, 0]


def test_density_of_discrete_data_carries_a_warning(ring: Any, replay: Replay) -> None:
    def rounded(samples: Any) -> Any:
        return dataclasses.replace(samples, x=samples.x.round())

    coarse = dataclasses.replace(ring, x=ring.x.round())
    scores = score(replay(ring, change=rounded), coarse, ["prdc"], samples=400)
    assert "100 % of the data has several neighbours at exactly the same distance" in scores["density"]["warning"]
    assert "neighbours" not in scores["coverage"].get("warning", "") and scores["coverage"]["value"] == 1
    assert "neighbours" not in score(replay(ring), ring, ["density"], samples=400)["density"].get("warning", "")


def test_the_data_scores_well_and_noise_does_not(digits: Any, replay: Replay) -> None:
    def noise(samples: Any) -> Any:
        rng = np.random.default_rng(0)
        return dataclasses.replace(samples, x=rng.integers(0, 255, samples.x.shape, dtype=np.uint8))

    good = score(replay(digits), digits, FEATURES, samples=360)
    bad = score(replay(digits, change=noise), digits, FEATURES, samples=360)
    for name in ("fid", "ifid", "kid"):
        assert bad[name]["value"] > 5 * abs(good[name]["value"]), name
    for name in ("precision", "recall", "density", "coverage", "classifier_score"):
        assert bad[name]["value"] < 0.8 * good[name]["value"], name
    for name, entry in good.items():
        assert name == "ifid" or entry["interval"]["low"] <= entry["value"] <= entry["interval"]["high"], name
        assert name == "ifid" or entry["interval"]["how"]
        assert entry["resizing"] and entry["network"].startswith("classifier"), name


def test_no_more_samples_are_claimed_than_were_used(digits: Any, replay: Replay) -> None:
    mixture = replay(digits)
    found = score(mixture, digits, FEATURES, samples=250, per="class")
    drawn = sum(n for n, _ in mixture.calls)
    for name, entry in found.items():
        assert entry["samples"] == drawn == 250, name
        assert sum(entry["per_class_samples"].values()) <= 250 and entry["fewest"] > 1
        assert entry["fewest"] == min(entry["per_class_samples"].values())
    assert found["fid"]["real_samples"] == len(digits.x) and found["precision"]["real_samples"] == 250
    many = score(mixture, digits, ["precision"], samples=2000)["precision"]
    assert many["samples"] == many["real_samples"] == len(digits.x)  # as many samples as data, and it says so


def test_ifid_is_the_mean_of_the_classes_and_is_shy_where_it_must_be(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, ["fid", "ifid"], samples=1200, per="class")
    assert found["ifid"]["value"] == pytest.approx(np.mean(list(found["ifid"]["per_class"].values())))
    assert found["ifid"]["per_class"] == found["fid"]["per_class"] and set(found["ifid"]["per_class"]) == set(
        "0123456789"
    )
    assert found["ifid"]["value"] > found["fid"]["value"]
    # about 120 a class for 64 features: no singular covariance, but too rough a one, so KID stands beside it
    assert "comes out too high" in found["ifid"]["warning"] and "interval" in found["ifid"]
    assert abs(found["ifid"]["kid"]["value"]) < 0.02 and "warning" not in found["fid"]
    few = score(replay(digits), digits, ["ifid"], samples=400)["ifid"]  # about 40 a class for 64 features
    assert "singular" in few["warning"] and "KID" in few["warning"] and "interval" not in few
    assert f"{few['kid']['value']:.5f}" not in few["warning"]  # so that a comparison lists it once for all recipes
    assert few["kid"]["value"] == pytest.approx(np.mean(list(few["kid"]["per_class"].values())))
    none = score(replay(digits), digits, ["ifid"], samples=12)["ifid"]
    assert none["value"] is None and "fewer than two were generated of" in none["warning"]


def test_ifid_tells_too_little_data_from_too_few_samples(digits: Any, replay: Replay) -> None:
    keep = np.flatnonzero((digits.y != 7) | (np.cumsum(digits.y == 7) == 1) & (digits.y == 7))
    poor = dataclasses.replace(digits, x=digits.x[keep], y=digits.y[keep])
    found = score(replay(digits), poor, ["ifid"], samples=200, reference=RealFeatures(poor, "pixels"))["ifid"]
    assert found["value"] is None and found["warning"] == (
        "no value: the data has fewer than two of 7, so add data or leave them out"
    )


def test_fid_warns_of_few_samples_or_few_real_rows_whichever_are_fewer(digits: Any, replay: Replay) -> None:
    few = dataclasses.replace(digits, x=digits.x[:108], y=digits.y[:108])
    whole, part = RealFeatures(digits), RealFeatures(digits).real.rows(np.arange(108))
    assert whole.real.dimension == 64
    warnings = {
        (len(fake), len(real)): frechet._too_few(fake, real)
        for fake, real in ((whole.real, part), (part, whole.real), (whole.real, part.rows(np.arange(60))))
    }
    n, same = len(digits.x), "fewer than 640: compare it only at the same number"
    assert warnings == {
        (n, 108): f"it comes out too high with 108 real rows, {same}",
        (108, n): f"it comes out too high with 108 samples, {same}",
        (n, 60): "60 real rows for 64 features give a singular covariance and too high a distance: read KID next to it",
    }
    scores = score(replay(digits), few, ["fid", "ifid"], samples=1200, reference=RealFeatures(few, "pixels"))
    assert "real rows" in scores["fid"]["warning"] and "real rows" in scores["ifid"]["warning"]


def test_every_member_is_scored_against_its_own_class(digits: Any, replay: Replay) -> None:
    def swap(samples: Any) -> Any:
        x = samples.x.copy()
        x[samples.member == 3] = np.random.default_rng(0).integers(0, 255, x[samples.member == 3].shape)
        return dataclasses.replace(samples, x=x)

    skewed = dataclasses.replace(replay(digits, change=swap), weights=np.array([0.55, *[0.05] * 9]))
    found = score(skewed, digits, ["fid", "kid", "coverage"], samples=900, per="member")
    for name, entry in found.items():
        assert set(entry["per_member"]) == {str(m) for m in range(10)}
        assert (
            set(entry["per_member_samples"].values()) == {256} or name == "coverage"
        )  # equally, whatever their weights
        order = sorted(entry["per_member"], key=entry["per_member"].get, reverse=name != "coverage")
        assert order[0] == "3", name
    assert [n for n, _ in skewed.calls] == [
        900,
        *[256] * 10,
    ]  # as the mixture draws, then each member once for all scores


def test_replicas_share_the_real_features_and_have_a_spread(digits: Any, replay: Replay) -> None:
    told: list[str] = []
    mixture = dataclasses.replace(replay(digits), replicas=3)
    mixture.seeds = [0, 1, 2]  # type: ignore[attr-defined]
    reference = RealFeatures(digits, "pixels", progress=told.append)
    found = score_seeds(mixture, digits, ["fid"], samples=200, reference=reference)["fid"]
    assert len(found["per_seed"]) == 3 and found["value"] == pytest.approx(np.mean(found["per_seed"]))
    assert found["std"] > 0 and found["interval"]["how"] == "Student's t over 3 seeds"
    assert found["interval"]["high"] - found["value"] == pytest.approx(4.302653 * found["std"] / 3**0.5)
    assert sum("real samples" in line for line in told) == 1


def test_real_features_are_kept_by_content(tmp_path: Path, rgb: Any) -> None:
    told: list[str] = []
    for file in ("one.npz", "two.npz"):
        weights = {name: p.detach().numpy() for name, p in LipizzanerNet().named_parameters()}
        np.savez(tmp_path / file, **weights)
    data = dataclasses.replace(rgb, x=rgb.x[:, :1, :28, :28])

    def real(x: np.ndarray, file: str = "one.npz") -> torch.Tensor:
        told.append("looked at:")
        changed = dataclasses.replace(data, x=x)
        return RealFeatures(changed, str(tmp_path / file), progress=told.append).real.x

    first, again = real(data.x), real(data.x)
    assert torch.equal(first, again) and len(told) == 3
    assert not torch.equal(first, real(255 - data.x)) and len(told) == 5  # other data
    assert not torch.equal(first, real(data.x, "two.npz")) and len(told) == 7  # another network
    file = next(path for path in cache.cache_folder("features").glob("*.safetensors"))
    for path in file.parent.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")  # damaged: computed again
    assert torch.equal(first, real(data.x)) and len(told) == 9


def test_nan_features_name_the_member(digits: Any, replay: Replay) -> None:
    class Sick(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            x = x.float().flatten(1)
            return torch.where(x.sum(1, keepdim=True) == 0, torch.nan, x), None

    def black(samples: Any) -> Any:
        return dataclasses.replace(samples, x=samples.x * (samples.member != 6)[:, None, None, None])

    reference = RealFeatures(digits, "pixels")
    object.__setattr__(reference, "network", dataclasses.replace(reference.network, module=Sick()))
    with pytest.raises(UserError, match="NaN of a sample of member 6"):
        score(replay(digits, change=black), digits, ["fid"], samples=200, reference=reference)


def test_points_are_scored_by_their_coordinates(ring: Any, replay: Replay) -> None:
    found = score(replay(ring), ring, ["fid", "kid", "coverage"], samples=400)
    assert {entry["network"] for entry in found.values()} == {"coordinates"}
    assert found["fid"]["value"] < 0.01 and found["coverage"]["value"] > 0.8 and found["fid"]["dimension"] == 2


def test_the_same_seed_gives_the_same_numbers(digits: Any, replay: Replay) -> None:
    one, two, three = (score(replay(digits), digits, FEATURES, samples=300, seed=s) for s in (1, 1, 2))
    assert one == two
    assert all(one[name]["value"] != three[name]["value"] for name in ("fid", "ifid", "kid", "density"))


def test_few_samples_carry_a_warning(digits: Any, replay: Replay) -> None:
    found = score(replay(digits), digits, ["fid", "kid", "precision", "classifier_score"], samples=40)
    assert all(entry["warning"] for entry in found.values())
    assert "skipped" in score(replay(digits), digits, ["prdc"], samples=4)


def test_what_is_quick_is_measured_without_asking() -> None:
    train, command = known_metrics(None), known_metrics(None, "score")
    assert train == ["label_accuracy", "histogram", "diversity", "fid", "kid"] and set(train) < set(command)
    assert {"ifid", "precision", "recall", "density", "coverage"} <= set(command)


@pytest.mark.parametrize(("per", "says"), [("cell", "class, member or neighbourhood"), ("class", "labels")])
def test_per_what_is_not_there_is_one_sentence(digits: Any, replay: Replay, per: str, says: str) -> None:
    bare = dataclasses.replace(replay(digits), label_of=np.full(10, -1))
    with pytest.raises(UserError, match=says):
        score(bare, digits, ["fid"], samples=20, per=per)
