"""Measure what each ingredient brings to one conditional GAN on CIFAR-10: FID and IFID after equal seconds of training.

python benchmarks/ingredients.py --seconds 180                                all arms, one after another, on a GPU
python benchmarks/ingredients.py --seconds 180 --arms base,attention,lecam    these; arms that are in the file are not run again
python benchmarks/ingredients.py --seconds 8 -n 200 --network classifier --set data.source=tiny.npz --set engine.device=cpu \
    --set nets.generator.width=8 --set nets.discriminator.width=8 --arms base,attention    a try on a CPU

Needs cifar10 and inception-2015-12-05.pt in $GANHERD_DATA (or ~/.cache/ganherd). Each arm is the recipe `cifar10-conditional`
with one thing changed, in a separate process. The seconds are those of training alone: the start
and the scores come on top. One seed, which no reported result uses, so differences are indicative. Each row is written at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from command_line import command
from existing_runs import run_main
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.files import atomic_write
from ganherd.util.text import text_table
from provenance import machine, provenance

HERE = Path(__file__).parent / "results"
RECIPE = "cifar10-conditional"
_G, _D = "nets.generator.", "nets.discriminator."
# what every arm has: no augmentation, constant rates
BASE = ("train.augment=[]", "train.augment_target=null", "train.augment_probability=1", "train.schedules=[]")
_AUGMENT = "train.augment=[colour,translation,cutout]"
_DECAY = "train.schedules=[{keys: [optim.lr_g, optim.lr_d], start: 0.5run, over: 0.5run, last: 0}]"
_NO_SPECTRAL = f"{_D}spectral=false"


def _pair(g: str, d: str) -> tuple[str, str]:
    return f"nets.generator={g}", f"nets.discriminator={d}"


ARMS: dict[str, tuple[str, tuple[str, ...]]] = {  # what is changed, and the settings that do it
    "base": ("constant width 256 / 128, hinge, spectral norm, two critic updates, average of weights", ()),
    "doubling": ("widths that double, 64 to 512", (
        f"{_G}width=64", f"{_G}growth=8", f"{_D}width=64", f"{_D}growth=8", f"{_D}smallest=4", f"{_D}flat_blocks=0")),
    "attention": ("self-attention at 16 px in both nets", (f"{_G}attention=true", f"{_D}attention=true")),
    "plain": ("a plain discriminator, width 256", (f"{_D}body=plain", f"{_D}width=256", f"{_D}smallest=4", f"{_D}flat_blocks=0")),
    "wide": ("a discriminator of width 256", (f"{_D}width=256",)),
    "critic1": ("one critic update", ("train.n_critic=1",)),
    "critic5": ("five critic updates, as SNGAN", ("train.n_critic=5",)),
    "momentum": ("one critic update, betas 0.5 and 0.999, twice the critic's rate", (
        "train.n_critic=1", "optim.beta1=0.5", "optim.beta2=0.999", "optim.lr_d=4e-4")),
    "batch256": ("batches of 256", ("train.batch=256",)),
    "fresh": ("new samples for every update", ("train.fakes=fresh",)),
    "decay": ("rates that fall linearly to 0 in the second half", (_DECAY,)),
    "diffaugment": ("DiffAugment at full strength", (_AUGMENT,)),
    "ada": ("adaptive augmentation from 0", (_AUGMENT, "train.augment_target=0.6", "train.augment_probability=0")),
    "lecam": ("LeCam 0.3", ("loss.lecam_weight=0.3",)),
    "cr": ("consistency of real images, 10", ("loss.consistency_weight=10",)),
    "bcr": ("consistency of real and generated images, 10", ("loss.consistency_weight=10", "loss.consistency_weight_fake=10")),
    "mbstd": ("minibatch standard deviation over 4", (f"{_D}minibatch_std=4",)),
    "r1": ("non-saturating with R1 0.01 in place of hinge with spectral norm", (
        "loss.name=non-saturating", "loss.r1_weight=0.01", _NO_SPECTRAL)),
    "relativistic": ("relativistic pairing with R1 and R2 0.05 in place of hinge with spectral norm", (
        "loss.name=relativistic-pairing", "loss.r1_weight=0.05", "loss.r2_weight=0.05", _NO_SPECTRAL)),
    "r3gan": ("R3GAN's nets at width 256, relativistic pairing with R1 and R2", (
        *_pair("{name: r3gan, width: 256, label: true}", "{name: r3gan, width: 256, label: true}"), "train.n_critic=1",
        "loss.name=relativistic-pairing", "loss.r1_weight=0.05", "loss.r2_weight=0.05")),
    "stylegan": ("StyleGAN2's nets at width 256, non-saturating with R1", (
        *_pair("{name: stylegan, width: 256, label: true}", "{name: stylegan, width: 256, label: true, minibatch_std: 32}"),
        "train.n_critic=1", "loss.name=non-saturating", "loss.r1_weight=0.01", "optim.lr_g=2.5e-3", "optim.lr_d=2.5e-3",
        "optim.beta2=0.99")),
}  # fmt: skip


def settings_of(arm: str, args: argparse.Namespace) -> list[str]:
    """Return all settings of an arm; those that are given for all arms come last."""
    own = [f"run.seed={args.seed}", "run.scores=false", "run.sample_every=0", f"train.budget={args.seconds}s"]
    return [*BASE, *ARMS[arm][1], *own, *args.set]


def train(arm: str, args: argparse.Namespace) -> None:
    """Train an arm in this process; the seconds are those of training alone."""
    from ganherd.training.session import train as train_recipe

    train_recipe(recipe_file.load(RECIPE, settings_of(arm, args)), args.runs / arm, quiet=True, counts_all=True)


def measured(arm: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train and score an arm, and return its row."""
    words = [sys.executable, __file__, *args.words, "--train", arm]
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    wall = time.perf_counter() - began
    run = args.runs / arm
    info = RunFolder.open(run).info
    network = ["--network", args.network] if args.network else []
    scores = json.loads(command("score", run, "--metrics", "fid,ifid", "-n", args.n, *network, "--json"))["scores"]
    facts = {"steps": info.step, "trained_seconds": round(info.seconds, 1), "wall_seconds": round(wall, 1)}
    return {**facts, **{name: one.get("value") for name, one in scores.items()}, "scores": scores}


def table(rows: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        return f"{value:,.1f}" if isinstance(value, float) else "-" if value is None else f"{value:,}"

    keys = ("steps", "fid", "ifid")
    lines = [("arm", *keys, "what is changed")]
    lines += [(row["arm"], *(cell(row.get(key)) for key in keys), row.get("error") or row["what"]) for row in rows]
    return "\n".join(text_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help=f"of {', '.join(ARMS)}; default: all")
    parser.add_argument("--seconds", type=int, default=180, help="seconds of training for each arm")
    parser.add_argument("--seed", type=int, default=1000, help="a seed that no reported result uses")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every arm")
    parser.add_argument("--network", help="network of the scores; default: that of FID")
    parser.add_argument("-n", type=int, default=10_000, help="samples for each score")
    parser.add_argument("--runs", type=Path, default=Path("runs/ingredients"))
    parser.add_argument("-o", type=Path, default=HERE / "ingredients.json")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.words = sys.argv[1:]
    if args.train:
        train(args.train, args)
        return
    arms = args.arms.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"no arm {unknown[0]}: choose from {', '.join(ARMS)}")
    for arm in arms:  # a wrong setting is refused before the first arm is trained
        recipe_file.load(RECIPE, settings_of(arm, args))
    results = json.loads(args.o.read_text()) if args.o.is_file() else {"benchmark": "ingredients", "rows": []}
    for arm in arms:
        settings = settings_of(arm, args)
        same = [
            row for row in results["rows"] if row["arm"] == arm and row["settings"] == settings and "error" not in row
        ]
        if not same:
            row = {
                "arm": arm,
                "what": ARMS[arm][0],
                "settings": settings,
                **provenance(),
                "machine": machine(),
                "seed": args.seed,
                "samples": args.n,
            }
            row |= measured(arm, args)
            results["rows"].append(row)
            args.o.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(args.o, json.dumps(results, indent=1) + "\n")
        print(table([(same or results["rows"])[-1]]).splitlines()[-1], flush=True)
    print(f"\n{table(results['rows'])}\n{args.o}")


if __name__ == "__main__":
    run_main(main)
