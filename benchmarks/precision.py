"""Measure whether bf16 costs quality: train the digits herd with several seeds in float32 and in bf16, and compare scores.

python benchmarks/precision.py --device cuda -o benchmarks/results/h200-precision.json
python benchmarks/precision.py --device cpu --steps 1200 --seeds 5
python benchmarks/precision.py --recipe digits-nonsat --precision tf32

The seeds are replicas of one run, stacked. For each score: the mean over the seeds of float32, the interval in which 95 % of
single seeds fall (Student's t), and whether the mean of bf16 is inside it; also, whether it is inside the narrower interval
of float32's own mean, which two equal precisions leave by chance in about one of eight comparisons of five seeds.
Writes JSON, and a picture next to it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

import ganherd
from ganherd.data.dataset import load
from ganherd.recipe import recipe_file
from ganherd.scoring import score_seeds
from ganherd.viz.pictures import DATA, GENERATED, INK, new_figure

METRICS = ("label_accuracy", "fid")
NAMES = {"label_accuracy": "label accuracy", "fid": "FID by the digits' classifier"}


def trained(
    recipe: str, precision: str, device: str, steps: int, seeds: int, seed: int, samples: int
) -> dict[str, Any]:
    """Return the scores by seed of one precision, with the seconds of the training."""
    overrides = [
        f"train.precision={precision}",
        f"train.budget={steps}steps",
        f"engine.device={device}",
        f"herd.seeds={seeds}",
        f"run.seed={seed}",
        "run.sample_every=0",
        "run.checkpoint_every=0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = ganherd.train(recipe, overrides, run=Path(folder) / "run", quiet=True)
        took = time.perf_counter() - began
        data = load(recipe_file.load(recipe, overrides).data)
        scored = score_seeds(run.mixture, data, METRICS, samples)
        engine = run.folder.info.engine.as_json()
    scores = {name: [float(value) for value in scored[name]["per_seed"]] for name in METRICS}
    return {"precision": precision, "engine": engine, "seconds": round(took, 1), "scores": scores}


def compared(reference: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Compare the mean of the other precision with the spread of the reference's seeds."""
    n, mean = len(reference), float(np.mean(reference))
    deviation = float(np.std(reference, ddof=1))
    quantile = float(student.ppf(0.975, n - 1))
    wide, narrow = quantile * deviation, quantile * deviation / math.sqrt(n)
    away = abs(float(np.mean(other)) - mean)
    return {
        "mean": mean,
        "other_mean": float(np.mean(other)),
        "seed_interval": [mean - wide, mean + wide],
        "mean_interval": [mean - narrow, mean + narrow],
        "within_seeds": away <= wide,
        "within_mean": away <= narrow,
    }


def draw(facts: dict[str, Any], path: Path) -> None:
    """Draw every seed as a point, and float32's interval as a band."""
    figure, panels = new_figure(4.2 * len(METRICS), 3.4, columns=len(METRICS))
    for axes, name in zip(panels, METRICS, strict=True):
        result = facts["compared"][name]
        axes.axhspan(*result["seed_interval"], color=DATA, alpha=0.25, lw=0, label="95 % of single seeds, float32")
        for place, one in enumerate(facts["rows"]):
            values = one["scores"][name]
            spread = np.linspace(-0.12, 0.12, len(values))
            axes.plot(place + spread, values, "o", color=GENERATED if place else INK, ms=5, alpha=0.8)
            axes.hlines(np.mean(values), place - 0.25, place + 0.25, color=GENERATED if place else INK, lw=2)
        axes.set_xticks(range(len(facts["rows"])), [one["precision"] for one in facts["rows"]])
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.margins(y=0.2)
        axes.set_xlim(-0.6, len(facts["rows"]) - 0.4)
        axes.set_title(f"{NAMES[name]}, {facts['seeds']} seeds", color=INK, fontsize=10, loc="left")
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{facts['recipe']}, {facts['steps']} steps on {facts['machine']}", color=INK, fontsize=9)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="digits-wcgan")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "tf32"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--samples", type=int, default=1000, help="for each score and seed")
    parser.add_argument("-o", type=Path, help="file of the JSON; the picture has the same name")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds: one seed has no spread; give at least 2, better 5")
    rows = [
        trained(args.recipe, precision, args.device, args.steps, args.seeds, args.seed, args.samples)
        for precision in ("float32", args.precision)
    ]
    gpu = torch.cuda.is_available() and args.device != "cpu"
    facts: dict[str, Any] = {
        "recipe": args.recipe,
        "steps": args.steps,
        "seeds": args.seeds,
        "first_seed": args.seed,
        "samples": args.samples,
        "machine": f"{torch.cuda.get_device_name() if gpu else platform.machine()}, PyTorch {torch.__version__}",
        "ganherd": ganherd.__version__,
        "rows": rows,
        "compared": {name: compared(*(one["scores"][name] for one in rows)) for name in METRICS},
    }
    for name, result in facts["compared"].items():
        low, high = result["seed_interval"]
        print(
            f"{NAMES[name]}: float32 {result['mean']:.4f} ({low:.4f} to {high:.4f} for 95 % of seeds), "
            f"{args.precision} {result['other_mean']:.4f}: {'within' if result['within_seeds'] else 'OUTSIDE'}"
            f" the seed-to-seed interval, {'within' if result['within_mean'] else 'outside'} that of the mean"
        )
    if args.o:
        args.o.parent.mkdir(parents=True, exist_ok=True)
        args.o.write_text(json.dumps(facts, indent=1) + "\n")
        draw(facts, args.o.with_suffix(".png"))
    else:
        print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
