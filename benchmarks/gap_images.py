"""GAP on images: four GANs apart, four that swap, and both kinds mixed; GAM-II, classifier score, class TVD, AIS. Writes JSON.

python benchmarks/gap_images.py --data mnist --set engine.device=cuda       Tables 2 to 4 of the paper, on MNIST
python benchmarks/gap_images.py --data cifar10 --set engine.device=cuda
python benchmarks/gap_images.py --data mnist --budget 20steps -n 100 …      a try on a CPU

Runs are trained side by side (--together of them at once) and kept in --runs; one that is there already is used. AIS is of
MNIST's DCGANs alone, at the stated variance, on so many points of held-out data as --ais-points says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from called import command

import ganherd
from ganherd.run.folder import RunFolder

HERE = Path(__file__).parent / "results"
ARMS = {
    "DCGAN ×4 apart": ("{}-gan-d", ("herd.members=4",)),
    "GAP_D4": ("{}-gap-d4", ()),
    "GRAN ×4 apart": ("{}-gan-g", ("herd.members=4",)),
    "GAP_G4": ("{}-gap-g4", ()),
    "GAP_C4": ("{}-gap-c4", ()),
}
PUBLISHED: dict[str, Any] = {
    "mnist": {
        "gam2_avg": {"DCGAN": "0.352-0.395", "GAP_D4": "0.430-0.476", "GRAN": "0.433-0.465", "GAP_G4": "0.510-0.533",
                     "GAP_C4 (D)": "0.398-0.423", "GAP_C4 (G)": "0.459-0.474"},
        "classifier_score": {"DCGAN": "6.36 ± 0.09", "GAP_D4": "6.592 ± 0.08", "GRAN": "6.77 ± 0.08", "GAP_G4": "6.85 ± 0.24"},
        "ais": {"DCGAN": "682.5 ± 12.51", "GAP_D4": "691.6 ± 0.01"},
    },
    "cifar10": {
        "gam2_avg": {"DCGAN": "0.333-0.368", "GAP_D4": "0.526-0.565", "GRAN": "0.289-0.355", "GAP_G4": "0.332-0.416",
                     "GAP_C4 (D)": "0.888-0.902", "GAP_C4 (G)": "0.306-0.319"},
    },
}  # fmt: skip


def trained(arm: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The run of an arm, and how long it trained."""
    recipe, more = ARMS[arm]
    name = recipe.format(asked.data)
    path = asked.runs / f"{name}-{asked.seed}"
    began = time.perf_counter()
    if not path.exists():
        settings = [f"run.seed={asked.seed}", *more, *asked.set]
        settings += [f"train.budget={asked.budget}"] if asked.budget else []
        command("train", name, "--run", path, "-q", *(word for one in settings for word in ("--set", one)))
    elif RunFolder.open(path).info.get("state") != "finished":
        command("train", "--resume", path, "-q")
    info = RunFolder.open(path).info
    facts = {"arm": arm, "recipe": name, "run": str(path), "trained_seconds": info["seconds"], "steps": info["step"]}
    print(f"{arm:<15} {time.perf_counter() - began:7.1f} s, {info['step']:,} steps", file=sys.stderr, flush=True)
    return facts


def scored(row: dict[str, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """Scores of the mixture, and of each member alone."""
    metrics = "classifier_score,histogram" + (",fid" if asked.data == "cifar10" else "")
    own = json.loads(command("score", row["run"], "--metrics", metrics, "-n", asked.n, "--per", "member", "--json"))
    found: dict[str, Any] = {"scores": own}
    if asked.ais_points and asked.data == "mnist" and "D" in row["arm"] and "C4" not in row["arm"]:
        began = time.perf_counter()
        found["ais"] = json.loads(command("score", row["run"], "--metrics", "ais", "-n", asked.ais_points, "--json"))
        found["ais_seconds"] = round(time.perf_counter() - began, 1)
    return {**row, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["mnist", "cifar10"], default="mnist")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", help="instead of the recipes'")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run")
    parser.add_argument("-n", type=int, default=10_000, help="samples of each generator")
    parser.add_argument("--ais-points", type=int, default=100)
    parser.add_argument("--together", type=int, default=1, help="runs that train at the same time")
    parser.add_argument("--runs", type=Path, default=Path("runs/gap-images"))
    parser.add_argument("-o", type=Path, help="default: benchmarks/results/gap-DATA.json")
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    path = asked.o or HERE / f"gap-{asked.data}.json"
    began = time.perf_counter()
    with ThreadPoolExecutor(asked.together) as pool:
        rows = list(pool.map(lambda arm: trained(arm, asked), asked.arms))
        rows = list(pool.map(lambda row: scored(row, asked), rows))
    battle = json.loads(command("score", *(row["run"] for row in rows), "--metrics", "gam2", "-n", asked.n, "--json"))
    print(command("score", *(row["run"] for row in rows), "--metrics", "gam2", "-n", asked.n, "-q"))
    new = {
        "command": " ".join(["python", "benchmarks/gap_images.py", *sys.argv[1:]]),
        "seconds": round(time.perf_counter() - began, 1),
        "ganherd": ganherd.__version__,
        "published": PUBLISHED[asked.data],
        "arms": rows,
        "gam2": battle,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(new, indent=1) + "\n")
    print(f"{new['seconds']:,.0f} s; {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
