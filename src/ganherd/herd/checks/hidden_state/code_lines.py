"""Inspect compiled functions: which global variables they name, and which line changes a variable."""

from __future__ import annotations

import dis
import functools
import os
import types
from collections.abc import Iterable, Iterator

_GLOBAL = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "STORE_NAME")
_CHANGES_IT = ("STORE_GLOBAL", "STORE_DEREF")
_CHANGES_INSIDE = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR")


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of all functions and classes within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


@functools.lru_cache(4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names of global variables that a function reads or assigns.

    >>> sorted(global_names((lambda x: len(x) + x.size + total).__code__))
    ['len', 'total']
    """
    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL)


@functools.lru_cache(4096)
def assigned_attributes(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes that a function assigns, of any object."""
    return frozenset(str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")


def line_that_changes(name: str, codes: Iterable[types.CodeType]) -> str:
    """Return the first line that changes a variable, or else one that reads it, or else one that reads its owner.

    Args:
        name: Of a variable, e.g. `count`, or of an attribute, e.g. `tracker.count`.
        codes: The code to search, the likely ones first.

    Returns:
        In brackets, e.g. " (nets.py, line 12)"; empty if there is no such line.
    """
    holder, _, last = name.rpartition(".")
    first = holder.partition(".")[0]
    lines: dict[int, str] = {}  # by rank: 0 fits best
    for code in codes:
        steps = [(step, step.positions.lineno) for step in dis.get_instructions(code) if step.positions]
        inside = {line for step, line in steps if step.opname in _CHANGES_INSIDE}
        for step, line in steps:
            if step.argval not in (last, first) or line is None:
                continue
            if step.argval != last:
                rank = 3
            elif step.opname in (("STORE_ATTR",) if holder else _CHANGES_IT) and code.co_name != "__init__":
                rank = 0
            else:
                rank = 1 if line in inside and not holder else 2
            lines.setdefault(rank, f" ({os.path.basename(code.co_filename)}, line {line})")
    return lines[min(lines)] if lines else ""
