"""What a report embeds: everything of a small run, an even part of a large one, within a bound; and one script without modules."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ganherd import report
from ganherd.runs.folder import RunFolder
from ganherd.runs.series import sprite_files
from ganherd.runs.series.sprite_files import SpriteIndex
from ganherd.web import page_script
from ganherd.web.embedded_run import embed
from ganherd.web.shown_run import ShownRun


def embedded(path: Path, **settings: Any) -> Any:
    """Return what is embedded of a run, as the browser reads it."""
    content = embed(ShownRun(path.name, path), RunFolder(path).events(), **settings)
    return json.loads(page_script.data_block([content]))[0]


def test_a_small_run_is_embedded_as_it_is(shown_runs: Path) -> None:
    path = shown_runs / "classes"
    content = embedded(path)
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert content["lines"]["step"] == content["bands"]["step"] == [record["step"] for record in records]
    losses = np.array(content["lines"]["figures"]["loss_g"]["lines"])  # [N, records]
    assert np.allclose(losses, np.array([record["loss_g"] for record in records]).T, rtol=1e-5)
    assert np.allclose(content["bands"]["figures"]["loss_g"]["band"][2], np.median(losses, 0), rtol=1e-5)
    sheets = sprite_files.saved_sheets(path / "sprites")
    assert content["facts"]["sprites"]["steps"] == list(sheets)
    assert {int(step): base64.b64decode(sheet) for step, sheet in content["sheets"].items()} == {
        step: sheet.read_bytes() for step, sheet in sheets.items()
    }


def test_points_and_events_that_move_nets_are_embedded(shown_runs: Path) -> None:
    points = embedded(shown_runs / "points")
    last = points["facts"]["sprites"]["steps"][-1]
    assert np.array(points["sheets"][str(last)]).shape == (4, points["facts"]["sprites"]["samples"], 2)
    assert {event["event"] for event in points["events"]} == {"swap"} and points["facts"]["layout"]["kind"] == "gap"
    grid = embedded(shown_runs / "grid")
    assert {"tournament", "replacement"} <= {event["event"] for event in grid["events"]}
    assert grid["facts"]["layout"] == {"kind": "torus", "rows": 2, "columns": 3, "population": 1}


def test_scores_of_checkpoints_are_a_curve(shown_runs: Path, tmp_path: Path) -> None:
    events = RunFolder(shown_runs / "classes").events()
    saved = [{"step": step, "event": "checkpoint", "score": score} for step, score in ((0, 1.0), (10, 0.5), (30, 0.2))]
    own = [type(events[0]).parse(line) for line in [*saved, {"step": 30, "event": "checkpoint", "score": "nan"}]]
    content = embed(ShownRun("classes", shown_runs / "classes"), own)
    assert [figure["name"] for figure in content["facts"]["course"]] == ["distance"]
    assert content["course"]["distance"]["step"] == [0, 10, 30]
    assert content["course"]["distance"]["figures"] == {"distance": {"all": [1.0, 0.5, 0.2]}}
    times = content["course"]["distance"]["seconds"]
    assert (
        times[0] == 0
        and times == sorted(times)
        and times[-1] == pytest.approx(content["bands"]["seconds"][-1], abs=0.01)
    )


def large_run(path: Path, members: int, records: int, sheets: int) -> Path:
    """Return the folder of a run of many members whose sprites are noise, which no format makes smaller."""
    rng = np.random.default_rng(0)
    path.mkdir()
    folder = RunFolder(path)
    folder.recipe_path.write_text(f"herd: {{members: {members}}}\ndata: {{source: digits, partition: all}}\n")
    folder.info_path.write_text(json.dumps({"state": "finished", "members": members, "step": 10 * records}))
    folder.events_path.write_text("")
    with folder.metrics_path.open("w") as file:
        for number in range(1, records + 1):
            figures = {name: rng.random(members).tolist() for name in ("loss_g", "loss_d", "spread", "tells")}
            file.write(json.dumps({"step": 10 * number, "seconds": float(number), "rate": 1.0, **figures}) + "\n")
    names = [f"member {i}" for i in range(members)]
    index = SpriteIndex(kind="images", names=names, labels=[None] * members, samples=4, columns=40, tile=[8, 8])
    sprite_files.write_index(folder.sprites, index)
    pixels = rng.integers(0, 255, (-(-members // 40) * 16, 40 * 16), dtype=np.uint8)
    for number in range(sheets):
        Image.fromarray(pixels).save(sprite_files.sheet_path(folder.sprites, 10 * number, "images"), lossless=True)
    return path


@pytest.mark.further
def test_a_thousand_members_stay_below_eight_megabytes(tmp_path: Path) -> None:
    path = large_run(tmp_path / "large", 1000, 200, 40)
    content = embedded(path)
    steps = content["facts"]["sprites"]["steps"]
    assert (
        2 < len(steps) < 40
        and steps[0] == 0
        and steps[-1] == 390
        and [int(step) for step in content["sheets"]] == steps
    )
    assert 2 < len(content["lines"]["step"]) < 200 and content["lines"]["step"][-1] == 2000
    assert len(content["bands"]["step"]) == 200  # what all members do is not thinned
    page = report.write(path)
    assert page.stat().st_size < 8_000_000


def test_what_does_not_fit_at_all_is_left_out(tmp_path: Path) -> None:
    content = embedded(large_run(tmp_path / "large", 400, 6, 2), most_bytes=20_000)
    assert content["lines"] is None and content["sheets"] == {} and content["facts"]["sprites"]["steps"] == []
    assert len(content["bands"]["step"]) == 6


@pytest.mark.parametrize("name", ["classes", "points"])
def test_a_damaged_sheet_is_left_out(shown_runs: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    shutil.copytree(shown_runs / name, path)
    whole = list(sprite_files.saved_sheets(path / "sprites"))
    sprite_files.saved_sheets(path / "sprites")[whole[1]].write_bytes(b"[[[NaN]]")
    assert embedded(path)["facts"]["sprites"]["steps"] == [step for step in whole if step != whole[1]]


def test_events_that_do_not_fit_leave_the_alarms(shown_runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "points"
    shutil.copytree(shown_runs / "points", path)
    with (path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": 30, "event": "swap", "pairs": [[0, 1]] * 50}) + "\n" for _ in range(50))
        file.write(json.dumps({"step": 30, "event": "alarm", "what": "collapse", "member": 1}) + "\n")
    content = embedded(path, most_bytes=60_000)
    assert [event["event"] for event in content["events"]] == ["alarm"] and content["facts"]["layout"] == {
        "kind": "flat"
    }


# -- the script -----------------------------------------------------------------------------------------------------------


def test_the_script_holds_every_module_once_and_no_import() -> None:
    script = page_script.join_modules("report.js")
    names = re.findall(r'^modules\["([^"]+)"\] = ', script, re.MULTILINE)
    assert names[-1] == "report.js" and len(names) == len(set(names)) and {"wall.js", "curves.js"} <= set(names)
    assert not re.search(r"^\s*(import|export) ", script, re.MULTILINE) and "</script" not in script
    for name in names:
        used = re.findall(r'modules\["([^"]+)"\];', script.partition(f'modules["{name}"] = ')[2].partition("})();")[0])
        assert all(names.index(other) < names.index(name) for other in used)


@pytest.mark.parametrize("text", ["export default 1;", 'import * as all from "./b.js";', 'import { a } from "./a.js";'])
def test_modules_that_cannot_be_joined_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "a.js").write_text(text)
    monkeypatch.setattr(page_script, "STATIC", tmp_path)
    page_script.join_modules.cache_clear()
    with pytest.raises(ValueError, match=r"a\.js"):
        page_script.join_modules("a.js")
