"""Options that several commands share, and how commands print results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ganherd.util.errors import UserError
from ganherd.util.text import say, show

if TYPE_CHECKING:
    from ganherd.runs.verdict_record import VerdictRecord

Json = Annotated[bool, typer.Option("--json", help="Print the result on stdout as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Trust = Annotated[
    bool, typer.Option("--trust-code", help="Allow code that is not part of ganherd: modules and TorchScript.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe. May be repeated.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="Length of the run: 5000steps, 20epochs, or wall-clock time up to its mixture, e.g. 90s, 10m, 2h."
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Number of replicas with different seeds.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the samples.")]
RunFolderArgument = Annotated[Path, typer.Argument(help="A run folder.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders.")]


def names(text: str | None) -> list[str] | None:
    """Split names at commas; None stays None.

    >>> names("fid, kid"), names(None)
    (['fid', 'kid'], None)
    """
    return [name.strip() for name in text.split(",")] if text else None


def numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Parse whole numbers above zero, separated by commas, or a range of them.

    >>> numbers("--ranks", "4,1", "1,2,4"), numbers("--grid-sizes", "1-3", "1-12")
    ((4, 1), (1, 2, 3))
    """
    first, dash, last = text.partition("-")
    if dash and first.strip().isdecimal() and last.strip().isdecimal():
        result = tuple(range(int(first), int(last) + 1))
    else:
        result = tuple(int(number) if number.strip().isdecimal() else 0 for number in text.split(","))
    if not result or not all(result):
        raise UserError(f"{option} {text}: give numbers above zero, separated by commas, e.g. {example}.")
    return result


def recipe_overrides(sets: list[str] | None, budget: str | None, seeds: int | None) -> list[str]:
    """Return --set, --budget and --seeds as overrides of a recipe.

    >>> recipe_overrides(["train.batch=8"], "90s", None)
    ['train.batch=8', 'train.budget=90s']
    """
    given = {"train.budget": budget or None, "herd.seeds": seeds}
    return [*(sets or ()), *(f"{key}={value}" for key, value in given.items() if value is not None)]


def refuse(*mistakes: tuple[object, str]) -> None:
    """Raise a `UserError` with the sentence of the first condition that holds."""
    for condition, sentence in mistakes:
        if condition:
            raise UserError(sentence)


def log_unless(quiet: bool) -> Callable[[str], None]:
    """Return the function that logs progress on stderr; with --quiet, one that does nothing."""
    return (lambda text: None) if quiet else say


def print_json(facts: Mapping[str, Any]) -> None:
    """Print an object as strict JSON; numbers that are not finite become strings."""
    from ganherd.runs.records import plain

    print(json.dumps(plain(facts), allow_nan=False), flush=True)


def print_result(as_json: bool, facts: Mapping[str, Any], text: object) -> None:
    """Print the result of a command on stdout: the facts as JSON, or the text."""
    if as_json:
        print_json(facts)
    else:
        show(text)


def show_verdict(verdict: VerdictRecord | None) -> None:
    """Print the verdict on a run in one line: the word, the reason and what to try; nothing if there is none."""
    if verdict is not None:
        show(f"\nverdict  {verdict.sentence}")


def named_files(files: Mapping[str, Path]) -> str:
    """Return lines that name the written files, for below a table.

    >>> print(named_files({"rows": Path("a.json")}).strip())
    rows     a.json
    """
    return "".join(["\n", *(f"\n{kind:<8} {path}" for kind, path in files.items())]) if files else ""
