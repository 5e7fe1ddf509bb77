"""The page in a real Chromium, against finished runs and a live training: everything works, and no request leaves this machine."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import page_server
import processes
import pytest
import recipes
from page_fixtures import Visit, picture, serious_problems
from page_server import PageServer

from ganherd.strategies.cellular.history.lineage import lineage

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'ganherd[browser]'")
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser
VIEWS = {
    "runs": "#/",
    "herd": "#/run/classes",
    "torus": "#/run/grid",
    "gap": "#/run/points",
    "curves": "#/run/classes/curves",
    "member": "#/run/grid/member/4",
    "sample": "#/run/classes/sample",
    "ranks": "#/run/grid/ranks",
    "compare": "#/compare/classes,grid",
}


def shown_step(page: Page) -> int:
    """Return the step whose samples are on the wall."""
    page.wait_for_selector(".wall[data-step]")
    return int(page.get_attribute(".wall", "data-step") or -1)


# -- a live training ----------------------------------------------------------------------------------------------------


def test_tiles_change_while_a_run_trains_and_the_page_says_how_it_ended(tmp_path: Path, visit: Visit) -> None:
    settings = {"sprites": 50, "record_every": 200, "checkpoint_every": 100_000, "watch": {"every": 0}, "scores": False}
    path = recipes.write_recipe(tmp_path, budget="1000000steps", **settings)
    words = [sys.executable, "-m", "ganherd", "train", str(path), "--run", str(tmp_path / "live"), "--quiet", "--ui"]
    training = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=processes.environment(), cwd=tmp_path)
    try:
        assert training.stderr is not None
        address = next(line for line in training.stderr if line.startswith("page: ")).split()[1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#/latest", address)
        while not (tmp_path / "live" / "sprites" / "step-00000200.webp").exists():
            assert training.poll() is None
            time.sleep(0.1)
        page = visit(address)
        first, before = shown_step(page), picture(page, ".wall canvas")
        expect(page.locator("main .pill").first).to_have_text("running")
        expect(page.locator(f".wall[data-step='{first}']")).to_have_count(0)
        assert shown_step(page) > first
        assert (picture(page, ".wall canvas") != before).any()
        assert page.get_by_role("button", name="Newest").get_attribute("aria-pressed") == "true"
        page.close()  # the server ends with the training
        training.send_signal(signal.SIGTERM)
        assert training.wait(60) == 75
    finally:
        training.kill()
        training.wait()
    with pytest.raises(OSError):
        PageServer(int(address.partition("/#")[0].rpartition(":")[2])).get("/")
    with page_server.serving([tmp_path / "live"]) as server:
        page = visit(f"{server.address}/#/latest")
        expect(page.locator("main .pill").first).to_have_text("interrupted")
        expect(page.get_by_text("Resume it with")).to_be_visible()
        page.close()


# -- finished runs ------------------------------------------------------------------------------------------------------


def test_the_slider_and_the_keyboard_move_the_whole_page(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['herd']}")
    assert shown_step(tab) == 30
    last = picture(tab, ".wall canvas")
    tab.keyboard.press("ArrowLeft")
    expect(tab.locator(".wall")).to_have_attribute("data-step", "27")
    assert "step=27" in tab.url and (picture(tab, ".wall canvas") != last).any()
    expect(tab.locator(".time output")).to_have_text("step 27")
    slider = tab.get_by_role("slider", name="Saved step")
    slider.focus()
    tab.keyboard.press("Home")
    expect(tab.locator(".wall")).to_have_attribute("data-step", "0")
    slider.fill("3")
    expect(tab.locator(".wall")).to_have_attribute("data-step", "9")
    tab.locator("main").focus()
    tab.keyboard.press("Space")  # plays to the end
    expect(tab.get_by_role("button", name="Pause")).to_be_visible()
    expect(tab.locator(".wall")).to_have_attribute("data-step", "30")
    expect(tab.get_by_role("button", name="Play")).to_be_visible()
    tab.go_back()
    shared = visit(f"{page.address}/#/run/classes?step=12")  # a link from a friend
    assert shown_step(shared) == 12


def test_every_member_is_a_named_link_with_its_numbers(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['herd']}")
    shown_step(tab)
    tab.get_by_label("Colour by").select_option("loss_g")
    record = page.get("/api/runs/classes/record?step=30&figures=loss_g").json["figures"]["loss_g"]
    link = tab.locator(".wall a").nth(1)
    expect(link).to_have_attribute(
        "aria-label", re.compile(rf"^member 1 \(1\), generator loss {float(f'{record[1]:.4g}'):g}")
    )
    link.focus()
    expect(tab.locator(".tip")).to_contain_text("generator loss")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", name="member 1 (1)")).to_be_visible()


def test_a_grid_shows_where_generators_come_from(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['torus']}")
    assert shown_step(tab) == 24
    expect(tab.get_by_text("2 × 3 cells on a torus")).to_be_visible()
    labels = tab.locator(".wall a").evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == 6 and all(re.fullmatch(r"member \d, genes from \d.*", label) for label in labels)
    selections = page.get("/api/runs/grid/events?limit=5000&kinds=tournament,replacement").json["events"]
    padded = [{**event, "g_after": [0.0] * 6} for event in selections]
    founders = lineage(padded, "g", 6).founder[-1].tolist()
    assert [int(label.split("from ")[1][0]) for label in labels] == founders


@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_replacements_flow_between_cells_unless_motion_is_reduced(
    page: PageServer, browser: Browser, motion: Any, moves: bool
) -> None:
    script = """async () => {
      const range = document.querySelector('.time input'), canvas = document.querySelector('.wall canvas'), seen = new Set();
      range.value = 2;
      range.dispatchEvent(new Event('input'));
      for (let i = 0; i < 120; i += 1) {
        await new Promise(requestAnimationFrame);
        seen.add(canvas.toDataURL());
      }
      return seen.size;
    }"""
    tab = browser.new_page(viewport={"width": 700, "height": 700}, reduced_motion=motion)
    tab.goto(f"{page.address}/#/run/grid")
    shown_step(tab)
    pictures = tab.evaluate(script)
    tab.close()
    assert pictures > 5 if moves else pictures <= 4  # the step before, colours, samples, and both


def test_swaps_show_whose_discriminator_each_member_has(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['gap']}")
    assert shown_step(tab) == 30
    partner = list(range(4))
    for event in page.get("/api/runs/points/events?kinds=swap&limit=5000").json["events"]:
        for a, b in event["pairs"]:
            partner[a], partner[b] = partner[b], partner[a]
    labels = tab.locator(".wall a").evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    assert [int(label.split("D ")[1]) for label in labels] == partner
    expect(tab.get_by_text("Arrows: the last swap")).to_be_visible()


def test_an_arrow_over_the_edge_of_a_torus_enters_on_the_other_side(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['herd']}")
    drawn = """async (way) => {
        const { Wall } = await import("/static/wall.js");
        const ends = [], get = (_, name) => (...all) => (name === "quadraticCurveTo" ? ends.push(all.slice(2).map(Math.round)) : 0);
        const boxes = [0, 100, 200].map((x) => ({ x, y: 0, size: 90 }));
        const run = { layout: { kind: "torus", rows: 1 }, members: 3, replicas: 1 };
        const sizes = { size: 90, gap: 10, caption: 0, columns: 3, margin: 0, shift: 0 };
        const wall = { run, boxes, ...sizes, overlay: [{ ...way, colour: "red" }] };
        Object.assign(Object.create(Wall.prototype), wall).drawOverlay(new Proxy({}, { get, set: () => true }));
        return [...new Set(ends.map(String))];
    }"""
    assert tab.evaluate(drawn, {"from": 0, "to": 1}) == ["118,45"]
    assert tab.evaluate(drawn, {"from": 2, "to": 0}) == ["18,45", "318,45"]


def test_a_figure_with_one_value_is_drawn_as_a_dot(page: PageServer, visit: Visit) -> None:
    """Figures of looks are not in every record, so a line of several records may have one value."""
    tab = visit(f"{page.address}/{VIEWS['curves']}")
    drawn = """async (values) => {
        const { Chart } = await import("/static/chart.js");
        const arcs = [], chart = Object.assign(Object.create(Chart.prototype), { data: { lines: [] } });
        const get = (_, name) => (...all) => (name === "arc" ? arcs.push(all.slice(0, 2)) : 0);
        const pen = new Proxy({}, { get, set: () => true });
        chart.drawLine(pen, { x: [1, 2, 3], y: values, colour: "red" }, (x) => x, (y) => y);
        return arcs;
    }"""
    assert tab.evaluate(drawn, [None, 5, None]) == [[2, 5]]
    assert tab.evaluate(drawn, [4, 5, None]) == []


def test_curves_have_exact_values_zoom_a_log_axis_and_other_runs(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['curves']}")
    tab.get_by_label("Figure").select_option("loss_d")
    lines = page.get("/api/runs/classes/metrics?figures=loss_d&members=all").json
    canvas = tab.locator(".chart canvas").first
    expect(canvas).to_have_attribute("aria-label", re.compile("discriminator loss over steps"))
    canvas.focus()
    tab.keyboard.press("ArrowLeft")  # the last record
    read = tab.locator(".chart .read").first
    expect(read).to_contain_text("step 30")
    value = lines["figures"]["loss_d"]["lines"][0][-1]
    expect(read).to_contain_text(f"0: {float(f'{value:.4g}'):g}")
    box = canvas.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 80)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 80, steps=4)
    tab.mouse.up()
    expect(tab.get_by_role("button", name="Show all")).to_be_visible()
    tab.mouse.move(box["x"] + 62, box["y"] + 80)
    expect(read).not_to_contain_text("step 3\n")
    tab.get_by_role("button", name="Show all").click()
    tab.get_by_label("log axis").check()
    tab.get_by_role("button", name="band").click()
    expect(tab.get_by_text("Band: all members")).to_be_visible()
    tab.get_by_role("button", name="time").click()
    tab.get_by_label("grid").check()
    expect(tab.get_by_role("heading", name="Settings that differ")).to_be_visible()
    expect(tab.get_by_role("region", name="Settings that differ")).to_contain_text("strategy.name")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="CSV").click()
    assert "median" in download.value.path().read_text().splitlines()[0]


def test_curves_of_a_growing_run_ask_only_for_what_is_new(tmp_path: Path, shown_runs: Path, visit: Visit) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "grows")
    metrics = tmp_path / "grows" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:-2]))
    with page_server.serving([tmp_path]) as page:
        tab = visit(f"{page.address}/#/run/grows/curves?figure=loss_g")
        expect(tab.locator(".chart canvas")).to_be_visible()
        tab.wait_for_timeout(2500)  # until the page follows
        with tab.expect_request(re.compile(r"/metrics\?.*offset=")) as asked, metrics.open("a") as handle:
            handle.write("".join(lines[-2:]))
        assert f"offset={len(''.join(lines[:-2]))}" in asked.value.url
        canvas = tab.locator(".chart canvas")
        canvas.focus()
        tab.wait_for_timeout(500)
        tab.keyboard.press("ArrowLeft")
        expect(tab.locator(".chart .read")).to_contain_text("step 30")
        tab.close()


def test_the_sampler_draws_at_once_and_downloads(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['sample']}")
    drawn = "canvas.samples[data-drawn]"
    tab.wait_for_selector(drawn)
    before = picture(tab, drawn)
    tab.get_by_label("Seed", exact=True).fill("7")
    tab.wait_for_selector("canvas.samples[aria-label$='seed 7'][data-drawn]")
    assert (picture(tab, drawn) != before).any()
    tab.get_by_label("Label").select_option("2")
    tab.get_by_label("Number").fill("9")
    tab.get_by_label(re.compile("Truncation")).fill("0.5")
    expect(tab.locator("canvas.samples")).to_have_attribute("aria-label", "9 samples of 2, seed 7")
    files = {name: downloaded(tab, name) for name in ("PNG", "npz", "zip by label")}
    assert files["PNG"].startswith(b"\x89PNG") and files["zip by label"].startswith(b"PK")
    with np.load(io.BytesIO(files["npz"])) as arrays:
        assert arrays["y"].tolist() == [2] * 9
    frame = tab.get_by_label("Frame of the walk")
    first = picture(tab, "canvas[aria-label^='a walk']")
    frame.fill("40")
    assert (picture(tab, "canvas[aria-label^='a walk']") != first).any()


def downloaded(tab: Page, name: str) -> bytes:
    """Click on a link and return the file that it downloads."""
    with tab.expect_download() as download:
        tab.get_by_role("link", name=name, exact=True).click()
    return Path(download.value.path()).read_bytes()


def test_runs_are_selected_and_compared_with_the_same_noise(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['runs']}")
    for name in ("classes", "grid"):
        tab.get_by_label(f"compare {name}").check()
    tab.get_by_role("link", name="Compare").click()
    tab.wait_for_selector("canvas.samples[data-drawn] >> nth=1")
    expect(tab.get_by_role("region", name="Settings that differ")).to_contain_text("strategy.name")
    before = picture(tab, "canvas.samples >> nth=0")
    tab.get_by_label("Seed of the noise").fill("3")
    expect(tab.locator("canvas.samples[aria-label$='seed 3'][data-drawn]")).to_have_count(2)
    assert (picture(tab, "canvas.samples >> nth=0") != before).any()


def test_a_member_has_samples_over_time_curves_lineage_and_events(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['member']}")
    expect(tab.get_by_role("heading", name="Where its generator comes from")).to_be_visible()
    expect(tab.get_by_role("heading", name="What happened")).to_be_visible()
    expect(tab.locator(".events").first).to_contain_text("Iteration 5:")
    film = tab.get_by_role("group", name="Samples over time").get_by_role("button")
    assert film.count() == 7
    film.nth(2).click()
    expect(tab.locator(".time output")).to_have_text("step 8")
    assert "step=8" in tab.url
    tab.get_by_role("link", name="next ›").click()
    expect(tab.get_by_role("heading", name="member 5", exact=True)).to_be_visible()


def test_why_a_member_failed_is_shown_with_pictures_before_and_after(
    tmp_path: Path, shown_runs: Path, visit: Visit
) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "ill")
    facts = {"step": 14, "event": "alarm", "what": "collapse", "member": 1, "name": "member 1 (1)", "spread": 0.01}
    events = tmp_path / "ill" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([lines[0], json.dumps(facts) + "\n", *[line for line in lines[1:]]]))
    with page_server.serving([tmp_path]) as page:
        tab = visit(f"{page.address}/#/run/ill")
        expect(tab.get_by_role("heading", name="One member is not well")).to_be_visible()
        expect(tab.locator(".wall a").nth(1)).to_have_attribute("aria-label", re.compile("alarm: collapse"))
        tab.get_by_role("region", name="Alarms").get_by_role("link").click()
        event = tab.locator(".events li", has_text="Alarm: collapse. Its samples hardly vary.")
        expect(event.locator("canvas")).to_have_count(2)
        expect(event).to_contain_text("step 12")
        expect(event).to_contain_text("step 15")
        tab.close()


def test_empty_killed_half_written_and_hostile_runs_are_meaningful(
    tmp_path: Path, shown_runs: Path, visit: Visit
) -> None:
    with page_server.serving([tmp_path / "nothing"]) as page:
        tab = visit(page.address)
        expect(tab.get_by_text("No runs yet")).to_be_visible()
        tab.close()
    runs = tmp_path / "runs"
    for name in ("killed", "half", "link"):
        shutil.copytree(shown_runs / "classes", runs / name)
    (runs / "fresh").mkdir()
    for name in ("killed", "half", "fresh"):
        info = json.loads((shown_runs / "classes" / "run.json").read_text())
        info = {key: value for key, value in info.items() if key not in ("step", "seconds")}
        (runs / name / "run.json").write_text(json.dumps({**info, "state": "running"}))
    shutil.copy(shown_runs / "classes" / "recipe.yaml", runs / "fresh")
    shutil.rmtree(runs / "half" / "mixture")
    (runs / "half" / "metrics.jsonl").write_bytes((runs / "half" / "metrics.jsonl").read_bytes()[:900])
    (runs / "half" / "sprites" / "step-00000030.webp").write_bytes(b"RIFF")
    (runs / "link" / "extra").symlink_to("/etc/passwd")
    index = runs / "killed" / "sprites" / "index.json"
    name = "<img src=x onerror=\"document.title='hacked'\">"
    index.write_text(json.dumps({**json.loads(index.read_text()), "labels": [name, name, name]}))
    with page_server.serving([runs]) as page:
        tab = visit(page.address)
        expect(tab.get_by_text("which a run folder may not hold")).to_be_visible()
        for run in ("killed", "half", "fresh"):
            tab.goto(f"{page.address}/#/run/{run}")
            expect(tab.locator("main .pill").first).to_have_text("killed")
            expect(tab.get_by_text("Resume it with")).to_be_visible()
        expect(tab.get_by_text("This run has no sprites")).to_be_visible()
        tab.goto(f"{page.address}/#/run/killed")
        expect(tab.locator(".wall a b").first).to_have_text(name)
        assert "hacked" not in tab.title() and tab.locator("main img").count() == 0
        tab.close()


def test_light_and_dark_can_be_switched_and_are_remembered(page: PageServer, visit: Visit) -> None:
    tab = visit(f"{page.address}/{VIEWS['herd']}", scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(background)
    tab.get_by_role("button", name="Switch between light and dark").click()
    assert tab.evaluate(background) != light
    tab.reload()
    assert tab.evaluate(background) != light
    tab.emulate_media(color_scheme="dark")
    tab.get_by_role("button", name="Switch between light and dark").click()
    assert tab.evaluate(background) == light


@pytest.mark.parametrize("view", [*VIEWS, "docs"])
def test_axe_finds_no_serious_problem_and_nothing_is_wider_than_a_phone(
    page: PageServer, visit: Visit, view: str
) -> None:
    for scheme, width in (("light", 1400), ("dark", 1400), ("light", 390)):
        tab = visit(f"{page.address}/docs" if view == "docs" else f"{page.address}/{VIEWS[view]}", width, scheme)
        tab.wait_for_selector("h1")
        tab.wait_for_load_state("load")
        tab.wait_for_timeout(800)
        assert serious_problems(tab) == [], (scheme, width)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_is_small_before_it_is_painted_and_as_a_whole() -> None:
    import gzip

    from ganherd.web.page_script import STATIC

    size = {path.relative_to(STATIC).as_posix(): len(gzip.compress(path.read_bytes())) for path in STATIC.rglob("*.*")}
    first = ("index.html", "style.css", "app.js", "address.js", "dom.js", "source.js", "icon.svg")
    assert sum(size[name] for name in first) < 20_000 and sum(size.values()) < 80_000
