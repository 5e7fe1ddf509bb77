"""`ganherd recipes`: list or print the packaged recipes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ganherd.cli.options import Json, show
from ganherd.util.text import text_table


def recipes(name: Annotated[str | None, typer.Argument(help="Recipe to print.")] = None, as_json: Json = False) -> None:
    """List the packaged recipes, or print one."""
    from ganherd.recipe import recipe_file

    if name:
        text = recipe_file.text(name)
        show(json.dumps({"name": name, "text": text}) if as_json else text, end="" if not as_json else "\n")
        return
    rows = recipe_file.names()
    if as_json:
        show(json.dumps({"recipes": [{"name": n, "about": about} for n, about in rows]}))
    else:
        show("\n".join(text_table(rows)))
