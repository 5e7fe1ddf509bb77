"""Make the screenshots of README.md: `python docs/screenshots.py`. Needs Chromium, and pyte from PyPI.

Trains three recipes in a temporary folder, the default in a terminal of 100 columns. Writes the last screen of that terminal, the
top of its report and a map of the three runs to docs/images.
"""

from __future__ import annotations

import html
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte

IMAGES = Path(__file__).resolve().parent / "images"
COLUMNS, LINES = 100, 34
COLOURS = {"green": "#7ee787", "brown": "#e3b341", "red": "#ff7b72", "cyan": "#79c0ff", "magenta": "#d2a8ff"}
PAGE = """<style>body {{ margin: 0; background: #0d1117; color: #e6edf3; font: 15px/1.35 "DejaVu Sans Mono", monospace }}
pre {{ margin: 18px 22px }}</style><pre>{}</pre>"""


def recorded(words: list[str]) -> pyte.Screen:
    """Run a command in a terminal, and return its last screen."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
        os.execvp(words[0], words)
    while True:
        select.select([terminal], [], [])
        try:
            content = os.read(terminal, 1 << 16)
        except OSError:  # the terminal was closed
            content = b""
        if not content:
            break
        stream.feed(content)
    os.waitpid(child, 0)
    return screen


def as_html(screen: pyte.Screen) -> str:
    """Return the lines of a screen with their colours."""
    lines = []
    for row in range(screen.lines):
        spans = []
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            style = f"color:{COLOURS.get(cell.fg, 'inherit')}" + (";font-weight:bold" if cell.bold else "")
            spans.append(f'<span style="{style}">{html.escape(cell.data)}</span>')
        lines.append("".join(spans) if screen.display[row].strip() else "")
    return "\n".join(lines).strip("\n")


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Save a picture of a page as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is missing: install it, e.g. with `apt install chromium`.")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run([browser, *options, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    ganherd = str(Path(sys.executable).with_name("ganherd"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        screen = recorded([ganherd, "train", "--run", "runs/digits"])
        terminal = Path("terminal.html").absolute()
        terminal.write_text(PAGE.format(as_html(screen)))
        used = sum(bool(line.strip()) for line in screen.display)
        photograph(terminal, IMAGES / "terminal.png", 960, 46 + 21 * (used + 4))
        photograph(Path("runs/digits/report.html").absolute(), IMAGES / "report.png", 1100, 900)
        runs = ["runs/digits"]
        for recipe in ("digits-conditional", "digits-cellular-3x3"):
            runs.append(f"runs/{recipe}")
            subprocess.run([ganherd, "train", recipe, "--run", runs[-1], "--quiet"], check=True, capture_output=True)
        names = "one GAN per digit,one conditional GAN,nine cells on a torus"
        subprocess.run([ganherd, "figures", *runs, "--only", "map", "--names", names, "-o", "map"], check=True)
        shutil.copy("map/map.png", IMAGES / "map.png")


if __name__ == "__main__":
    main()
