"""`ganherd recipes`: list or print the packaged recipes."""

from __future__ import annotations

from typing import Annotated

import typer

from ganherd.cli.options import Json, print_result
from ganherd.util.text import text_table


def recipes(name: Annotated[str | None, typer.Argument(help="Recipe to print.")] = None, as_json: Json = False) -> None:
    """List the packaged recipes, or print one."""
    from ganherd.recipe import recipe_file

    if name:
        text = recipe_file.text(name)
        print_result(as_json, {"name": name, "text": text}, text.removesuffix("\n"))
        return
    rows = recipe_file.names()
    facts = {"recipes": [{"name": own, "about": about} for own, about in rows]}
    print_result(as_json, facts, "\n".join(text_table(rows)))
