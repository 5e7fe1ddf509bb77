"""Reports in a real Chromium, opened as files: slider, curves and tables work without a server, and nothing is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from page_fixtures import Visit, picture, serious_problems

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'ganherd[browser]'")
from playwright.sync_api import Page, expect

from ganherd import report
from ganherd.compare.finished import runs_report
from ganherd.runs.series import sprite_files

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(shown_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the addresses of the reports of a run per class, a grid, swaps on points, and of two runs."""
    folder = tmp_path_factory.mktemp("reports")
    names = ("classes", "grid", "points")
    paths = {name: report.write(shown_runs / name, output=folder / f"{name}.html") for name in names}
    paths["two"] = runs_report.write([shown_runs / "classes", shown_runs / "grid"], folder / "two.html")
    return {name: path.as_uri() for name, path in paths.items()}


def wait(tab: Page) -> Page:
    tab.wait_for_selector("html[data-ready]")
    return tab


def test_the_slider_moves_the_wall(pages: dict[str, str], visit: Visit) -> None:
    tab = wait(visit(pages["classes"]))
    tab.wait_for_selector(".wall[data-step='30']")
    last = picture(tab, ".wall canvas")
    slider = tab.get_by_role("slider", name="Saved step")
    slider.focus()
    slider.press("Home")
    tab.wait_for_selector(".wall[data-step='0']")
    assert (picture(tab, ".wall canvas") != last).any()
    expect(tab.locator(".time output")).to_have_text("step 0")
    slider.press("End")
    tab.wait_for_selector(".wall[data-step='30']")
    assert (picture(tab, ".wall canvas") == last).all()
    tab.locator("#film button").first.click()  # a frame of the filmstrip moves it, too
    tab.wait_for_selector(".wall[data-step='0']")
    tab.locator("#members").press("ArrowRight")  # arrows elsewhere belong to the page
    expect(tab.locator(".time output")).to_have_text("step 0")


def test_the_filmstrip_shows_a_sample_of_each_member_from_the_first_to_the_last_step(
    pages: dict[str, str], visit: Visit, shown_runs: Path
) -> None:
    saved = list(sprite_files.saved_sheets(shown_runs / "classes" / "sprites"))
    tab = wait(visit(pages["classes"]))
    frames = tab.locator("#film button")
    expect(tab.locator("#film canvas[data-drawn]")).to_have_count(min(8, len(saved)))
    steps = [int(frames.nth(i).get_attribute("data-step") or -1) for i in range(frames.count())]
    assert steps[0] == 0 and steps[-1] == saved[-1] and steps == sorted(set(steps)) and len(steps) == min(8, len(saved))
    first, last = (picture(tab, f"#film button[data-step='{step}'] canvas") for step in (steps[0], steps[-1]))
    assert first.size == last.size and (first != last).any()


def test_a_tile_shows_the_numbers_of_the_records_and_leads_to_the_table(
    pages: dict[str, str], visit: Visit, shown_runs: Path
) -> None:
    tab = wait(visit(pages["classes"]))
    tab.wait_for_selector(".wall[data-step]")
    tab.locator(".wall a").nth(1).hover()
    record = json.loads((shown_runs / "classes" / "metrics.jsonl").read_text().splitlines()[-1])
    loss = float(f"{record['loss_g'][1]:.4g}")
    expect(tab.locator(".tip")).to_contain_text(f"generator loss{loss:g}")
    tab.locator(".wall a").nth(1).click()
    assert tab.url.endswith("#member-1") and tab.locator("#member-1").is_visible()


def test_curves_have_exact_values_zoom_a_band_and_a_log_axis(
    pages: dict[str, str], visit: Visit, shown_runs: Path
) -> None:
    tab = wait(visit(pages["classes"]))
    records = [json.loads(line) for line in (shown_runs / "classes" / "metrics.jsonl").read_text().splitlines()]
    place = tab.locator("#loss-curves")
    canvas = place.locator("canvas")
    canvas.focus()
    canvas.press("ArrowLeft")
    expect(place.locator(".read > b")).to_have_text(f"step {records[-1]['step']}")
    expect(place.locator(".read div")).to_have_count(3)
    shown = [float(text.replace("−", "-")) for text in place.locator(".read div b").all_inner_texts()]
    assert np.allclose(sorted(shown), sorted(records[-1]["loss_g"]), rtol=1e-3)
    canvas.hover(position={"x": 200, "y": 100})
    expect(place.locator(".read")).to_be_visible()
    before = picture(tab, "#loss-curves canvas")
    place.get_by_role("button", name="band").click()
    expect(place.locator("p.small")).to_contain_text("Band: all members")
    place.get_by_label("log axis").check()
    tab.wait_for_timeout(100)
    assert (picture(tab, "#loss-curves canvas") != before).any()
    canvas.press("+")
    expect(place.get_by_role("button", name="Show all")).to_be_visible()
    place.get_by_role("button", name="Show all").click()
    expect(place.get_by_role("button", name="Show all")).to_be_hidden()
    place.get_by_label("Figure").select_option("loss_d")
    expect(place.locator("p.small")).to_contain_text("discriminator loss")


def test_curves_begin_with_variety_unless_a_score_has_enough_points(
    shown_runs: Path, tmp_path: Path, visit: Visit
) -> None:
    run = Path(shutil.copytree(shown_runs / "classes", tmp_path / "classes"))
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]["step"]
    others = [
        line for line in (run / "events.jsonl").read_text().splitlines() if json.loads(line)["event"] != "checkpoint"
    ]
    for points, figure in ((7, "spread"), (8, "distance")):
        saved = [{"event": "checkpoint", "step": last * (i + 1) // 8, "score": 1.0 / (i + 1)} for i in range(points)]
        (run / "events.jsonl").write_text("\n".join([*others, *map(json.dumps, saved)]) + "\n")
        tab = wait(visit(report.write(run, output=tmp_path / f"{points}.html").as_uri()))
        expect(tab.locator("#course-curves").get_by_label("Figure")).to_have_value(figure)
        assert tab.locator("#course-curves option").count() > 2


def test_tables_are_sorted_by_click_and_by_keyboard(pages: dict[str, str], visit: Visit) -> None:
    tab = wait(visit(pages["classes"]))
    head = tab.locator("#members th", has_text="generator loss")
    cells = tab.locator("#members tbody td:nth-child(4)")
    recorded = cells.all_inner_texts()
    numbers = [float(text.replace("−", "-")) for text in recorded]
    assert head.get_attribute("aria-sort") == "none" and len(set(numbers)) == 3
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text.replace("−", "-")) for text in cells.all_inner_texts()] == sorted(numbers)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(text.replace("−", "-")) for text in cells.all_inner_texts()] == sorted(numbers, reverse=True)
    tab.locator("#members th", has_text="member").first.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none" and cells.all_inner_texts() == recorded


def test_grids_and_swaps_can_be_followed(pages: dict[str, str], visit: Visit) -> None:
    grid = wait(visit(pages["grid"]))
    expect(grid.locator("#board h2").first).to_have_text("2 × 3 cells on a torus")
    expect(grid.locator(".wall a .cap span").first).to_contain_text("from ")
    assert grid.locator("#colour").input_value() == "genes"
    swaps = wait(visit(pages["points"]))
    swaps.wait_for_selector(".wall[data-step='30']")
    expect(swaps.locator("#board p.small")).to_contain_text("Arrows: the last swap, at step 25.")
    partners = swaps.locator(".wall a .cap span").all_inner_texts()
    slider = swaps.get_by_role("slider", name="Saved step")
    slider.press("Home")
    expect(swaps.locator(".wall a .cap span").first).to_have_text("D 0")
    assert sorted(partners) == ["D 0", "D 1", "D 2", "D 3"]


def test_two_runs_share_their_curves(pages: dict[str, str], visit: Visit) -> None:
    tab = wait(visit(pages["two"]))
    expect(tab.locator("#loss-curves .keys li")).to_have_text(["classes", "grid"])
    canvas = tab.locator("#loss-curves canvas")
    canvas.hover(position={"x": 200, "y": 100})
    expect(tab.locator("#loss-curves .read")).to_be_visible()
    assert tab.locator("#board").count() == 0 and tab.locator("#film figure canvas").count() > 4


def test_commands_can_be_copied(pages: dict[str, str], visit: Visit) -> None:
    tab = wait(visit(pages["classes"], permissions=["clipboard-read", "clipboard-write"]))
    button = tab.locator("#use button").first
    button.click()
    expect(button).to_have_text("Copied")
    assert tab.evaluate("navigator.clipboard.readText()") == tab.locator("#use code").first.inner_text()


def test_paper_shows_everything_and_no_controls(pages: dict[str, str], visit: Visit) -> None:
    tab = wait(visit(pages["classes"], scheme="dark"))
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert not tab.locator(".top").is_visible() and not tab.locator(".time").is_visible()
    assert not tab.locator("#course-curves select").is_visible()
    assert tab.locator("#settings pre").is_visible() and tab.locator(".wall canvas").is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.documentElement.dataset.theme") is None


def test_without_script_pictures_and_tables_are_there(pages: dict[str, str], visit: Visit) -> None:
    tab = visit(pages["classes"], java_script_enabled=False)
    assert tab.locator("#film img").count() > 1 and tab.locator("#samples img").first.is_visible()
    assert tab.locator("#members tbody tr").count() == 3 and tab.locator("#scores tbody tr").count() > 1
    assert tab.locator("#course noscript").inner_text().startswith("The curves need JavaScript")


def test_a_run_without_sprites_has_a_report_without_a_wall(shown_runs: Path, tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "old"
    shutil.copytree(shown_runs / "classes", path)
    shutil.rmtree(path / "sprites")
    tab = wait(visit(report.write(path).as_uri()))
    assert tab.locator("#board").count() == 0 and tab.locator("#film img").count() > 0
    expect(tab.locator("#loss-curves canvas")).to_be_visible()


@pytest.mark.parametrize("name", ["classes", "grid", "points", "two"])
def test_axe_finds_no_serious_problem_and_nothing_is_wider_than_a_phone(
    pages: dict[str, str], visit: Visit, name: str
) -> None:
    for scheme, width in (("light", 1400), ("dark", 1400), ("light", 390)):
        tab = wait(visit(pages[name], width, scheme))
        tab.wait_for_timeout(500)
        assert serious_problems(tab) == [], (scheme, width)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
