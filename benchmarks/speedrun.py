"""Run the CIFAR-10 speedrun: train for ten minutes, and report when FID and IFID fell below limits.

python benchmarks/speedrun.py --seed 0 --runs /tmp/speedrun                      ten minutes of a GPU, then about five for scores
python benchmarks/speedrun.py --seed 0 --runs /tmp/speedrun --stop-after 540     stop after nine minutes; the same call continues
python benchmarks/speedrun.py --budget 20s --interval 4 -n 200 --network classifier --set data.source=tiny.npz \
    --set engine.device=cpu --set nets.generator.width=8 --set nets.discriminator.width=8      a try on a CPU

The rules are in docs/results/speedrun.md. Needs cifar10 and inception-2015-12-05.pt in $GANHERD_DATA (or ~/.cache/ganherd).
The clock runs from the command to the saved mixture. Points are checkpoints that are kept while it trains; their scores are
taken after the end, so they cost no time. A training that is stopped and resumed has its start counted once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from command_line import command
from existing_runs import run_main
from ganherd import Callback
from ganherd.recipe import recipe_file
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import Interrupted
from ganherd.util.files import atomic_write
from ganherd.util.text import text_table
from provenance import machine, provenance
from speedrun_points import Clock, KeepPoints, StopAfter, points_of

HERE = Path(__file__).parent / "results"
LIMITS = {"fid": (20, 10, 7, 5), "ifid": (40, 24, 17, 14)}
Row = dict[str, Any]


def settings_of(args: argparse.Namespace) -> list[str]:
    """Return the settings of the training: it is the recipe as it is, but for its seed, its length and what --set gives."""
    own = [f"run.seed={args.seed}", "run.scores=false", f"train.budget={args.budget}"]
    return [*own, *args.set]


def train(args: argparse.Namespace) -> None:
    """Train in this process, or continue a training that was stopped."""
    from ganherd.training import session

    callbacks: list[Callback] = [KeepPoints(args.folder, args.interval, args.began)]
    callbacks += [StopAfter(args.began + args.stop_after)] if args.stop_after else []
    run = args.folder / "herd"
    if run.exists():
        session.resume(run, callbacks=callbacks)
    else:
        recipe = recipe_file.load(args.recipe, settings_of(args))
        session.train(recipe, run, args.recipe, callbacks=callbacks, began=args.began)


def trained(args: argparse.Namespace) -> RunFolder:
    """Train in another process, whose start counts, and return the finished run."""
    run = RunFolder(args.folder / "herd")
    if run.info_path.is_file() and run.info.state == "finished":
        return run
    args.folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, __file__, *args.words, "--began", repr(time.monotonic())]
    code = subprocess.run(words).returncode
    if code == 75:
        raise Interrupted("stopped, and nothing is lost: the same command continues.")
    if code:
        raise SystemExit(code)
    return run


def scored(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return FID and IFID of the mixture in a run folder."""
    from ganherd.scoring.one_run import score_run

    scores = score_run(folder, list(LIMITS), args.n, args.seed, network=args.network, store=False)
    return {name: float(scores[name]["value"]) for name in LIMITS}


def measured(result: Row, args: argparse.Namespace) -> None:
    """Score all points and the end of each phase, and write each row at once."""
    from ganherd.training.variants.unfinished import load_unfinished

    run, clock = trained(args), Clock.read(args.folder)
    result["clock"] = {
        "start_seconds": clock.start,
        "trained_seconds": {phase: clock.trained(phase) for phase in clock.phases},
        "switch_seconds": {phase: clock.switch(phase) for phase in clock.phases[1:]},
        "mixture_seconds": clock.mixture,
        "seconds": clock.at(clock.phases[-1]),
    }
    for phase in clock.phases:
        end = RunFolder(args.folder / phase)
        for point in points_of(args.folder):
            if point.phase != phase:
                continue
            if point.step != end.info.step:  # the last step is scored as the finished run
                load_unfinished(point.path).save(point.path / "mixture")
                seconds = clock.at(phase, point.recorded)
                add(result, {"phase": phase, "step": point.step, "seconds": seconds, **scored(point.path, args)}, args)
            shutil.rmtree(point.path)
        ends = [row["phase"] for row in result["points"] if row.get("ends")]
        if phase not in ends:
            row = {"phase": phase, "step": end.info.step, "seconds": clock.at(phase), "ends": True}
            add(result, {**row, "final": end.path == run.path, **scored(end.path, args)}, args)


def add(result: Row, row: Row, args: argparse.Namespace) -> None:
    """Write the results with one more row, and print it."""
    result["points"].append(row)
    result["reached"] = reached(result["points"])
    args.o.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(args.o, json.dumps(result, indent=1) + "\n")
    print(
        f"{row['phase']:12} step {row['step']:>7,}  {row['seconds']:6.1f} s  FID {row['fid']:6.2f}  IFID {row['ifid']:6.2f}"
    )


def reached(points: list[Row]) -> dict[str, dict[str, float | None]]:
    """Return the seconds of the first point at or below each limit of each score; None if there is none."""
    return {
        name: {str(limit): next((p["seconds"] for p in points if p[name] <= limit), None) for limit in limits}
        for name, limits in LIMITS.items()
    }


def table(result: Row) -> str:
    """Return the seconds to each limit, as docs/results/speedrun.md lists them."""
    lines = [("score", "limit", "seconds")]
    for name, limits in result["reached"].items():
        for limit, seconds in limits.items():
            lines.append((name.upper(), limit, "not reached" if seconds is None else f"{seconds:.0f}"))
    return "\n".join(text_table(lines))


def draw(result: Row, path: Path) -> None:
    """Draw FID and IFID over the seconds since the command, with the limits."""
    from matplotlib.ticker import NullFormatter

    from ganherd.viz import pictures

    figure, axes = pictures.new_figure(9, 3.4, columns=2)
    for axis, (name, limits) in zip(axes, LIMITS.items(), strict=True):
        phases = list(dict.fromkeys(point["phase"] for point in result["points"]))
        for phase, which in zip(phases, ("first", "second"), strict=False):
            curve = [(p["seconds"] / 60, p[name]) for p in result["points"] if p["phase"] == phase]
            axis.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=f"{which} phase")
        for limit in limits:
            axis.axhline(limit, linewidth=0.6, color="0.7", zorder=0)
        axis.set(xlabel="minutes from the command to a mixture", title=name.upper(), yscale="log")
        axis.set_yticks(limits, labels=map(str, limits), minor=False)
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.legend(fontsize=8, frameon=False)
    pictures.save(figure, path)


def draw_nearest(run: Path, args: argparse.Namespace, path: Path) -> None:
    """Draw those of 2,000 samples that look most like copies of training images, next to the nearest of these."""
    import ganherd
    from ganherd.data.dataset import load
    from ganherd.metrics.memorisation import draw_neighbours, nearest

    samples, training = (
        ganherd.load(run).sample(min(args.n, 2_000), seed=args.seed).x,
        load(RunFolder.open(run).recipe.data).x,
    )
    draw_neighbours(samples, training, nearest(samples, training)).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10-speedrun")
    parser.add_argument("--budget", default="10m", help="time from the command to the mixture, both phases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interval", type=float, default=30, help="seconds of training between points")
    parser.add_argument("--stop-after", type=float, help="seconds after which the training stops, to be continued")
    parser.add_argument("--points-only", action="store_true", help="train and keep the points, and score nothing yet")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the recipe")
    parser.add_argument("--network", help="network of the scores; default: that of FID")
    parser.add_argument("-n", type=int, default=50_000, help="samples for each score")
    parser.add_argument("--runs", type=Path, default=Path("runs/speedrun"))
    parser.add_argument("-o", type=Path, help="default: speedrun-SEED.json in benchmarks/results")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.words, args.folder = sys.argv[1:], args.runs / f"{args.recipe}-{args.seed}"
    args.o = args.o or HERE / f"speedrun-{args.seed}.json"
    if args.began is not None:
        train(args)
        return
    recipe_file.load(args.recipe, settings_of(args))  # a wrong setting is refused before anything starts
    if args.points_only:
        print(trained(args).path)
        return
    facts = {"benchmark": "speedrun", "recipe": args.recipe, "settings": settings_of(args), "seed": args.seed}
    result: Row = json.loads(args.o.read_text()) if args.o.is_file() else {}
    if any(result.get(key) != value for key, value in facts.items()):
        result = {**facts, **provenance(), "machine": machine(), "samples": args.n, "points": []}
    measured(result, args)
    draw(result, args.o.with_suffix(".png"))
    herd = args.folder / "herd"
    command("sample", herd, "--per-class", 64, "-o", args.o.with_name(f"{args.o.stem}-samples.png"))
    draw_nearest(herd, args, args.o.with_name(f"{args.o.stem}-nearest.png"))
    print(f"\n{table(result)}\n{args.o}")


if __name__ == "__main__":
    run_main(main)
