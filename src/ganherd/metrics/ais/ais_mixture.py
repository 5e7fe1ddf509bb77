"""Measure the log-likelihood of held-out images under a mixture by AIS, with its gap and a kernel density estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ganherd.features.material import MetricSkipped
from ganherd.metrics.ais import ais
from ganherd.metrics.groups import SampleGroup, in_groups, of_rows, shares_of
from ganherd.metrics.statistics import intervals
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import few_of

if TYPE_CHECKING:
    from ganherd.features.material import ScoringContext

VARIANCE = 0.025  # of the decoder, for pixels in [0, 1]; that of the paper for its GAN with 10 latent numbers
POINTS = {"cuda": 100, "cpu": 16}  # held-out images
SIMULATED = 16  # points of the gap
KDE_SAMPLES = 10_000
FEW = 16  # with fewer images there is a warning
WIDE = 10.0  # with a larger gap, in nats, there is a warning


def measure(material: ScoringContext) -> ScoreEntry:
    """Return log p(x) of the mixture in nats, mean over held-out images, with the settings of the estimate."""
    mixture, data = material.mixture, material.dataset
    if not data.is_image:
        raise MetricSkipped("the log-likelihood by AIS is for images, and this is other data")
    if mixture.takes_label:
        raise MetricSkipped("the generators take the label as an input, and AIS needs p(x | z) without it")
    if not len(data.x_test):
        raise MetricSkipped("the log-likelihood is that of held-out images, and there are none")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    request = material.annealing
    variance, usual = request.variance or VARIANCE, ais.AisSettings(seed=material.seed)
    settings = replace(
        usual, temperatures=request.temperatures or usual.temperatures, chains=request.chains or usual.chains
    )
    count = min(request.points or POINTS[device], len(data.x_test))
    rows = np.random.default_rng([material.seed, 0xA15]).permutation(len(data.x_test))[:count]
    x = torch.from_numpy(ais.dequantised(data.x_test[rows], material.seed)).to(device)
    per_member, gaps, baseline = [], [], []
    for member in range(mixture.members):

        def tell(line: str, member: int = member) -> None:
            material.report(f"member {member + 1} of {mixture.members}: {line}")

        decoder = ais.decoder_of(mixture, member, material.replica, device=device, dtype=x.dtype)
        per_member.append(ais.log_likelihood(decoder, x, mixture.latent, variance, settings, tell).log_p)
        gaps.append(ais.bdmc(decoder, mixture.latent, variance, SIMULATED, settings, device, x.dtype, tell).gap)
        baseline.append(ais.kde(decoder, x, mixture.latent, variance, KDE_SAMPLES, settings.seed))
    log_p = ais.mixture_log_p(np.stack(per_member), material.weights)  # [P]
    kde = ais.mixture_log_p(np.stack(baseline), material.weights)
    mean, error = float(log_p.mean()), ais.standard_error(log_p)
    gap = max(gaps)
    out: ScoreEntry = {
        "value": mean,
        "samples": count,
        "network": f"AIS, σ² {variance:g}, {settings.temperatures:,} temperatures, {settings.chains} chains",
        "unit": "nats an image of pixels in [0, 1]",
        "error": error if count > 1 else None,
        "gap": gap,
        "kde": float(kde.mean()),
        "kde_samples": KDE_SAMPLES,
        "variance": variance,
        "temperatures": settings.temperatures,
        "chains": settings.chains,
        "per_member": {str(m): float(result.mean()) for m, result in enumerate(per_member)},
        "per_member_samples": {str(m): count for m in range(mixture.members)},
        "per_member_gap": {str(m): result for m, result in enumerate(gaps)},
    }
    if count > 1:
        out["interval"] = intervals.around(mean, error, f"Student's t over {count} images", count - 1)
    if gap > WIDE:
        out["warning"] = f"the bounds on simulated images are {gap:.1f} nats apart: take more with --ais-temperatures"
    elif count < FEW:
        out["warning"] = f"{few_of(count, 'images')}: the interval is wide"
    return out | _in_groups(material, np.stack(per_member), log_p, data.y_test[rows])


def _in_groups(material: ScoringContext, per_member: np.ndarray, log_p: np.ndarray, y: np.ndarray) -> ScoreEntry:
    """Return the mean of log p(x) over the images of each class, or under the mixture of each neighbourhood.

    Args:
        material: What is scored; its `per` says which groups are wanted.
        per_member: log p(x) of every image under each member [members, P].
        log_p: log p(x) of every image under the whole mixture [P].
        y: The class of every image [P].
    """
    if material.per == "class":
        labels = enumerate(material.dataset.labels)
        groups = [SampleGroup(name, np.flatnonzero(y == k)) for k, name in labels if (y == k).any()]
        return of_rows(material, groups, lambda one: float(log_p[one.index].mean()))
    if material.per != "neighbourhood":
        return {}
    cells = enumerate(material.neighbourhoods or ())
    log_ps = {str(number): ais.mixture_log_p(per_member[list(one.members)], shares_of(one)) for number, one in cells}
    values = {number: float(own.mean()) for number, own in log_ps.items()}
    return in_groups("neighbourhood", values, dict.fromkeys(values, len(log_p)))
