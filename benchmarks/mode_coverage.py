"""Measure mode coverage by PacGAN's protocol: one GAN, plain, packed and tuned, on many seeds. Writes JSON and PNG, prints a table.

python benchmarks/mode_coverage.py --data ring8 grid25                                   the recipes' own lengths, on a CPU
python benchmarks/mode_coverage.py --data ring8 grid25 --full --set engine.device=cuda   PacGAN's nets, points and 400 epochs
python benchmarks/mode_coverage.py --data stacked-mnist --set engine.device=cuda         VEEGAN's setting; needs MNIST
python benchmarks/mode_coverage.py --recipes ring8-packed --set train.ema=0.999          recipes of your choice
python benchmarks/mode_coverage.py --data ring8 --seeds 2 --steps 20                     a try

All seeds of a recipe are replicas of one run. Each number is the mean over seeds with its interval (Student's t, 95 %). Points:
2,500 samples, of high quality within three standard deviations of a mode. Stacked MNIST: 26,000 samples, whose digits a classifier
reads; it has no share of high quality. Runs are stored in --runs: another call with the same settings resumes or uses them.
The picture shows the samples of each seed, for points only.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import existing_runs
import ganherd
from ganherd.data.dataset import load
from ganherd.features.extract import best_device
from ganherd.metrics import stacked_modes
from ganherd.metrics.modes import POINTS, coverage, modes_of
from ganherd.metrics.statistics.intervals import student_t
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.files import atomic_write
from ganherd.util.text import text_table
from ganherd.viz import pictures
from gap_toys import FULL
from provenance import provenance

HERE = Path(__file__).parent / "results"
DATA = ("ring8", "grid25", "stacked-mnist")
PROTOCOL = {data: (f"{data}-gan", f"{data}-packed") for data in DATA}  # those that --full can give PacGAN's nets
TUNED = {data: (f"{data}-modes",) for data in DATA}  # nets and steps of their own
RECIPES = {data: (*PROTOCOL[data], *TUNED.get(data, ())) for data in DATA}
PUBLISHED = {  # of PacGAN's tables 1 and 2
    "ring8-packed": "PacGAN2: 7.9 modes, 95.6 %, KL 0.07",
    "grid25-packed": "PacGAN4: 24.8 modes, 93.6 %, KL 0.04",
    "stacked-mnist-packed": "PacDCGAN2: 1,000 modes, KL 0.06",
}
PUBLISHED |= {recipe: PUBLISHED[f"{data}-packed"] for data, recipes in TUNED.items() for recipe in recipes}
NUMBERS = ("modes", "high_quality", "kl")
Row = dict[str, Any]


def settings_of(recipe: str, args: argparse.Namespace) -> list[str]:
    """Return the settings of a run. With --full the nets and points are those of PacGAN's table, packed if the recipe is."""
    settings = [f"run.seed={args.seed}", f"herd.seeds={args.seeds}", "run.scores=false", "run.watch.every=0"]
    if args.full:
        packing = recipe_file.load(recipe).nets.packing
        settings += [*FULL, f"nets.discriminator.packing={packing}", f"train.batch={100 * packing}"]
        settings += [f"train.budget={400 * packing}epochs"]  # as many steps for every packing
    settings += [f"train.budget={args.steps}steps"] if args.steps else []
    return [*settings, *args.set]


def trained(recipe: str, args: argparse.Namespace) -> Path:
    """Return the run of all seeds; train or resume it if it is not finished."""
    path, settings = args.runs / recipe, settings_of(recipe, args)
    state = existing_runs.state(path, recipe, settings)
    if state == "new":
        ganherd.train(recipe, settings, run=path, quiet=True)
    elif state == "stopped":
        ganherd.resume(path, quiet=True)
    return path


def measured(run: Path, samples: int | None) -> list[Row]:
    """Return modes, share of high quality and KL of each seed."""
    mixture, data = ganherd.load(run).to(best_device()), load(RunFolder.open(run).recipe.data)
    measure: Callable[[np.ndarray], Row]
    if data.kind == "points":
        modes = modes_of(data)
        samples = samples or POINTS

        def measure(x: np.ndarray) -> Row:
            covered = coverage(x, modes)
            return dict(zip(NUMBERS, (covered.captured, covered.high_quality, covered.reverse_kl), strict=True))

    else:
        judge = stacked_modes.reader(data.shape)
        samples = samples or stacked_modes.SAMPLES

        def measure(x: np.ndarray) -> Row:
            covered = stacked_modes.stacked_coverage(x, judge.predict)
            return {"modes": covered.captured, "kl": covered.kl, "kl_by_chance": covered.by_chance}

    return [
        {"seed": seed, "samples": samples, **measure(mixture.sample(samples, replica=replica).x)}
        for replica, seed in enumerate(mixture.seeds)
    ]


def summary(per_seed: list[Row]) -> Row:
    """Return mean and interval of each number over the seeds; seeds without a number are left out."""
    out: Row = {}
    for name in NUMBERS:
        values = [row[name] for row in per_seed if row.get(name) is not None]
        if values:
            reach = student_t(len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)) if values[1:] else None
            out[name] = {"mean": float(np.mean(values)), "interval": reach and float(reach), "seeds": len(values)}
    return out


def table(rows: list[Row]) -> str:
    """Return the numbers of all recipes, with what is published."""

    def cell(row: Row, name: str, factor: float, digits: int) -> str:
        if name not in row["summary"]:
            return "-"
        one = row["summary"][name]
        reach = "" if one["interval"] is None else f" ± {factor * one['interval']:.{digits}f}"
        return f"{factor * one['mean']:,.{digits}f}{reach}"

    lines = [("recipe", "seeds", "modes", "high quality, %", "KL", "published")]
    for row in rows:
        cells = (cell(row, "modes", 1, 2), cell(row, "high_quality", 100, 1), cell(row, "kl", 1, 3))
        lines.append((row["recipe"], str(len(row["per_seed"])), *cells, PUBLISHED.get(row["recipe"], "")))
    return "\n".join(text_table(lines))


def draw(runs: dict[str, Path], samples: int | None, path: Path) -> None:
    """Draw the samples that were measured: a panel for each seed, five in a row."""
    panels = [(recipe, replica) for recipe in runs for replica in range(len(ganherd.load(runs[recipe]).seeds))]
    columns = min(5, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = pictures.new_figure(2.2 * columns, 2.5 * rows, rows=rows, columns=columns)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    for panel, (recipe, replica) in zip(axes, panels, strict=False):
        mixture, modes = ganherd.load(runs[recipe]), modes_of(load(RunFolder.open(runs[recipe]).recipe.data))
        x = mixture.sample(samples or POINTS, replica=replica).x
        covered = coverage(x, modes)
        reach = 1.25 * float(np.abs(modes.means).max())
        pictures.scatter(panel, x, None)
        panel.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], xlabel="")
        words = f"{covered.captured} modes, {100 * covered.high_quality:.1f} %"
        title = f"{recipe}, seed {mixture.seeds[replica]}\n{words}"
        panel.set_title(title, color=pictures.INK, fontsize=7, loc="left")
    pictures.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(RECIPES), default=["ring8", "grid25"])
    parser.add_argument("--recipes", nargs="+", help="instead of those of --data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, help="instead of the recipes' budgets")
    parser.add_argument(
        "--full", action="store_true", help="PacGAN's nets, points and steps, for the -gan and -packed of points"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    parser.add_argument("-n", type=int, help="samples of each seed; default: those of the protocol")
    parser.add_argument("--runs", type=Path, default=Path("runs/mode-coverage"))
    parser.add_argument("-o", type=Path, default=HERE / "mode-coverage.json")
    args = parser.parse_args()
    known = PROTOCOL if args.full else RECIPES
    recipes = args.recipes or [recipe for data in args.data for recipe in known[data]]
    if args.full and any(recipe.startswith("stacked") for recipe in recipes):
        parser.error("--full is for ring8 and grid25: the recipes of stacked-mnist are in full already")
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    results: Row = {
        "benchmark": "mode_coverage",
        **provenance(),
        "machine": f"{machine}, PyTorch {torch.__version__}",
        "rows": [],
    }
    drawn: dict[str, Path] = {}
    for recipe in recipes:
        run = trained(recipe, args)
        info, per_seed = RunFolder.open(run).info, measured(run, args.n)
        row = {"recipe": recipe, "settings": settings_of(recipe, args), "steps": info.step}
        row |= {"seconds": round(info.seconds, 1), "summary": summary(per_seed), "per_seed": per_seed}
        results["rows"].append(row)
        args.o.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(args.o, json.dumps(results, indent=1) + "\n")
        print(f"{recipe}: {info.step:,} steps, {info.seconds:,.0f} s of training", file=sys.stderr, flush=True)
        drawn |= {recipe: run} if "high_quality" in per_seed[0] else {}
    if drawn:
        draw(drawn, args.n, args.o.with_suffix(".png"))
    print(f"{table(results['rows'])}\n{args.o}")


if __name__ == "__main__":
    existing_runs.run_main(main)
