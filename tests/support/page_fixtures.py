"""A real Chromium that opens pages: no page may log an error or ask another server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
Visit = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the Chromium of this machine."""
    playwright_api = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install 'ganherd[browser]'"
    )
    if CHROMIUM is None:
        pytest.skip("needs Chromium: install it, or set CHROMIUM to its path")
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Return a function that opens a new page. At the end no page may have logged an error or asked another server."""
    pages: list[Page] = []
    problems: list[str] = []
    addresses: set[str] = set()

    def note(request: Any) -> None:
        if (
            not request.url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:"))
            and request.url not in addresses
        ):
            problems.append(f"asked {request.url}")

    def log(line: Any) -> None:
        if line.location["url"].endswith(
            "/half/sprites/30"
        ):  # a test has damaged this sheet, and the server refuses it
            return
        if line.type in ("error", "warning") and "willReadFrequently" not in line.text:  # this test reads canvases
            problems.append(line.text)

    def open_page(address: str, width: int = 1400, scheme: Any = "light", **settings: Any) -> Page:
        size: Any = {"width": width, "height": 900}
        page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce", **settings)
        page.set_default_timeout(30_000)
        addresses.add(address.partition("#")[0])
        page.on("request", note)
        page.on("pageerror", lambda error: problems.append(f"error {error}"))
        page.on("console", log)
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert problems == []


def picture(page: Page, selector: str) -> np.ndarray:
    """Return the pixels of a canvas."""
    script = "(canvas) => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    return np.array(page.eval_on_selector(selector, script), np.uint8)


def serious_problems(page: Page) -> list[tuple[str, str, str]]:
    """Return the serious problems that axe finds on a page: the rule, the element, and what is wrong."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary", "")[:200])
        for each in Axe().run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
