"""Train the arms of a study, one run each with several seeds, and gather what they recorded and scored.

    python benchmarks/studies.py cellular-decay --runs DIR --arms grid apart   train these arms, and print what they gave
    python benchmarks/studies.py cellular-decay --runs DIR --collect           write JSON and PNG from the runs that are there

Arms may be trained by several processes side by side; a run that is there is not trained again.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from scipy import stats

from command_line import command

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent / "results"
_LONG = ("mixture_scores", "replaced")  # not in rows.jsonl


@dataclass(frozen=True)
class Arm:
    """A recipe with its settings, and why it is in the study."""

    recipe: str
    why: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """Arms that differ in one thing each, what all of them share, and what is measured of them at the end."""

    question: str
    arms: dict[str, Arm]
    settings: tuple[str, ...]
    metrics: str
    samples: int
    network: str = ""
    slope_from: int = 0  # fit a line to the score of every iteration from this one on; 0: none


_GRID = "mnist-cellular-3x3"
_CELLULAR = "strategy.cellular."
_APART = (f"{_CELLULAR}topology=isolated", f"{_CELLULAR}selection=false")  # cells that never meet: plain GANs
_R1 = ("loss.r1_weight=1",)
_NO_R1 = "loss.r1_weight=0"  # of the studies that were measured before the recipes had the penalty
_OF_A_GRID = (f"{_CELLULAR}mixing.keep=last", "train.precision=tf32", "engine.name=graph", "run.scores=false")
STUDIES = {
    "cellular-decay": Study(
        "Why does the FID of a cellular grid grow again after about a hundred iterations?",
        {
            "grid": Arm(_GRID, "the recipe as it is"),
            "apart": Arm(
                _GRID,
                "nine plain GANs: does one alone decay?",
                _APART,
            ),
            "isolated": Arm(_GRID, "selection without neighbours: is it elitism?", (f"{_CELLULAR}topology=isolated",)),
            "one-entrant": Arm(_GRID, "no choice of parents: is it takeover?", (f"{_CELLULAR}tournament=1",)),
            "exact-fitness": Arm(
                _GRID, "fitness on 5,000 samples: is it noise?", (f"{_CELLULAR}fitness.samples=5000",)
            ),
            "slow": Arm(_GRID, "half the learning rates: is it the rate?", ("optim.lr_g=1e-4", "optim.lr_d=1e-4")),
            "strong-critic": Arm(_GRID, "the discriminator learns at every step: is it too weak?", ("train.skip_d=0",)),
        },
        (*_OF_A_GRID, _NO_R1),
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
    ),
    "gan-decay": Study(
        "What stops the decay of a plain GAN with the cellular papers' nets? Nine GANs that never meet in each arm.",
        {
            "r1": Arm(_GRID, "R1 penalty on the discriminator", (*_APART, "loss.r1_weight=1")),
            "slow-critic": Arm(_GRID, "half the discriminator's learning rate", (*_APART, "optim.lr_d=1e-4")),
            "rare-critic": Arm(_GRID, "the discriminator learns at every fourth step", (*_APART, "train.skip_d=3")),
            "noise": Arm(_GRID, "noise of 0.1 on what the discriminator sees", (*_APART, "train.input_noise=0.1")),
        },
        (*_OF_A_GRID, _NO_R1),
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
    ),
    "grid-r1": Study(
        "With an R1 penalty, does a cellular grid still decay, and what do its neighbours and its selection gain?",
        {
            "4x4": Arm("mnist-cellular-4x4", "4 × 4 with neighbours and selection", _R1),
            "5x5": Arm("mnist-cellular-5x5", "5 × 5 with neighbours and selection", _R1),
            "3x3": Arm(_GRID, "3 × 3 with neighbours and selection", _R1),
            "no-selection": Arm(_GRID, "3 × 3 with neighbours, no selection", (*_R1, f"{_CELLULAR}selection=false")),
            "isolated": Arm(_GRID, "3 × 3 with selection, no neighbours", (*_R1, f"{_CELLULAR}topology=isolated")),
            "apart": Arm(_GRID, "nine plain GANs", (*_R1, *_APART)),
        },
        _OF_A_GRID,
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
    ),
    "grid-r1-weight": Study(
        "How strong should the R1 penalty of a cellular grid be?",
        {
            f"r1-{weight}": Arm(
                "mnist-cellular-4x4", f"4 × 4 with loss.r1_weight {weight}", (f"loss.r1_weight={weight}",)
            )
            for weight in ("0.1", "1", "10")
        },
        _OF_A_GRID,
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
    ),
    "grid-r1-long": Study(
        "With an R1 penalty, does a grid still improve, or decay, from iteration 100 to 400?",
        {
            f"{size}-r1-{weight}": Arm(
                f"mnist-cellular-{size}", f"{size} with loss.r1_weight {weight}", (f"loss.r1_weight={weight}",)
            )
            for size in ("4x4", "5x5")
            for weight in ("0.1", "1", "10")
        },
        (*_OF_A_GRID, "train.budget=400epochs"),
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
        slope_from=100,
    ),
    "policies": Study(
        "Which policy of survival gains on a 4 × 4 grid with an R1 penalty?",
        {
            name: Arm("mnist-cellular-4x4", why, (*_R1, *(f"{_CELLULAR}{setting}" for setting in settings)))
            for name, why, settings in (
                ("default", "a trained net stays if it is better", ()),
                ("fresh", "a fresh opponent of the neighbourhood at each batch", ("opponents=neighbourhood",)),
                ("comma-1", "(1,1): the trained net always stays", ("survival=comma",)),
                ("comma-4", "(1,4)", ("survival=comma", "offspring=4", "opponents=partner")),
                ("plus-4", "(1+4): the best of four stays if it is better", ("offspring=4", "opponents=partner")),
                ("comma-16", "(1,16)", ("survival=comma", "offspring=16", "opponents=partner")),
                ("ageing", "a net gives way after 3 iterations", ("max_age=3",)),
            )
        },
        _OF_A_GRID,
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
    ),
    "digits-opponents": Study(
        "Why do neighbours without selection collapse under R1? Is it opponents that stand still, or opponents of others?",
        {
            **{
                f"own{suffix}": Arm("digits-cellular-3x3", f"each trains against its own partner{words}", (*_APART, r1))
                for suffix, words, r1 in (("", "", _NO_R1), ("-r1", ", R1", *_R1))
            },
            **{
                f"{every}{suffix}": Arm(
                    "digits-cellular-3x3",
                    f"against copies of all neighbours, renewed every {every}{words}",
                    (f"{_CELLULAR}selection=false", f"{_CELLULAR}iteration={every}", r1),
                )
                for every in ("23steps", "6steps", "1steps")
                for suffix, words, r1 in (("", "", _NO_R1), ("-r1", ", R1", *_R1))
            },
        },
        # no mutation: shorter iterations would have more of them
        (
            f"{_CELLULAR}mutation.learning_rate=off",
            f"{_CELLULAR}mixing.when=end",
            "train.budget=2070steps",
            "run.scores=false",
        ),
        "fid,histogram",
        1_000,
    ),
    "grid-paper": Study(
        "What do the grids of the cellular paper give exactly as printed, and with a fresh opponent at each batch?",
        {
            **{f"{n}x{n}": Arm(f"mnist-cellular-{n}x{n}-paper", f"{n} × {n} as printed") for n in (2, 3, 4, 5)},
            "4x4-fresh": Arm(
                "mnist-cellular-4x4-paper",
                "4 × 4 with a fresh opponent of the neighbourhood at each batch",
                (f"{_CELLULAR}opponents=neighbourhood",),
            ),
        },
        _OF_A_GRID,
        "fid,histogram",
        10_000,
        "lipizzaner_mnist_cnn.npz",
    ),
    "gap-described": Study(
        "Does swapping help when members differ in their prior and see decaying noise, as the paper describes?",
        {
            f"{who}-{how}": Arm(recipe, f"{does}, {differ}", ("herd.members=4", *settings))
            for who, does, recipe in (
                ("gap", "four that swap", "mnist-gap-d4"),
                ("apart", "four that do not", "mnist-gan-d"),
            )
            for how, differ, settings in (
                ("alike", "all with a uniform prior", ()),
                (
                    "described",
                    "two with a uniform and two with a normal prior, noise on real images",
                    (
                        "nets.prior=[uniform,normal,uniform,normal]",
                        "train.input_noise=0.3",
                        "train.input_noise_steps=15000",
                        "train.input_noise_decay=steps",
                        "train.input_noise_on=real",
                    ),
                ),
            )
        },
        ("train.precision=bf16", "engine.name=graph", "run.scores=false", "run.validation=1000"),
        "fid,histogram,classifier_score,prdc",
        10_000,
    ),
    "w-against-dc": Study(
        "Do Wasserstein GANs, one for each class, cycle and collapse less than DC-GANs with the same nets?",
        {
            "w": Arm("cifar10-wcgan-paper", "clipped critic"),
            "dc": Arm("cifar10-dccgan-paper", "non-saturating loss, batch norm with the printed eps 0.8"),
            "dc-eps": Arm(
                "cifar10-dccgan-paper",
                "the same with the usual eps, as the W arm has it",
                ("nets.generator.eps=1e-5", "nets.discriminator.eps=1e-5"),
            ),
        },
        ("engine.name=graph", "run.scores=false", "run.watch.every=100"),
        "fid,prdc,diversity,label_accuracy",
        10_000,
    ),
}


def words(study: Study, arm: Arm, seeds: int, more: list[str]) -> list[str]:
    """Return what follows `ganherd train`, without the run's folder."""
    network = [f"{_CELLULAR}mixing.network={study.network}"] if study.network else []
    settings = [word for one in (*study.settings, *network, *arm.settings, *more) for word in ("--set", one)]
    return [arm.recipe, "--seeds", str(seeds), *settings]


def train(study: Study, name: str, args: argparse.Namespace) -> None:
    """Train and score one arm unless it is there, and write what is worth keeping to `NAME.json` next to its run."""
    arm, run, result = study.arms[name], args.runs / name, args.runs / f"{name}.json"
    budget = ["--budget", args.budget] if args.budget else []
    began, asks = time.perf_counter(), words(study, arm, args.seeds, args.set)
    if not (run / "run.json").exists():
        command("train", *asks, *budget, "--run", run, "-q")
    trained = time.perf_counter() - began
    network = ["--network", study.network] if study.network else []
    scores = json.loads(
        command("score", run, "--metrics", study.metrics, "-n", args.samples or study.samples, *network, "--json")
    )
    facts = {
        "arm": name,
        "why": arm.why,
        "command": " ".join(["ganherd train", *asks, *budget]),
        "seeds": args.seeds,
        "seconds": round(trained, 1),
        "scores": scores,
        **recorded(run),
    }
    if study.slope_from and len(facts["mixture_scores"]) > study.slope_from + 1:
        facts["slope"] = slope(best_cells(facts)[study.slope_from :])
    result.write_text(json.dumps(facts) + "\n")
    with (args.runs / "rows.jsonl").open("a") as rows:  # what is there if a later arm fails
        rows.write(json.dumps({key: value for key, value in facts.items() if key not in _LONG}) + "\n")


def recorded(run: Path) -> dict[str, Any]:
    """Return alarms by kind, the score of every iteration of a grid, and how many members were replaced."""
    alarms: Counter[str] = Counter()
    scores, replaced = [], []
    for line in (run / "events.jsonl").open():
        event = json.loads(line)
        if event["event"] == "alarm":
            alarms[event["what"]] += 1
        elif event["event"] == "mixture":
            scores.append([round(value, 2) for value in event["after"]])
        elif event["event"] == "replacement":
            replaced.append([sum(event["g_new"]), sum(event["d_new"])])
    return {"alarms": dict(alarms), "mixture_scores": scores, "replaced": replaced}


def collect(name: str, study: Study, args: argparse.Namespace) -> None:
    """Write the study's JSON, and a plot if its arms have a score for every iteration."""
    arms = [
        json.loads((args.runs / f"{arm}.json").read_text())
        for arm in study.arms
        if (args.runs / f"{arm}.json").exists()
    ]
    facts = {
        "question": study.question,
        "command": f"python benchmarks/studies.py {name} --seeds {args.seeds}"
        + (f" --budget {args.budget}" if args.budget else ""),
        "commit": args.commit,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": args.machine or (torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"),
        "note": args.note,
    }
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    rows = ",\n".join(f"  {json.dumps(arm)}" for arm in arms)
    (args.output / f"{name}.json").write_text(f'{{\n{lines},\n "arms": [\n{rows}\n ]\n}}\n')
    if any(arm["mixture_scores"] for arm in arms):
        plot(arms, args.output / f"{name}.png", study.question)


def best_cells(arm: dict[str, Any]) -> np.ndarray:
    """Return the score of the best cell of each seed at each iteration: [iterations, seeds]."""
    scores = np.array(arm["mixture_scores"])  # [T, seeds × cells]
    return scores.reshape(len(scores), arm["seeds"], -1).min(2)


def slope(scores: np.ndarray) -> dict[str, Any]:
    """Return the least-squares slope of scores [iterations, seeds] per iteration: of each seed, their mean, its 95 % interval."""
    slopes = np.polyfit(np.arange(len(scores)), scores, 1)[0]  # [seeds]
    mean = float(slopes.mean())
    if len(slopes) < 2:
        return {"each": slopes.tolist(), "mean": mean}
    half = float(stats.t.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / np.sqrt(len(slopes)))
    return {"each": slopes.tolist(), "mean": mean, "low": mean - half, "high": mean + half}


def plot(arms: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the mean over seeds of the best cell's score, with the range of the seeds."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for arm in arms:
        best = best_cells(arm)
        (line,) = axes.plot(np.arange(1, len(best) + 1), best.mean(1), label=f"{arm['arm']}: {arm['why']}", lw=1.5)
        axes.fill_between(
            np.arange(1, len(best) + 1), best.min(1), best.max(1), color=line.get_color(), alpha=0.12, lw=0
        )
    axes.set(yscale="log", xlabel="iteration", ylabel="FID of the best cell (1,000 samples)")
    axes.set_title(textwrap.fill(title, 90), fontsize=10)
    axes.legend(fontsize=7, frameon=False)
    axes.grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--arms", nargs="*", help="arms to train (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", help="length of every arm (default: the recipe's)")
    parser.add_argument("--set", action="append", default=[], help="a setting of every arm")
    parser.add_argument("--samples", type=int, help="samples to score (default: the study's)")
    parser.add_argument("--collect", action="store_true", help="train nothing; write JSON and PNG")
    parser.add_argument("--output", type=Path, default=HERE, help="where --collect writes")
    for name in ("commit", "machine", "note"):
        parser.add_argument(f"--{name}", default="", help=f"{name} to record")
    args = parser.parse_args()
    study = STUDIES[args.study]
    if args.collect:
        collect(args.study, study, args)
        return
    if unknown := set(args.arms or ()) - set(study.arms):
        sys.exit(f"studies.py: no arm {', '.join(sorted(unknown))}; there are {', '.join(study.arms)}")
    args.runs.mkdir(parents=True, exist_ok=True)
    for name in args.arms or study.arms:
        train(study, name, args)
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
