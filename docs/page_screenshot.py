"""Draw a picture of the page: `python docs/page_screenshot.py RUN -o docs/page.png`. Needs Playwright and a Chromium."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("-o", type=Path, required=True, help="the picture")
    parser.add_argument("--view", default="", help="curves, sample, ranks or member/3; default: the herd")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=820)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    words = [sys.executable, "-m", "ganherd", "ui", str(options.run), "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = server.stderr.readline().split()[-1].removesuffix("#/")
        with sync_playwright() as playwright:
            chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            scheme = "dark" if options.dark else "light"
            page = browser.new_page(viewport={"width": options.width, "height": options.height}, color_scheme=scheme)
            page.goto(f"{address}#/run/{options.run.name}/{options.view}")
            page.wait_for_selector("h1")
            page.wait_for_timeout(6000 if options.view == "sample" else 2500)  # the first samples need PyTorch
            page.screenshot(path=str(options.o))
            browser.close()
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
