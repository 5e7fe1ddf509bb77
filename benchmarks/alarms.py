"""Count the alarms for GANs that are made to fail and for healthy ones, and measure what monitoring costs. Writes JSON.

python benchmarks/alarms.py                        seeds 20 to 29, which neither limits nor rules were tuned on
python benchmarks/alarms.py --seed 10              seeds 10 to 19: after them a dead critic needs eight looks instead of five, since
                                                   one of 100 healthy GANs had a generator that stayed ahead for five
python benchmarks/alarms.py --seed 0               seeds 0 to 9: after them the rule of collapse was changed, since it had
                                                   missed one in ten (it took a spread just above half for a recovery)
python benchmarks/alarms.py --seed 100 --seeds 5   those that the limits were tuned on
python benchmarks/alarms.py --only cycling
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import ganherd
from failing_gans import KINDS, first_alarms, recipe
from ganherd.herd.engine.engines import Plan, place_state
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.training.budget import Budget
from ganherd.training.loop import Trainer
from ganherd.training.recording.progress import Progress
from ganherd.training.setup.assemble import assemble
from ganherd.training.stop_request import StopRequest


def train(settings: dict[str, Any], path: Path) -> Trainer:
    """Train without making a mixture, scores or a report."""
    assembly = assemble(recipe_file.load(settings), trust_code=True)
    plan = Plan("fused", assembly.herd.num_members, 1, "cpu")
    torch.set_num_threads(plan.threads)
    place_state(assembly.herd, plan)
    steps = int(settings["train"]["budget"].removesuffix("steps"))
    trainer = Trainer(assembly, plan, RunFolder.create(path), Budget(steps), Progress([], quiet=True))
    trainer.train(StopRequest())
    trainer.close()
    return trainer


def row(kind: str, folder: Path, seed: int, seeds: int) -> dict[str, Any]:
    """Return the alarms of one kind of GAN; each member of each seed is one GAN."""
    chosen = KINDS[kind]
    trainer = train(recipe(kind, folder, seed, seeds), folder / "run")
    by_member = first_alarms(trainer.folder.events(), trainer.herd.num_members)
    others = Counter(what for alarms in by_member for what in alarms if what != chosen.alarm)
    first = sorted(alarms[chosen.alarm] for alarms in by_member if chosen.alarm in alarms)
    return {
        "kind": kind,
        "about": chosen.about,
        "seeds": [seed, seed + seeds - 1],
        "gans": len(by_member),
        "steps": chosen.steps,
        "alarm": chosen.alarm or None,
        "raised": len(first) if chosen.alarm else None,
        "at_step": [first[0], first[-1]] if first else None,
        "right": sum(chosen.alarm in alarms if chosen.alarm else not alarms for alarms in by_member),
        "other_alarms": dict(others),
    }


def cost(folder: Path) -> dict[str, Any]:
    """Return the share of the training time that health checks of the default recipe take."""
    settings = recipe_file.load("digits-wcgan", ["engine.device=cpu"]).model_dump()
    trainer = train(settings, folder / "cost")
    return {"every": trainer.schedule.looks.every, "share": round(trainer.state.monitor.seconds / trainer.seconds, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=list(KINDS), action="append")
    parser.add_argument("-o", type=Path, help="where the JSON goes, e.g. benchmarks/results/alarms.json")
    args = parser.parse_args()
    rows = []
    for kind in args.only or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(kind, Path(folder), args.seed, args.seeds))
        new = rows[-1]
        print(
            f"{kind:<26} right {new['right']:>3} of {new['gans']:<4} {new['alarm'] or 'none':<12} at {new['at_step']}"
            f"  others {new['other_alarms']}",
            file=sys.stderr,
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        watching = cost(Path(folder))
    print(f"watching the default recipe: every {watching['every']} steps, {watching['share']:.2%}", file=sys.stderr)
    versions = {"ganherd": ganherd.__version__, "torch": torch.__version__}
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), **versions}
    text = json.dumps({"rows": rows, "watching": watching, **machine}, indent=1)
    if args.o:
        args.o.parent.mkdir(parents=True, exist_ok=True)
        args.o.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
