"""Draw figures of the GAP paper, each with one command; runs that a figure shows are trained unless they exist.

python benchmarks/gap_figures.py 3                        R15 at 600, 300 and 100 points: minutes on a CPU
python benchmarks/gap_figures.py 6 13 --set engine.device=cuda
python benchmarks/gap_figures.py 14 --budget 200steps --set nets.generator.width=8 --set nets.discriminator.width=8
python benchmarks/gap_figures.py --list

Runs are stored in --runs and shared by all figures; a stopped run is resumed. Figures 11, 12, 17 and 18 are of LSUN's
churches: --set data.source=FOLDER names the folder of their images.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import existing_runs
import ganherd
from ganherd.report import figures

RUNS = "$RUNS"  # the folder of the runs, in the recipe of a run that starts from others
TRY = 1000  # images that costs are taken of, trained and held out


@dataclass(frozen=True)
class Wanted:
    """A run that a figure shows."""

    label: str  # in the figure; empty: others start from it, and it is not shown
    recipe: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of the folder, which figures that show the same run share."""
        given = (one.partition("=") for one in self.overrides if not one.startswith(("run.", "herd.members=[")))
        return "-".join([self.recipe, *(f"{key.rpartition('.')[2]}-{value}" for key, _, value in given)])


@dataclass(frozen=True)
class Plan:
    """One figure, or one panel of it."""

    about: str
    draws: tuple[str, ...]  # of `ganherd figures`
    runs: tuple[Wanted, ...]


VALIDATED = (f"run.validation={TRY}",)
RATES = ("0.1", "0.3", "0.5", "0.7", "1.0")


def toys(points: int) -> tuple[Wanted, ...]:
    """Return a single GAN and GAP ×4 on this many of R15's points, with none held out."""
    own = (f"data.points={points}", "data.holdout=0")
    return Wanted(f"GAN, {points}", "r15-gan", own), Wanted(f"GAP ×4, {points}", "r15-gap4", own)


def scaled(data: str, kind: str, rate: str = "0.5") -> tuple[Wanted, ...]:
    """Return one, two and four GANs of a kind, d or g, that swap every `rate` epochs."""
    own = (*every(rate), *VALIDATED)
    two = Wanted("GAP ×2", f"{data}-gap-{kind}4", ("herd.members=2", *own))
    return Wanted("×1", f"{data}-gan-{kind}", VALIDATED), two, Wanted("GAP ×4", f"{data}-gap-{kind}4", own)


def by_rate(data: str, kind: str) -> tuple[Wanted, ...]:
    return tuple(Wanted(f"every {r} epochs", f"{data}-gap-{kind}4", (*every(r), *VALIDATED)) for r in RATES)


def every(rate: str) -> tuple[str, ...]:
    return () if rate == "0.5" else (f"strategy.gap.every={rate}epochs",)  # the recipes' own


def pair(data: str, kind: str) -> tuple[Wanted, ...]:
    name = {"d": "DCGAN", "g": "GRAN"}[kind]
    single = Wanted(name, f"{data}-gan-{kind}", VALIDATED)
    return single, Wanted(f"GAP({name} ×4)", f"{data}-gap-{kind}4", VALIDATED)


def tuned(data: str) -> tuple[Wanted, ...]:
    """Return two trained DCGANs and two trained GRANs that continue as one GAP herd."""
    single = [Wanted("", f"{data}-gan-{kind}", ("herd.members=2",)) for kind in "dg"]
    origins = ", ".join(f"{{from: {RUNS}/{one.folder}, member: {m}}}" for one in single for m in (0, 1))
    return *single, Wanted("GAP_F4", "mnist-gap-f4", (f"data.source={data}", f"herd.members=[{origins}]"))


FIGURES = {
    "3": Plan("R15 at 600, 300 and 100 points", ("points",), (*toys(600), *toys(300), *toys(100))),
    "4": Plan("25 Gaussians", ("points",), (Wanted("GAN", "grid25-gan"), Wanted("GAP ×4", "grid25-gap4"))),
    "6a": Plan("learning curves, DCGAN on CIFAR-10", ("generalisation",), scaled("cifar10", "d")),
    "6b": Plan("learning curves, GRAN on CIFAR-10", ("generalisation",), scaled("cifar10", "g")),
    "7a": Plan("spread by swap rate, DCGAN", ("spread",), by_rate("cifar10", "d")),
    "7b": Plan("spread by swap rate, GRAN", ("spread",), by_rate("cifar10", "g")),
    "10a": Plan("t-SNE, CIFAR-10, DCGAN", ("map",), pair("cifar10", "d")),
    "10b": Plan("t-SNE, CIFAR-10, GRAN", ("map",), pair("cifar10", "g")),
    "11a": Plan("t-SNE, LSUN, DCGAN", ("map",), pair("lsun", "d")),
    "11b": Plan("t-SNE, LSUN, GRAN", ("map",), pair("lsun", "g")),
    **{
        f"12{letter}": Plan(
            f"learning curves, GRAN on LSUN, every {r} epochs", ("generalisation",), scaled("lsun", "g", r)
        )
        for letter, r in zip("abcd", ("0.1", "0.3", "0.5", "1.0"), strict=True)
    },
    "13": Plan("the curves of one member, DCGAN on CIFAR-10", ("generalisation",), scaled("cifar10", "d")),
    "14": Plan("classes seen, MNIST", ("classes",), (*pair("mnist", "d"), *pair("mnist", "g"))),
    "15": Plan("samples, GAP(DCGAN ×4) on CIFAR-10", ("samples",), pair("cifar10", "d")[1:]),
    "16": Plan("samples, GAP(GRAN ×4) on CIFAR-10", ("samples",), pair("cifar10", "g")[1:]),
    "17": Plan("samples, GAP(DCGAN ×4) on LSUN", ("samples",), by_rate("lsun", "d")[1:2]),
    "18": Plan("samples, GAP(GRAN ×4) on LSUN", ("samples",), by_rate("lsun", "g")[2:3]),
    "19": Plan("samples, GAP_C4 on CIFAR-10", ("samples",), (Wanted("GAP_C4", "cifar10-gap-c4"),)),
    "20": Plan("samples, fine-tuned, on CIFAR-10", ("samples",), tuned("cifar10")),
}


def trained(wanted: Wanted, runs: Path, more: list[str]) -> Path:
    """Return the finished run. A stopped run is resumed; one with other settings is refused."""
    path = runs / wanted.folder
    settings = [*(one.replace(RUNS, str(runs)) for one in wanted.overrides), *more]
    state = existing_runs.state(path, wanted.recipe, settings)
    if state == "new":
        print(f"training {path}", file=sys.stderr)
        ganherd.train(wanted.recipe, settings, run=path)
    elif state == "stopped":
        ganherd.resume(path)
    return path


def asked_for(numbers: list[str]) -> list[str]:
    """Return the names of figures; `6` means 6a and 6b."""
    known = {number: [name for name in FIGURES if number in (name, name.rstrip("abcd"))] for number in numbers}
    for number, names in known.items():
        if not names:
            raise SystemExit(f"there is no figure {number}: there are {', '.join(FIGURES)}")
    return list(dict.fromkeys(name for names in known.values() for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", help="numbers of figures in the paper")
    parser.add_argument("--list", action="store_true", help="list the figures, and the runs that each needs")
    parser.add_argument("--runs", type=Path, default=Path("runs/gap"))
    parser.add_argument("-o", type=Path, default=Path("figures"), help="folder that receives a folder for each figure")
    parser.add_argument("--budget", help="budget that replaces those of the recipes, e.g. 20epochs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    args = parser.parse_args()
    if args.list or not args.figures:
        for name, plan in FIGURES.items():
            print(f"{name:<4} {plan.about}: {', '.join(wanted.folder for wanted in plan.runs)}")
        return
    more = [*args.set, *([f"train.budget={args.budget}"] if args.budget else [])]
    for name in asked_for(args.figures):
        plan = FIGURES[name]
        done = [(wanted.label, trained(wanted, args.runs, more)) for wanted in plan.runs]
        shown = [(label, path) for label, path in done if label]
        labels, paths = zip(*shown, strict=True)
        page, _ = figures.draw(
            paths, args.o / f"figure-{name}", plan.draws, labels, progress=lambda line: print(line, file=sys.stderr)
        )
        print(page)


if __name__ == "__main__":
    existing_runs.run_main(main)
