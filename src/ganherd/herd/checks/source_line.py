"""Find the line of a user's file that is the reason to refuse a module, for error messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torch import nn

from ganherd.herd.checks.module_copies import at_line, is_user_file


def assignment_line(net: nn.Module, name: str = "") -> str:
    """Return the line of code that last assigns an attribute of a net; if none is found, the line of the net's class.

    Args:
        name: The dotted name of an attribute, parameter or buffer; empty: the line of the class is returned.

    Returns:
        The line in brackets, e.g. " (nets.py, line 12)"; empty if there is no source file.
    """
    for layer, attribute in _owners(net, name):
        escaped = re.escape(attribute)
        assignment = re.compile(rf"^(?!\s*def )(.*\.|\s*){escaped}\b[^=(]*(?<![=!<>])=(?!=)|[\"']{escaped}[\"']")
        for file, first, lines in _sources(type(layer)):
            numbers = [number for number, line in enumerate(lines, first) if assignment.search(line)]
            if numbers:
                return at_line(file, numbers[-1])
    return next((at_line(file, first) for file, first, _ in _sources(type(net))), "")


def _owners(net: nn.Module, name: str) -> Iterator[tuple[nn.Module, str]]:
    """Yield (layer, name of its attribute) for the layers along a dotted name, the innermost first."""
    layers, words = dict(net.named_modules(remove_duplicate=False)), name.split(".") if name else []
    for depth in reversed(range(len(words))):
        if (layer := layers.get(".".join(words[:depth]))) is not None:
            yield layer, words[depth]


def _sources(kind: type) -> Iterator[tuple[str, int, list[str]]]:
    """Yield (file, number of the first line, lines) of a class and of its bases, for those in users' files."""
    for base in kind.__mro__:
        try:
            file = inspect.getsourcefile(base)
            if file and is_user_file(file):
                lines, first = inspect.getsourcelines(base)
                yield file, first, lines
        except (OSError, TypeError):  # a class of a notebook or of `exec`
            continue
