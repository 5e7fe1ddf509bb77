"""Read the packaged recipes (presets) as texts. A file holds a family: one complete recipe, and others that extend it.

The first recipe of a file has the file's name. Each further one starts with a line `--- # NAME`, names a recipe of the family in
`extends`, and holds only what differs, with its own comments. `complete_text` merges it with the recipe that it
extends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

_START = re.compile(r"^--- # (\S+)\n", re.M)
_KEY = re.compile(r"( *)([\w-]+):[ \n]")
_ORDER = ("about", "code", "data", "herd", "nets", "loss", "optim", "train", "strategy", "run", "engine")


@dataclass(frozen=True)
class _Entry:
    """A key of a recipe with the lines of its value, and the comments above it."""

    key: str
    first: str  # the line of the key
    rest: tuple[str, ...] = ()  # the lines below it
    above: tuple[str, ...] = ()  # comments and empty lines
    entries: tuple[_Entry, ...] = field(default=())  # the keys inside, if the value is a mapping; then `rest` is empty

    @property
    def value(self) -> str:
        """The text after the key on its line, without a comment."""
        return re.sub(r"(^|\s+)#.*", "", self.first.partition(":")[2]).strip()

    @property
    def lines(self) -> list[str]:
        return [*self.above, self.first, *self.rest, *_lines(self.entries)]


def preset_names() -> list[str]:
    """Return the names of all packaged recipes, sorted."""
    return sorted(_presets())


def first_line(name: str) -> str:
    """Return the first comment of a packaged recipe, which describes it."""
    return _presets()[name].partition("\n")[0].lstrip("# ").rstrip()


@cache
def complete_text(name: str) -> str:
    """Return a packaged recipe in full, with its comments and those of the recipe that it extends."""
    header, own = _parse(_presets()[name])
    base = next((entry.value for entry in own if entry.key == "extends"), "")
    if not base:
        return _presets()[name]
    inherited = [entry for entry in _parse(complete_text(base))[1] if entry.key != "about"]
    merged = _merge(inherited, [entry for entry in own if entry.key != "extends"])
    sections = sorted(merged, key=lambda entry: _ORDER.index(entry.key))
    return "".join([*header, *_lines(replace(entry, above=_spaced(entry.above)) for entry in sections)])


@cache
def _presets() -> dict[str, str]:
    """Return the texts of all packaged recipes by name."""
    texts = {}
    for file in (resources.files(__package__) / "presets").iterdir():
        if file.name.endswith(".yaml"):
            first, *others = _START.split(file.read_text(encoding="utf-8"))
            texts[file.name.removesuffix(".yaml")] = first
            texts |= dict(zip(others[::2], others[1::2], strict=True))
    return texts


def _parse(text: str) -> tuple[list[str], list[_Entry]]:
    """Return the comment lines at the beginning of a recipe, and the entries of its top-level keys."""
    lines = text.splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if _KEY.match(line))
    while start and not lines[start - 1].strip():
        start -= 1
    return lines[:start], _entries(lines[start:], 0)


def _entries(lines: list[str], indent: int) -> list[_Entry]:
    """Return the entries of the keys at this indentation, in spaces; lines indented further belong to the key above."""
    entries: list[_Entry] = []
    above: list[str] = []
    while lines:
        line, *lines = lines
        match = _KEY.match(line)
        if not match or len(match[1]) != indent:
            above.append(line)
            continue
        count = next((n for n, other in enumerate(lines) if _depth(other) <= indent), len(lines))
        inner, lines = lines[:count], lines[count:]
        entry = _Entry(match[2], line, above=tuple(above))
        is_mapping = not entry.value and any(_KEY.match(other) for other in inner)
        deeper = tuple(_entries(inner, indent + 2)) if is_mapping else ()
        entries.append(replace(entry, entries=deeper) if deeper else replace(entry, rest=tuple(inner)))
        above = []
    return entries


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" ")) if line.strip() else 0


def _merge(base: Iterable[_Entry], own: Iterable[_Entry]) -> list[_Entry]:
    """Return the entries of a recipe `own` merged into those of the recipe `base` that it extends.

    Mappings merge by key, null removes a key, and any other value replaces the one of `base`.
    """
    merged = {entry.key: entry for entry in base}
    for entry in own:
        inherited = merged.get(entry.key)
        if entry.value == "null":
            merged.pop(entry.key, None)
        elif inherited is None or not (inherited.entries and entry.entries) or _is_another(inherited, entry):
            merged[entry.key] = entry
        else:
            first = entry.first if "#" in entry.first else inherited.first
            merged[entry.key] = replace(inherited, first=first, entries=tuple(_merge(inherited.entries, entry.entries)))
    return list(merged.values())


def _is_another(base: _Entry, own: _Entry) -> bool:
    """Return whether both entries are strategies of different names, so that settings of `base` do not fit `own`."""
    names = [[entry.value for entry in one.entries if entry.key == "name"] for one in (base, own)]
    return own.key == "strategy" and bool(names[1]) and names[0] != names[1]


def _lines(entries: Iterable[_Entry]) -> list[str]:
    return [line for entry in entries for line in entry.lines]


def _spaced(above: tuple[str, ...]) -> tuple[str, ...]:
    """Return the comments above a section, after one empty line."""
    return ("\n", *(line for line in above if line.strip()))
