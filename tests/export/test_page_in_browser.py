"""The exported page in a real browser: it draws the samples of ganherd, walks, is accessible, and asks the network for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'ganherd[browser]'")
from playwright.sync_api import Browser, Page, sync_playwright

from ganherd.export.write_export import write_export
from ganherd.mixture.mixture import load

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, run: Path, tmp_path: Path) -> Iterator[Page]:
    """Return the page of a run; the test fails if it logs a message (except on canvases that tests read) or asks for a file."""
    write_export(run, tmp_path / "model.html", "html")
    address = (tmp_path / "model.html").as_uri()
    tab = browser.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: None if "willReadFrequently" in message.text else messages.append(message.text))
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.on("request", lambda request: messages.append(request.url) if request.url != address else None)
    tab.goto(address)
    wait(tab)
    yield tab
    tab.close()
    assert messages == []


def wait(page: Page) -> None:
    page.wait_for_selector("body[data-milliseconds]")  # a function would need eval, which the page forbids


def drawn(page: Page) -> tuple[np.ndarray, list[int]]:
    pairs = page.evaluate("drawn.map((d) => [Array.from(d.x), d.label])")
    return np.array([x for x, _ in pairs], np.float64), [y for _, y in pairs]


def test_page_draws_the_samples_of_ganherd(page: Page, run: Path) -> None:
    portable = load(run).portable()
    x, y = drawn(page)
    expected = portable.sample(64)
    assert np.abs(x - expected.x.reshape(64, -1)).max() <= 1 and y == expected.y.tolist()
    page.select_option("#label", "1")
    page.fill("#seed", "500")
    page.fill("#count", "5")
    page.click("text=Draw")
    wait(page)
    x, y = drawn(page)
    assert np.abs(x - portable.sample(5, label=1, seed=500).x.reshape(5, -1)).max() <= 1 and y == [1] * 5
    assert "5 samples, seeds 500 to 504" in page.inner_text("#status")
    shown = page.evaluate("Array.from($('grid').getContext('2d').getImageData(1, 1, 1, 1).data)")
    assert shown[:3] == [x[0, 0]] * 3 and shown[3] == 255


def test_walk_ends_at_the_samples_of_its_seeds(page: Page) -> None:
    def pixels() -> list[int]:
        return page.evaluate("Array.from($('step').getContext('2d').getImageData(0, 0, 70, 70).data)")

    start = pixels()
    page.fill("#position", "0.5")
    middle = pixels()
    page.fill("#position", "1")
    page.fill("#to", "0")  # from a seed to itself: the walk stands still
    assert middle != start and pixels() == start
    page.keyboard.press("Tab")
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    for _ in range(100):
        if page.input_value("#position") != "1":
            break
        page.wait_for_timeout(50)
    assert page.input_value("#position") != "1"
    page.click("#play")


def test_click_on_a_sample_starts_the_walk_there(page: Page) -> None:
    box = page.locator("#grid").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 2.5 / 8, box["y"] + box["height"] * 1.5 / 8)
    assert page.input_value("#from") == "10"


def test_page_is_accessible_in_light_and_dark_and_on_a_phone(page: Page) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs axe: pip install 'ganherd[browser]'"
    )
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 390, "height": 800})
        violations = axe.Axe().run(page).response["violations"]
        assert [one["id"] for one in violations if one["impact"] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
