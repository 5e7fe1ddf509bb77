"""`ganherd recipes`: list or print the packaged recipes, explain keys, and write a JSON schema for editors."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from ganherd.cli.completion import complete_recipe
from ganherd.cli.options import Json, print_result, refuse, terminal_width
from ganherd.util.text import duration, show, size, table_with_notes

if TYPE_CHECKING:
    from ganherd.recipe.reference.recipe_list import ListedRecipe


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|WORD",
            help="Recipe to print, a part of recipes' names, or a word for --keys.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Explain the keys of a recipe, or those about WORD, with their defaults.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for an editor.")] = False,
    as_json: Json = False,
) -> None:
    """List the packaged recipes by task, print one, or explain the keys of a recipe."""
    refuse((keys and schema, "--keys and --schema print different things: leave one of them out."))
    refuse((schema and name, "--schema describes all recipes: leave the name out."))
    if schema:
        from ganherd.recipe.reference.json_schema import recipe_schema

        show(json.dumps(recipe_schema(), indent=1, ensure_ascii=False))
        return
    if keys:
        from ganherd.recipe.reference.key_reference import find_keys, keys_text

        sections = find_keys(name or "")
        facts = [dict(zip(("key", "values", "default", "meaning"), (key.key, *key.plain), strict=True))
                 for section in sections for key in section.keys]  # fmt: skip
        print_result(as_json, {"keys": facts}, keys_text(sections, terminal_width()))
        return
    from ganherd.recipe import recipe_file
    from ganherd.recipe.reference.recipe_list import list_recipes

    names = [own for own, _ in recipe_file.names()]
    rows = list_recipes(name or "") if name not in names else []
    if not rows:
        assert name is not None
        text = recipe_file.text(name)
        print_result(as_json, {"name": name, "text": text}, text.removesuffix("\n"))
        return
    print_result(as_json, {"recipes": [row.as_json() for row in rows]}, _table(rows, terminal_width()))


def _table(rows: list[ListedRecipe], width: int) -> str:
    """Return a text table of recipes, grouped by task: device, length, data and description of each."""
    measured = _measured_here()
    cells, titles, notes = [], [], []
    for task, group in groupby(rows, key=lambda row: row.task):
        for number, row in enumerate(group):
            took = f" ({measured[row.name]} here)" if row.name in measured else ""
            cells.append((f"  {row.name}", row.device, f"{row.length}{took}", row.data))
            titles.append(task if number == 0 else "")
            notes.append(row.about)
    lines = []
    for title, block in zip(titles, table_with_notes(cells, notes, width), strict=True):
        lines += ["", title] if title else []
        lines.append(block)
    return "\n".join([*lines[1:], "", *_FOOTER])


_FOOTER = (
    "CPU or GPU is what a recipe was made for, (… here) what your last run took.",
    "To estimate time and memory:",
    "  ganherd train NAME --dry-run",
)


def _measured_here() -> dict[str, str]:
    """Return by recipe the time and the memory, in words, that runs of the unchanged recipe took on this machine.

    The runs are those in the folder runs.
    """
    from ganherd.runs.run_list import list_own_runs

    runs = list_own_runs(sizes=False)
    return {
        run.recipe: ", ".join([duration(run.seconds), *([size(run.memory)] if run.memory else [])])
        for run in runs
        if run.recipe and run.seconds is not None and not run.changes
    }
