"""Define the options that several commands share, and print the results of commands."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ganherd.cli.completion import complete_run, complete_setting
from ganherd.util.errors import UserError
from ganherd.util.plugin_leave import trusting_plugins
from ganherd.util.terminal.screen import Block, Line, Styled, show_screen
from ganherd.util.text import say, show, split_values

if TYPE_CHECKING:
    from ganherd.runs.results.verdict_record import VerdictRecord

Json = Annotated[bool, typer.Option("--json", help="Print the result on stdout as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all details: samples, networks, seeds and remarks of every score.")
]


def _give_leave(context: typer.Context, trusts: bool) -> bool:
    """Permit the import of plug-ins until the command ends, if --trust-code is given; return its value."""
    if trusts:
        context.with_resource(trusting_plugins())
    return trusts


Trust = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        help="Allow code that is not part of ganherd: modules, plug-ins and TorchScript.",
        callback=_give_leave,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the recipe; `ganherd recipes --keys` explains them. May be repeated.",
        autocompletion=complete_setting,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="Length of the run: 5000steps, 20epochs, or wall-clock time up to its mixture, e.g. 90s, 10m, 2h; with --resume "
        "also what is added, e.g. +200steps."
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Number of replicas with different seeds.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the samples.")]


def named_run(word: Path | None) -> Path | None:
    """Return the run folder that an argument names: a path, `@last` or `@TAG`.

    Print the folder if the argument was `@last` or a tag.
    """
    if word is None or "\0" in str(word) or word.exists():
        return word
    from ganherd.runs import run_names

    path = run_names.named_run(word)
    if path != word:
        say(f"{word} is {path}")
    return path


def named_runs(words: list[Path] | None) -> list[Path] | None:
    """Return the run folders that several arguments name; see `named_run`."""
    return None if words is None else [path for path in map(named_run, words) if path is not None]


RunFolderArgument = Annotated[
    Path, typer.Argument(help="A run folder, @last or @TAG.", callback=named_run, autocompletion=complete_run)
]
Runs = Annotated[
    list[Path], typer.Argument(help="Run folders, @last or @TAG.", callback=named_runs, autocompletion=complete_run)
]


def examples(*lines: str) -> str:
    """Return the text at the end of a command's help, which lists example commands."""
    return "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def names(text: str | None) -> list[str] | None:
    """Split names at commas that are not inside brackets; return None for None.

    >>> names("fid, contrast(window=3, best=1)"), names(None)
    (['fid', 'contrast(window=3, best=1)'], None)
    """
    return [name.strip() for name in split_values(text)] if text else None


def numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Parse whole numbers above zero, separated by commas or as a range such as 1-3; otherwise raise a `UserError`.

    Args:
        option: The name of the option, for the error.
        text: The value of the option.
        example: A valid value, for the error.

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
    """Return the values of --set, --budget and --seeds as settings `key=value` that override a recipe.

    >>> recipe_overrides(["train.batch=8"], "90s", None)
    ['train.batch=8', 'train.budget=90s']
    """
    from ganherd.recipe.sources.option_override import OptionOverride

    given = (("train.budget", "--budget", check_unit(budget) or None), ("herd.seeds", "--seeds", seeds))
    named = [OptionOverride.of(key, value, f"{option} {value}") for key, option, value in given if value is not None]
    return [*(sets or ()), *named]


def check_unit(budget: str | None) -> str | None:
    """Return a budget unchanged; raise a `UserError` if it is a number without a unit."""
    if budget and re.fullmatch(r"\s*\+?[\d.]+\s*", budget):
        number = budget.strip()
        units = f"{number}steps, {number}epochs, {number}s, {number}m or {number}h"
        raise UserError(f"--budget {number} has no unit: write {units}.")
    return budget


def refuse(*mistakes: tuple[object, str]) -> None:
    """Raise a `UserError` with the sentence of the first pair (condition, sentence) whose condition is true, if any."""
    for condition, sentence in mistakes:
        if condition:
            raise UserError(sentence)


def terminal_width() -> int:
    """Return the width of the terminal in columns; 200 if the output is no terminal."""
    return shutil.get_terminal_size((200, 24)).columns


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


def print_screen(as_json: bool, facts: Mapping[str, Any], *blocks: Block) -> None:
    """Print the result of a command on stdout: the facts as JSON, or the blocks as wide as the terminal is."""
    if as_json:
        print_json(facts)
    else:
        show_screen(*blocks)


def show_verdict(verdict: VerdictRecord | None) -> None:
    """Print the verdict on a run in one line: the word, the reason and what to try; print nothing for None."""
    if verdict is not None:
        show_screen("", ("verdict  ", *coloured_verdict(verdict)))


def coloured_verdict(verdict: VerdictRecord) -> Line:
    """Return the sentence of a verdict, whose first word (e.g. "good") has the colour of the verdict."""
    from ganherd.runs.results.verdict_record import style_of

    return Styled(verdict.word, style_of(verdict.word)), verdict.sentence.removeprefix(verdict.word)


def named_files(files: Mapping[str, Path]) -> str:
    """Return lines that name written files, to be printed below a table; "" if there are none.

    Args:
        files: The paths by the kind of file.

    >>> print(named_files({"rows": Path("a.json")}).strip())
    rows     a.json
    """
    return "".join(["\n", *(f"\n{kind:<8} {path}" for kind, path in files.items())]) if files else ""
