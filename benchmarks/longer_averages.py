"""Find out whether a longer running average of the weights would score better, from the points that a speedrun kept.

python benchmarks/longer_averages.py /tmp/speedrun/cifar10-speedrun-1000 --counts 1,2,4

The averages of several points, `--counts` of them before the end of each phase, are averaged with equal weights, which is about
what a larger train.ema would have given. Statistics of batch norm are estimated for the new weights. Call it on a training of a
tuning seed, after `python benchmarks/speedrun.py --interval 30 --points-only`: scoring removes the points.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from existing_runs import run_main
from ganherd.mixture.mixture import Mixture
from ganherd.runs import checkpoint
from ganherd.runs.folder import RunFolder
from ganherd.training import finish
from ganherd.training.setup.assemble import assemble
from ganherd.training.setup.identity import take_up
from ganherd.util.files import atomic_write
from provenance import machine, provenance
from speedrun_points import Point, points_of

HERE = Path(__file__).parent / "results"


def averaged(points: Sequence[Point]) -> Mixture:
    """Return the mixture of the last point, with the mean of the averages of all points as its weights."""
    folder = RunFolder.open(points[-1].path)
    prepared = assemble(folder.recipe, False, begins=False)
    saved = [checkpoint.newest(RunFolder(point.path).checkpoints, prepared.herd.nets)[0] for point in points]
    take_up(prepared, saved[-1])
    mean = torch.stack([one.state["g.ema"] for one in saved]).mean(0)
    prepared.herd.state["g.ema"].copy_(mean)
    return finish.make_mixture(prepared, saved[-1].step)


def main() -> None:
    from ganherd.scoring.one_run import score_run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of a speedrun with its points")
    parser.add_argument("--counts", default="1,2,4", help="how many points to average")
    parser.add_argument("--network", help="network of the scores; default: that of FID")
    parser.add_argument("-n", type=int, default=50_000, help="samples for each score")
    parser.add_argument("--seed", type=int, default=1000, help="of the samples")
    parser.add_argument("-o", type=Path, default=HERE / "longer-averages.json")
    args = parser.parse_args()
    by_phase: dict[str, list[Point]] = {}
    for point in points_of(args.folder):
        by_phase.setdefault(point.phase, []).append(point)
    result = {"benchmark": "longer-averages", **provenance(), "machine": machine(), "samples": args.n, "rows": []}
    for phase, points in by_phase.items():
        for count in map(int, args.counts.split(",")):
            if count > len(points):
                continue
            chosen = points[-count:]
            aside = args.folder / "averaged"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(chosen[-1].path, aside)
            averaged(chosen).save(aside / "mixture")
            scores = score_run(aside, ["fid", "ifid"], args.n, args.seed, network=args.network, store=False)
            row = {"phase": phase, "steps": [point.step for point in chosen]}
            row |= {name: scores[name]["value"] for name in ("fid", "ifid")}
            result["rows"].append(row)
            atomic_write(args.o, json.dumps(result, indent=1) + "\n")
            print(f"{phase:12} {row['steps']}  FID {row['fid']:.2f}  IFID {row['ifid']:.2f}", flush=True)


if __name__ == "__main__":
    run_main(main)
