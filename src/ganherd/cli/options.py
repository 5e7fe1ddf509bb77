"""What several commands share: options that mean the same everywhere, and the ways in which they answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ganherd.util.text import printable, say, show

__all__ = ["Json", "Quiet", "Set", "Trust", "print_json", "printable", "say", "show"]

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Trust = Annotated[
    bool, typer.Option("--trust-code", help="Load code that is not ganherd's own: modules and TorchScript.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]


def print_json(facts: Mapping[str, Any]) -> None:
    """One object, of strict JSON: a number that is not finite becomes its name."""
    from ganherd.runs.records import plain

    print(json.dumps(plain(facts), allow_nan=False))
