"""Read YAML into plain data with the line of each key, merge it with the data of a recipe that it extends, and write it.

The data consists of text, numbers, true, false, null, lists and mappings, as with `yaml.safe_load`. Numbers and truth values
are read as in YAML 1.2, so that `1e-4` is a number, `wandb: off` is a word and `1:30` is not ninety. A path is a tuple
of keys, such as ("train", "batch").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import yaml

from ganherd.util.errors import UserError

Path = tuple[str, ...]
RecipeData = dict[str, Any]  # a recipe, or a section of one, as plain data that is not checked yet
Lines = dict[Path, int | str]  # for each key, its line in the file, or the option that set it

_TAG = "tag:yaml.org,2002:"
_DIGITS = list("-+.0123456789")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$")
_NETS = (("nets", "generator"), ("nets", "discriminator"))
_MOST_VALUES = 20_000  # most values in a file: aliases of aliases can make a short file enormous


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}


if yaml.__with_libyaml__:

    class _QuickLoader(yaml.composer.Composer, yaml.CSafeLoader):
        """Read the same as `_Loader` in a fifth of the time, with libyaml as the parser.

        PyYAML composes the nodes, because its recursion is limited by Python.
        """

        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            yaml.composer.Composer.__init__(self)


class _Dumper(yaml.SafeDumper):
    """Write YAML, with quotes around text that a reader of YAML 1.1 or 1.2 could take for a number or truth value."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_TAG + "int", _INT, _DIGITS)
    _class.add_implicit_resolver(_TAG + "float", _FLOAT, _DIGITS)
_Loader.add_implicit_resolver(_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_TAG + "merge", re.compile(r"<<$"), ["<"])
_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence(_TAG + "seq", value, flow_style=True))


def read(text: str, name: str, *, option: bool = False) -> tuple[Any, Lines]:
    """Return the data of a YAML text and the line of each key; the data is None if the text has none.

    Args:
        text: The text.
        name: What messages call the text.
        option: Whether the text is an option of the command line, so that messages name no lines.

    Raises:
        UserError: The text is not YAML, or not allowed in a recipe.

    >>> read("train:\\n  batch: 32", "a.yaml")
    ({'train': {'batch': 32}}, {('train',): 1, ('train', 'batch'): 2})
    """
    data, lines = _read(text, name, option)
    return _copied(data), dict(lines)


def _copied(data: Any) -> Any:
    """Return a deep copy of plain data."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


@lru_cache(maxsize=64)  # a command reads the same few texts several times: presets, and the recipe of its run
def _read(text: str, name: str, option: bool) -> tuple[Any, Lines]:
    """Return the data of a text and the line of each key, as `read` does, but cached: callers must not change them."""

    def at(line: int) -> str:
        return name if option else f"{name} line {line}"

    try:
        loader, node = _compose(text)
        reader = _Reader(loader, at)
        return reader.value(node, ()) if node else None, reader.lines
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{at(line)}: a character that YAML does not allow ({error.character:#x})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join((error.problem or error.context or "it cannot be read").split())
        tab = "; indent with spaces, not with tabs" if "\\t" in problem else ""
        raise UserError(f"{at(line)}: this is not YAML: {problem}{tab}") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply for a recipe") from None


def _compose(text: str) -> tuple[yaml.constructor.SafeConstructor, yaml.Node | None]:
    """Return the root node of a text, and the loader that constructs its values.

    If libyaml finds an error or the text has a tab, PyYAML's own parser reads it: libyaml words its errors differently,
    and accepts tabs as spaces.
    """
    if yaml.__with_libyaml__ and "\t" not in text:
        with suppress(yaml.YAMLError):
            quick = _QuickLoader(text)
            return quick, quick.get_single_node()
    loader = _Loader(text)
    return loader, loader.get_single_node()


class _Reader:
    """Convert the nodes of one document to plain data, and collect the line of each key in `lines`."""

    def __init__(self, loader: yaml.constructor.SafeConstructor, at: Callable[[int], str]) -> None:
        self.loader, self.at, self.lines = loader, at, Lines()
        self.open: set[int] = set()  # nodes being read, to notice one that contains itself
        self.count = 0

    def wrong(self, node: yaml.Node, problem: str) -> UserError:
        """Return an error, for the caller to raise, about a node, with its line."""
        return UserError(f"{self.at(node.start_mark.line + 1)}: {problem}")

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Return the value of a node as plain data; `path` is the path of its key."""
        self.count += 1
        if id(node) in self.open or self.count > _MOST_VALUES:
            raise self.wrong(node, "its aliases (*name) make it endless; write the values out")
        kinds = {yaml.ScalarNode: "str int float bool null", yaml.SequenceNode: "seq", yaml.MappingNode: "map"}
        if node.tag.removeprefix(_TAG) not in kinds[type(node)].split():
            raise self.wrong(node, f"the tag {node.tag.replace(_TAG, '!!')} is not allowed in a recipe")
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return dict(self.items(node, path))
            if isinstance(node, yaml.SequenceNode):
                return [self.value(inner, (*path, str(i))) for i, inner in enumerate(node.value)]
            return self.loader.construct_object(node)
        except (ValueError, OverflowError):  # !!int x, or a number of thousands of digits
            raise self.wrong(node, f"{node.value[:40]!r} is not a number") from None
        finally:
            self.open.discard(id(node))

    def items(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        """Yield key and value of each entry of a mapping, those merged by `<<` first. Keys are text: 7 becomes '7'."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                for other in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(other, yaml.MappingNode):
                        raise self.wrong(key, "'<<' merges mappings only")
                    yield from self.value(other, path).items()
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise self.wrong(key, "a key must be a word, not a list or a mapping")
            if key.value in own:
                dotted, first = ".".join((*path, key.value)), own[key.value][0].start_mark.line + 1
                raise self.wrong(key, f"the key {dotted!r} occurs twice, first in line {first}; keep one")
            own[key.value] = key, value
        for word, (key, value) in own.items():
            self.lines[(*path, word)] = key.start_mark.line + 1
            yield word, self.value(value, (*path, word))


def write(data: Mapping[str, Any]) -> str:
    """Return the data as YAML, with keys in their order and lists on one line.

    >>> write({"name": "off", "lr": [1e-4, 0.5]})
    "name: 'off'\\nlr: [0.0001, 0.5]\\n"
    """
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


class InheritedLine(str):
    """The place in which an extended recipe sets a key: file and line, such as `base.yaml line 3`."""


def inherited(lines: Lines, name: str) -> Lines:
    """Return the lines of an extended recipe with its name added, for messages about a recipe that extends it."""
    return {
        path: InheritedLine(line if isinstance(line, str) else f"{name} line {line}") for path, line in lines.items()
    }


def merge(base: RecipeData, own: RecipeData, lines: Lines, path: Path = ()) -> None:
    """Write the keys of a recipe into the data of the recipe that it extends, in place.

    Mappings merge by key, and any other value replaces the old one. null removes a key, so that it gets its default. A
    net that is given with its name replaces the old net as a whole, and so does a strategy of another name.

    Args:
        base: The data of the extended recipe, which is changed; nets are in their long form.
        own: The data of the recipe that extends it.
        lines: The line of each key in `base`; those of replaced keys are removed.
        path: The path of `base` within the recipe.

    >>> base = {"train": {"batch": 32, "flip": True}}
    >>> merge(base, {"train": {"batch": 64, "flip": None}}, {})
    >>> base
    {'train': {'batch': 64}}
    """
    for key, value in own.items():
        here, before = (*path, key), base.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and not _replaces(here, before, value):
            merge(before, value, lines, here)
            continue
        for old in [place for place in lines if place[: len(here)] == here]:
            del lines[old]
        if value is None and key in base:
            del base[key]
        else:
            base[key] = value


def _replaces(path: Path, before: RecipeData, value: RecipeData) -> bool:
    """Return whether `value` replaces the mapping at a path as a whole: it names a net or another strategy."""
    if path in _NETS:
        return "name" in value
    return path == ("strategy",) and "name" in value and value["name"] != before.get("name", value["name"])
