"""Scores that weights strive for: under any weights they are those of the samples themselves, and the ES finds their best."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ganherd.features.extract import ExtractedFeatures, Moments, moments
from ganherd.metrics import frechet, inception_score, prdc
from ganherd.metrics import modes as known_modes
from ganherd.metrics.metric_registry import GROUPS, metric_of
from ganherd.recipe import recipe_file
from ganherd.recipe.mixture_scores import BY, known_score
from ganherd.scoring import METRICS
from ganherd.strategies.cellular.requirements import refuse_impossible
from ganherd.strategies.mixing import objectives, subset_search
from ganherd.strategies.mixing.objectives import Objective, SampledGenerator
from ganherd.strategies.mixing.scorers import CapturedScore, MixtureScorer, worst_if_broken
from ganherd.strategies.mixing.weight_evolution import evolve, uniform
from ganherd.util.errors import UserError
from promises.test_cellular import ITERATIONS, SPAN, made, settings, train
from test_docs import ROOT, blocks

N, REAL, CLASSES, FEATURES = 24, 60, 3, 2
SCORES = ("kid", "ifid", "classifier_score", "precision", "density", "coverage", "label_accuracy", "modes", "own:far")


def far(features: np.ndarray, weights: np.ndarray, real: np.ndarray) -> float:
    """How far the means are from each other, by hand."""
    mean = sum(w * x.mean(0) for w, x in zip(weights, features, strict=True))
    return float(np.abs(mean - real.mean(0)).sum())


@dataclass
class Stage:
    """As much of a reference as an aim looks at: data of three labelled clusters in the plane."""

    real: ExtractedFeatures
    dataset: Any
    each: list[SampledGenerator]

    def real_of(self, classes: tuple[int, ...]) -> ExtractedFeatures:
        return self.real.rows(np.isin(self.real.y, classes))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Three generators: each makes mostly one of the clusters, and now and then what was asked for."""
    monkeypatch.setattr(objectives, "load", lambda name, trust_code: far)
    rng = np.random.default_rng(7)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    y = np.arange(REAL) % CLASSES
    x = (centres[y] + rng.normal(size=(REAL, FEATURES))).astype(np.float32)
    nobody = np.full(REAL, -1, np.int64)
    each = []
    asked = np.arange(N) % CLASSES
    for g in range(3):
        shown = np.where(np.arange(N) % (g + 2) == 0, asked, g)
        points = (centres[shown] + rng.normal(size=(N, FEATURES)) * (0.5 + 1.5 * g)).astype(np.float32)
        logits = torch.from_numpy(-((points[:, None] - centres) ** 2).sum(2)).float()
        each.append(
            SampledGenerator(torch.from_numpy(points), torch.from_numpy(points), logits, torch.from_numpy(asked))
        )
    data = type(
        "Data", (), {"name": "clusters", "is_image": False, "kind": "points", "labels": ("a", "b", "c"), "x": x, "y": y}
    )()
    data.x_test, data.y_test, data.shape = x[:0], y[:0], (2,)
    return Stage(ExtractedFeatures(torch.from_numpy(x), None, y, nobody), data, each)


def aim_of(name: str, stage: Stage) -> Objective:
    found = objectives.find(name, stage, N, lambda features: torch.device("cpu"))  # type: ignore[arg-type]
    assert found is not None
    return found


def score_of(name: str, stage: Stage) -> MixtureScorer:
    aim = aim_of(name, stage)
    return worst_if_broken(
        aim.score(aim.measure_all(stage.each)), torch.zeros(len(stage.each), dtype=torch.bool), metric_of(name).worst
    )


# -- by hand, from the samples themselves, each with a weight -----------------------------------------------------------------


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a @ b.T / FEATURES + 1) ** 3)


def by_hand(name: str, stage: Stage, weights: np.ndarray) -> float:
    """The score of pooled samples, each of which counts as much as its generator's weight says."""
    pooled = np.concatenate([seen.features.double().numpy() for seen in stage.each])
    each, real = np.repeat(weights / N, N), stage.real.x.double().numpy()
    logits = np.concatenate([seen.logits.double().numpy() for seen in stage.each if seen.logits is not None])
    asked = np.concatenate([seen.y.numpy() for seen in stage.each if seen.y is not None])
    if name == "own:far":
        return far(np.stack([seen.features.numpy() for seen in stage.each]), weights, real)
    if name == "kid":
        same = np.eye(len(pooled), dtype=bool)
        of = np.repeat(np.arange(3), N)
        pairs = np.outer(each, each) * np.where(of[:, None] == of, N / (N - 1), 1.0)  # without a sample with itself
        among = (np.where(same, 0, pairs) * _kernel(pooled, pooled)).sum()
        within = (_kernel(real, real).sum() - np.trace(_kernel(real, real))) / (REAL * (REAL - 1))
        return float(among - 2 * (each @ _kernel(pooled, real)).mean() + within)
    if name == "classifier_score":
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        return float(np.exp((each[:, None] * p * (np.log(p) - np.log(each @ p))).sum()))
    if name == "label_accuracy":
        right = logits.argmax(1) == asked
        return float(np.mean([(each * right)[asked == k].sum() / each[asked == k].sum() for k in range(CLASSES)]))
    if name == "ifid":
        out = []
        for k in range(CLASSES):
            own, share = pooled[asked == k], each[asked == k] / each[asked == k].sum()
            cov = torch.from_numpy(np.cov(own.T, aweights=share))
            out.append(frechet.distance(Moments(torch.from_numpy(share @ own), cov), moments(stage.real_of((k,)).x)))
        return float(torch.stack(out).mean())
    some = (
        prdc.equally_many(ExtractedFeatures(torch.zeros(N, 2), None, asked[:N], asked[:N]), stage.real, 0)[1]
        .x.double()
        .numpy()
    )
    radius = np.sort(np.linalg.norm(some[:, None] - some, axis=2), 1)[:, prdc.NEIGHBOURS]
    inside = np.linalg.norm(some[:, None] - pooled, axis=2) < radius[:, None]  # [reals, fakes]
    if name == "precision":
        return float(each @ inside.any(0))
    if name == "density":
        return float(each @ inside.sum(0) / prdc.NEIGHBOURS)
    if name == "modes":
        nearest, distance = known_modes.assign(pooled, known_modes.modes_of(stage.dataset))
        inside = (nearest == np.arange(CLASSES)[:, None]) & (distance < known_modes.WITHIN)
    found = 0.0
    for place in inside.reshape(len(inside), 3, N).sum(2):  # [G] samples of each generator in it
        missed = [max(0.0, (N * (1 - w) - i) / (N - i)) for w, c in zip(weights, place, strict=True) for i in range(c)]
        found += 1 - float(np.prod(missed))
    return found if name == "modes" else found / len(inside)


@pytest.mark.parametrize("name", SCORES)
def test_any_weights_have_the_score_of_the_weighted_samples(stage: Stage, name: str) -> None:
    rng, score = np.random.default_rng(0), score_of(name, stage)
    tried = np.concatenate([np.eye(3), rng.dirichlet(np.ones(3), 5)])
    scores = score(torch.from_numpy(tried), torch.arange(3).repeat(len(tried), 1))
    assert scores.tolist() == pytest.approx([by_hand(name, stage, w) for w in tried], rel=1e-5, abs=1e-9)
    assert float(scores.max() - scores.min()) > 0.01


def test_one_generator_alone_has_the_score_that_is_measured_of_its_samples(stage: Stage) -> None:
    """By the functions of `ganherd score`."""
    _, real = prdc.equally_many(
        ExtractedFeatures(torch.zeros(N, 2), None, stage.real.y[:N], stage.real.y[:N]), stage.real, 0
    )
    modes = known_modes.modes_of(stage.dataset)
    for g, seen in enumerate(stage.each):
        assert seen.logits is not None
        wanted = {
            key: float(each.mean()) for key, each in prdc.prdc(real.x, seen.features).each.items() if key != "recall"
        }
        wanted["classifier_score"] = inception_score.inception_score(seen.logits, splits=1)[0]
        wanted["modes"] = float(known_modes.coverage(seen.x.numpy(), modes).captured)
        for name, value in wanted.items():
            alone = score_of(name, stage)(torch.ones(1, 1).double(), torch.tensor([[g]]))
            assert float(alone) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", ["precision", "density", "coverage"])
def test_scores_of_balls_are_those_that_are_measured_of_discrete_data_too(name: str) -> None:
    """Points at the edge of a ball count as `ganherd score` counts them, also if their coordinates are large."""
    rng = torch.Generator().manual_seed(0)
    real, fake = (torch.randint(0, 7, (60, 2), generator=rng) * 0.1 + 1000.0 for _ in range(2))
    none = np.full(60, -1, np.int64)
    aim = objectives._of_balls(name, ExtractedFeatures(real, None, none, none), 60, lambda features: real.device)
    score = aim.score(aim.measure_all([SampledGenerator(fake, fake, None, None)]))
    alone = float(score(torch.ones(1, 1).double(), torch.tensor([[0]])))
    assert alone == pytest.approx(prdc.prdc(real, fake).value(name), rel=1e-6) and alone > 0


def test_the_captured_score_is_the_mean_over_all_draws() -> None:
    """Two of four samples of each of two generators: every choice, by hand."""
    shows = [[0, 0, 1, -1], [1, 2, 2, 2]]  # the place that each sample lies in, if any
    hits = torch.tensor([[sum(s == place for s in own) for place in range(4)] for own in shows])
    choices = [list(itertools.combinations(own, 2)) for own in shows]
    counts = [len({*a, *b} - {-1}) for a in choices[0] for b in choices[1]]
    found = CapturedScore(hits, 4)(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 1]]))
    assert float(found) == pytest.approx(np.mean(counts))
    share = CapturedScore(hits, 4, share=True)(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0, 1]]))
    assert float(share) == pytest.approx(np.mean(counts) / 4)


# -- searches -----------------------------------------------------------------------------------------------------------


def simplex(steps: int = 20) -> np.ndarray:
    """All weights of three generators in twentieths."""
    each = [(a, b, steps - a - b) for a in range(steps + 1) for b in range(steps + 1 - a)]
    return np.array(each) / steps


def draws(seed: int, width: int) -> Callable[[int], Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return lambda generation: torch.randn(1, width, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("name", SCORES)
def test_the_es_comes_to_the_best_of_all_weights(stage: Stage, name: str) -> None:
    """Its result is no worse than the best of 231 mixtures that were scored by hand."""
    cost, table, score = metric_of(name).cost, torch.arange(3)[None], score_of(name, stage)
    tried = [cost(by_hand(name, stage, weights)) for weights in simplex()]
    best, worst = min(tried), max(tried)
    evolved = evolve(uniform(table), table, score, 0.2, 400, draws(0, 3), cost)
    assert cost(by_hand(name, stage, evolved.weights[0].numpy())) <= best + 0.02 * (worst - best)
    assert (cost(evolved.history).diff(dim=0) <= 0).all()
    assert float(evolved.scores) == pytest.approx(by_hand(name, stage, evolved.weights[0].numpy()), rel=1e-5, abs=1e-9)
    minimised = lambda weights, table: cost(score(weights, table))  # noqa: E731
    whole = subset_search.evolutionary(minimised, 3, 3, 1, generations=30)
    assert cost(by_hand(name, stage, whole.weights.numpy())) <= best + 0.05 * (worst - best)
    alone = minimised(torch.ones(3, 1).double(), torch.arange(3)[:, None])
    assert subset_search.greedy(minimised, 3, 3).score <= float(alone.min())


def test_a_search_by_density_stops_at_1(stage: Stage) -> None:
    """Two generators of density below and above 1: mixed in the right shares, they have the density of the data."""
    value = {"value": torch.tensor([0.4, 1.9])}
    score, table = aim_of("density", stage).score(value), torch.arange(2)[None]
    evolved = evolve(uniform(table), table, score, 0.1, 300, draws(0, 2), metric_of("density").cost)
    assert float(evolved.scores) == pytest.approx(1.0, abs=0.01) and evolved.weights[0].tolist() == pytest.approx(
        [0.6, 0.4], abs=0.01
    )
    assert float(evolved.history[0]) == pytest.approx(1.15)  # the history holds densities, not distances from 1


@pytest.mark.parametrize("name", SCORES)
def test_mixtures_with_a_broken_generator_score_infinite(stage: Stage, name: str) -> None:
    aim, sick = aim_of(name, stage), stage.each[1]
    nothing = torch.full_like(sick.features, torch.nan)
    each = [stage.each[0], SampledGenerator(nothing, nothing, sick.logits, sick.y), stage.each[2]]
    stacked = aim.measure_all(each)
    metric = metric_of(name)
    score = worst_if_broken(aim.score(stacked), torch.tensor([False, True, False]), metric.worst)
    weights, table = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]).double(), torch.tensor([[0, 1], [0, 2], [1, 0]])
    found, clean = score(weights, table), score_of(name, stage)(weights, table)
    assert metric.cost(found[0]) == torch.inf and found[1:].tolist() == pytest.approx(clean[1:].tolist(), rel=1e-9)


# -- in a grid ---------------------------------------------------------------------------------------------------------------


OWN = "def low(features, weights, real):\n    return float((weights @ features.mean((1, 2)) - real.mean()) ** 2)\n"


@pytest.mark.parametrize("score", ["coverage", "density", "my_low:low"])
@pytest.mark.parametrize("when", ["iteration", "end"])
def test_a_grid_evolves_by_any_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: str, when: str) -> None:
    (tmp_path / "my_low.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    load = objectives.load
    monkeypatch.setattr(objectives, "load", lambda name, trust_code: load(name, True))
    mixing = {"samples": 30, "generations": 20, "sigma": 0.1, "score": score, "when": when}
    _, strategy, events = train(settings(tmp_path, grid=[2, 2], mixing=mixing))
    cost = metric_of(score).cost
    for facts in (facts for name, facts in events if name == "mixture"):
        assert facts["score"] == score
        assert all(cost(a) <= cost(b) for b, a in zip(facts["before"], facts["after"], strict=True))
    ended = strategy.neighbourhoods(SPAN * ITERATIONS)
    values = [ended.judged(one) for one in ended.all]
    assert ended.by == score and all(value is not None for value in values)
    assert all(one.fid is not None and one.kid is None for one in ended.all)
    best = sorted(ended.all, key=lambda one: (cost(one.value or 0.0), one.fid))[0]
    assert ended.best == [best.cell]
    if score == "coverage":
        assert all(0 <= value <= 1 for value in values if value is not None)


@pytest.mark.parametrize("score", ["coverage", "density"])
def test_the_best_iteration_has_the_score_of_least_cost(tmp_path: Path, score: str) -> None:
    mixing = {"samples": 30, "sigma": 0.1, "score": score, "keep": "best"}
    assembly, strategy, engine = made(settings(tmp_path, grid=[2, 2], mixing=mixing))
    told = []
    for step in range(0, SPAN * 5, SPAN):
        list(strategy.open(step))
        engine.advance(step, step + SPAN, assembly.herd.zero_sums())
        told.append(min(map(metric_of(score).cost, dict(strategy.close(step + SPAN))["mixture"]["after"])))
    assert strategy.neighbourhoods(SPAN * 5).iteration == [int(np.argmin(told))]


def test_without_a_finite_score_the_newest_iteration_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "load", lambda name, trust_code: lambda *_: float("nan"))
    mixing = {"samples": 20, "score": "my:never", "keep": "best"}
    _, strategy, _ = train(settings(tmp_path, grid=[2, 2], mixing=mixing))
    ended = strategy.neighbourhoods(SPAN * ITERATIONS)
    assert ended.iteration == [ITERATIONS - 1] and all(one.value is None for one in ended.all)


def test_the_documented_score_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that people are told to write: nothing between a set and itself, and less the nearer a mixture is."""
    (block,) = [block for block in blocks(ROOT / "docs" / "how-to" / "cellular.md", "python") if "def sliced" in block]
    (tmp_path / "scores_of_the_documents.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    sliced = objectives.load("scores_of_the_documents:sliced", trust_code=True)
    rng = np.random.default_rng(0)
    real = rng.normal(size=(200, 3)).astype(np.float32)
    near, shifted = real[None], np.stack([real, real + 4])
    assert sliced(near, np.ones(1), real) == pytest.approx(0, abs=1e-6)
    assert sliced(shifted, np.array([0.9, 0.1]), real) < sliced(shifted, np.array([0.5, 0.5]), real)


# -- what is refused ---------------------------------------------------------------------------------------------------------------


def test_every_score_is_either_one_to_weigh_by_or_refused_with_a_reason() -> None:
    for name in (*METRICS, *GROUPS):
        try:
            assert known_score(name) in BY
        except ValueError as why:
            assert f"{name} is no score to weigh generators by, as" in str(why) and ", ".join(BY) in str(why)
    assert {known_score(name) for name in BY} == set(BY)


@pytest.mark.parametrize(
    ("mixing", "sentence"),
    [
        ({"score": "recall"}, "recall is no score to weigh generators by, as its radii depend .* choose fid, tvd, kid"),
        ({"score": "covrage"}, "did you mean 'coverage"),
        ({"score": "modes"}, "score modes: mode coverage needs 2-D points"),
        ({"score": "ifid"}, "score ifid needs generators that take a label"),
        ({"score": "stacked_modes"}, "stacked digits, images of three channels"),
        (
            {"score": "classifier_score"},
            "score classifier_score needs a network that predicts classes, and pixels does not",
        ),
        ({"score": "coverage", "samples": 5}, "score coverage needs more than 5 samples"),
        ({"score": "odd_score:one"}, r"odd_score:one takes \(x\): write a function of \(features, weights, real\)"),
        ({"score": "odd_score:two"}, "odd_score:two is not a function"),
        ({"score": "odd_score:three"}, "could not be imported"),
    ],
)
def test_impossible_scores_are_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixing: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "odd_score.py").write_text("def one(x):\n    return 0\n\n\ntwo = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=sentence):
        recipe = recipe_file.load(settings(tmp_path, grid=[2, 2], mixing=mixing))
        from ganherd.data.dataset import load

        refuse_impossible(recipe.strategy.cellular, load(recipe.data), trust_code=True)


def test_a_function_that_fails_is_named_and_code_must_be_trusted(stage: Stage) -> None:
    from ganherd.strategies.mixing.scorers import OwnScore

    def wrong(features: np.ndarray, weights: np.ndarray, real: np.ndarray) -> float:
        features += 1  # what belongs to all
        return 0.0

    score = OwnScore("my:wrong", wrong, torch.zeros(2, 3, 1), torch.zeros(4, 1))
    fine = OwnScore("my:nan", lambda *_: float("nan"), torch.zeros(2, 3, 1), torch.zeros(4, 1))
    table = torch.tensor([[0, 1]])
    assert float(fine(uniform(table), table)) == float("inf")
    with pytest.raises(UserError, match="the score my:far is code that is not ganherd's: give --trust-code"):
        from ganherd import nets

        nets.load_own("my:far", "score", False)
    with pytest.raises(UserError, match="the score my:wrong failed: ValueError"):
        score(uniform(table), table)
