"""Blocks on a terminal: whole words, colours that mean something, and none of them in a file or with NO_COLOR."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from ganherd.util.terminal.screen import Columns, Styled, as_text, show_screen

PROGRAM = "from ganherd.util.terminal.screen import *; show_screen(Styled('fine', 'good'), Styled('broken', 'bad'))"


def on_terminal(**environment: str) -> bytes:
    """Return what the program writes to a terminal."""
    there, here = pty.openpty()
    known = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    known |= {"TERM": "xterm-256color", **environment}
    subprocess.run([sys.executable, "-c", PROGRAM], stdout=here, env=known, check=True)
    os.close(here)
    written = os.read(there, 10_000)
    os.close(there)
    return written


def test_words_stay_whole_at_any_width() -> None:
    table = Columns(("name", "about"), [("first", "a long remark that needs several lines"), ("second", "short")])
    text = as_text("A sentence that is longer than the screen is wide.", table, width=24)
    assert max(len(line) for line in text.splitlines()) <= 24
    words = {"sentence", "longer", "screen", "wide.", "remark", "several", "lines", "second", "short"}
    assert words <= set(text.split())


def test_a_terminal_has_colours_unless_no_color_is_set() -> None:
    coloured, plain = on_terminal(), on_terminal(NO_COLOR="1")
    assert b"\x1b[32mfine" in coloured and b"\x1b[31mbroken" in coloured
    assert b"fine" in plain and b"\x1b[3" not in plain


def test_a_pipe_gets_unwrapped_lines_without_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    long = "word " * 60
    show_screen(Styled(long, "warn"), Columns(("a", "b"), [("1", Styled("2", "good"))]))
    assert capsys.readouterr().out == f"{long.strip()}\na  b\n1  2\n"


def test_escapes_in_names_are_not_obeyed() -> None:
    assert "\x1b" not in as_text(Styled("\x1b[31mred"), Columns(("\x1b]0;title\x07",), [("\x1b[2J",)]))


def test_line_breaks_in_cells_do_not_break_the_table() -> None:
    assert as_text(Columns(("name", "n"), [("a\nb\r\tc", "1")])) == "name    n\na�b��c  1"
