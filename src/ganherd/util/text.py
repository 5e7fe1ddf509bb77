"""Text that a terminal or a page can show: names in a run or a folder may come from a stranger, and must not steer it."""

from __future__ import annotations

import sys

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = {code: _UNKNOWN for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    r"""Return the text with everything replaced that a terminal would not print: escapes, controls, changes of direction.

    >>> printable("a\x1b[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _UNKNOWN for c in text)


def without_controls(text: str) -> str:
    r"""Return the text without control characters, for a page: joiners and directions of other scripts stay.

    >>> without_controls("a\x1b[31mb\r\n")
    'a�[31mb�\n'
    """
    return text.translate(_CONTROLS)


def show(text: object = "", end: str = "\n") -> None:
    """Print the answer of a command on stdout."""
    print(printable(str(text)), end=end, flush=True)


def say(text: object) -> None:
    """Print a word to the person on stderr, which a program that reads stdout never sees."""
    print(printable(str(text)), file=sys.stderr, flush=True)
