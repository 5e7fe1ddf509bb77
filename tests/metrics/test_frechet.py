"""FID is the Fréchet distance: closed form for known Gaussians, torchmetrics on the same features, an honest interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from ganherd.features.extract import ExtractedFeatures, Moments, moments
from ganherd.metrics.frechet import distance, distance_and_error, distance_of_few, interval, of_redrawn_data


class AsTheyAre(nn.Module):
    """A network for torchmetrics whose features are its inputs."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.num_features = dimension

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def correlated(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator) / math.sqrt(d)
    return torch.randn(n, d, generator=generator) @ mix + shift


def test_known_gaussians_have_the_distance_of_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    a, b = rng.uniform(0.1, 3, 6), rng.uniform(0.1, 3, 6)
    mean = rng.standard_normal(6)
    one, two = (  # covariances that commute: tr (A B)^½ is the sum of sqrt(a b)
        Moments(torch.from_numpy(m), torch.from_numpy(rotation @ np.diag(v) @ rotation.T))
        for m, v in ((np.zeros(6), a), (mean, b))
    )
    wanted = float((mean**2).sum() + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum())
    assert float(distance(one, two)) == pytest.approx(wanted, rel=1e-12)
    assert float(distance(two, one)) == pytest.approx(wanted, rel=1e-12)
    assert abs(float(distance(one, one))) < 1e-12


def test_covariances_that_do_not_commute() -> None:
    a, b = (moments(correlated(50, 4, seed)) for seed in (1, 2))
    values = np.linalg.eigvals(a.cov.numpy() @ b.cov.numpy())  # the definition, without any symmetry
    root = np.sqrt(values.real).sum()
    wanted = float((a.mean - b.mean).square().sum() + a.cov.trace() + b.cov.trace()) - 2 * root
    assert float(distance(a, b)) == pytest.approx(wanted, rel=1e-9)


def test_groups_are_computed_at_once() -> None:
    each = [(moments(correlated(40, 3, s)), moments(correlated(60, 3, s + 9))) for s in range(4)]
    a, b = (
        Moments(torch.stack([pair[i].mean for pair in each]), torch.stack([pair[i].cov for pair in each]))
        for i in (0, 1)
    )
    assert distance(a, b).tolist() == pytest.approx([float(distance(*pair)) for pair in each], rel=1e-12)


@pytest.mark.parametrize("n", [20, 500])  # fewer samples than dimensions: a singular covariance
def test_it_equals_torchmetrics_on_the_same_features(n: int) -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance

    real, fake = correlated(700, 48, 0), correlated(n, 48, 1, shift=0.3)
    theirs = FrechetInceptionDistance(feature=AsTheyAre(48), input_img_size=(48, 1, 1))
    theirs.set_dtype(torch.float64)
    theirs.update(real[:, :, None, None].double(), real=True)
    theirs.update(fake[:, :, None, None].double(), real=False)
    ours = float(distance(moments(fake), moments(real)))
    assert ours == pytest.approx(float(theirs.compute()), rel=1e-5)  # theirs takes roots of eigenvalues near 0 too
    if n <= 48:
        assert distance_of_few(fake, moments(real)) == pytest.approx(ours, rel=1e-6)
    else:
        assert distance_and_error(fake, moments(real))[0] == pytest.approx(ours, rel=1e-10)


def test_moments_do_not_depend_on_the_chunks_and_are_numpys() -> None:
    x = correlated(9000, 5, 3, shift=100.0)  # a large mean: what float32 sums would lose
    found = moments(x)
    assert found.mean.numpy() == pytest.approx(x.double().numpy().mean(0), rel=1e-12)
    assert found.cov.numpy() == pytest.approx(np.cov(x.double().numpy().T), rel=1e-9)


def test_the_error_is_that_of_repeated_samples() -> None:
    real = moments(correlated(4000, 6, 0))
    mix = torch.randn(6, 6, generator=torch.Generator().manual_seed(5)) / 2

    def draw(seed: int) -> torch.Tensor:
        return torch.randn(800, 6, generator=torch.Generator().manual_seed(seed)) @ mix + 0.2

    each = [distance_and_error(draw(seed), real) for seed in range(60)]
    spread = float(np.std([value for value, _ in each], ddof=1))
    assert float(np.mean([error for _, error in each])) == pytest.approx(spread, rel=0.25)


@pytest.mark.parametrize("samples", [40, 300, 3000])  # fewer than features, fewer and more than rows of the data
def test_redrawn_data_has_the_distance_of_two_disjoint_samples(samples: int) -> None:
    rows, d, fresh, redrawn = 600, 48, [], []
    for seed in range(8):
        both = _like(correlated(9000, d, 0), rows + samples, seed)
        fresh.append(float(distance(moments(both[rows:]), moments(both[:rows]))))
        real = ExtractedFeatures(both[:rows], None, np.zeros(rows), np.zeros(rows))
        redrawn.append(of_redrawn_data(real, samples, seed)[0])
    assert float(np.mean(redrawn)) == pytest.approx(float(np.mean(fresh)), rel=0.1)


def _like(x: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    """Return n new rows from the Gaussian that has the moments of x."""
    known = moments(x)
    rows = torch.randn(n, x.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows @ torch.linalg.cholesky(known.cov).T + known.mean


@pytest.mark.parametrize("seed", range(5))
def test_no_distance_is_negative(seed: int) -> None:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)) * 10.0 ** torch.arange(-3, 3)
    for rows in (x, x[:4]):
        own = moments(rows)
        values = (float(distance(own, own)), distance_of_few(rows, own), distance_and_error(rows, own)[0])
        assert 0 <= min(values) <= max(values) < 1e-6 * float(own.cov.trace())


def test_samples_that_are_all_alike_have_an_interval() -> None:
    """Redrawn constants are the same constants, so the distance is certain; it used to be without an interval."""
    real = moments(torch.randn(500, 8, generator=torch.Generator().manual_seed(0)))
    value, error = distance_and_error(torch.ones(100, 8), real)
    assert error == pytest.approx(0, abs=1e-9)
    ends = interval(value, error)["interval"]
    assert ends["low"] == pytest.approx(value) == ends["high"]
