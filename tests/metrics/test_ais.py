"""AIS finds the log-likelihood that can be known otherwise, lies on the side it should, and checks itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ganherd import nets
from ganherd.herd.state import build_seeded
from ganherd.metrics.ais import ais
from ganherd.metrics.ais.ais import AisSettings, bdmc, decoder_of, dequantised, kde, log_likelihood, schedule
from ganherd.metrics.ais.hmc import Chains, Hmc, Likelihood, points_at_once
from ganherd.mixture.generators import Generators
from ganherd.mixture.mixture import Mixture
from ganherd.recipe.schema import NetConfig
from ganherd.util.errors import UserError


class Linear:
    """G(z) = W z, whose p(x) = N(0, W Wᵀ + σ² I) is known."""

    def __init__(self, d: int, k: int, variance: float, seed: int = 0, size: float = 0.1) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.weight = size * torch.randn(d, k, generator=noise, dtype=torch.float64)
        self.variance, self.latent = variance, k
        self._turned = self.weight.T.contiguous()
        self._float = self._turned.float()

    def __call__(self, u: Tensor) -> Tensor:
        return u @ (self._turned if u.dtype == torch.float64 else self._float)

    def exact(self, x: np.ndarray) -> np.ndarray:
        cov = self.weight @ self.weight.T + self.variance * torch.eye(len(self.weight), dtype=torch.float64)
        known = torch.distributions.MultivariateNormal(torch.zeros(len(cov), dtype=torch.float64), cov)
        return known.log_prob(torch.from_numpy(x).double()).numpy()


def _check_bounds(decoder: Linear, found: ais.Bounds) -> tuple[float, float]:
    """forward ≤ exact ≤ reverse within two standard errors; the mean errors."""
    exact = decoder.exact(found.x)
    low, high = found.lower - exact, found.upper - exact
    assert low.mean() <= 2 * ais.standard_error(low)
    assert high.mean() >= -2 * ais.standard_error(high)
    return float(low.mean()), float(high.mean())


@pytest.mark.further
def test_the_papers_decoder_at_a_thousand_temperatures() -> None:
    """k = 10, σ² = .025, d = 784: over seeds the mean of 16 points is off by -2 to -3.2 nats with a standard error of
    about 0.6 (T = 5,000: -0.2), so -5 leaves three standard errors, and a wrong weight or step is off by far more."""
    decoder = Linear(784, 10, 0.025)
    gaps = []
    for temperatures, most in ((250, 20.0), (1000, 5.0)):
        found = bdmc(decoder, 10, 0.025, 16, AisSettings(temperatures=temperatures))
        low, high = _check_bounds(decoder, found)
        assert -most < low < 0.5 and -0.5 < high < most
        assert found.gap == pytest.approx(high - low)
        gaps.append(found.gap)
    assert gaps[1] < 0.6 * gaps[0]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_the_papers_decoder_at_five_thousand_temperatures(seed: int) -> None:
    decoder = Linear(784, 10, 0.025, seed=100 + seed)
    found = bdmc(decoder, 10, 0.025, 16, AisSettings(temperatures=5000, seed=seed))
    low, _ = _check_bounds(decoder, found)
    assert abs(low) < 0.5 and found.gap < 2


@pytest.mark.further
def test_a_small_decoder_is_exact_in_both_precisions() -> None:
    decoder = Linear(6, 2, 0.5, size=1.0)
    x = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for points in (x, x.float()):
        found = log_likelihood(decoder, points, 2, 0.5, AisSettings(temperatures=300, chains=64))
        assert np.abs(found.log_p - decoder.exact(x.numpy())).max() < 0.15
        share = np.exp(found.log_weights - found.log_weights.max(1, keepdims=True))
        effective_chains = share.sum(1) ** 2 / (share**2).sum(1)  # of each point; near 1, one chain dominates
        assert (effective_chains > 32).all() and (effective_chains <= 64).all()
        assert found.mean == pytest.approx(found.log_p.mean()) and found.error > 0
        assert 0.4 < found.acceptance <= 1


def test_a_uniform_prior_by_quadrature() -> None:
    """z uniform in [-1, 1], x = 2 z + noise: p(x) is a difference of two normal distribution functions."""
    sigma = 0.3
    x = torch.tensor([[0.0], [1.5], [2.2], [-1.0]], dtype=torch.float64)
    found = log_likelihood(
        ais.with_uniform_prior(lambda z: 2 * z), x, 1, sigma**2, AisSettings(temperatures=200, chains=256)
    )

    def phi(t: float) -> float:
        return 0.5 * (1 + math.erf(t / math.sqrt(2)))

    exact = [math.log((phi((2 - v) / sigma) - phi((-2 - v) / sigma)) / 4) for v in x[:, 0].tolist()]
    assert np.abs(found.log_p - exact).max() < 0.1


def test_kde_is_annealing_without_steps_and_too_low_where_the_posterior_is_narrow() -> None:
    wide = Linear(3, 2, 1.0, size=0.5)
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert np.abs(kde(wide, x, 2, 1.0, 50_000) - wide.exact(x.numpy())).max() < 0.05
    u = torch.randn(500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    by_hand = torch.distributions.Normal(wide(u), 1.0).log_prob(x[:, None]).sum(-1).logsumexp(1) - math.log(500)
    assert kde(wide, x, 2, 1.0, 500, seed=4) == pytest.approx(by_hand.numpy(), abs=1e-9)
    narrow = Linear(100, 10, 0.01, size=0.3)
    point = narrow(torch.ones(1, 10, dtype=torch.float64))
    assert kde(narrow, point, 10, 0.01, 2000)[0] < narrow.exact(point.numpy())[0] - 30


def test_the_seed_decides_and_global_state_is_left_alone() -> None:
    decoder, x = Linear(6, 2, 0.5), torch.zeros(3, 6)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    flags = torch.backends.cudnn.allow_tf32
    settings = AisSettings(temperatures=20, chains=4)
    first, again = (log_likelihood(decoder, x, 2, 0.5, settings).log_weights for _ in range(2))
    other = log_likelihood(decoder, x, 2, 0.5, replace(settings, seed=1)).log_weights
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert torch.equal(before, torch.get_rng_state()) and torch.backends.cudnn.allow_tf32 == flags


def test_memory_decides_nothing_but_the_size_of_a_call() -> None:
    decoder = Linear(50, 4, 0.1)
    sizes: list[int] = []

    def watched(u: Tensor) -> Tensor:
        sizes.append(len(u))
        return decoder(u)

    x = torch.randn(9, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    settings = AisSettings(temperatures=30, chains=5)
    whole = log_likelihood(watched, x, 4, 0.1, settings)
    assert max(sizes) == 45
    sizes.clear()
    parts = log_likelihood(watched, x, 4, 0.1, replace(settings, budget=40_000))
    assert 5 <= max(sizes) <= 20 and set(sizes) > {5}
    assert parts.log_weights == pytest.approx(whole.log_weights, abs=1e-6)


def test_what_a_row_needs_is_seen_and_weights_are_not_counted() -> None:
    net = nn.Sequential(nn.Linear(4, 1000), nn.Tanh(), nn.Linear(1000, 10)).requires_grad_(False)
    u = torch.zeros(7, 2, 4)
    small, large = (points_at_once(net, u, budget) for budget in (1 << 20, 1 << 21))
    assert 30 <= small <= 140 and large == pytest.approx(2 * small, abs=1)


def test_gradient_and_likelihood_are_those_of_the_normal_density() -> None:
    decoder = Linear(5, 3, 0.2, size=1.0)
    x = torch.randn(2, 5, dtype=torch.float64)
    u = torch.randn(2, 4, 3, dtype=torch.float64)
    log_p, slope = Likelihood(decoder, x, 0.2, 1 << 30)(u)
    wanted = u.clone().requires_grad_()
    density = torch.distributions.Normal(decoder(wanted), math.sqrt(0.2)).log_prob(x[:, None]).sum(-1)
    (gradient,) = torch.autograd.grad(density.sum(), wanted)
    assert torch.allclose(log_p, density.detach()) and torch.allclose(slope, gradient)


@pytest.mark.further
def test_moves_keep_the_posterior_and_the_step_finds_its_acceptance() -> None:
    """Chains at β = 1 of a linear decoder: their mean and covariance become those of the known posterior."""
    decoder = Linear(4, 2, 0.3, size=1.0)
    x = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = torch.Generator().manual_seed(0)
    start = torch.randn(1, 2000, 2, dtype=torch.float64, generator=noise)
    chains = Chains(Likelihood(decoder, x, 0.3, 1 << 30), start, Hmc(), noise, graph=False)
    for _ in range(400):
        chains.move(torch.tensor(1.0))
    precision = torch.eye(2, dtype=torch.float64) + decoder.weight.T @ decoder.weight / 0.3
    mean = torch.linalg.solve(precision, decoder.weight.T @ x[0] / 0.3)
    assert torch.allclose(chains.u[0].mean(0), mean, atol=0.05)
    assert torch.allclose(torch.cov(chains.u[0].T), precision.inverse(), atol=0.03)
    assert float(chains.accepted) == pytest.approx(0.65, abs=0.1) or float(chains.step) == pytest.approx(0.5)
    log_p, slope = chains.likelihood(chains.u)
    assert torch.allclose(log_p, chains.log_p) and torch.allclose(slope, chains.slope)


def test_a_proposal_that_blows_up_is_rejected() -> None:
    def cliff(u: Tensor) -> Tensor:
        return torch.where(u.abs() > 1.5, torch.full_like(u, math.nan), u)

    noise = torch.Generator().manual_seed(0)
    likelihood = Likelihood(cliff, torch.zeros(1, 1), 1.0, 1 << 30)
    chains = Chains(likelihood, torch.zeros(1, 50, 1), Hmc(step=0.3), noise, graph=False)
    for _ in range(30):
        chains.move(torch.tensor(1.0))
    assert chains.u.abs().max() <= 1.5 and torch.isfinite(chains.log_p).all() and chains.u.std() > 0.1


def test_the_schedule_is_the_sigmoid_of_the_paper() -> None:
    betas = schedule(100)
    assert betas[0] == 0 and betas[-1] == 1 and (betas.diff() > 0).all()
    raw = [1 / (1 + math.exp(-4 * (2 * t / 100 - 1))) for t in (0, 30, 100)]
    assert float(betas[30]) == pytest.approx((raw[1] - raw[0]) / (raw[2] - raw[0]))
    assert torch.allclose(betas + betas.flip(0), torch.ones(101, dtype=torch.float64))


@pytest.mark.parametrize(
    ("decoder", "variance", "says"),
    [
        (lambda u: u, 0.0, "variance"),
        (lambda u: u[:, :2], 1.0, "makes 2 numbers and a point has 3"),
        (lambda u: u + torch.rand(()), 1.0, "evaluation mode"),
        (lambda u: u - u.mean(0), 1.0, "evaluation mode"),
        (lambda u: u / 0 * 0, 1.0, "evaluation mode|not finite"),
    ],
)
def test_what_would_mean_nothing_is_refused(decoder: ais.Decoder, variance: float, says: str) -> None:
    with pytest.raises(UserError, match=says):
        log_likelihood(decoder, torch.zeros(2, 3), 3, variance, AisSettings(temperatures=2))


def test_progress_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    clock = itertools.count(0.0, 0.1)  # two readings for each temperature, so 0.2 s each
    monkeypatch.setattr(ais, "_QUIET", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    bdmc(Linear(4, 2, 0.5), 2, 0.5, 2, AisSettings(temperatures=100, chains=2), progress=told.append)
    assert "annealing up, temperature 50 of 100, 10 s left" in told and told[-1].startswith(
        "annealing down, temperature 100"
    )
    assert len(told) == 200
    monkeypatch.setattr(ais, "_QUIET", 60.0)
    bdmc(Linear(4, 2, 0.5), 2, 0.5, 2, AisSettings(temperatures=100, chains=2), progress=told.append)
    assert len(told) == 200  # what takes a moment says nothing


def _mixture(prior: str, batch_norm: bool = False) -> Mixture:
    net = NetConfig(name="small", settings={"width": 8, "batch_norm": batch_norm})
    made = [build_seeded(lambda: nets.build_generator(net, (1, 8, 8), 3), seed) for seed in range(2)]
    for module in made:
        module(torch.randn(64, 3, generator=torch.Generator().manual_seed(7)))  # batch norm has seen something
    params = {n: torch.stack([m.get_parameter(n).detach() for m in made]) for n, _ in made[0].named_parameters()}
    buffers = {n: torch.stack([m.get_buffer(n) for m in made]) for n, _ in made[0].named_buffers()}
    return Mixture(
        labels=(),
        shape=(1, 8, 8),
        offset=127.5,
        scale=127.5,
        latent=3,
        prior=prior,
        label_of=np.full(2, -1),
        weights=np.array([0.25, 0.75]),
        label_weights=np.zeros(0),
        seeds=[0],
        step=1,
        breeds=(Generators(net, 2, made[0].eval(), params, buffers),),
    )


@pytest.mark.parametrize("prior", ["normal", "uniform"])
def test_a_members_generator_is_its_decoder_in_unit_pixels(prior: str) -> None:
    """The decoder at the prior's own noise makes the very images that the mixture draws."""
    mixture = _mixture(prior, batch_norm=True)
    decode = decoder_of(mixture, 1)
    u = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    x = decode(u)
    assert x.shape == (500, 1, 8, 8) and x.min() >= 0 and x.max() <= 1
    assert torch.allclose(decode(u[:1]), x[:1], atol=1e-6)  # batch norm does not look at the batch
    drawn = replace(mixture, weights=np.array([0.0, 1.0])).sample(500).x / 255
    assert np.abs(x.numpy().mean(0) - drawn.mean(0)).max() < 0.12
    with pytest.raises(UserError, match="no member 2"):
        decoder_of(mixture, 2)


@pytest.fixture
def log_ps(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What AIS finds for each member in turn, [P] each; not for the simulated images of the gap."""
    from ganherd.metrics.ais.ais_mixture import SIMULATED

    seen: list[np.ndarray] = []
    plain = ais.log_likelihood

    def noted(*words: Any) -> Any:
        found = plain(*words)
        if len(found.log_p) != SIMULATED:
            seen.append(found.log_p)
        return found

    monkeypatch.setattr(ais, "log_likelihood", noted)
    return seen


def mixed(log_ps: list[np.ndarray], weights: Sequence[float]) -> float:
    """Return the mean over images of log Σ w p(x | member)."""
    return float(np.log(np.tensordot(weights, np.exp(np.stack(log_ps)), 1)).mean())


@pytest.mark.further
def test_the_score_of_a_mixture(digits: object, log_ps: list[np.ndarray]) -> None:
    from ganherd.features.material import Annealing, ScoringContext
    from ganherd.metrics.ais.ais_mixture import measure

    mixture = _mixture("uniform")
    asked = Annealing(points=3, variance=0.05, temperatures=60, chains=4)
    found = measure(ScoringContext(mixture, digits, 10, annealing=asked))  # type: ignore[arg-type]
    assert found["value"] == pytest.approx(mixed(log_ps, mixture.weights), rel=1e-9)
    assert found["per_member"] == {str(m): pytest.approx(log_p.mean()) for m, log_p in enumerate(log_ps)}
    assert found["samples"] == 3 and found["kde"] < found["value"] + 1 and found["gap"] > -1
    assert "σ² 0.05" in found["network"] and "60 temperatures, 4 chains" in found["network"]
    assert (found["variance"], found["temperatures"], found["chains"]) == (0.05, 60, 4)


@pytest.mark.further
def test_the_score_of_classes_and_neighbourhoods(digits: Any, log_ps: list[np.ndarray]) -> None:
    from ganherd.features.material import Annealing, ScoredNeighbourhood, ScoringContext
    from ganherd.metrics.ais.ais_mixture import measure

    few: Any = {"annealing": Annealing(points=4, temperatures=30, chains=2)}
    cells = [ScoredNeighbourhood([0]), ScoredNeighbourhood([0, 1], [1.0, 3.0])]
    found = measure(ScoringContext(_mixture("normal"), digits, 10, per="neighbourhood", neighbourhoods=cells, **few))
    assert found["per_neighbourhood"]["0"] == pytest.approx(found["per_member"]["0"])
    assert found["per_neighbourhood"]["1"] == pytest.approx(mixed(log_ps, [0.25, 0.75]), rel=1e-9)
    assert found["per_neighbourhood_samples"] == {"0": 4, "1": 4} and "4 images are few" in found["warning"]
    by_class = measure(ScoringContext(_mixture("normal"), digits, 10, per="class", **few))
    counts = by_class["per_class_samples"]
    mean = sum(by_class["per_class"][name] * n for name, n in counts.items()) / 4
    assert sum(counts.values()) == 4 and mean == pytest.approx(by_class["value"]) == pytest.approx(found["value"])


def test_a_mixtures_log_p_is_the_log_of_the_weighted_mean() -> None:
    each = np.array([[-3.0, -900.0], [-1.0, -901.0]])
    found = ais.mixture_log_p(each, np.array([1.0, 3.0]))
    assert found[0] == pytest.approx(math.log(0.25 * math.exp(-3) + 0.75 * math.exp(-1)))
    assert found[1] == pytest.approx(-900 + math.log(0.25 + 0.75 * math.exp(-1)))


def test_pixels_are_spread_within_their_own_step() -> None:
    x = np.arange(256, dtype=np.uint8).repeat(100)
    made = dequantised(x)
    assert (np.abs(made * 256 - x - 0.5) <= 0.5 + 1e-4).all() and made.dtype == np.float32
    assert abs((made * 256 - x).mean() - 0.5) < 0.02


@pytest.mark.gpu
def test_a_cuda_graph_changes_nothing() -> None:
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 20)).cuda().requires_grad_(False)
    x = torch.zeros(5, 20, device="cuda")
    with_graph, without = (
        log_likelihood(net, x, 4, 0.1, AisSettings(temperatures=100, graph=g)) for g in (True, False)
    )
    assert with_graph.log_p == pytest.approx(without.log_p, abs=1e-2)
