"""`ganherd recipes` and `ganherd doctor`: what comes with ganherd, and what this machine has."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ganherd.cli.options import Json, show


def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.")] = None, as_json: Json = False) -> None:
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
        width = max(len(n) for n, _ in rows)
        show("\n".join(f"{n:<{width}}  {about}" for n, about in rows))


def doctor(as_json: Json = False) -> None:
    """What this machine has, and what is missing for what."""
    from ganherd.machine_check import examine

    rows = examine()
    if as_json:
        show(json.dumps({"rows": rows}))
        return
    width = max(len(row["what"]) for row in rows)
    for row in rows:
        mark, found = ("✓", row["found"]) if row["found"] else ("–", "not here")
        need = f"  ({row['needed_for']})" if row["needed_for"] else ""
        show(
            f"{mark} {row['what']:<{width}}  {found}{need}"
            + (f"\n  {'':<{width}}  {row['how_to_get']}" if row["how_to_get"] else "")
        )
