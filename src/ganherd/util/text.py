"""Format text for people: names without terminal escapes, durations, sizes, tables and hints for misspelt words."""

from __future__ import annotations

import difflib
import hashlib
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = {code: _UNKNOWN for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    r"""Return the text with all unprintable characters replaced, except line breaks and tabs.

    Unprintable are e.g. terminal escapes, control characters and changes of the writing direction. Use this for names
    from a run or a folder: they may come from a stranger, and a terminal would execute the escapes.

    >>> printable("a\x1b[31mb")
    'a�[31mb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _UNKNOWN for c in text)


def printable_line(text: str) -> str:
    r"""Return the text with all unprintable characters replaced, including line breaks and tabs.

    Use this for a name in a line, a table or a picture.

    >>> printable_line("a\nb\tc")
    'a�b�c'
    """
    return "".join(c if c.isprintable() else _UNKNOWN for c in text)


def note_lines(notes: Iterable[str]) -> list[str]:
    r"""Return a line `note: …` for each note, with unprintable characters replaced.

    >>> note_lines(["it trains on a\nb"])
    ['note: it trains on a�b']
    """
    return [f"note: {printable_line(note)}" for note in notes]


def one_line(text: str, most: int) -> str:
    r"""Return the text as one printable line, cut to at most `most` characters, for a cell of a table.

    >>> one_line("a\nb[31m", 20), one_line("abcdef", 4)
    ('a b�[31m', 'abc…')
    """
    line = printable(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def member_labels(labels: Sequence[str], label_of: Sequence[int]) -> list[str]:
    """Return the name of each member's label; with a number (`cat.0`) if several members have the same label.

    Args:
        labels: The names of the labels.
        label_of: The index into `labels` of each member; -1: the member has no label, and its name is "".

    >>> member_labels(["cat", "dog"], [0, 0, 1, -1])
    ['cat.0', 'cat.1', 'dog', '']
    """
    members, seen, names = Counter(label_of), Counter[int](), []
    for label in label_of:
        number = f".{seen[label]}" if members[label] > 1 else ""
        seen[label] += 1
        names.append(f"{labels[label]}{number}" if 0 <= label < len(labels) else "")
    return names


def without_controls(text: str) -> str:
    r"""Return the text with control characters replaced, for a web page.

    Other invisible characters stay, because some writing systems need them.

    >>> without_controls("a\x1b[31mb\r\n")
    'a�[31mb�\n'
    """
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode()  # replaces half of a surrogate pair


def show(text: object = "", end: str = "\n") -> None:
    """Print the result of a command on stdout."""
    print(printable(str(text)), end=end, flush=True)


def say(text: object) -> None:
    """Print a message on stderr, which a program that reads stdout does not see."""
    print(printable(str(text)), file=sys.stderr, flush=True)


def duration(seconds: float, digits: int = 0) -> str:
    """Return a duration as text in its one or two largest units.

    Args:
        digits: Digits after the point for less than ten seconds.

    >>> duration(7.2), duration(7.2, 1), duration(75), duration(120), duration(7300)
    ('7 s', '7.2 s', '1 min 15 s', '2 min', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.{digits}f} s" if whole < 10 else f"{whole} s"
    large, small, rest = ("min", "s", whole) if whole < 3600 else ("h", "min", whole // 60)
    return f"{rest // 60} {large}" + (f" {rest % 60} {small}" if rest % 60 else "")


def span(seconds: float) -> str:
    """Return a duration as text in its largest unit, rounded down, for a column of a table.

    >>> span(7.2), span(300), span(7300), span(200_000)
    ('7 s', '5 min', '2 h', '2 d')
    """
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit:,.0f} {name}"
    return f"{seconds:.0f} s"


def size(num_bytes: float) -> str:
    """Return a number of bytes as text with a unit from B to GiB.

    >>> size(512), size(3 * 2**20)
    ('512 B', '3.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:,.1f} {unit}"


def words(name: str) -> str:
    """Return the name of an alarm with its underscores replaced by spaces.

    >>> words("dead_critic")
    'dead critic'
    """
    return name.replace("_", " ")


def listed(words: Sequence[str]) -> str:
    """Join words to a list for a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed([])
    ('a', 'a, b and c', '')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def split_values(text: str) -> list[str]:
    """Split a text at the commas that are not inside brackets of any kind.

    >>> split_values("[[1, 2], 3],{a: 1},f(x=1, y=2)")
    ['[[1, 2], 3]', '{a: 1}', 'f(x=1, y=2)']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def yaml_word(value: object) -> str:
    """Return a simple value as it is written in YAML and in `--set key=value`.

    >>> yaml_word(None), yaml_word(True), yaml_word(0.5)
    ('null', 'true', '0.5')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shortened(name: str, most: int = 120) -> str:
    """Return a folder name of at most `most` characters. A longer name is cut and ends with its digest, to stay unique.

    >>> shortened("a-vs-b"), shortened("a" * 200, 12)
    ('a-vs-b', 'aaa-c2a908d9')
    """
    if len(name) <= most:
        return name
    return f"{name[: most - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def text_table(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return rows of cells as lines with aligned columns.

    Args:
        rows: The cells of each line; the last cells of a row may be missing.
        right: The columns that are aligned to the right.

    >>> text_table([("name", "images"), ("cat", "12"), ("horse", "7")], right={1})
    ['name   images', 'cat        12', 'horse       7']
    """
    lines = list(rows)
    widths = [max(len(row[i]) for row in lines if i < len(row)) for i in range(max(map(len, lines), default=0))]
    return [
        "  ".join(cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip()
        for row in lines
    ]


def table_with_notes(
    rows: Sequence[Sequence[str]], notes: Sequence[str], width: int, right: Collection[int] = (), heading: str = ""
) -> list[str]:
    """Return the lines of a table with a note for each row: in the last column if all fit, otherwise below each row.

    Args:
        rows: The cells of each row.
        notes: The note of each row; may be empty.
        width: The width of the terminal in characters. Longer lines are cut, first in the first column; notes are
            wrapped.
        right: The columns that are aligned to the right.
        heading: The title of the column of notes, which is put into the first row.

    >>> table_with_notes([("cat", "12"), ("horse", "7")], ["it purrs", ""], 12)
    ['cat    12\\n    it purrs', 'horse  7']
    >>> table_with_notes([("cat", "12"), ("rhinoceros", "7")], ["it purrs", ""], 24)
    ['cat         12  it purrs', 'rhinoceros  7']
    >>> table_with_notes([("rhinoceros", "7")], [""], 11)
    ['rhinoce…  7']
    """
    in_column = text_table(
        [(*row, note or (heading if i == 0 else "")) for i, (row, note) in enumerate(zip(rows, notes, strict=True))],
        right,
    )
    if all(len(line) <= width for line in in_column):
        return in_column
    below = [
        textwrap.wrap(note, width, initial_indent=" " * 4, subsequent_indent=" " * 4, max_lines=2) for note in notes
    ]
    table = text_table(rows, right)
    if (excess := max(map(len, table)) - width) > 0:
        longest = max(len(row[0]) for row in rows)
        table = text_table([(one_line(row[0], max(8, longest - excess)), *row[1:]) for row in rows], right)
    return ["\n".join([_cut(line, width), *more]) for line, more in zip(table, below, strict=True)]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the known word that is most similar to `word`, or two that are equally similar; empty if none is similar.

    >>> nearest("hing", ["hinge", "ring-8"]), nearest("beta", ["beta1", "beta2"]), nearest("x", ["y"])
    (['hinge'], ['beta1', 'beta2'], [])
    """
    by_lower = {other.lower(): other for other in known}
    close = sorted(difflib.get_close_matches(word.lower(), by_lower, n=2))
    ratios = [difflib.SequenceMatcher(None, other, word.lower()).ratio() for other in close]
    return [by_lower[other] for other, ratio in zip(close, ratios, strict=True) if ratio == max(ratios)]


def did_you_mean(word: str, known: Iterable[str], form: str = "; {}") -> str:
    """Return a hint for a misspelt word, or "" if no known word is similar.

    Args:
        form: The text around the hint; the hint replaces {}.

    >>> did_you_mean("hing", ["hinge"]), did_you_mean("fd", ["fid", "kid"], " ({})"), did_you_mean("x", ["y"])
    ("; did you mean 'hinge'?", " (did you mean 'fid'?)", '')
    """
    close = " or ".join(map(repr, nearest(word, known)))
    return form.format(f"did you mean {close}?") if close else ""


def reads_as_number(text: str) -> bool:
    """Return whether a text is a number.

    >>> reads_as_number("-1"), reads_as_number("0.5"), reads_as_number("cat")
    (True, True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
