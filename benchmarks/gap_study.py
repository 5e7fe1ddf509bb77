"""Train and measure the arms of a study, one run each; results are written after each arm, so that calls can be short."""

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

import existing_runs
import ganherd
from command_line import command
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError

Row = dict[str, Any]
Measure = Callable[
    [str, Row], Iterator[Row]
]  # of an arm and what is known of its run, piece by piece what was measured


@dataclass(frozen=True)
class Arm:
    """One arm: a recipe with its settings."""

    label: str
    recipe: str
    settings: tuple[str, ...] = ()


def parser(about: str | None, arms: Sequence[str], samples: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all such studies have."""
    out = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument(
        "--only", nargs="+", choices=arms, metavar="ARM", help=f"of {', '.join(arms)}; the results of the others stay"
    )
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--budget", help="instead of the recipes', as 5epochs or 20steps; the results say it")
    out.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    out.add_argument("-n", type=int, default=samples, help="samples of each generator, and of each mixture")
    out.add_argument("--together", type=int, default=1, help="runs that train at the same time")
    out.add_argument("--runs", type=Path, help="folder of the runs")
    out.add_argument("-o", type=Path, help="the results; what is there of other arms stays")
    return out


def opened(path: Path, settings: Row) -> Row:
    """Return the results so far; results of other settings are refused."""
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


def trained(name: str, arm: Arm, args: argparse.Namespace) -> Row:
    """Return facts about the run of an arm, which is trained or resumed unless it is finished."""
    path = args.runs / f"{arm.recipe.removesuffix(f'-{name}')}-{name}-{args.seed}"
    settings = [f"run.seed={args.seed}", "run.scores=false", *arm.settings, *args.set]
    settings += [f"train.budget={args.budget}"] if args.budget else []
    state = existing_runs.state(path, arm.recipe, settings)
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
    """Return the name of the GPU, or CPU."""
    import torch

    gpu = name.startswith("cuda") and torch.cuda.is_available()
    return torch.cuda.get_device_name() if gpu else f"{name} ({platform.machine()})"


def each(
    arms: dict[str, Arm], args: argparse.Namespace, results: Row, path: Path, measure: Measure
) -> list[tuple[str, Row]]:
    """Train the requested arms, --together of them at once; return all arms in order, with their results.

    Each arm is measured as soon as those before it are, so that the written results are complete after each.
    """
    results["commands"].append(" ".join(["python", *sys.argv]))
    wanted = [name for name in arms if name in (args.only or arms)]
    with ThreadPoolExecutor(args.together) as pool:
        runs = {name: pool.submit(trained, name, arms[name], args) for name in wanted}
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
            row["together"], results["arms"][name] = args.together, row
            for piece in measure(name, row):
                row |= piece
                write(results, path)
    return [(name, results["arms"][name]) for name in arms if name in results["arms"]]
