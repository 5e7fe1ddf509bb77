"""Find out what the last minutes of a speedrun should do: train one base, and continue it in several ways.

python benchmarks/late_phase.py --runs /tmp/late --limit 560       on a GPU; the same call continues what is missing
python benchmarks/late_phase.py --base-steps 40 --steps 20 --class-steps 4 --ways decay -n 200 --network classifier \
    --set data.source=tiny.npz --set engine.device=cpu --set nets.generator.width=8 --set nets.discriminator.width=8    on a CPU

The base is `cifar10-conditional`. Each way starts from the last step of the base or of another way (Adam starts from zero),
with one thing changed; the ways called `classes` train a GAN for each class, as the second phase of `cifar10-perclass`. One seed,
which no reported result uses. Each row is written at once. A row also has the mean logits of the discriminator on training and
on held-out images: the more they differ, the more it has learnt training images by heart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from existing_runs import run_main
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.files import atomic_write
from ganherd.util.text import text_table
from provenance import machine, provenance

HERE = Path(__file__).parent / "results"
FIRST, SECOND = "cifar10-conditional", "cifar10-perclass"
_PLAIN = ("train.augment=[]", "train.augment_target=null", "train.augment_probability=1")
_CONSTANT = "train.schedules=[]"
_DECAY = "train.schedules=[{keys: [optim.lr_g, optim.lr_d], last: 0}]"
_ADAPTIVE = ("train.augment=[colour,translation,cutout]", "train.augment_probability=0")
_CLASSES = ("herd.first=null",)
Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to continue a training that has ended."""

    what: str  # what it does
    start: str  # what it starts from: the base, or another way; nothing for the base itself
    settings: tuple[str, ...]
    recipe: str = FIRST


WAYS = {
    "base": Way("one GAN of all classes, constant learning rates, no augmentation", "", (*_PLAIN, _CONSTANT)),
    "constant": Way("the base continues", "base", (*_PLAIN, _CONSTANT)),
    "decay": Way("its learning rates fall to 0", "base", (*_PLAIN, _DECAY)),
    "fresh": Way("each update draws new samples", "base", (*_PLAIN, _CONSTANT, "train.fakes=fresh")),
    "augmented": Way("adaptive augmentation up to 0.2", "base", (*_ADAPTIVE, _CONSTANT, "train.augment_target=0.2")),
    "classes-decay": Way(
        "a GAN for each class, learning rates fall to 0, adaptive augmentation up to 0.6", "base",
        (*_CLASSES, *_ADAPTIVE, _DECAY, "train.augment_target=0.6"), SECOND,
    ),
    "classes-bcr": Way(
        "a GAN for each class, consistency of real and generated images", "base",
        (*_CLASSES, *_PLAIN, _CONSTANT, "loss.consistency_weight=10", "loss.consistency_weight_fake=10"), SECOND,
    ),
    "classes-slow-critic": Way(
        "a GAN for each class, no augmentation, one critic update at 0.3 of its learning rate", "constant",
        (*_CLASSES, *_PLAIN, _CONSTANT, "optim.lr_d=3e-5", "train.n_critic=1"), SECOND,
    ),
    "classes": Way(
        "a GAN for each class, adaptive augmentation up to 0.2", "constant",
        (*_CLASSES, *_ADAPTIVE, _CONSTANT, "train.augment_target=0.2"), SECOND,
    ),
}  # fmt: skip


def settings_of(name: str, args: argparse.Namespace) -> list[str]:
    """Return all settings of a way; those that are given for all ways come last."""
    way = WAYS[name]
    steps = args.base_steps if not way.start else args.class_steps if way.recipe == SECOND else args.steps
    start = [f"herd.start_from={args.runs / way.start}"] if way.start else []
    own = [f"run.seed={args.seed}", "run.scores=false", "run.sample_every=0", f"train.budget={steps}steps"]
    return [*way.settings, *start, *own, *args.set]


def train(name: str, args: argparse.Namespace) -> None:
    """Train in this process."""
    from ganherd.training.session import train as train_recipe

    train_recipe(recipe_file.load(WAYS[name].recipe, settings_of(name, args)), args.runs / name, quiet=True)


def measured(name: str, args: argparse.Namespace) -> Row:
    """Train and score a way, and return its row."""
    from ganherd.scoring.one_run import score_run

    run = args.runs / name
    began = time.perf_counter()
    if not run.exists():
        words = [sys.executable, __file__, *args.words, "--train", name]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    wall = time.perf_counter() - began
    info = RunFolder.open(run).info
    scores = score_run(run, ["fid", "ifid"], args.n, args.seed, network=args.network, store=False)
    row: Row = {"steps": info.step, "trained_seconds": round(info.seconds, 1), "wall_seconds": round(wall, 1)}
    row |= {score: scores[score].get("value") for score in ("fid", "ifid")}
    return row | {"logits": logits(run, 2000), "records": records(run)}


def logits(run: Path, rows: int) -> dict[str, float]:
    """Return the mean logits of the discriminators on training images and on held-out ones of the same classes."""
    import ganherd
    from ganherd.data import dataset
    from ganherd.scoring.gam_judges import load_judges

    data, mixture = dataset.load(RunFolder.open(run).recipe.data), ganherd.load(run)
    judges = load_judges(run, mixture.shape, len(data.labels))
    members = len(judges.losses)
    chosen = np.random.default_rng(0).permutation(len(data.x))[:rows]
    sets = {"train": (data.x[chosen], data.y[chosen]), "held_out": (data.x_test[:rows], data.y_test[:rows])}
    result = {}
    for name, (x, y) in sets.items():
        parts = [y == k for k in range(members)] if members > 1 else [np.ones(len(y), bool)]
        means = [judges.logits(member, x[part], y[part]).mean() for member, part in enumerate(parts) if part.any()]
        result[name] = float(np.mean(means))
    return result


def records(run: Path) -> dict[str, list[float]]:
    """Return about twenty records of the losses and of the probability of augmentation, means over the members."""
    every = [record.content for record in RunFolder.open(run).metrics()]
    chosen = every[:: max(1, len(every) // 20)]
    names = ("step", "loss_d", "loss_g", "real", "fake", "augment")
    return {
        n: [round(float(np.mean(r[n])), 4) for r in chosen] for n in names if all(r.get(n) is not None for r in chosen)
    }


def with_starts(names: Sequence[str]) -> list[str]:
    """Return the names of ways, each after what it starts from.

    >>> with_starts(["classes", "decay"])
    ['base', 'constant', 'classes', 'decay']
    """
    order: list[str] = []
    for name in names:
        before = with_starts([WAYS[name].start]) if WAYS[name].start else []
        order += [one for one in (*before, name) if one not in order]
    return order


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw FID and IFID over the minutes of training, with a line for each way from what it starts from."""
    from ganherd.viz import pictures

    by_name = {row["way"]: row for row in rows if "error" not in row}
    minutes: dict[str, float] = {}
    for name, row in by_name.items():
        minutes[name] = row["trained_seconds"] / 60 + minutes.get(row["start"], 0.0)
    figure, axes = pictures.new_figure(9, 3.6, columns=2)
    for axis, score in zip(axes, ("fid", "ifid"), strict=True):
        for name, row in by_name.items():
            ends = [one for one in (row["start"], name) if one in by_name]
            values = [by_name[one][score] for one in ends]
            axis.plot([minutes[one] for one in ends], values, marker="o", markersize=4, label=name)
        axis.set(xlabel="minutes of training", title=score.upper())
    axes[0].legend(fontsize=7, frameon=False)
    pictures.save(figure, path)


def table(rows: Sequence[Row]) -> str:
    def cell(value: Any) -> str:
        return f"{value:,.2f}" if isinstance(value, float) else "-" if value is None else f"{value:,}"

    keys = ("steps", "trained_seconds", "fid", "ifid")
    lines = [("way", "from", *keys, "what it does")]
    for row in rows:
        what = row.get("error") or row["what"]
        lines.append((row["way"], row["start"], *(cell(row.get(key)) for key in keys), what))
    return "\n".join(text_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}; default: all")
    parser.add_argument("--base-steps", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=11_000, help="steps of each way with one GAN")
    parser.add_argument("--class-steps", type=int, default=2_000, help="steps of each way with a GAN for each class")
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
    names = [name for name in args.ways.split(",") if name]
    if unknown := [name for name in names if name not in WAYS]:
        parser.error(f"no way {unknown[0]}: choose from {', '.join(WAYS)}")
    results: Row = json.loads(args.o.read_text()) if args.o.is_file() else {"benchmark": "late-phase", "rows": []}
    longest = 0.0
    for name in with_starts(names):
        way, settings = WAYS[name], settings_of(name, args)
        if any(row["way"] == name and row["settings"] == settings and "error" not in row for row in results["rows"]):
            continue
        if way.start and time.monotonic() - began + longest > args.limit:
            print(f"{name} and what follows did not begin: {args.limit:.0f} s are over; the same call continues")
            break
        row = {"way": name, "start": way.start, "what": way.what, "settings": settings, **provenance()}
        row |= {"machine": machine(), "seed": args.seed, "samples": args.n}
        started = time.monotonic()
        row |= measured(name, args)
        longest = max(longest, time.monotonic() - started) if way.start else longest
        results["rows"].append(row)
        args.o.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(args.o, json.dumps(results, indent=1) + "\n")
        print(table([row]).splitlines()[-1], flush=True)
    draw(results["rows"], args.o.with_suffix(".png"))
    print(f"\n{table(results['rows'])}\n{args.o}")


if __name__ == "__main__":
    run_main(main)
