"""Compare arrangements of several members per class under equal budgets, in IFID and recall. Writes JSON and a picture.

python benchmarks/several_per_class.py cifar10-wcgan-paper --budget 20m --seeds 3      on a GPU
python benchmarks/several_per_class.py digits-wcgan --budget 300steps --seeds 2 -n 500 --critic-layers layers.0   on a CPU

The members of a class train apart, swap discriminators, coevolve on a torus, or share layers of their critics with all other
classes. `ganherd compare` trains each arrangement for the budget and scores it with the same samples; seeds are stacked. The
first arrangement, members apart, is what the others are compared with: "beats" needs a 95 % interval that excludes zero.
Another call with the same folder resumes what was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

import ganherd
from command_line import command

RESULTS = Path(__file__).parent / "results"
METRICS = ("ifid", "recall")


def torus_of(members: int) -> list[int]:
    """Return rows and columns of the squarest torus with this many cells."""
    rows = next(rows for rows in range(math.isqrt(members), 0, -1) if members % rows == 0)
    return [rows, members // rows]


# The section `strategy` of each arrangement. Another arrangement is another entry.
ARRANGEMENTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "apart": lambda args: {"name": "independent"},
    "gap": lambda args: {"name": "gap", "gap": {"every": args.every, "travels": "all"}},
    "torus": lambda args: {
        "name": "cellular",
        "cellular": {"grid": torus_of(args.per_class), "iteration": args.every, "fitness": {"loss": args.fitness}},
    },
    "share": lambda args: {"share": {"discriminator": args.critic_layers, "every": args.every}},
    "gap-and-share": lambda args: {**ARRANGEMENTS["gap"](args), **ARRANGEMENTS["share"](args)},
}


def write_recipe(name: str, args: argparse.Namespace) -> Path:
    """Write an arrangement as a recipe, whose name is then that of the contender, and return its path."""
    herd = {"per_class": args.per_class}
    settings = {"extends": args.recipe, "about": name, "herd": herd, "strategy": ARRANGEMENTS[name](args)}
    path = args.runs.with_name(f"{args.runs.name}-recipes") / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=1) + "\n")  # JSON is YAML
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="a recipe with data.partition by-class")
    parser.add_argument("--arrangements", nargs="+", choices=list(ARRANGEMENTS), default=list(ARRANGEMENTS)[:4])
    parser.add_argument("--per-class", type=int, default=4)
    parser.add_argument("--every", default="1epochs", help="from one meeting to the next, in every arrangement")
    parser.add_argument("--fitness", default="wasserstein", help="loss by which nets of a torus are compared")
    parser.add_argument("--critic-layers", nargs="+", default=["layers.0"], help="layers that share averages")
    parser.add_argument("--budget", default="20m", help="of each arrangement")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-n", type=int, default=50_000, help="samples of each seed for each score")
    parser.add_argument("--network", help="network of the scores; see `ganherd score`")
    parser.add_argument("--set", action="append", default=[], help="a setting of every arrangement")
    parser.add_argument("--runs", type=Path, default=Path("comparisons/several-per-class"))
    parser.add_argument("-o", type=Path, default=RESULTS / "several-per-class.json")
    args = parser.parse_args()
    words = [word for setting in args.set for word in ("--set", setting)]
    words += ["--network", args.network] if args.network else []
    contenders = [write_recipe(name, args) for name in args.arrangements]
    output = command(
        "compare", *contenders, "--budget", args.budget, "--seeds", args.seeds, "--metrics", ",".join(METRICS),
        "-n", args.n, "-o", args.runs, *words, "--json",
    )  # fmt: skip
    comparison = json.loads(output)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    result = {
        "command": " ".join(["python", "benchmarks/several_per_class.py", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "machine": f"{machine}, PyTorch {torch.__version__}",
        "ganherd": ganherd.__version__,
        "arrangements": {name: ARRANGEMENTS[name](args) for name in args.arrangements},
        "comparison": comparison,
    }
    args.o.write_text(json.dumps(result, indent=1) + "\n")
    picture = args.runs / "compare.png"
    if picture.is_file():
        args.o.with_suffix(".png").write_bytes(picture.read_bytes())
    print(args.o, file=sys.stderr)


if __name__ == "__main__":
    main()
