"""The small words of the page: escaped text, numbers as people write them, tables, inline pictures."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ganherd.util.text import without_controls
from ganherd.viz import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SafeHtml(str):
    """Text that is HTML already; anything else is escaped before it meets the page."""


def esc(value: Any) -> SafeHtml:
    """
    >>> esc("<b>"), esc(Safe("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, SafeHtml) else SafeHtml(html.escape(without_controls(str(value))))


def tag(name: str, *content: Any, cls: str = "", title: str = "") -> SafeHtml:
    """
    >>> tag("p", "1 < 2", cls="note")
    '<p class="note">1 &lt; 2</p>'
    """
    attributes = (f' class="{esc(cls)}"' if cls else "") + (f' title="{esc(title)}"' if title else "")
    return SafeHtml(f"<{name}{attributes}>{''.join(map(esc, content))}</{name}>")


def join(parts: Iterable[Any], between: str = "") -> SafeHtml:
    return SafeHtml(between.join(esc(part) for part in parts))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], right: Sequence[int] = (), cls: str = "") -> SafeHtml:
    """A table whose columns `right` hold numbers; wide ones scroll by themselves, not the page."""

    def line(kind: str, cells: Sequence[Any]) -> SafeHtml:
        return tag("tr", join(tag(kind, cell, cls="num" if i in right else "") for i, cell in enumerate(cells)))

    body = tag("tbody", join(line("td", row) for row in rows))
    return tag("div", tag("table", tag("thead", line("th", head)), body), cls=f"scroll {cls}".rstrip())


def image(png: bytes, about: str) -> SafeHtml:
    return SafeHtml(f'<img alt="{esc(about)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">')


def number(value: Any, digits: int = 3) -> str:
    """
    >>> number(12345), number(0.98765), number(None), number(float("nan")), number(1234.5)
    ('12,345', '0.988', '–', 'NaN', '1,234.5')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}".replace("-", "−")
    shown = f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.{digits}f}"
    return shown.replace("-", "−")


def percent(value: Any) -> str:
    """
    >>> percent(0.9876), percent(None)
    ('98.8 %', '–')
    """
    return "–" if not isinstance(value, (int, float)) or not math.isfinite(value) else f"{100 * value:.1f} %"


def duration(seconds: Any) -> str:
    """
    >>> duration(45.2), duration(200), duration(7260)
    ('45 s', '3 min 20 s', '2 h 1 min')
    """
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        return "–"
    whole = round(seconds)
    if whole < 10:
        return f"{seconds:.1f} s"
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def count(n: int, one: str, many: str = "") -> str:
    """
    >>> count(1, "member"), count(10, "member"), count(2, "class", "classes")
    ('one member', 'ten members', 'two classes')
    """
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return f"{words[n] if n < len(words) else f'{n:,}'} {one if n == 1 else many or one + 's'}"


def figure(drawn: Figure, salt: str, cls: str = "") -> SafeHtml:
    """A chart in the page's font and colours."""
    return tag("figure", SafeHtml(pictures.svg(drawn, inline=True, salt=salt)), cls=cls)


def plain(value: Any, inner: bool = False) -> str:
    """A value of a JSON file as one line of text.

    >>> plain({"reason": "NaN", "engine": {"name": "fused", "chunk": 4}, "rate": 0.00005})
    'reason: NaN · engine: name fused, chunk 4 · rate: 5e−05'
    """
    if isinstance(value, Mapping):
        between, after = (", ", " ") if inner else (" · ", ": ")
        return between.join(f"{k}{after}{plain(v, True)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(v, True) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}".replace("-", "−") if isinstance(value, float) else str(value)
