"""Find out what the last minutes of a speedrun should do: train one base, and continue it in several ways.

python benchmarks/late_phase.py --runs /tmp/late --limit 560       on a GPU; the same call continues what is missing
python benchmarks/late_phase.py --base-steps 40 --steps 20 --ways decay -n 200 --network classifier --set engine.device=cpu \
    --set data.source=tiny.npz --set nets.generator.width=8 --set nets.discriminator.width=8     a try on a CPU

The base is `cifar10-speedrun-first` with constant learning rates and without augmentation. Each way starts from its last step
(Adam starts from zero) and trains for as many steps as the others, with one thing changed; `classes` is the second phase of
`cifar10-speedrun`. One seed, which no reported result uses. Each row is written at once. A row also has the mean logits of the
discriminator on training and on held-out images: if they differ, it has learnt training images by heart.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from existing_runs import run_main
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.files import atomic_write
from ganherd.util.text import text_table
from provenance import provenance

HERE = Path(__file__).parent / "results"
FIRST, SECOND = "cifar10-speedrun-first", "cifar10-speedrun"
_PLAIN = ("train.augment=[]", "train.augment_target=null", "train.augment_probability=1")
_CONSTANT = "train.schedules=[]"
_DECAY = "train.schedules=[{keys: [optim.lr_g, optim.lr_d], last: 0}]"
_AUGMENT = "train.augment=[colour,translation,cutout]"
_ADA = (_AUGMENT, "train.augment_target=0.6", "train.augment_probability=0")
_BCR = ("loss.consistency_weight=10", "loss.consistency_weight_fake=10")

# What each way does, the recipe, its settings, and the share of the common steps that it trains for.
WAYS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "constant": ("the base goes on", FIRST, (*_PLAIN, _CONSTANT)),
    "decay": ("learning rates fall to 0", FIRST, (*_PLAIN, _DECAY)),
    "decay-ada": ("the same with adaptive augmentation", FIRST, (*_ADA, _DECAY)),
    "decay-diffaugment": ("the same with all images augmented", FIRST, (_AUGMENT, *_PLAIN[1:], _DECAY)),
    "decay-bcr": ("the same with consistency of real and generated images", FIRST, (*_PLAIN, *_BCR, _DECAY)),
    "decay-lecam": ("the same with LeCam 0.3", FIRST, (*_PLAIN, "loss.lecam_weight=0.3", _DECAY)),
    "decay-critic1": ("the same with one critic update", FIRST, (*_PLAIN, "train.n_critic=1", _DECAY)),
    "classes": ("a GAN for each class, adaptive augmentation", SECOND, ("herd.first=null",)),
    "classes-plain": ("a GAN for each class, no augmentation", SECOND, ("herd.first=null", *_PLAIN)),
    "classes-bcr": ("a GAN for each class, consistency", SECOND, ("herd.first=null", *_PLAIN, *_BCR)),
}


def settings_of(way: str, args: argparse.Namespace) -> list[str]:
    """Return all settings of a way; those that are given for all ways come last."""
    own = [f"run.seed={args.seed}", "run.scores=false", "run.sample_every=0"]
    if way == "base":
        return [*_PLAIN, _CONSTANT, *own, f"train.budget={args.base_steps}steps", *args.set]
    _, recipe, changes = WAYS[way]
    steps = args.class_steps if recipe == SECOND else args.steps
    start = f"herd.start_from={args.runs / args.start}"
    return [*changes, start, *own, f"train.budget={steps}steps", *args.set]


def recipe_of(way: str) -> str:
    return FIRST if way == "base" else WAYS[way][1]


def train(way: str, args: argparse.Namespace) -> None:
    """Train in this process."""
    from ganherd.training.session import train as train_recipe

    train_recipe(recipe_file.load(recipe_of(way), settings_of(way, args)), args.runs / way, quiet=True)


def logits(run: Path, rows: int) -> dict[str, float]:
    """Return the mean logits of the discriminators on training images and on as many held-out images of the same classes."""
    import ganherd
    from ganherd.data import dataset
    from ganherd.scoring.gam_judges import load_judges

    data, mixture = dataset.load(RunFolder.open(run).recipe.data), ganherd.load(run)
    judges = load_judges(run, mixture.shape, len(data.labels))
    members = len(judges.losses)
    chosen = np.random.default_rng(0).permutation(len(data.x))[:rows]
    result = {}
    for name, x, y in (
        ("train", data.x[chosen], data.y[chosen]),
        ("held_out", data.x_test[:rows], data.y_test[:rows]),
    ):
        parts = [y == k for k in range(members)] if members > 1 else [np.ones(len(y), bool)]
        means = [judges.logits(member, x[part], y[part]).mean() for member, part in enumerate(parts) if part.any()]
        result[name] = float(np.mean(means))
    return result


def measured(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train and score a way, and return its row."""
    from ganherd.scoring.one_run import score_run

    run = args.runs / way
    began = time.perf_counter()
    if not run.exists():
        done = subprocess.run([sys.executable, __file__, *args.words, "--train", way], capture_output=True, text=True)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    wall = time.perf_counter() - began
    info = RunFolder.open(run).info
    scores = score_run(run, ["fid", "ifid"], args.n, args.seed, network=args.network, store=False)
    row: dict[str, Any] = {
        "steps": info.step,
        "trained_seconds": round(info.seconds, 1),
        "wall_seconds": round(wall, 1),
    }
    row |= {name: scores[name].get("value") for name in ("fid", "ifid")}
    return row | {"logits": logits(run, 2000), "records": records(run)}


def records(run: Path) -> dict[str, list[float]]:
    """Return about twenty records of the losses and of the probability of augmentation, means over the members."""
    records = [record.content for record in RunFolder.open(run).metrics()]
    kept = records[:: max(1, len(records) // 20)]
    names = ("step", "loss_d", "loss_g", "real", "fake", "augment")
    return {n: [round(float(np.mean(r[n])), 4) for r in kept] for n in names if all(r.get(n) is not None for r in kept)}


def machine() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return f"{name}, PyTorch {torch.__version__}"


def table(rows: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        return f"{value:,.2f}" if isinstance(value, float) else "-" if value is None else f"{value:,}"

    keys = ("steps", "trained_seconds", "fid", "ifid")
    lines = [("way", *keys, "what it does")]
    lines += [(row["way"], *(cell(row.get(key)) for key in keys), row.get("error") or row["what"]) for row in rows]
    return "\n".join(text_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}; default: all")
    parser.add_argument("--base-steps", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=11_000, help="steps of each way")
    parser.add_argument(
        "--class-steps", type=int, default=4_000, help="steps of each way that trains a GAN for each class"
    )
    parser.add_argument("--start", default="base", help="what the ways start from: base, or another way that has ended")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no other way begins")
    parser.add_argument("--seed", type=int, default=1000, help="a seed that no reported result uses")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of base and ways")
    parser.add_argument("--network", help="network of the scores; default: that of FID")
    parser.add_argument("-n", type=int, default=50_000, help="samples for each score")
    parser.add_argument("--runs", type=Path, default=Path("runs/late-phase"))
    parser.add_argument("-o", type=Path, default=HERE / "late-phase.json")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.words, args.runs = sys.argv[1:], args.runs.absolute()
    if args.train:
        train(args.train, args)
        return
    began = time.monotonic()
    ways = [way for way in args.ways.split(",") if way]
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"no way {unknown[0]}: choose from {', '.join(WAYS)}")
    results = json.loads(args.o.read_text()) if args.o.is_file() else {"benchmark": "late-phase", "rows": []}
    longest = 0.0
    for way in (*(["base"] if args.start == "base" else []), *ways):
        settings = settings_of(way, args)
        if any(row["way"] == way and row["settings"] == settings and "error" not in row for row in results["rows"]):
            continue
        if way != "base" and time.monotonic() - began + longest > args.limit:
            print(f"{way} and what follows did not begin: {args.limit:.0f} s are over; the same call continues")
            break
        what = "constant learning rates, no augmentation" if way == "base" else WAYS[way][0]
        start = None if way == "base" else args.start
        row = {"way": way, "start": start, "what": what, "settings": settings, **provenance(), "machine": machine()}
        row |= {"seed": args.seed, "samples": args.n}
        started = time.monotonic()
        row |= measured(way, args)
        longest = max(longest, time.monotonic() - started) if way != "base" else longest
        results["rows"].append(row)
        args.o.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(args.o, json.dumps(results, indent=1) + "\n")
        print(table([row]).splitlines()[-1], flush=True)
    print(f"\n{table(results['rows'])}\n{args.o}")


if __name__ == "__main__":
    run_main(main)
