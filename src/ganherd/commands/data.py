"""`ganherd data list`, `get` and `inspect`: the data sets that are known, and a look into any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ganherd.commands.options import Json

data_app = typer.Typer(help="Data sets: list, get, inspect.", no_args_is_help=True, rich_markup_mode=None)


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The data sets that ganherd knows, and where it looks for them."""
    from ganherd.data.inspect import list_sources

    rows = list_sources()
    if as_json:
        print(json.dumps({"sources": rows}, default=str))
        return
    for row in rows:
        print(
            f"{'✓' if row['present'] else '–'} {row['name']:<13} {row['about']}"
            + (f"  [{row['where']}]" if row["where"] else "")
        )


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
