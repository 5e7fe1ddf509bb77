"""Print tables and sentences on a terminal, wrapped between words, in colours that each have a meaning.

Colours are left out if the output is no terminal, or if `NO_COLOR` is set. Lines for a file or a pipe are not wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ganherd.util.text import printable, printable_line

if TYPE_CHECKING:
    from rich.console import Console

# The colour of each meaning. "soft" and "strong" lower or raise the emphasis; the others judge what the text reports.
STYLES = {"good": "green", "warn": "yellow", "bad": "red", "soft": "dim", "strong": "bold"}
UNWRAPPED = 10_000  # width in columns that is used for a file or a pipe, so that lines are not wrapped


@dataclass(frozen=True)
class Styled:
    """A text with the name of one of `STYLES`; "" for plain text."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Columns:
    """A table: the titles of its columns, its rows, and the numbers of the columns that are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Styled]]
    right: Collection[int] = ()
    whole: Collection[int] = ()  # numbers of the columns whose cells are never wrapped


Line = tuple[str | Styled, ...]  # texts that are joined to one paragraph
Block = str | Styled | Line | Columns


def show_screen(*blocks: Block) -> None:
    """Print blocks (paragraphs and tables) on stdout, at most as wide as the terminal."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = UNWRAPPED
    print(_rendered(console, blocks), end="", flush=True)


def as_text(*blocks: Block, width: int = UNWRAPPED) -> str:
    """Return blocks (paragraphs and tables) as text without colours, at most `width` columns wide.

    >>> print(as_text("Two scores:", Columns(("score", "value"), [("FID", Styled("0.1", "good"))], right={1}), width=20))
    Two scores:
    score  value
    FID      0.1
    """
    from rich.console import Console

    return _rendered(Console(width=width, color_system=None), blocks).removesuffix("\n")


def _rendered(console: Console, blocks: Iterable[Block]) -> str:
    with console.capture() as capture:
        for block in blocks:
            console.print(_renderable(block), highlight=False, markup=False, emoji=False)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def _renderable(block: Block) -> Any:
    """Return a block as an object that rich can print."""
    from rich.table import Table
    from rich.text import Text

    if isinstance(block, tuple):
        return Text.assemble(*(_text(part) for part in block))
    if not isinstance(block, Columns):
        return _text(block)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, title in enumerate(block.head):
        justify: Any = "right" if i in block.right else "left"
        table.add_column(Text(printable_line(title)), justify=justify, no_wrap=i in block.whole, overflow="fold")
    for row in block.rows:
        table.add_row(*(_text(cell, printable_line) for cell in row))
    return table


def _text(part: str | Styled, clean: Callable[[str], str] = printable) -> Any:
    from rich.text import Text

    styled = part if isinstance(part, Styled) else Styled(part)
    return Text(clean(styled.text), style=STYLES.get(styled.style, ""))
