"""`ganherd data`: list, download, inspect and prepare data sets."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ganherd.cli.options import Json, Quiet, examples, print_json, print_result
from ganherd.util.errors import UserError, counted
from ganherd.util.paths import expanded
from ganherd.util.text import say, show

if TYPE_CHECKING:
    from ganherd.recommend import Choice
    from ganherd.util.files import JsonObject

LARGE = 256  # images of more pixels per side than this are inspected at the size that training would give them

data_app = typer.Typer(help="List, get, inspect and prepare data sets.", no_args_is_help=True)


@data_app.command("list", epilog=examples("ganherd data list"))
def data_list(as_json: Json = False) -> None:
    """List the data sets that ganherd knows, and where it looks for them."""
    from ganherd.data.readers.download import list_sources

    rows = list_sources()
    lines = []
    for row in rows:
        where = f"  [{row['where']}]" if row["where"] else ""
        lines.append(f"{'✓' if row['present'] else '–'} {row['name']:<13} {row['about']}{where}")
    print_result(as_json, {"sources": rows}, "\n".join(lines))


@data_app.command("get", epilog=examples("ganherd data get mnist"))
def data_get(
    name: Annotated[str, typer.Argument(help="Name of a data set, e.g. mnist.")],
    as_json: Json = False,
) -> None:
    """Download a data set into $GANHERD_DATA."""
    from ganherd.data.readers.download import get

    got = get(name)
    there = f"is at {got['where']}" if got["where"] else "needs no file"
    print_result(as_json, got, f"{name} {there}" + ("." if got["fetched"] else ": nothing had to be fetched."))


@data_app.command("inspect", epilog=examples("ganherd data inspect pictures", "ganherd data inspect mnist --recommend"))
def data_inspect(
    source: Annotated[str, typer.Argument(help="Name or path of a data set.")],
    sheet: Annotated[
        Path | None, typer.Option("-o", "--output", help="File of the contact sheet. Default: NAME-sheet.png.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=2, help="Resize the images of a folder to this many pixels.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", hidden=True)] = False,  # has no effect: always so
    recommend: Annotated[
        bool, typer.Option("--recommend", help="Recommend a recipe, with its memory, its time and the command.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show classes, counts, sizes and range of a data set, and draw a contact sheet. Unreadable images are listed."""
    from ganherd import recommend as advising
    from ganherd.data import inspect as looking
    from ganherd.data.dataset import load
    from ganherd.data.readers import survey as surveys
    from ganherd.data.shards import shards
    from ganherd.recipe.schema import DataConfig
    from ganherd.recipe.sources.data_address import short_name
    from ganherd.util.registry import DATA_SOURCES

    DATA_SOURCES.vouch(source)
    folder, files, choice = expanded(source), None, None
    given = [f"data.size={size}"] if size else []
    if surveys.holds_image_files(source):
        files = surveys.survey(source)
        choice = advising.choose_for_folder(source, files, given=given)
    # small images of equal size are shown unchanged, others as training would resize them
    if choice and files and size is None and (files.is_varied or files.side > LARGE):
        size = choice.loaded.data.size or files.side
    settings = DataConfig(source=source, size=size, bad_images="skip")
    if choice:  # hold out as much as training would
        settings = settings.model_copy(update={"holdout": choice.loaded.data.holdout})
    try:
        dataset = load(settings)
    except UserError as error:
        if files is None:
            raise
        facts = {"name": folder.name, "files": files.facts(), "refused": str(error)}
        print_result(as_json, facts, f"{files.text()}\n`ganherd train` would refuse this: {error}")
        return
    prepared = advising.has_fixed_size(dataset)
    if prepared:
        shards.verify(folder)
    path = sheet or Path(f"{short_name(source)}-sheet.png")
    looking.contact_sheet(dataset, path)
    facts = looking.describe(dataset) | ({"files": files.facts()} if files else {}) | {"contact_sheet": str(path)}
    text = "\n".join([*([files.text(skipped=False)] if files else []), looking.text(facts)])
    if recommend:
        given += ["data.bad_images=skip"] if dataset.skipped else []
        advice = advising.recommend(source, facts, given, prepared)
        facts, text = facts | {"recommend": advice}, f"{text}\n\n{advising.text(advice)}"
    elif choice := choice or _choice_of_file(source, facts, given, prepared):
        facts["would_train"] = {"recipe": choice.recipe, "why": choice.why, "command": choice.command}
        text += f"\n\n`ganherd train {shlex.quote(source)}` would train this:\n{choice.text()}"
    print_result(as_json, facts, text)


def _choice_of_file(source: str, facts: JsonObject, given: Sequence[str], prepared: bool) -> Choice | None:
    """Return the recipe and settings that `ganherd train SOURCE` would choose; None if it would not train SOURCE."""
    from ganherd import recommend as advising
    from ganherd.cli.own_data import is_own_data

    try:
        return advising.choose_from_facts(source, facts, given, prepared) if is_own_data(source) else None
    except UserError:
        return None


@data_app.command("prepare", epilog=examples("ganherd data prepare pictures --size 64", "ganherd train pictures-64"))
def data_prepare(
    source: Annotated[
        str,
        typer.Argument(help="Folder of images, in one folder for each class; tars or Parquet files; or hf:owner/name."),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Prepared folder to train from. Default: NAME-SIZE.")
    ] = None,
    size: Annotated[int, typer.Option(min=2, help="Width and height in pixels.")] = 64,
    crop: Annotated[
        Literal["centre", "random"], typer.Option(help="Position of the square that is cut from an image.")
    ] = "centre",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of reading processes. Default: one for each core.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of random crops.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resize and store images once, for data sets of any number of images. If interrupted, the same command continues."""
    from ganherd.data.samples.open_samples import is_sample_source, open_samples
    from ganherd.data.shards import shards
    from ganherd.data.shards.prepare import prepare
    from ganherd.data.shards.prepare_samples import prepare_samples
    from ganherd.recipe.absolute_paths import absolute_path
    from ganherd.recipe.sources.data_address import short_name
    from ganherd.util.meter import ProgressBar

    options = (size, crop, seed, jobs)
    samples = open_samples(source) if is_sample_source(source) else None
    folder = expanded(source)
    out = out or Path(f"{short_name(source) if samples else folder.resolve().name}-{size}")
    with ProgressBar("images", quiet or as_json) as meter:
        if samples is not None:
            index = prepare_samples(samples, absolute_path(source), out, *options, meter.at)
        else:
            index = prepare(folder, out, *options, meter.at)
    counts = {label: 0 for label in index.labels}
    for shard in index.shards:
        if shard.label >= 0:
            counts[index.labels[shard.label]] += shard.count
    total = sum(shard.count for shard in index.shards)
    if as_json:
        facts = {"path": str(out), "images": total, "classes": counts, "shape": list(index.shape)}
        skipped = [{"file": one.file, "why": one.why} for one in index.skipped]
        print_json({**facts, "skipped": skipped, "converted": index.converted})
        return
    for note in index.notes():
        say(f"note: {note}")
    if len(index.skipped) > shards.NAMED:
        say(f"note: {out / 'index.json'} names all {len(index.skipped):,} skipped files with the reason")
    for label in [label for label, count in counts.items() if not count]:
        say(f"note: nothing of the class {label!r} could be read")
    shape = "×".join(map(str, index.shape))
    show(f"{out}: {counted(total, 'images')} of {shape}, {counted(len(index.labels), 'classes')}")
