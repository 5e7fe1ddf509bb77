"""A study of arms, each a run: trained and measured one by one, the results written after each, so that calls can be short."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ganherd
import kept
from called import command
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError

Row = dict[str, Any]
Measure = Callable[
    [str, Row], Iterator[Row]
]  # of an arm and what is known of its run, piece by piece what was measured


@dataclass(frozen=True)
class Arm:
    """What is trained."""

    label: str
    recipe: str
    settings: tuple[str, ...] = ()


def parser(about: str | None, arms: Sequence[str], samples: int) -> argparse.ArgumentParser:
    """The options that all such studies have."""
    out = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument(
        "--only", nargs="+", choices=arms, metavar="ARM", help=f"of {', '.join(arms)}; the others' results are kept"
    )
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--budget", help="instead of the recipes', as 5epochs or 20steps; the results say it")
    out.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    out.add_argument("-n", type=int, default=samples, help="samples of each generator, and of each mixture")
    out.add_argument("--together", type=int, default=1, help="runs that train at the same time")
    out.add_argument("--runs", type=Path, help="where the runs are kept")
    out.add_argument("-o", type=Path, help="the results; what is there of other arms stays")
    return out


def opened(path: Path, settings: Row) -> Row:
    """The results so far; those of other settings are not mixed with new ones."""
    if not path.is_file():
        return {"settings": settings, "ganherd": ganherd.__version__, "commands": [], "arms": {}}
    old: Row = json.loads(path.read_text())
    before = old.get("settings", {})
    other = [f"{k}: {before.get(k)} -> {v}" for k, v in settings.items() if before.get(k) != v]
    if other:
        raise UserError(f"{path} has results of other settings ({other[0]}): give another -o, or move it away.")
    return old


def write(results: Row, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def trained(name: str, arm: Arm, asked: argparse.Namespace) -> Row:
    """The run of an arm: trained, or gone on with, or there already; and what it was made with."""
    path = asked.runs / f"{arm.recipe.removesuffix(f'-{name}')}-{name}-{asked.seed}"
    settings = [f"run.seed={asked.seed}", "run.scores=false", *arm.settings, *asked.set]
    settings += [f"train.budget={asked.budget}"] if asked.budget else []
    state = kept.state(path, arm.recipe, settings)
    if state == "new":
        path.parent.mkdir(parents=True, exist_ok=True)
        command("train", arm.recipe, "--run", path, "-q", *(word for one in settings for word in ("--set", one)))
    elif state == "stopped":
        command("train", "--resume", path, "-q")
    folder = RunFolder.open(path)
    info, recipe = folder.info, folder.recipe
    return {
        "label": arm.label,
        "recipe": arm.recipe,
        "settings": list(arm.settings),
        "run": str(path),
        "budget": recipe.train.budget,
        "steps": info.step,
        "members": info.members,
        "trained_seconds": info.seconds,
        "precision": recipe.train.precision,
        "engine": info.engine.as_json(),
        "device": device(info.engine.device),
        "torch": info.versions["torch"],
    }


def device(name: str) -> str:
    """In words: the GPU's name."""
    import torch

    gpu = name.startswith("cuda") and torch.cuda.is_available()
    return torch.cuda.get_device_name() if gpu else f"{name} ({platform.machine()})"


def each(
    arms: dict[str, Arm], asked: argparse.Namespace, results: Row, path: Path, measure: Measure
) -> list[tuple[str, Row]]:
    """Trains the arms that are asked for, --together of them at once, and measures each as soon as those before it are: the
    results are whole after each piece. All that there are, in order."""
    results["commands"].append(" ".join(["python", *sys.argv]))
    wanted = [name for name in arms if name in (asked.only or arms)]
    with ThreadPoolExecutor(asked.together) as pool:
        runs = {name: pool.submit(trained, name, arms[name], asked) for name in wanted}
        for name in wanted:
            row = runs[name].result()
            print(
                f"{row['label']}: {row['steps']:,} steps in {row['trained_seconds']:,.0f} s",
                file=sys.stderr,
                flush=True,
            )
            old = results["arms"].get(name, {})
            if (old.get("run"), old.get("steps")) == (row["run"], row["steps"]):
                row = old | row  # what an earlier call measured of the same run is not measured again
            row["together"], results["arms"][name] = asked.together, row
            for piece in measure(name, row):
                row |= piece
                write(results, path)
    return [(name, results["arms"][name]) for name in arms if name in results["arms"]]
