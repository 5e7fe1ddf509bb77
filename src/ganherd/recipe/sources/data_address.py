"""Parse `data.source`: a name or a path, a pattern of several files, and options such as `#label=breed,split=train`."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ganherd.util.errors import UserError
from ganherd.util.text import did_you_mean

HUB = "hf:"  # prefix of the address of a data set on the Hugging Face Hub
OPTIONS = ("image", "label", "split", "config")
MOST_FILES = 100_000  # most files that a pattern may name
_OPTIONS = re.compile(r"(?P<place>.+?)#(?P<options>\w+=.*)", re.DOTALL)
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{},]*(?:,[^{},]*)+))\}")


@dataclass(frozen=True)
class DataAddress:
    """Where data is, and options that choose a part of it."""

    place: str  # a name, a path, or a pattern of paths
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_hub(self) -> bool:
        """Whether the address names a data set of the Hugging Face Hub."""
        return self.place.startswith(HUB)

    @property
    def is_pattern(self) -> bool:
        """Whether the address names several files, as in `images-{000..009}.tar`; an existing path is no pattern."""
        return not self.is_hub and _BRACES.search(self.place) is not None and not os.path.exists(self.place)


def parse_address(text: str) -> DataAddress:
    """Return the place and the options of `data.source`. A path that exists has no options, whatever its name.

    Raises:
        UserError: An option is unknown.

    >>> parse_address("birds.parquet#label=breed").options
    {'label': 'breed'}
    """
    match = _OPTIONS.fullmatch(text)
    if match is None or os.path.exists(os.path.expanduser(text)):
        return DataAddress(os.path.expanduser(text))
    options = {}
    for pair in match["options"].split(","):
        key, _, value = pair.partition("=")
        if key not in OPTIONS or not value:
            hint = (
                did_you_mean(key, OPTIONS, "{}") if value else ""
            ) or f"write one of {', '.join(OPTIONS)} with a value."
            raise UserError(f"{pair!r} in data.source {text!r} is no option; {hint}")
        options[key] = value
    return DataAddress(os.path.expanduser(match["place"]), options)


def expand_pattern(pattern: str) -> list[str]:
    """Return the paths that a pattern names: `{000..009}` stands for padded numbers, `{a,b}` for a and b.

    Raises:
        UserError: The pattern names no file, or more than `MOST_FILES`.

    >>> expand_pattern("{a,b}-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    pieces: list[list[str]] = []
    end, number = 0, 1
    for match in _BRACES.finditer(pattern):
        first, last, names = match.groups()
        if names is None:
            if int(last) - int(first) >= MOST_FILES:
                raise UserError(f"{pattern} names more than {MOST_FILES:,} files; use a smaller range.")
            choices = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        else:
            choices = names.split(",")
        number *= len(choices)
        pieces += [[pattern[end : match.start()]], choices]
        end = match.end()
    if not 0 < number <= MOST_FILES:
        raise UserError(f"{pattern} names {number:,} files; it must name at least one, and at most {MOST_FILES:,}.")
    return ["".join(parts) for parts in itertools.product(*pieces, [pattern[end:]])]


def short_name(source: str) -> str:
    """Return a short name for data without folders, options, numbers and extension, to name files made from it.

    >>> [short_name(one) for one in ("hf:ylecun/mnist#split=test", "tars/birds-{000..009}.tar", "faces.parquet", "hf:a/b-v1.5")]
    ['mnist', 'birds', 'faces', 'b-v1.5']
    >>> short_name("tars/*.tar"), short_name(".")
    ('data', 'data')
    """
    match = None if os.path.exists(source) else _OPTIONS.fullmatch(source)
    place = source if match is None else match["place"]
    last = os.path.basename(place.removeprefix(HUB).rstrip("/"))
    if not place.startswith(HUB):
        last = os.path.splitext(last)[0]
    name = re.sub(rf"[-_.]*{_BRACES.pattern}", "", last)
    return name if any(letter.isalnum() for letter in name) else "data"


def absolute_address(text: str) -> str:
    """Make the path in an address with options, or in a pattern, absolute if its files exist.

    Any other text is returned unchanged.
    """
    try:
        address = parse_address(text)
        files = expand_pattern(address.place) if address.is_pattern else [address.place]
    except UserError:
        return text  # reported when the data is read
    if address.is_hub or not (address.options or address.is_pattern) or not os.path.exists(files[0]):
        return text
    return os.path.abspath(address.place) + text[len(text) - len(_options_of(text)) :]


def _options_of(text: str) -> str:
    match = _OPTIONS.fullmatch(text)
    return "" if match is None else f"#{match['options']}"
