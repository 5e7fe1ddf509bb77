"""Options that several commands share, and how commands print results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ganherd.util.text import printable, say, show

__all__ = ["Json", "Quiet", "Set", "Trust", "print_json", "printable", "say", "show"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Trust = Annotated[
    bool, typer.Option("--trust-code", help="Allow code that is not part of ganherd: modules and TorchScript.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe. May be repeated.")
]


def print_json(facts: Mapping[str, Any]) -> None:
    """Print an object as strict JSON; numbers that are not finite become strings."""
    from ganherd.runs.records import plain

    print(json.dumps(plain(facts), allow_nan=False))
