"""`ganherd runs`: list runs, give them tags, and remove their checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ganherd.cli.completion import complete_run
from ganherd.cli.options import Json, RunFolderArgument, examples, named_runs, print_json, print_result, terminal_width
from ganherd.util.errors import UserError, counted
from ganherd.util.paths import RUNS
from ganherd.util.text import one_line, say, show, size, span, table_with_notes

if TYPE_CHECKING:
    from ganherd.runs.run_list import RunSummary


class _ListByDefault(TyperGroup):
    """A group of commands that runs `list` if no command is named: `ganherd runs X` is `ganherd runs list X`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if not ctx.resilient_parsing and first not in self.commands and first not in ("--help", "-h"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


runs_app = typer.Typer(cls=_ListByDefault, help="List runs, tag them, and remove their checkpoints.")


@runs_app.command("list", epilog=examples("ganherd runs", "ganherd runs list comparisons --json"))
def runs_list(
    folder: Annotated[Path | None, typer.Argument(help="Folder that holds runs. Default: runs.")] = None,
    as_json: Json = False,
) -> None:
    """List the runs in a folder; the one that was active last comes last."""
    from ganherd.runs.run_names import tags

    runs = _runs_in(folder)
    tagged = {path.absolute(): name for name, path in tags().items()}
    names = [tagged.get(Path(run.path).absolute()) for run in runs]
    rows = [{**run.as_json(), "tag": name} for run, name in zip(runs, names, strict=True)]
    print_result(as_json, {"runs": rows}, _table(folder or RUNS, runs, names, terminal_width()))


@runs_app.command("tag", epilog=examples("ganherd runs tag @last best", "ganherd sample @best -o grid.png"))
def runs_tag(
    run: RunFolderArgument,
    name: Annotated[str, typer.Argument(help="The tag: @NAME is then this run, wherever a command takes one.")],
    as_json: Json = False,
) -> None:
    """Give a run a short name. A tag that another run has moves to this one."""
    from ganherd.runs.run_names import tag

    name = name.removeprefix("@")
    tag(run, name)
    print_result(as_json, {"run": str(run), "tag": name}, f"@{name} is {run}")


@runs_app.command("clean", epilog=examples("ganherd runs clean --keep-last", "ganherd runs clean @last"))
def runs_clean(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Finished runs, or folders of runs. Default: all in the folder runs.",
            callback=named_runs,
            autocompletion=complete_run,
        ),
    ] = None,
    keep_last: Annotated[
        bool, typer.Option("--keep-last", help="Keep the newest checkpoint of each run, to train it further.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the checkpoints of finished runs. Mixtures, pictures, scores and records stay.

    A run without checkpoints can be sampled and scored, but neither resumed nor fine-tuned.
    """
    chosen: list[Path] = []
    named: list[Path | None] = [*runs] if runs else [None]
    for path in named:
        if path is not None and (path / "run.json").is_file():
            chosen.append(path)
        else:
            finished = [Path(one.path) for one in _runs_in(path) if one.state == "finished"]
            chosen += [one for one in finished if (one / "mixture" / "mixture.json").is_file()]
    chosen = list({path.resolve(): path for path in chosen}.values())  # a run may be named twice
    from ganherd.runs import clean

    each = [what for path in chosen if (what := clean.removable(path, keep_last)).checkpoints]
    total = sum(what.bytes for what in each)
    if not each:
        print_result(as_json, {"runs": [], "bytes": 0}, "No finished run has checkpoints to remove.")
        return
    for what in each:
        say(f"{what.folder.path}: {counted(len(what.checkpoints), 'checkpoints')}, {size(what.bytes)}")
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"Removing {size(total)} needs a confirmation, and there is no terminal: add --yes.")
        lost = "they can be trained further" if keep_last else "none of these runs can then be resumed or fine-tuned"
        say(f"Mixtures, pictures, scores and records stay; {lost}.")
        if not typer.confirm(f"Remove {size(total)}?", err=True):
            show("Nothing was removed.")
            return
    for what in each:
        clean.remove(what)
    removed = [str(what.folder.path) for what in each]
    if as_json:
        print_json({"runs": removed, "bytes": total})
    else:
        show(f"Removed {size(total)} of checkpoints from {counted(len(removed), 'runs')}.")


def _runs_in(folder: Path | None) -> list[RunSummary]:
    """Return the runs in a folder; for None, those in the folder runs, which need not exist, and the current folder."""
    from ganherd.runs.run_list import list_own_runs, list_runs

    return list_own_runs() if folder is None else list_runs(folder)


def _table(folder: Path, runs: list[RunSummary], tags: list[str | None], width: int) -> str:
    """Return a text table of runs, and a line with their number and size below it.

    Args:
        folder: The folder that is listed, for the message if it has no runs.
        tags: The tag of each run, or None.
        width: The width of the terminal in columns.
    """
    if not runs:
        return f"There are no runs in {folder}; `ganherd train` makes one."
    header = ["run", "state", "step", "verdict", "FID", "age", "size"]
    if not any(run.verdict for run in runs):
        header.remove("verdict")
    rows = [header]
    for run, tag in zip(runs, tags, strict=True):
        cells = {
            "run": one_line(run.name, 60) + (f" @{tag}" if tag else ""),
            "state": "unreadable" if run.problem else one_line(run.state, 20),
            "step": one_line(_step(run), 24),
            "verdict": one_line(run.verdict or "–", 20),
            "FID": "–" if run.fid is None else f"{run.fid:.4g}",
            "age": span(run.age),
            "size": "–" if run.problem else size(run.bytes),
        }
        rows.append([cells[name] for name in header])
    right = {header.index(name) for name in ("step", "FID", "age", "size")}
    lines = table_with_notes(rows, ["", *map(_about, runs)], width, right, heading="recipe and changes")
    whole, saved = sum(run.bytes for run in runs), sum(run.checkpoint_bytes for run in runs)
    share = f", {size(saved)} of it checkpoints (`ganherd runs clean`)" if saved else ""
    return "\n".join([*lines, f"{counted(len(runs), 'runs')}, {size(whole)}{share}"])


def _step(run: RunSummary) -> str:
    if run.step is None:
        return "–"
    return f"{run.step:,}" if run.steps in (None, run.step) else f"{run.step:,}/{run.steps:,}"


def _about(run: RunSummary) -> str:
    """Return in one line the recipe of a run and the settings that were changed in it, or why it cannot be read."""
    if run.problem:
        return one_line(run.problem, 200)
    return one_line(", ".join([run.recipe or "–", *run.changes]), 200)
