"""Train on few images of each class of CIFAR-10, with and without a start from one GAN of all classes. Writes JSON and pictures.

python benchmarks/few_images.py --per-class 500 100 --budget 3m --runs /tmp/few          on a GPU; rows that are there are kept
python benchmarks/few_images.py --per-class 20 --budget 20s --data tiny.npz -n 100 --network classifier \
    --set engine.device=cpu --set nets.generator.width=8 --set nets.discriminator.width=8    a try on a CPU

All ways have the same seconds from the command to the mixture, the same images and the nets of cifar10-perclass. FID, IFID,
recall and coverage compare the samples with all training images of the data, not only with the few: a GAN that repeats these few
is far from the others. `copies` is the share of samples that look like copies of one of the few (5 % by chance). One seed:
indicative.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from command_line import command
from existing_runs import run_main
from ganherd.data.dataset import load
from ganherd.recipe.sections.data_config import DataConfig
from ganherd.util.files import atomic_write
from ganherd.util.text import text_table
from provenance import machine, provenance

HERE = Path(__file__).parent / "results"
# Few images of all classes overfit too, so the GAN of all classes is augmented like those of the classes.
AUGMENTED = {"augment": ["colour", "translation", "cutout"], "augment_target": 0.2, "augment_probability": 0.0}
METRICS = ("fid", "ifid", "recall", "coverage")
Row = dict[str, Any]

WAYS = {  # what it does
    "start": "70 % of the time for one GAN of all classes, then a GAN for each class that starts from it",
    "nothing": "a GAN for each class, from nothing",
    "conditional": "one GAN of all classes, the whole time",
}


def recipe_of(way: str, folder: Path) -> Path:
    """Write the recipe of a way and return its path."""
    conditional = {"extends": "cifar10-conditional", "about": "One GAN of all classes.", "train": AUGMENTED}
    recipes: dict[str, Row] = {
        "conditional": conditional,
        "start": {
            "extends": "cifar10-perclass",
            "about": WAYS["start"],
            "herd": {"first": {"recipe": str(folder / "conditional.yaml"), "share": 0.7}},
        },
        "nothing": {
            "extends": "cifar10-perclass",
            "about": WAYS["nothing"],
            "herd": {"first": None},
            "optim": {"lr_g": 2e-4, "lr_d": 2e-4},  # those of the first phase
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, recipe in recipes.items():
        (folder / f"{name}.yaml").write_text(json.dumps(recipe, indent=1) + "\n")  # JSON is YAML
    return folder / f"{way}.yaml"


def few(args: argparse.Namespace, per_class: int) -> Path:
    """Write an .npz with this many training images of each class, drawn by the seed, and all held-out images; return its path."""
    path: Path = args.runs / f"{per_class}-of-each.npz"
    if not path.is_file():
        data, random = load(DataConfig(source=args.data)), np.random.default_rng(args.seed)
        own = [random.permutation(np.flatnonzero(data.y == label))[:per_class] for label in np.unique(data.y)]
        rows = np.sort(np.concatenate(own))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x_train=data.x[rows], y_train=data.y[rows], x_test=data.x_test, y_test=data.y_test)
    return path


def measured(way: str, per_class: int, args: argparse.Namespace) -> Row:
    """Train and score one way, and return its row."""
    run, data = args.runs / f"{way}-{per_class}", few(args, per_class)
    settings = [f"data.source={data}", f"run.seed={args.seed}", "run.scores=false", "run.sample_every=0", *args.set]
    words = [word for setting in settings for word in ("--set", setting)]
    if not (run / "mixture").exists():
        recipe = recipe_of(way, args.runs / "recipes")
        command("train", recipe, *words, "--budget", args.budget, "--run", run, "--quiet")
    samples, network = args.runs / f"{run.name}.npz", ["--network", args.network] if args.network else []
    command("sample", run, "-n", args.n, "-o", samples, "--quiet")
    scored = command(
        "score", "--real", args.data, "--fake", samples, "--metrics", "fid,ifid,prdc", "-n", args.n, *network, "--json"
    )
    copies = command("score", run, "--metrics", "memorisation", "-n", min(args.n, 2_000), "--json")
    command("sample", run, "--per-class", 16, "-o", args.o.with_name(f"{args.o.stem}-{per_class}-{way}.png"))
    info, scores = json.loads((run / "run.json").read_text()), json.loads(scored)["scores"]
    return {
        "way": way,
        "about": WAYS[way],
        "per_class": per_class,
        "steps": info["step"],
        **{name: found["value"] for name in METRICS if (found := scores.get(name)) and "value" in found},
        "copies": json.loads(copies)["scores"]["memorisation"]["value"],
        "scores": scores,
    }


def table(rows: list[Row]) -> str:
    """Return the rows as a text table."""
    head = ("images of each class", "way", "steps", "FID", "IFID", "recall", "coverage", "copies")
    lines = [head]
    for row in rows:
        numbers = (f"{row[name]:.{1 if 'fid' in name else 3}f}" if name in row else "-" for name in METRICS)
        lines.append((str(row["per_class"]), row["way"], f"{row['steps']:,}", *numbers, f"{100 * row['copies']:.1f} %"))
    return "\n".join(text_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-class", type=int, nargs="+", default=[500, 100])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--budget", default="3m", help="from the command to the mixture, for each way")
    parser.add_argument("--data", default="cifar10", help="labelled images, of which a few are taken")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every way")
    parser.add_argument("--network", help="network of the scores; see `ganherd score`")
    parser.add_argument("-n", type=int, default=10_000, help="samples for each score")
    parser.add_argument("--runs", type=Path, default=Path("runs/few-images"))
    parser.add_argument("-o", type=Path, default=HERE / "few-images.json")
    args = parser.parse_args()
    args.runs = args.runs.absolute()
    old = json.loads(args.o.read_text()) if args.o.is_file() else {}
    facts = {
        "benchmark": "few_images",
        "data": args.data,
        "budget": args.budget,
        "seed": args.seed,
        "settings": args.set,
    }
    args.runs /= hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]  # runs of other settings stay apart
    facts |= {"samples": args.n, "network": args.network}
    if any(old.get(key) != value for key, value in facts.items()):
        old = {}
    result: Row = old or {**facts, **provenance(), "machine": machine(), "rows": []}
    for per_class in args.per_class:
        for way in args.ways:
            if any((row["way"], row["per_class"]) == (way, per_class) for row in result["rows"]):
                continue
            result["rows"].append(measured(way, per_class, args))
            args.o.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(args.o, json.dumps(result, indent=1) + "\n")
            print(table(result["rows"][-1:]), flush=True)
    print(f"{table(result['rows'])}\n{args.o}")


if __name__ == "__main__":
    run_main(main)
