"""`ganherd train`: a new run, the rest of one, or what a run would be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ganherd.commands.options import Json, Quiet, Set, Trust, print_json
from ganherd.errors import UserError


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A packaged recipe's name or a YAML file; default: digits-wcgan.")
    ] = None,
    sets: Set = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the new run; default: runs/NNNNN-NAME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run, exactly.")] = None,
    budget: Annotated[str | None, typer.Option(help="5000steps, 20epochs, 90s, 10m, 2h.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Stack so many replicas with different seeds.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained, its memory and its time.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how each layer would run: kernel, PyTorch or vmap, and why.")
    ] = False,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe, or go on with a run."""
    from ganherd import recipe_file
    from ganherd.comm.detect import detect

    if detect(os.environ) != "local":
        raise UserError(
            "one herd over several ranks cannot be trained yet: start one process, or one run per process with another --run."
        )
    overrides = list(sets or [])
    overrides += [f"train.budget={budget}"] if budget else []
    overrides += [f"herd.seeds={seeds}"] if seeds is not None else []
    if resume and run:
        raise UserError("--resume goes on in its own folder: leave --run out.")
    if resume and dry_run:
        raise UserError("--dry-run is for new runs: `ganherd status` says where this one stands.")
    if resume and explain:
        raise UserError("--explain is for new runs: leave --resume out and name the recipe.")
    if resume:
        _resume(resume, recipe, overrides, quiet, trust_code, as_json)
        return
    name = recipe or recipe_file.DEFAULT
    loaded = recipe_file.load(name, overrides)
    if explain:
        from ganherd.herd import explain as explaining
        from ganherd.run.assemble import assemble

        found = explaining.explain(assemble(loaded, trust_code=True).herd)
        print(json.dumps(found) if as_json else explaining.text(found))
        return
    if dry_run:
        from ganherd.run import dry

        facts = dry.describe(loaded)
        print(json.dumps(facts) if as_json else dry.text(facts))
        return
    from ganherd.run import start

    _trained(start.begin(loaded, run, Path(name).stem, quiet), as_json)


def _resume(path: Path, recipe: str | None, overrides: list[str], quiet: bool, trust_code: bool, as_json: bool) -> None:
    from ganherd import recipe_file
    from ganherd.run.folder import RunFolder

    folder = RunFolder.open(path)
    if recipe is not None:  # a recipe beside --resume must be the run's own
        from ganherd.run.identity import refuse_changes

        refuse_changes(folder.recipe, recipe_file.load(recipe, overrides), folder)
    from ganherd.run import start

    _trained(start.resume(path, overrides, quiet, trust_code), as_json)


def _trained(run: Any, as_json: bool) -> None:
    info = run.folder.info
    if as_json:
        print_json({"run": str(run.path), "state": info["state"], "step": info["step"], "scores": run.scores})
        return
    picture, folder = run.folder.samples / "final.png", run.folder
    print(f"\npicture  {picture}\nscores   {folder.scores_path}\nreport   {folder.report_path}")
    from ganherd.scores import table

    print("\n" + table(run.scores))
    print(f"\nMore samples: ganherd sample {run.path} -n 64 -o grid.png")
