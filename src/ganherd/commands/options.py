"""What several commands share: options that mean the same everywhere, and the ways in which they answer."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Trust = Annotated[
    bool, typer.Option("--trust-code", help="Load code that is not ganherd's own: modules and TorchScript.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]


def say(text: str) -> None:
    """A word to the person, which a program that reads stdout never sees."""
    print(text, file=sys.stderr, flush=True)


def print_json(facts: dict[str, Any]) -> None:
    """One object, of strict JSON: a number that is not finite becomes its name."""
    from ganherd.run.record import plain

    print(json.dumps(plain(facts), allow_nan=False))


def printable(text: str) -> str:
    r"""Names in a run may come from a stranger: they must not steer the terminal.

    >>> printable("a\x1b[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
