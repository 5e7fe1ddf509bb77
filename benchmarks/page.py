"""Measure the page in a browser: a herd of 1,000 members with 10,000 records and 200 sprite sheets, at 1 Mbit/s.

    python benchmarks/page.py -o benchmarks/results/page.json

It needs Playwright from PyPI and a Chromium of the system ($CHROMIUM, or on the path). The run is written, not trained.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ganherd.recipe import recipe_file
from ganherd.runs.series import sprite_files
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.util import files
from ganherd.viz import sprite_sheet

MBIT, LATENCY = 1.0, 20  # of the throttled network: megabits and milliseconds
EVERY = 50  # steps between records


def write_run(folder: Path, members: int, records: int, sheets: int) -> None:
    """Write a finished run with random numbers and blurred noise as samples."""
    folder.mkdir(parents=True)
    last = EVERY * records
    sets = [f"herd.members={members}", "data.partition=all", f"train.budget={last}steps"]
    (folder / "recipe.yaml").write_text(recipe_file.dump(recipe_file.load("digits-wcgan", sets)))
    engine = {"name": "fused", "chunk": members, "threads": 1, "device": "cpu"}
    info = {
        "members": members,
        "engine": engine,
        "budget": {"steps": last},
        "state": "finished",
        "step": last,
        "seconds": 3600.0,
    }
    (folder / "run.json").write_text(
        json.dumps({**info, "recipe": "digits-wcgan", "changes": sets, "host": "node", "seed": 0})
    )
    rng = np.random.default_rng(0)
    names = ("loss_d", "loss_g", "real", "fake", "spread", "returns", "tells", "differs", "copies")
    bodies = []
    for _ in range(40):
        columns = {name: rng.normal(1.0, 0.3, members).tolist() for name in names[:4]}
        columns |= {name: [round(v, 4) for v in rng.uniform(0, 1, members).tolist()] for name in names[4:]}
        bodies.append(json.dumps(columns)[1:])
    with (folder / "metrics.jsonl").open("w") as handle:
        for record in range(1, records + 1):
            step = EVERY * record
            handle.write(f'{{"step": {step}, "seconds": {0.36 * record:.2f}, "rate": 2777.0, {bodies[record % 40]}\n')
    with (folder / "events.jsonl").open("w") as handle:
        for member in range(0, members, 50):
            facts = {
                "step": 1000 + member,
                "event": "alarm",
                "what": "collapse",
                "member": member,
                "name": f"member {member}",
            }
            handle.write(json.dumps(facts) + "\n")
    layout = sprite_sheet.plan_sheet(members, (1, 28, 28), sprite_files.MOST_BYTES // 200)
    index = {
        "kind": "images", "names": [f"member {m}" for m in range(members)], "labels": [None] * members,
        "samples": layout.samples, "columns": layout.columns, "tile": [layout.height, layout.width],
    }  # fmt: skip
    sprite_files.write_index(folder / "sprites", SpriteIndex.parse(index))
    steps = np.linspace(0, last, sheets).round(-2).astype(int).tolist()
    shape = (members, layout.samples, 1, layout.height // 4 + 1, layout.width // 4 + 1)
    for step in steps:
        coarse = rng.integers(0, 256, shape, np.uint8).repeat(4, 3).repeat(4, 4)
        x = coarse[:, :, :, : layout.height, : layout.width]
        content = sprite_sheet.webp(sprite_sheet.draw_sprites(np.ascontiguousarray(x), layout))
        sprite_files.sheet_path(folder / "sprites", step, "images").write_bytes(content)


def bytes_read(pid: int) -> int:
    """Return the bytes that a process has read so far."""
    match = re.search(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())
    return int(match[1]) if match else 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(address: str, server: int) -> dict[str, Any]:
    """Open the page in a throttled browser and return what was measured."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        rate = MBIT * 1e6 / 8
        limits = {"offline": False, "latency": LATENCY, "downloadThroughput": rate, "uploadThroughput": rate}
        session.send("Network.emulateNetworkConditions", limits)
        kinds: dict[str, str] = {}
        received: list[tuple[float, int, str]] = []  # time, bytes, whether it is an image
        session.on("Network.responseReceived", lambda e: kinds.update({e["requestId"]: e["response"]["mimeType"]}))
        session.on(
            "Network.dataReceived",
            lambda e: received.append((e["timestamp"], e["encodedDataLength"], e["requestId"])),
        )
        began: list[float] = []
        session.on("Network.requestWillBeSent", lambda e: began.append(e["timestamp"]))
        before = bytes_read(server)
        page.goto(f"{address}/#/run/big", wait_until="commit")
        page.wait_for_selector(".wall[data-step]", timeout=120_000)
        herd_seconds = page.evaluate("performance.now()") / 1000
        page.wait_for_timeout(1500)
        first_paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        read_for_herd = bytes_read(server) - before
        sent_for_herd = sum(size for _, size, _ in received)
        before_paint = sum(size for at, size, _ in received if at <= began[0] + first_paint)
        # the slider: from the arrival of a sheet to the wall that shows it
        script = """async (to) => {
          const wall = document.querySelector('.wall'), range = document.querySelector('.time input');
          const drawn = new Promise((done) => new MutationObserver((_, self) => { self.disconnect(); done(performance.now()); })
            .observe(wall, { attributes: true, attributeFilter: ['data-step'] }));
          range.value = to; range.dispatchEvent(new Event('input'));
          const at = await drawn, all = performance.getEntriesByType('resource');
          const url = all.filter((one) => /sprites\\/\\d+$/.test(one.name)).at(-1);
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          return [at - url.responseEnd, performance.now() - url.responseEnd];
        }"""
        slider = [page.evaluate(script, to) for to in (20, 60, 100, 140, 180)]
        sheets = page.evaluate(
            "performance.getEntriesByType('resource').filter((one) => /sprites/.test(one.name)).map((one) => one.encodedBodySize)"
        )
        for view in ("curves", "sample", "ranks", "member/7"):
            page.goto(f"{address}/#/run/big/{view}")
            page.wait_for_timeout(4000)
        page.goto(f"{address}/#/")
        page.wait_for_timeout(4000)
        whole = sum(size for _, size, request in received if not kinds.get(request, "").startswith("image/webp"))
        code = sum(
            size
            for _, size, request in received
            if kinds.get(request, "") in ("text/javascript", "text/css", "text/html", "image/svg+xml")
        )
        browser.close()
    return {
        "first paint, s": round(first_paint, 3),
        "bytes before first paint": before_paint,
        "herd with its samples, s": round(herd_seconds, 2),
        "bytes of code and styles of all views": code,
        "bytes of everything but sprites, all views": whole,
        "bytes of a sprite sheet, mean": int(np.mean(sheets)),
        "from sheet to drawn, ms, of five steps": [round(drawn, 1) for drawn, _ in slider],
        "from sheet to the second frame after, ms": [round(frame, 1) for _, frame in slider],
        "bytes that the server read for the herd": read_for_herd,
        "bytes that it sent for the herd": sent_for_herd,
    }


def follow(folder: Path, seconds: float) -> dict[str, Any]:
    """Let a page follow three runs that write a record and a sheet each second, and return the memory and the CPU time over it."""
    from playwright.sync_api import sync_playwright

    runs = [folder / f"live-{number}" for number in range(3)]
    for run in runs:
        write_run(run, 100, 20, 20)
        info = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**info, "state": "running", "budget": {"steps": 10**7}}))
    locks = [files.lock(run / ".lock") for run in runs]
    lines = [(run / "metrics.jsonl").read_text().splitlines()[-1] for run in runs]
    sheets = [sorted((run / "sprites").glob("*.webp"))[-1].read_bytes() for run in runs]
    server, address = start_server(folder)
    rows = []
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        pages = [browser.new_page() for _ in runs]
        for page, run in zip(pages, runs, strict=True):
            page.goto(f"{address}/#/run/{run.name}")
        sessions = [page.context.new_cdp_session(page) for page in pages]
        began, step, noted = time.monotonic(), EVERY * 20, 0.0
        while time.monotonic() - began < seconds:
            step += EVERY
            for run, line, sheet in zip(runs, lines, sheets, strict=True):
                with (run / "metrics.jsonl").open("a") as handle:
                    handle.write(re.sub(r'"step": \d+', f'"step": {step}', line, count=1) + "\n")
                every = sprite_files.interval(step, EVERY, 200)
                if step % every == 0:
                    sprite_files.sheet_path(run / "sprites", step, "images").write_bytes(sheet)
                    saved = sprite_files.saved_sheets(run / "sprites")
                    sprite_files.keep_only(run / "sprites", [one for one in saved if one % every == 0])
            pages[0].wait_for_timeout(1000)
            if time.monotonic() - began >= noted:
                heaps = []
                for session in sessions:
                    session.send("HeapProfiler.collectGarbage")
                    heaps.append(int(session.send("Runtime.getHeapUsage")["usedSize"]))
                memory = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())[1]) * 1024
                rows.append(
                    {
                        "seconds": round(time.monotonic() - began),
                        "server, bytes": memory,
                        "pages, bytes": heaps,
                        "server, CPU s": cpu_seconds(server.pid),
                    }
                )
                noted += seconds / 10
        browser.close()
    server.terminate()
    server.wait(10)
    for lock in locks:
        lock.close()
    return {"rows": rows}


def start_server(runs: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the page on a folder of runs, and return its process and its address."""
    words = [sys.executable, "-m", "ganherd", "ui", str(runs), "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    return server, server.stderr.readline().split()[-1].removesuffix("/#/")


def place() -> dict[str, str]:
    """Return the commit, the date and the machine of a measurement."""
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {"commit": git.stdout.strip(), "date": time.strftime("%Y-%m-%d"), "machine": machine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, help="file for the results")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--sheets", type=int, default=200)
    parser.add_argument("--follow", type=float, metavar="SECONDS", help="follow three live runs instead")
    options = parser.parse_args()
    if options.follow:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(
                {"command": " ".join(["python", *sys.argv]), **place(), **follow(Path(folder), options.follow)},
                indent=1,
            )
        print(text)
        if options.o:
            options.o.write_text(text + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        write_run(Path(folder) / "runs" / "big", options.members, options.records, options.sheets)
        size = (Path(folder) / "runs" / "big" / "metrics.jsonl").stat().st_size
        print(f"written in {time.time() - began:.0f} s: metrics.jsonl has {size / 2**20:,.0f} MiB", file=sys.stderr)
        server, address = start_server(Path(folder) / "runs")
        try:
            result = measure(address, server.pid)
            result["CPU seconds of the server"] = cpu_seconds(server.pid)
        finally:
            server.terminate()
            server.wait(10)
    facts = {
        "command": " ".join(["python", *sys.argv]),
        **place(),
        "network": f"{MBIT:g} Mbit/s, {LATENCY} ms latency",
        "members": options.members,
        "records": options.records,
        "metrics.jsonl, bytes": size,
        "rows": [result],
    }
    print(json.dumps(facts, indent=1))
    if options.o:
        options.o.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
