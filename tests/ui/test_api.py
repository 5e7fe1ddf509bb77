"""The HTTP API: what it says about runs, columns by byte offset, sprites, samples, and mistakes in a sentence."""

from __future__ import annotations

import base64
import http.client
import io
import json
import shutil
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import page_server
import pytest
import run_files
from page_server import PageServer
from PIL import Image

import ganherd
from ganherd.comm.heartbeat import Beat
from ganherd.runs.results.verdict_record import MemberVerdict, VerdictRecord


def test_the_list_has_state_step_and_verdict_of_every_run(page: PageServer) -> None:
    runs = {run["id"]: run for run in page.get("/api/runs").json["runs"]}
    assert set(runs) == {"classes", "grid", "points"}
    assert runs["classes"]["state"] == "finished" and runs["classes"]["step"] == 30
    assert isinstance(runs["classes"]["verdict"], str) and runs["grid"]["verdict"] is None


def test_a_run_has_members_labels_layout_figures_and_settings(page: PageServer) -> None:
    run = page.get("/api/runs/classes").json
    assert run["members"] == 3 and run["labels"] == ["0", "1", "2"] and run["layout"] == {"kind": "flat"}
    assert run["settings"]["train.budget"] == "30steps" and run["has_mixture"]
    figures = {figure["name"]: figure for figure in run["figures"]}
    assert {"loss_g", "loss_d", "spread", "differs", "rate"} <= figures.keys() and "step" not in figures
    assert figures["spread"]["label"] == "variety" and figures["spread"]["best"] == 1.0
    assert page.get("/api/runs/grid").json["layout"] == {"kind": "torus", "rows": 2, "columns": 3, "population": 1}
    assert page.get("/api/runs/points").json["layout"] == {"kind": "gap"}


def test_advice_to_train_longer_names_the_run(
    page: PageServer, shown_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = "train longer, for example: ganherd train --resume RUN --budget +1000steps"
    member = MemberVerdict(name="member 0 (0)", member=0, word="undertrained", reason="young", try_next=longer)
    verdict = VerdictRecord(word="undertrained", reason="young", try_next=longer, members=[member])
    monkeypatch.setattr("ganherd.runs.folder.read_verdict", lambda path: verdict)
    shown = page.get("/api/runs/classes").json["verdict"]
    named = f"train longer, for example: ganherd train --resume {shown_runs / 'classes'} --budget +1000steps"
    assert [shown["try_next"], shown["members"][0]["try_next"]] == [named, named]


def test_metrics_are_columns_of_the_records(page: PageServer, shown_runs: Path) -> None:
    lines = run_files.json_lines(shown_runs / "classes" / "metrics.jsonl")
    answer = page.get("/api/runs/classes/metrics?figures=loss_g,rate,spread&members=2,0").json
    assert answer["step"] == [line["step"] for line in lines] and answer["damaged"] == 0
    assert answer["offset"] == (shown_runs / "classes" / "metrics.jsonl").stat().st_size
    column = answer["figures"]["loss_g"]
    assert column["members"] == [2, 0]
    np.testing.assert_allclose(column["lines"], [[line["loss_g"][m] for line in lines] for m in (2, 0)], rtol=1e-5)
    np.testing.assert_allclose(answer["figures"]["rate"]["all"], [line["rate"] for line in lines], rtol=1e-5)
    looked = answer["figures"]["spread"]["lines"][0]
    assert [value is None for value in looked] == ["spread" not in line for line in lines]


def test_a_band_has_the_quantiles_of_all_members(page: PageServer, shown_runs: Path) -> None:
    lines = run_files.json_lines(shown_runs / "classes" / "metrics.jsonl")
    band = page.get("/api/runs/classes/metrics?figures=loss_d").json["figures"]["loss_d"]["band"]
    expected = np.quantile([line["loss_d"] for line in lines], (0, 0.25, 0.5, 0.75, 1), axis=1)
    np.testing.assert_allclose(band, expected, rtol=1e-4)


def test_the_next_request_continues_at_the_offset_of_the_last(page: PageServer, shown_runs: Path) -> None:
    path = shown_runs / "classes" / "metrics.jsonl"
    cut = path.read_bytes().index(b"\n") + 1
    later = page.get(f"/api/runs/classes/metrics?figures=loss_g&offset={cut}").json
    assert later["step"] == [line["step"] for line in run_files.json_lines(path)][1:] and not later["restarted"]
    done = page.get(f"/api/runs/classes/metrics?figures=loss_g&offset={later['offset']}").json
    assert done["step"] == [] and done["offset"] == later["offset"]
    assert page.get("/api/runs/classes/metrics?figures=loss_g&offset=999999999").json["restarted"]


def test_a_part_of_the_steps_and_few_points_of_many(page: PageServer) -> None:
    part = page.get("/api/runs/classes/metrics?figures=loss_g&first=9&last=18").json
    assert part["step"] == [9, 12, 15, 18]
    few = page.get("/api/runs/classes/metrics?figures=loss_g&points=3").json
    assert len(few["step"]) == 3 and few["step"][0] == 3 and few["step"][-1] == 30


def test_the_record_of_a_step_is_the_last_one_up_to_it(page: PageServer, shown_runs: Path) -> None:
    lines = {line["step"]: line for line in run_files.json_lines(shown_runs / "classes" / "metrics.jsonl")}
    record = page.get("/api/runs/classes/record?step=17&figures=loss_g,spread").json
    assert record["step"] == record["steps"]["loss_g"] == 15
    np.testing.assert_allclose(record["figures"]["loss_g"], lines[15]["loss_g"], rtol=1e-5)
    looked = max(step for step, line in lines.items() if "spread" in line and step <= 17)
    assert record["steps"]["spread"] == looked
    assert page.get("/api/runs/classes/record?step=0&figures=loss_g").json["step"] is None


def test_events_come_page_by_page_and_by_member(page: PageServer, shown_runs: Path) -> None:
    lines = run_files.json_lines(shown_runs / "grid" / "events.jsonl")
    seen, offset = [], 0
    while True:
        answer = page.get(f"/api/runs/grid/events?offset={offset}&limit=4").json
        seen += answer["events"]
        offset = answer["offset"]
        if not answer["more"]:
            break
    assert [(e["step"], e["event"]) for e in seen] == [(e["step"], e["event"]) for e in lines]
    own = page.get("/api/runs/grid/events?member=4&kinds=tournament").json["events"]
    expected = [line["g"][4] for line in lines if line["event"] == "tournament"]
    assert [event["g"] for event in own] == expected
    newest = page.get("/api/runs/grid/events?limit=2&newest=true").json["events"]
    assert [e["event"] for e in newest] == [line["event"] for line in lines[-2:]]
    swaps = page.get("/api/runs/points/events?member=1&kinds=swap").json["events"]
    assert swaps and all(1 in pair for event in swaps for pair in event["pairs"])


def test_a_sheet_is_sent_once(page: PageServer, shown_runs: Path) -> None:
    facts = page.get("/api/runs/classes/sprites").json
    assert facts["kind"] == "images" and facts["steps"][0] == 0 and facts["steps"][-1] == 30
    sheet = page.get("/api/runs/classes/sprites/30")
    assert sheet.body == (shown_runs / "classes" / "sprites" / "step-00000030.webp").read_bytes()
    assert sheet.headers["content-type"] == "image/webp"
    assert page.get("/api/runs/classes/sprites/30", If_None_Match=sheet.headers["etag"]).status == 304
    assert page.get("/api/runs/classes/sprites/31").sentence == "Step 31 has no sprites."
    points = page.get("/api/runs/points/sprites/30").json
    assert np.array(points).shape == (4, 64, 2)


def test_samples_of_a_seed_are_those_of_the_python_api(page: PageServer, shown_runs: Path) -> None:
    expected = ganherd.load(shown_runs / "classes").sample(9, label="1", seed=5)
    answer = page.get("/api/runs/classes/samples?n=9&label=1&seed=5").json
    assert answer["y"] == expected.y.tolist() and answer["member"] == expected.member.tolist() and answer["step"] == 30
    with Image.open(io.BytesIO(base64.b64decode(answer["image"].partition(",")[2]))) as image:
        grid = np.asarray(image)
    tiles = grid.reshape(3, 8, 3, 8).transpose(0, 2, 1, 3).reshape(9, 1, 8, 8)
    assert (tiles == expected.x).all()
    narrow = page.get("/api/runs/classes/samples?n=9&label=1&seed=5&truncation=0.3").json
    assert narrow["image"] != answer["image"]


def test_downloads_hold_the_same_samples(page: PageServer, shown_runs: Path) -> None:
    expected = ganherd.load(shown_runs / "classes").sample(12, seed=3)
    npz = page.get("/api/runs/classes/samples.npz?n=12&seed=3")
    assert npz.headers["content-disposition"] == 'attachment; filename="classes-samples.npz"'
    with np.load(io.BytesIO(npz.body)) as arrays:
        assert (arrays["x"] == expected.x).all() and (arrays["y"] == expected.y).all()
    with zipfile.ZipFile(io.BytesIO(page.get("/api/runs/classes/samples.zip?n=12&seed=3").body)) as archive:
        assert sorted({name.partition("/")[0] for name in archive.namelist()}) == sorted(set(map(str, expected.y)))
        first = archive.open(f"{expected.y[0]}/000000.png")
        assert (np.asarray(Image.open(first)) == expected.x[0, 0]).all()
    with Image.open(io.BytesIO(page.get("/api/runs/classes/samples.png?n=12").body)) as image:
        assert image.width > 100
    assert "cannot be saved as images" in page.get("/api/runs/points/samples.zip").sentence


def test_a_walk_begins_and_ends_at_samples(page: PageServer) -> None:
    walk = page.get("/api/runs/points/walk?seed=4&to_seed=9&frames=7").json
    assert len(walk["points"]) == 7 and len(set(walk["member"])) == 1
    mixture = page.get("/api/runs/points/mixture").json
    assert mixture["kind"] == "points" and mixture["step"] == 30
    start = page.get(f"/api/runs/points/samples?n=1&seed=4&member={walk['member'][0]}").json
    assert walk["points"][0] == pytest.approx(start["points"][0], abs=2e-3)


def test_scores_and_ranks(page: PageServer, shown_runs: Path) -> None:
    assert page.get("/api/runs/classes/scores").json == json.loads((shown_runs / "classes" / "scores.json").read_text())
    assert page.get("/api/runs/grid/scores").json == {}
    ranks = page.get("/api/runs/grid/ranks").json
    assert ranks["ranks"] == [] and ranks["profile"]["update"] > 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("metrics", "figures: Field required."),
        ("metrics?figures=loss_g&points=0", "points: Input should be greater than or equal to 1."),
        ("metrics?figures=loss_g&members=x", "members: write numbers and ranges"),
        ("metrics?figures=loss_g&members=3", "members: this run has the members 0 to 2."),
        ("metrics?figures=loss_g&offset=-1", "offset: Input should be greater than or equal to 0."),
        ("record?step=x&figures=loss_g", "step: Input should be a valid integer"),
        ("events?limit=100000", "limit: Input should be less than or equal to 5000."),
        ("samples?label=cat", "the mixture has no label 'cat'; it has 0, 1, 2."),
        ("samples?n=0", "n: Input should be greater than or equal to 1."),
        ("samples?n=401", "n: Input should be less than or equal to 400."),
        ("samples?n=100000000000000000000", "n: Input should be less than or equal to 400."),
        ("samples?truncation=nan", "truncation: "),
        ("samples?seed=-1", "seed: Input should be greater than or equal to 0."),
        ("samples?replica=4", "there is no replica 4"),
        ("samples?member=7", "there is no member 7"),
        ("samples.png?n=401", "a picture shows at most 400 samples"),
        ("samples.npz?n=10001", "n: Input should be less than or equal to 10000."),
        ("samples.gif", "kind: Input should be 'png', 'npz', 'csv' or 'zip'."),
        ("walk?frames=1000", "frames: Input should be less than or equal to 120."),
    ],
)
def test_bad_parameters_get_422_with_a_sentence(page: PageServer, path: str, words: str) -> None:
    answer = page.get(f"/api/runs/classes/{path}")
    assert answer.status == 422 and words in answer.sentence


def test_the_api_is_described_without_an_outside_request(page: PageServer) -> None:
    schema = page.get("/openapi.json").json
    assert "/api/runs/{run_id}/metrics" in schema["paths"] and schema["openapi"].startswith("3.")
    html = page.get("/docs").body.decode()
    assert "/static/docs.js" in html and "http://" not in html and "https://" not in html


def test_nothing_of_the_page_names_another_server(page: PageServer) -> None:
    from ganherd.web.page_script import STATIC

    for path in STATIC.rglob("*"):
        if path.is_file():
            text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
            assert "http://" not in text and "https://" not in text and "innerHTML" not in text, path
            assert page.get(f"/static/{path.relative_to(STATIC).as_posix()}").status == 200


def test_changes_are_sent_with_a_cursor(page: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.request("GET", "/api/live?runs=classes,nowhere")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [answer.readline().decode().strip() for _ in range(5)]
    connection.close()
    cursor, data = lines[2], lines[4]
    assert lines[0] == "retry: 2000" and cursor.startswith("id: ") and lines[3] == "event: change"
    state = json.loads(data.removeprefix("data: "))
    assert list(state) == ["classes"] and state["classes"]["step"] == 30 and state["classes"]["sprites"][1] == 30


def test_ranks_have_hosts_heartbeats_and_bytes(tmp_path: Path, shown_runs: Path) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "job")
    info = json.loads((tmp_path / "job" / "run.json").read_text())
    placed = {"communicator": "mpi", "hosts": ["n1", "n2"], "members": [[0, 1], [2]]}
    (tmp_path / "job" / "run.json").write_text(json.dumps({**info, "ranks": placed}))
    (tmp_path / "job" / "ranks").mkdir()
    for rank, members in enumerate(placed["members"]):
        beat = Beat(
            rank, 2, "processing", f"n{rank + 1}", 1, members=tuple(members), step=30, rate=5.0, bytes_sent=2048
        )
        path = tmp_path / "job" / "ranks" / f"rank-{rank:03d}.json"
        path.write_text(json.dumps({**asdict(beat), "time": time.time()}))
    with page_server.serving([tmp_path]) as page:
        ranks = page.get("/api/runs/job/ranks").json["ranks"]
    assert [(rank["rank"], rank["host"], rank["members"]) for rank in ranks] == [(0, "n1", [0, 1]), (1, "n2", [2])]
    assert ranks[0]["bytes_sent"] == 2048 and ranks[1]["state"] == "processing" and ranks[1]["heartbeat"] < 60


def test_runs_of_older_versions_are_shown(tmp_path: Path) -> None:
    for packed in (Path(__file__).resolve().parents[1] / "data" / "runs-2026-11").glob("*.tar.gz"):
        run_files.unpack(packed, tmp_path)
    with page_server.serving([tmp_path]) as page:
        runs = page.get("/api/runs").json["runs"]
        assert len(runs) == 3 and not any(run["problem"] for run in runs)
        for run in runs:
            facts = page.get(f"/api/runs/{run['id']}").json
            assert facts["sprites"] is None and facts["members"] > 0 and facts["figures"]
            name = facts["figures"][0]["name"]
            assert page.get(f"/api/runs/{run['id']}/metrics?figures={name}").json["step"]
            for path in ("events", "ranks", "scores"):
                assert page.get(f"/api/runs/{run['id']}/{path}").status == 200
            assert "no sprites" in page.get(f"/api/runs/{run['id']}/sprites").sentence
