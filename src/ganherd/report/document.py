"""The frame of every page: style, title, and a rule that it loads nothing from anywhere."""

from __future__ import annotations

import importlib.resources

from ganherd.report.html import SafeHtml, esc


def document(title: str, body: SafeHtml) -> str:
    """A whole HTML text.

    >>> document("a < b", Safe("<p>…</p>")).startswith("<!doctype html>")
    True
    """
    style = importlib.resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # nothing from anywhere: not even by a slip
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f'<link rel="icon" href="data:,"><title>{esc(title)} · ganherd</title>\n<style>\n{style}</style></head>\n'
        f"<body><main>\n{body}\n<footer>written by ganherd; this page is complete in itself</footer>\n"
        "</main></body></html>\n"
    )
