"""Find the line of a user's file that causes a module to be refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torch import nn

from ganherd.herd.checks.module_copies import at_line, is_user_file


def assignment_line(net: nn.Module, name: str = "") -> str:
    """Return the line that last assigns an attribute of a net, or else the line of the net's class.

    Args:
        name: Of an attribute, parameter or buffer, with the names of its layers; or of a variable of the file.

    Returns:
        In brackets, e.g. " (nets.py, line 12)"; empty if there is no source.
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
    """Yield the layers along a dotted name, the innermost first, each with the name of its attribute."""
    layers, words = dict(net.named_modules(remove_duplicate=False)), name.split(".") if name else []
    for depth in reversed(range(len(words))):
        if (layer := layers.get(".".join(words[:depth]))) is not None:
            yield layer, words[depth]


def _sources(kind: type) -> Iterator[tuple[str, int, list[str]]]:
    """Yield (file, number of the first line, lines) of a class and of those bases that are in the user's files."""
    for base in kind.__mro__:
        try:
            file = inspect.getsourcefile(base)
            if file and is_user_file(file):
                lines, first = inspect.getsourcelines(base)
                yield file, first, lines
        except (OSError, TypeError):  # a class of a notebook or of `exec`
            continue
