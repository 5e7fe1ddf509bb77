"""Log-likelihood of a decoder p(x | z) = N(G(z), σ² I) by annealed importance sampling, with bounds that check it.

The path is p(z) p(x | z)^β with β on a sigmoid schedule from 0 to 1, as in Wu et al. (2017). In expectation the
estimate lies below the true value; `bdmc` finds how far, on points that are simulated from the decoder itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ganherd.data.units import like
from ganherd.features.extract import tf32
from ganherd.herd.evaluation import member_module
from ganherd.herd.state import takes_label
from ganherd.metrics.ais.hmc import Chains, Decoder, Hmc, Likelihood
from ganherd.util.errors import UserError
from ganherd.util.meter import Detail

if TYPE_CHECKING:
    from ganherd.mixture.mixture import Mixture

Progress = Callable[[str], None]
_QUIET = 3.0  # seconds between two lines of progress
_BLOCK = 4096  # samples of a kernel density estimate at once


@dataclass(frozen=True)
class AisSettings:
    """Settings of an estimate, which depends on all of them."""

    temperatures: int = 1000  # steps from the prior to the posterior; 10,000 in the paper
    chains: int = 16  # for each point
    seed: int = 0
    hmc: Hmc = field(default_factory=Hmc)
    budget: int | None = None  # bytes for one call of the decoder; default 512 MiB, 4 GiB on a GPU
    graph: bool = True  # on a GPU, hold a move in a CUDA graph


@dataclass(frozen=True)
class Estimate:
    """Estimates of log p(x) for every point, in nats, with the importance weights behind them."""

    log_p: np.ndarray  # float64 [P]
    log_weights: np.ndarray  # float64 [P, C]
    acceptance: float  # of the last moves, by a running mean

    @property
    def mean(self) -> float:
        """Return the mean of log p(x) over the points."""
        return float(self.log_p.mean())

    @property
    def error(self) -> float:
        """Return the standard error over the points."""
        return standard_error(self.log_p)


@dataclass(frozen=True)
class Bounds:
    """Bounds on log p(x) of points that were simulated from the decoder."""

    lower: np.ndarray  # float64 [P]
    upper: np.ndarray  # float64 [P]
    x: np.ndarray  # [P, d] the simulated points

    @property
    def gap(self) -> float:
        """Return the mean difference of the bounds in nats: on average no estimate at these settings is off by more."""
        return float((self.upper - self.lower).mean())

    @property
    def error(self) -> float:
        """Return the standard error over the points."""
        return standard_error(self.upper - self.lower)


def schedule(temperatures: int) -> Tensor:
    """Return the inverse temperatures β_0 = 0 … β_T = 1, float64 [T + 1], slow at both ends.

    >>> schedule(4).tolist()[::2]
    [0.0, 0.5, 1.0]
    """
    if temperatures < 1:
        raise UserError(f"annealing needs at least one temperature, not {temperatures}.")
    t = torch.arange(temperatures + 1, dtype=torch.float64) / temperatures
    raw = torch.sigmoid(4 * (2 * t - 1))
    return (raw - raw[0]) / (raw[-1] - raw[0])


def log_likelihood(
    decoder: Decoder,
    x: Tensor,
    latent: int,
    variance: float,
    settings: AisSettings = AisSettings(),
    progress: Progress | None = None,
) -> Estimate:
    """Return log p(x) of every row of x [P, …], computed on its device and in its precision.

    Args:
        decoder: Maps standard normal noise [n, latent] to means; see `with_uniform_prior` for other noise.
        x: The points.
        latent: The length of the noise.
        variance: The variance of the decoder.
        settings: The settings of the annealing, with the seed.
        progress: Receives lines about the progress.

    >>> points = torch.zeros(2, 3, dtype=torch.float64)
    >>> result = log_likelihood(lambda u: 0 * u.repeat(1, 3), points, 1, 1.0, AisSettings(temperatures=3, chains=2))
    >>> result.log_p.round(3).tolist()  # a decoder that ignores its noise: N(0, 1) in three dimensions
    [-2.757, -2.757]
    """
    x = _rows(decoder, x, latent, variance)
    generator = torch.Generator(x.device).manual_seed(settings.seed)
    start = torch.randn(len(x), settings.chains, latent, generator=generator, dtype=x.dtype, device=x.device)
    with tf32(False):  # An energy of thousands of nats cannot be compared in the ten bits of TF32.
        weights, chains = _anneal(decoder, x, start, variance, settings, generator, False, progress)
    log_p = torch.logsumexp(weights, 1) - math.log(settings.chains)
    return Estimate(log_p.cpu().numpy(), weights.cpu().numpy(), float(chains.accepted))


def bdmc(
    decoder: Decoder,
    latent: int,
    variance: float,
    points: int = 100,
    settings: AisSettings = AisSettings(),
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Bounds:
    """Return lower and upper bounds on log p(x) of points that are simulated from the decoder (bidirectional Monte Carlo).

    The lower bounds come from all chains, annealed from the prior. The upper bounds come from one chain per point, annealed
    backwards from the noise that generated the point.
    """
    generator = torch.Generator(device).manual_seed(settings.seed + 1)  # not the noise that the chains start from
    u = torch.randn(points, 1, latent, generator=generator, dtype=dtype, device=device)
    with torch.no_grad():
        mean = decoder(u[:, 0]).flatten(1)  # [P, d]
    x = mean + math.sqrt(variance) * torch.randn(mean.shape, generator=generator, dtype=dtype, device=device)
    forward = log_likelihood(decoder, x, latent, variance, settings, progress)
    with tf32(False):
        weights, _ = _anneal(decoder, x, u, variance, settings, generator, True, progress)
    return Bounds(forward.log_p, -weights[:, 0].cpu().numpy(), x.cpu().numpy())


def kde(decoder: Decoder, x: Tensor, latent: int, variance: float, samples: int = 100_000, seed: int = 0) -> np.ndarray:
    """Return log p(x) of every point by a kernel density estimate, float64 [P]: the mean of N(x; G(z_k), σ² I) over samples z_k.

    It is far too low if the posterior is narrow.
    """
    x = _rows(decoder, x, latent, variance)
    generator = torch.Generator(x.device).manual_seed(seed)
    total = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    with torch.no_grad():
        for first in range(0, samples, _BLOCK):
            u = torch.randn(min(_BLOCK, samples - first), latent, generator=generator, dtype=x.dtype, device=x.device)
            off = torch.cdist(x, decoder(u).flatten(1), compute_mode="donot_use_mm_for_euclid_dist")  # [P, samples]
            part = torch.logsumexp(-off.double().square() / (2 * variance), 1)
            total = torch.logaddexp(total, part)
    total -= math.log(samples) + 0.5 * x.shape[1] * math.log(2 * math.pi * variance)
    return np.asarray(total.cpu().numpy())


def with_uniform_prior(decoder: Decoder) -> Decoder:
    """Turn a decoder of z uniform in [-1, 1] into one of u standard normal: z = 2 Φ(u) - 1. Chains then need no limits."""
    return lambda u: decoder(torch.erf(u / math.sqrt(2.0)))


def decoder_of(
    mixture: Mixture,
    member: int,
    replica: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Return a member's generator as a decoder of standard normal noise, in evaluation mode.

    Images are in [0, 1], points and rows in the units of the data.
    """
    if not (0 <= member < mixture.members and 0 <= replica < mixture.replicas):
        raise UserError(f"there is no member {member} of replica {replica}; both are counted from 0.")
    breed, own = mixture.generator(member, replica)
    tensors = {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in own.items()}
    module = member_module(breed.module, tensors).requires_grad_(False)
    scale, offset = mixture.scale, mixture.offset
    if mixture.is_image and isinstance(scale, float) and isinstance(offset, float):
        scale, offset = scale / 255, offset / 255
    conditional, label = takes_label(module), int(mixture.label_of[member])
    if conditional and label < 0:
        raise UserError("this generator takes the label as an input, so it has no likelihood without one.")
    y = torch.tensor([label], device=device)

    def decode(z: Tensor) -> Tensor:
        inputs = (z, y.expand(len(z))) if conditional else (z,)
        x = torch.as_tensor(module(*inputs))
        return x * like(scale, x) + like(offset, x)

    return decode if mixture.prior_of(member) == "normal" else with_uniform_prior(decode)


def dequantised(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return uint8 pixels as float32 in [0, 1): (x + U(0, 1)) / 256. Discrete pixels would have no density.

    >>> pixels = dequantised(np.array([[0, 255]], np.uint8))
    >>> bool(0 <= pixels[0, 0] < 1 / 256 and 255 / 256 <= pixels[0, 1] <= 1)
    True
    """
    noise = np.random.default_rng([seed, 0xA15]).random(x.shape, dtype=np.float32)
    return np.asarray((x.astype(np.float32) + noise) / 256)


def mixture_log_p(per_member: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return log Σ_m w_m p_m(x) [P] from the log p(x) of every member [members, P].

    Estimates by AIS are too low in expectation, and so is this sum of them.

    >>> mixture_log_p(np.array([[0.0], [-100.0]]), np.array([0.5, 0.5])).round(3).tolist()
    [-0.693]
    """
    known = weights > 0
    terms = per_member[known] + np.log(weights[known] / weights.sum())[:, None]
    top = terms.max(0)
    return np.asarray(top + np.log(np.exp(terms - top).sum(0)))


def _anneal(
    decoder: Decoder,
    x: Tensor,
    start: Tensor,
    variance: float,
    settings: AisSettings,
    generator: torch.Generator,
    backward: bool,
    progress: Progress | None,
) -> tuple[Tensor, Chains]:
    """Return the log importance weights of chains, float64 [P, C], and the chains at the end.

    Args:
        decoder: The decoder.
        x: The points [P, d].
        start: The first positions of the chains [P, C, k].
        variance: The variance of the decoder.
        settings: The number of temperatures, and how chains move.
        generator: Draws the random numbers of the moves.
        backward: Anneal from the posterior down to the prior, instead of from the prior up to the posterior.
        progress: Receives lines about the progress.

    Raises:
        UserError: A weight is not finite.
    """
    betas = schedule(settings.temperatures)
    betas = betas.flip(0) if backward else betas
    deltas = betas.diff().tolist()
    on_device = betas.to(x)
    budget = settings.budget or (1 << 32 if x.is_cuda else 1 << 29)
    likelihood = Likelihood(decoder, x, variance, budget)
    chains = Chains(likelihood, start, settings.hmc, generator, settings.graph)
    weights = torch.zeros(start.shape[:2], dtype=torch.float64, device=x.device)
    began = last = time.monotonic()
    for t, delta in enumerate(deltas):
        weights.add_(chains.log_p.double(), alpha=delta)
        if t + 1 < len(deltas):  # a move at the last temperature would change no weight
            chains.move(on_device[t + 1])
        if progress and time.monotonic() - last >= _QUIET:
            if x.is_cuda:
                torch.cuda.synchronize(x.device)  # wait for the GPU, so that the reported progress is true
            last = time.monotonic()
            left = (last - began) / (t + 1) * (settings.temperatures - t - 1)
            way = "down" if backward else "up"
            progress(Detail(f"annealing {way}, temperature {t + 1:,} of {settings.temperatures:,}, {left:.0f} s left"))
    if not bool(torch.isfinite(weights).all()):
        raise UserError("annealing ended with weights that are not finite: give a larger variance.")
    return weights, chains


def _rows(decoder: Decoder, x: Tensor, latent: int, variance: float) -> Tensor:
    """Return points flattened to [P, d], after checking the decoder on them.

    Raises:
        UserError: The variance is not positive, the decoder makes points of another size, or it is not deterministic.
    """
    if not variance > 0:
        raise UserError(f"the variance of the decoder must be above 0, not {variance:g}.")
    x = x.flatten(1)
    u = torch.linspace(-1, 1, 3 * latent, dtype=x.dtype, device=x.device).reshape(3, latent)
    with torch.no_grad():
        alone, again, together = decoder(u[:1]), decoder(u[:1]), decoder(u)
    if alone[0].numel() != x.shape[1]:
        raise UserError(f"the decoder makes {alone[0].numel():,} numbers and a point has {x.shape[1]:,}.")
    if not torch.equal(alone, again) or not torch.allclose(alone, together[:1], rtol=1e-3, atol=1e-3):
        raise UserError(
            "the decoder does not make the same from the same noise (dropout, or batch norm that looks at the batch): "
            "put it into evaluation mode."
        )
    return x


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of the values; NaN for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
