"""The commands: parse, call, print. No logic here, and no torch until a command needs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ganherd.errors import Interrupted, UserError

app = typer.Typer(
    name="ganherd", help="Trains many GANs as one.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
data_app = typer.Typer(help="Data sets: list, get, inspect.", no_args_is_help=True, rich_markup_mode=None)
bench_app = typer.Typer(help="Benchmarks on the machine at hand.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Trust = Annotated[bool, typer.Option("--trust-code", help="Import nets that are not ganherd's own, named by the run.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]


@app.command()
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
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe, or go on with a run."""
    from ganherd import recipe_file

    overrides = list(sets or [])
    overrides += [f"train.budget={budget}"] if budget else []
    overrides += [f"herd.seeds={seeds}"] if seeds is not None else []
    if resume and run:
        raise UserError("--resume goes on in its own folder: leave --run out.")
    if resume and dry_run:
        raise UserError("--dry-run is for new runs: `ganherd status` says where this one stands.")
    if resume:
        _resume(resume, recipe, overrides, quiet, trust_code, as_json)
        return
    name = recipe or recipe_file.DEFAULT
    loaded = recipe_file.load(name, overrides)
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
        from ganherd.run.start import refuse_changes

        refuse_changes(folder.recipe, recipe_file.load(recipe, overrides), folder)
    from ganherd.run import start

    _trained(start.resume(path, overrides, quiet, trust_code), as_json)


def _trained(run: Any, as_json: bool) -> None:
    info = run.folder.info
    if as_json:
        _print_json({"run": str(run.path), "state": info["state"], "step": info["step"], "scores": run.scores})
        return
    picture, folder = run.folder.samples / "final.png", run.folder
    print(f"\npicture  {picture}\nscores   {folder.scores_path}\nreport   {folder.report_path}")
    from ganherd.scores import table

    print("\n" + table(run.scores))
    print(f"\nMore samples: ganherd sample {run.path} -n 64 -o grid.png")


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[str, typer.Option("-o", "--output", help="grid.png, out.npz, or folder/.")],
    label: Annotated[str | None, typer.Option(help="Only this label, by name or number.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 64,
    per_class: Annotated[int | None, typer.Option(min=1, help="So many of every label.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Image i of a seed is the same for every n.")] = 0,
    replica: Annotated[int, typer.Option(min=0, help="Which of the stacked seeds.")] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Sample a trained mixture."""
    from ganherd import sampling
    from ganherd.run.folder import mixture_of

    mixture_of(run), sampling.check(output)  # what is wrong here is said at once, before torch is there
    from ganherd import mixture

    drawn = sampling.draw(mixture.load(run, trust_code), n, label, per_class, seed, replica)
    path = sampling.write(drawn, output)
    print(json.dumps({"output": str(path), "samples": len(drawn), "seed": seed}) if as_json else path)


@app.command()
def score(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, side by side.")] = None,
    real: Annotated[
        str | None, typer.Option(help="Instead of runs: a run, a folder, an .npz, or data as cifar10.")
    ] = None,
    fake: Annotated[
        str | None, typer.Option(help="What is scored against --real: the same kinds; cifar10:test too.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Names with commas between; default: all that fit the data and are quick.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="inception, classifier, lipizzaner-mnist, pixels, FILE.pt, FILE.npz, or package.module:Class."
        ),
    ] = None,
    head: Annotated[
        Path | None, typer.Option(help="Classifier of Inception for its score: .npz with weight, bias.")
    ] = None,
    per: Annotated[str | None, typer.Option(help="Also of each: member or class.")] = None,
    samples: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Samples for each score; default: 1,000; 10,000 for Inception on a GPU."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    trust_code: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score trained mixtures against their data, or any samples against any data."""
    from ganherd import scores

    names = metrics.split(",") if metrics else None
    settings: Any = {"network": network, "head": head, "per": per, "progress": None if quiet else _say}
    if (real is None) != (fake is None) or (real is None) != bool(runs):
        raise UserError("name runs to score, or give both --real and --fake.")
    if real and fake:
        found = {fake: scores.score_sets(real, fake, names, samples, seed, trust_code, **settings)}
    else:
        each = runs or []
        found = {str(run): scores.score_run(run, names, samples, seed, trust_code, **settings) for run in each}
    first = next(iter(found.values()))
    if as_json:
        _print_json({"scores": first} if len(found) == 1 else {"runs": {k: {"scores": v} for k, v in found.items()}})
    elif len(found) == 1:
        print(scores.table(first))
    else:
        print(scores.side_by_side(found, {name: metric.best for name, metric in scores.METRICS.items()}))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")], trust_code: Trust = False, as_json: Json = False
) -> None:
    """Write one self-contained HTML page for each run."""
    from ganherd import report as pages

    paths = [str(pages.write(run, trust_code=trust_code)) for run in runs]
    print(json.dumps({"reports": paths}) if as_json else "\n".join(paths))


@app.command()
def status(run: Annotated[Path, typer.Argument(help="A run folder.")], as_json: Json = False) -> None:
    """Where a run stands: step, rate, time left, members and alarms."""
    from ganherd.run import status as standing

    facts = standing.describe(run)
    print(json.dumps(facts) if as_json else _printable(standing.text(facts)))


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.")] = None, as_json: Json = False) -> None:
    """List the packaged recipes, or print one."""
    from ganherd import recipe_file

    if name:
        text = recipe_file.text(name)
        print(json.dumps({"name": name, "text": text}) if as_json else text, end="" if not as_json else "\n")
        return
    rows = recipe_file.names()
    if as_json:
        print(json.dumps({"recipes": [{"name": n, "about": about} for n, about in rows]}))
    else:
        width = max(len(n) for n, _ in rows)
        print("\n".join(f"{n:<{width}}  {about}" for n, about in rows))


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine has, and what is missing for what."""
    from ganherd.doctor import examine

    rows = examine()
    if as_json:
        print(json.dumps({"rows": rows}))
        return
    width = max(len(row["what"]) for row in rows)
    for row in rows:
        mark, found = ("✓", row["found"]) if row["found"] else ("–", "not here")
        need = f"  ({row['needed_for']})" if row["needed_for"] else ""
        print(
            f"{mark} {row['what']:<{width}}  {found}{need}"
            + (f"\n  {'':<{width}}  {row['how_to_get']}" if row["how_to_get"] else "")
        )


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The data sets that ganherd knows, and where it looks for them."""
    from ganherd.data.inspect import list_sources

    rows = list_sources()
    if as_json:
        print(json.dumps({"sources": rows}, default=str))
        return
    for row in rows:
        print(f"{'✓' if row['present'] else '–'} {row['name']:<10} {row['about']}  [{row['where']}]")


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="mnist, cifar10, cifar100, …")]) -> None:
    """Download a data set into $GANHERD_DATA."""
    from ganherd.data.inspect import get

    print(get(name))


@data_app.command("inspect")
def data_inspect(
    source: Annotated[str, typer.Argument(help="A known name or a path.")],
    sheet: Annotated[
        Path | None, typer.Option("-o", "--output", help="Contact sheet; default: NAME-sheet.png here.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=2, help="Resize the images of a folder.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip files that are no images.")] = False,
    as_json: Json = False,
) -> None:
    """Classes, counts, sizes and range of some data, and a contact sheet of it."""
    from ganherd.data import inspect as looking
    from ganherd.data.source import load
    from ganherd.recipe import Data

    dataset = load(Data(source=source, size=size, bad_images="skip" if skip_bad else "refuse"))
    path = sheet or Path(f"{Path(source).stem or 'data'}-sheet.png")
    looking.contact_sheet(dataset, path)
    facts = looking.describe(dataset) | {"contact_sheet": str(path)}
    print(json.dumps(facts) if as_json else looking.text(facts))


@bench_app.command("fusion")
def bench_fusion(
    net: Annotated[str, typer.Option(help="Which nets: mlp, small, wcgan or dcgan.")] = "mlp",
    sizes: Annotated[str, typer.Option(help="Numbers of members.")] = "1,4,10,16,64",
    seconds: Annotated[float, typer.Option(min=0.05, help="Measured for each row.")] = 2.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32, tf32, bf16.")] = "float32",
    plot: Annotated[Path | None, typer.Option("-o", "--output", help="Draw it as a picture.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Member-steps per second and memory of every engine, for several herd sizes."""
    from ganherd.bench import fusion

    members = [int(n) if n.strip().isdecimal() else 0 for n in sizes.split(",")]
    if not all(members):
        raise UserError(f"--sizes {sizes}: give numbers of members with commas between, as 1,4,16.")
    rows = fusion.measure(net, members, seconds, device, precision, None if quiet else _say)
    if plot:
        fusion.draw(rows, plot)
    print(json.dumps({"rows": rows}) if as_json else fusion.table(rows))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from ganherd import __version__

        print(f"ganherd {__version__}")
        raise typer.Exit()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_json(facts: dict[str, Any]) -> None:
    """One object, of strict JSON: a number that is not finite becomes its name."""
    from ganherd.run.record import plain

    print(json.dumps(plain(facts), allow_nan=False))


def _printable(text: str) -> str:
    """Names in a run may come from a stranger: they must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def main() -> None:
    """Runs a command; what goes wrong is one sentence on stderr and an exit code."""
    try:
        code = app(standalone_mode=False, prog_name="ganherd")
    except UserError as error:
        _end(str(error), 2)
    except Interrupted as error:
        _end(str(error), 75)
    except KeyboardInterrupt:
        _end("interrupted.", 130)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _end(f"{where}{error.strerror or error}.", 2)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]
            raise SystemExit(0) from None
        if hasattr(error, "format_message"):  # typer's own: a misspelt option, a missing argument
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "ganherd"
            _end(f"{error.format_message().rstrip('.')}. See `{command} --help`.", 2)
        if type(error).__name__ == "RunFailed":
            _end(str(error), 1)
        raise
    raise SystemExit(code if isinstance(code, int) else 0)


def _end(sentence: str, code: int) -> None:
    _say(f"ganherd: {_printable(sentence)}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
