"""Render the pages of reports from the templates in templates/, and format numbers for people.

Everything that a template prints is HTML-escaped and loses its control characters, because names may come from a
stranger.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ganherd.util import text
from ganherd.util.files import JsonObject
from ganherd.util.version import __version__
from ganherd.viz import pictures
from ganherd.web import page_script

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """A cell of a table: text in an HTML element of its own, and more around it; rendered by the macro `cell`."""

    text: Any
    cls: str = ""  # CSS classes of the element
    tag: str = "span"  # name of the element
    before: Any = ""  # plain text before the element
    title: str = ""  # shown while the mouse is over the element
    after: str = ""  # plain text below the element
    part: int | None = None  # length in percent of a bar next to the text; None: no bar


def render(template: str, **context: Any) -> Markup:
    """Return a rendered template: a whole page, or a section of one.

    >>> "a &lt; b · ganherd" in render("run", title="a < b", navigation=[], sections=[Markup("<p>…</p>")])
    True
    """
    return Markup(_environment().get_template(f"{template}.html.j2").render(**context))


@cache
def _environment() -> Environment:
    """Return Jinja's environment with the templates, filters and variables of reports."""
    environment = Environment(
        loader=PackageLoader("ganherd.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    environment.filters |= {"number": number, "base64": lambda png: base64.b64encode(png).decode()}
    environment.filters |= {"digest": lambda script: Markup(page_script.digest(script)), "with_code": with_code}
    style = (page_script.STATIC / "style.css").read_text(encoding="utf-8")
    environment.globals |= {"shared_style": Markup(style), "version": __version__}
    return environment


def _without_controls(value: Any) -> Any:
    return value if hasattr(value, "__html__") else text.without_controls(str(value))


def embedded(runs: list[JsonObject]) -> dict[str, Markup]:
    """Return the variables `script` (JavaScript of reports) and `data` (JSON of the runs) of a page's template.

    Args:
        runs: Each as `web.embedded_run.embed` returns it.
    """
    script = Markup(page_script.join_modules("report.js"))
    return {"script": script, "data": Markup(page_script.data_block(runs))}


def with_code(value: Any) -> Markup:
    """Return a text as HTML in which commands between backticks become `<code>` elements.

    >>> with_code("run `ganherd check <b>` now")
    Markup('run <code>ganherd check &lt;b&gt;</code> now')
    """
    parts = [escape(text.without_controls(part)) for part in str(value).split("`")]
    if len(parts) % 2 == 0:  # an odd number of backticks: none is replaced
        return escape(text.without_controls(str(value)))
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def svg(drawn: Figure, salt: str) -> Markup:
    """Return a chart as inline SVG, which takes its font and text colour from the page.

    Args:
        salt: A text that makes the ids in the SVG unique on the page.
    """
    return Markup(pictures.svg(drawn, inline=True, salt=salt))


def number(value: Any, digits: int = 3) -> str:
    """Return a number as text with separators of thousands; a dash for None.

    Args:
        digits: Digits after the point, for numbers from 0.001 to 1,000.

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
    """Return a share from 0 to 1 as a percentage; a dash if it is no finite number.

    >>> percent(0.9876), percent(None)
    ('98.8 %', '–')
    """
    return "–" if not isinstance(value, (int, float)) or not math.isfinite(value) else f"{100 * value:.1f} %"


def duration(seconds: Any) -> str:
    """Return a duration as text; a dash for anything that is not a number.

    >>> duration(4.52), duration(200), duration("nan")
    ('4.5 s', '3 min 20 s', '–')
    """
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        return "–"
    return text.duration(seconds, digits=1)


def count(n: int, one: str, many: str = "") -> str:
    """Return a count with its noun; counts up to twelve as words.

    Args:
        many: The plural; empty: `one` with an s.

    >>> count(1, "member"), count(10, "member"), count(2, "class", "classes")
    ('one member', 'ten members', 'two classes')
    """
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return f"{words[n] if n < len(words) else f'{n:,}'} {one if n == 1 else many or one + 's'}"


def plain(value: Any, inner: bool = False) -> str:
    """Return a value that was read from a JSON file as one line of text.

    Args:
        inner: Whether the value is nested in another one, which changes the separators.

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
