"""Compare batch-norm statistics with which discriminators judge, by the accuracy of the judges. Prints JSON.

python benchmarks/gap_judges.py RUN RUN …            runs of mnist-gan-d, mnist-gap-d2 and their like

Each judge sees held-out real images and new samples of its generator; balanced accuracy is the mean of the
shares that it is right on. GAM-II uses what is called `each set alone` here.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ganherd
from ganherd.data import dataset
from ganherd.runs.folder import RunFolder
from ganherd.scoring.gam_judges import Judges, load_judges, norms_of

BLOCK = 512  # rows that statistics are taken of together
WAYS = ("as trained", "real", "half real, half fakes", "each set alone")


def judge(judges: Judges, row: int) -> nn.Module:
    """Return one discriminator with its weights and the statistics that it was saved with, in evaluation mode."""
    module = copy.deepcopy(judges.module).eval()
    for norm in norms_of(module):
        norm.track_running_stats = True
    own = {name: value[row] for part in (judges.params, judges.buffers) for name, value in part.items()}
    module.load_state_dict(own, strict=False)
    return module


def calibrated(module: nn.Module, x: torch.Tensor) -> nn.Module:
    """Return the discriminator with statistics that are estimated from these rows, in blocks."""
    for norm in norms_of(module):
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the blocks
        norm.train()
    with torch.no_grad():
        for i in range(0, len(x), BLOCK):
            module(x[i : i + BLOCK])
    return module.eval()


def called_real(module: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return float(torch.cat([module(part).reshape(-1) > 0 for part in x.split(1000)]).double().mean())


def compared(run: Path, samples: int) -> list[dict[str, Any]]:
    """Return a row for each judge of the run and each kind of statistics."""
    data, mixture = dataset.load(RunFolder.open(run).recipe.data), ganherd.load(run)
    judges = load_judges(run, mixture.shape, len(data.labels))
    like = next(iter(judges.params.values()))

    def units(x: np.ndarray) -> torch.Tensor:
        return (torch.from_numpy(np.ascontiguousarray(x)).to(like) - judges.offset) / judges.scale

    rows = np.random.default_rng(0).permutation(len(data.x))[: 4 * BLOCK]
    real, held = units(data.x[rows]), units(data.x_test[:samples])
    out = []
    for row in range(len(judges.losses)):
        replica, member = divmod(row, mixture.members)
        alone = mixture.alone(member)
        own, fresh = (units(alone.sample(n, seed=s, replica=replica).x) for n, s in ((4 * BLOCK, 1), (samples, 0)))
        both = torch.stack([real, own], 1).flatten(0, 1)  # by turns, so that every block has half of each
        by_set = judge(judges, row)
        for norm in norms_of(by_set):
            norm.train()
            norm.track_running_stats = False
        ways = (judge(judges, row), calibrated(judge(judges, row), real), calibrated(judge(judges, row), both), by_set)
        for way, module in zip(WAYS, ways, strict=True):
            on_real, on_fakes = 1 - called_real(module, held), called_real(module, fresh)
            accuracy = {"real_error": on_real, "own_fakes_error": on_fakes, "balanced": 1 - (on_real + on_fakes) / 2}
            out.append({"run": run.name, "judge": row, "steps": judges.step, "way": way, **accuracy})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-n", type=int, default=3000, help="held-out real images, and samples of each generator")
    parser.add_argument("-o", type=Path, help="keep it here")
    args = parser.parse_args()
    rows = [row for run in args.runs for row in compared(run, args.n)]
    mean = {way: float(np.mean([row["balanced"] for row in rows if row["way"] == way])) for way in WAYS}
    worst = {way: float(min(row["balanced"] for row in rows if row["way"] == way)) for way in WAYS}
    text = json.dumps(
        {"benchmark": "gap_judges", "samples": args.n, "mean": mean, "worst": worst, "rows": rows}, indent=1
    )
    print(text)
    if args.o:
        args.o.parent.mkdir(parents=True, exist_ok=True)
        args.o.write_text(text + "\n")


if __name__ == "__main__":
    main()
