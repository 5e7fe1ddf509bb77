"""Measure how often 95 % intervals of scores contain the mean of redrawn samples, and whether they are too wide.

The data is fixed and the samples are redrawn, both from Gaussians: `python benchmarks/interval_coverage.py -o FILE.json`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ganherd.features.extract import moments
from ganherd.metrics import frechet, prdc
from ganherd.metrics.kid import SUBSETS, kid
from ganherd.metrics.statistics import intervals
from provenance import commit

SETTINGS = {  # features, shift and scale of the samples against the data's standard normal distribution
    "the same, 8 features": (8, 0.0, 1.0),
    "narrow, 8 features": (8, 0.0, 0.7),
    "shifted, 8 features": (8, 0.4, 1.0),
    "narrow, 2 features": (2, 0.0, 0.6),
    "shifted, 64 features": (64, 0.05, 1.0),
    "narrow, 64 features": (64, 0.0, 0.9),
}
METRICS = (*prdc.NAMES, "fid", "kid")


def measured(real: Tensor, fake: Tensor, metrics: tuple[str, ...], seed: int) -> Iterator[tuple[str, float, Any]]:
    """Yield (name, value, interval) of each metric, as `ganherd score` gives them."""
    if wanted := [name for name in prdc.NAMES if name in metrics]:
        result = prdc.prdc(real, fake)
        for name in wanted:
            yield name, result.value(name), prdc.interval_of(name, result, seed)
    if "fid" in metrics:
        value, error = frechet.distance_and_error(fake, moments(real))
        yield "fid", value, frechet.interval(value, error)["interval"]
    if "kid" in metrics:
        one = kid(fake, real, seed)
        yield "kid", one.value, intervals.around(one.value, one.error, f"{SUBSETS} subsets")


def simulate(
    setting: str, repeats: int, points: int = 700, metrics: tuple[str, ...] = METRICS
) -> dict[str, dict[str, float]]:
    """Return by metric the share of intervals that contain the mean, their half width, and 1.96 standard deviations."""
    features, shift, scale = SETTINGS[setting]
    rng = torch.Generator().manual_seed(0)
    real = torch.randn(points, features, generator=rng, dtype=torch.float64)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(repeats):
        fake = torch.randn(points, features, generator=rng, dtype=torch.float64) * scale + shift
        for name, value, ends in measured(real, fake, metrics, seed):
            rows.setdefault(name, []).append((value, *((ends["low"], ends["high"]) if ends else (value, value))))
    out = {}
    for name, each in rows.items():
        value, low, high = np.array(each).T
        mean = value.mean()
        out[name] = {
            "mean": float(mean),
            "held": float(((low <= mean) & (mean <= high)).mean()),
            "half_width": float((high - low).mean() / 2),
            "needed": float(1.96 * value.std(ddof=1)),
        }
    return out


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-o", "--output", type=Path, required=True)
    options.add_argument("--repeats", type=int, default=200)
    options.add_argument("--points", type=int, default=700)
    args = options.parse_args()
    rows = []
    for setting in SETTINGS:
        for name, result in simulate(setting, args.repeats, args.points).items():
            rows.append({"setting": setting, "metric": name, **result})
            print(
                f"{setting:<22} {name:<10} mean {result['mean']:8.4f}  held {100 * result['held']:5.1f} %  "
                f"half width {result['half_width']:.4f}, needed {result['needed']:.4f}",
                flush=True,
            )
    facts = {
        "command": "python " + shlex.join(sys.argv),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, 1 thread",
        "torch": torch.__version__,
        "seeds": f"0 to {args.repeats - 1}",
        "repeats": args.repeats,
        "points": args.points,
    }
    args.output.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
