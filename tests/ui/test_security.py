"""The page is private: other sites, other users and hostile run folders get nothing from it."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import page_server
import pytest
import run_files
from page_server import PageServer
from PIL import Image

from ganherd.runs.folder import RunFolder
from ganherd.runs.series.metric_columns import MetricColumns
from ganherd.runs.series.record_file import RecordFile
from ganherd.ui import sampler, serve
from ganherd.ui.access import cookie_name


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/..",
        "/api/runs/../../etc/passwd",
        "/api/runs/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/api/runs/classes/sprites/..%2f..%2frun.json",
        "/api/runs/classes%2f..%2f..%2fsecret",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/views/../../app.py",
        "//etc/passwd",
    ],
)
def test_paths_that_climb_out_find_nothing(page: PageServer, shown_runs: Path, path: str) -> None:
    (shown_runs.parent / "secret").mkdir(exist_ok=True)
    answer = page.get(path)
    assert answer.status in (404, 422) and b"root:" not in answer.body and b"create_app" not in answer.body


def test_names_and_labels_with_html_stay_text(tmp_path: Path, shown_runs: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    shutil.copytree(shown_runs / "classes", tmp_path / name)
    index = tmp_path / name / "sprites" / "index.json"
    facts = json.loads(index.read_text())
    facts["labels"] = ["<script>alert(1)</script>", "\x1b[31mred", None]
    index.write_text(json.dumps(facts))
    with page_server.serving([tmp_path]) as page:
        listed = page.get("/api/runs")
        assert (
            listed.headers["content-type"] == "application/json"
            and listed.headers["x-content-type-options"] == "nosniff"
        )
        run = listed.json["runs"][0]
        assert run["name"] == name and run["id"].startswith("run-")  # the id is a plain word
        details = page.get(f"/api/runs/{run['id']}").json
        assert details["labels"] == ["<script>alert(1)</script>", "\N{REPLACEMENT CHARACTER}[31mred", None]
        policy = page.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy


def test_a_huge_n_is_refused_before_anything_is_drawn(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler.SampleService, "_load", lambda *_: pytest.fail("the mixture was loaded"))
    for path in ("samples?n=1000000000", "samples.npz?n=1000000000", "walk?frames=1000000000"):
        assert page.get(f"/api/runs/classes/{path}").status == 422


def test_samples_that_do_not_fit_one_request_are_refused(page: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_MOST_BYTES", 64 * 10)
    assert page.get("/api/runs/classes/samples?n=10").status == 200
    assert "ask for at most 10" in page.get("/api/runs/classes/samples?n=11").sentence


@pytest.mark.further
def test_a_thousand_parallel_requests_are_answered_or_told_to_wait(page: PageServer) -> None:
    paths = ["/api/runs/classes/samples?n=400", "/api/runs", "/api/runs/classes/metrics?figures=loss_g", "/"]
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda i: page.get(paths[i % 4]), range(1000)))
    statuses = {answer.status for answer in answers}
    assert statuses <= {200, 503} and all(answers[i].status == 200 for i in range(1000) if i % 4)
    refused = [answer for answer in answers if answer.status == 503]
    assert all("Try again" in answer.sentence and answer.headers["retry-after"] for answer in refused)
    assert page.get("/api/runs/classes/samples?n=4").status == 200


def test_the_token_opens_the_page_and_nothing_else_does(shown_runs: Path) -> None:
    with page_server.serving([shown_runs], "0.0.0.0", "secret-token") as page:
        for path, headers in (
            ("/", {}),
            ("/api/runs", {}),
            ("/static/app.js", {}),
            ("/api/runs?token=wrong", {}),
            ("/api/runs?token=", {}),
            ("/api/runs", {"Cookie": f"{cookie_name('secret-token')}=wrong"}),
            ("/api/runs", {"Authorization": "Bearer wrong"}),
            ("/api/runs", {"Cookie": 'x="\\'}),
        ):
            answer = page.get(path, **headers)
            assert answer.status == 401 and "token" in answer.sentence and b"classes" not in answer.body
        visit = page.get("/?token=secret-token&x=1")
        assert visit.status == 303 and visit.headers["location"] == "/?x=1"
        cookie = visit.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert page.get("/api/runs", Cookie=cookie.partition(";")[0]).status == 200
        assert page.get("/api/runs", Authorization="Bearer secret-token").status == 200
        odd = f'foo[x]=1; q="open; {cookie.partition(";")[0]}'  # other programs on this host set cookies, too
        assert page.get("/api/runs", Cookie=odd).status == 200
        assert page.get("//evil.example/?token=secret-token").headers["location"].startswith("/evil")
        assert page.get("/%09/evil.example?token=secret-token").headers["location"] == "/%09/evil.example"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8421", "127.0.0.1.evil.example", "", "10.0.0.1", "[::2]"]
)
def test_other_names_that_point_here_are_refused(page: PageServer, host: str) -> None:
    answer = page.get("/api/runs", Host=host)
    assert answer.status in (400, 421) and b"classes" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9999", "localhost:8421", "[::1]:80", "LOCALHOST"])
def test_the_names_of_this_machine_and_any_port_of_a_tunnel_are_answered(page: PageServer, host: str) -> None:
    assert page.get("/api/runs", Host=host).status == 200


def test_outside_of_this_machine_only_addresses_and_its_own_name_are_answered(shown_runs: Path) -> None:
    import socket

    with page_server.serving([shown_runs], "0.0.0.0", "t") as page:
        for host, status in (("10.1.2.3:80", 200), (socket.gethostname(), 200), ("evil.example", 421)):
            assert page.get("/api/runs", Host=host, Authorization="Bearer t").status == status


def test_requests_from_other_sites_are_refused(page: PageServer) -> None:
    own = f"127.0.0.1:{page.port}"
    refused = (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{own}.evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    )
    for headers in refused:
        for path in ("/api/runs", "/api/runs/classes/sprites/30", "/api/runs/classes/samples?n=1"):
            assert page.get(path, **headers).status == 403, headers
    assert page.get("/api/runs", Origin=f"http://{own}", Sec_Fetch_Site="same-origin").status == 200
    visit = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert page.get("/", **visit).status == 200  # a link that a friend has sent
    assert page.get("/api/runs", **visit).status == 403


def test_the_server_only_reads(page: PageServer, shown_runs: Path) -> None:
    before = run_files.snapshot(shown_runs)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.get("/api/runs", method=method).status == 405
    for path in ("", "/metrics?figures=loss_g", "/events", "/sprites", "/picture", "/samples?n=2", "/ranks", "/scores"):
        assert page.get(f"/api/runs/classes{path}").status == 200
    assert run_files.snapshot(shown_runs) == before


def test_a_truncated_record_is_shown_up_to_where_it_is_whole(tmp_path: Path, shown_runs: Path) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "cut")
    metrics, events = tmp_path / "cut" / "metrics.jsonl", tmp_path / "cut" / "events.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([lines[0], b"not json\n", *lines[1:4], lines[4][:30]]))
    events.write_bytes(events.read_bytes()[:-9])
    (tmp_path / "cut" / "scores.json").write_text("{")
    with page_server.serving([tmp_path]) as page:
        answer = page.get("/api/runs/cut/metrics?figures=loss_g").json
        assert answer["step"] == [3, 6, 9, 12] and answer["damaged"] == 1
        assert answer["offset"] == sum(map(len, lines[:4])) + 9  # the line that is being written comes later
        assert page.get("/api/runs/cut/record?step=30&figures=loss_g").json["step"] == 12
        assert page.get("/api/runs/cut/events").json["events"][-1]["event"] != "finish"
        assert "cannot be read" in page.get("/api/runs/cut/scores").sentence
        assert page.get("/api/runs/cut").status == 200


def test_a_hostile_run_folder_gets_nothing(tmp_path: Path, shown_runs: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("my password")
    runs = tmp_path / "runs"
    for name in ("link", "pipe", "deep", "numbers", "index", "code"):
        shutil.copytree(shown_runs / "classes", runs / name)
    sheet = runs / "link" / "sprites" / "step-00000030.webp"
    sheet.unlink()
    sheet.symlink_to(secret)
    os.mkfifo(runs / "pipe" / "sprites" / "step-00000031.webp")
    (runs / "deep" / "run.json").write_text('{"a":' * 5000)
    line = {"step": 33, "seconds": 1e999, "loss_g": ["nan", [[]], {"a": 1}], "__proto__": [1], "rate": "x" * 1000}
    with (runs / "numbers" / "metrics.jsonl").open("a") as handle:
        handle.write(json.dumps(line) + "\n" + '{"step": -5}\n' + "[" * 5000 + "\n")
    (runs / "index" / "sprites" / "index.json").write_text(
        '{"kind": "images", "names": [], "labels": [], "samples": 0}'
    )
    recipe = (runs / "code" / "recipe.yaml").read_text()
    (runs / "code" / "recipe.yaml").write_text(recipe.replace("name: small", "name: os:getcwd"))
    mixture = runs / "code" / "mixture" / "mixture.json"
    mixture.write_text(mixture.read_text().replace('"small"', '"os:getcwd"'))
    (runs / "outside").symlink_to(tmp_path)
    with page_server.serving([runs]) as page:
        listed = {run["name"]: run for run in page.get("/api/runs").json["runs"]}
        assert "link" in listed["link"]["problem"] and listed["deep"]["problem"] and listed["outside"]["problem"]
        for path in ("", "/sprites/30", "/samples?n=1", "/metrics?figures=loss_g"):
            answer = page.get(f"/api/runs/link{path}")
            assert answer.status == 422 and "link" in answer.sentence and b"password" not in answer.body
        assert page.get("/api/runs/pipe/sprites/31").status == 422
        assert page.get("/api/runs/deep").status == 422
        numbers = page.get("/api/runs/numbers/metrics?figures=loss_g,rate,__proto__&members=all").json
        assert numbers["step"][-1] == 33 and numbers["damaged"] == 2
        assert numbers["figures"]["loss_g"]["lines"][0][-1] is None
        assert page.get("/api/runs/index").json["sprites"] is None
        assert "--trust-code" in page.get("/api/runs/code/samples?n=1").sentence


def test_a_run_that_cannot_be_shown_does_not_hide_the_others(tmp_path: Path, shown_runs: Path) -> None:
    for name in ("good", "number", "nested"):
        shutil.copytree(shown_runs / "classes", tmp_path / name)
    shutil.copytree(os.fsencode(shown_runs / "classes"), os.fsencode(tmp_path) + b"/bad\xff\xfename")
    with (tmp_path / "number" / "metrics.jsonl").open("a") as handle:
        handle.write('{"step": 33, "seconds": 1, "rate": 1' + "0" * 400 + "}\n")
    (tmp_path / "nested" / "scores.json").write_text('{"scores": ' + "[" * 400 + "]" * 400 + "}")
    with (tmp_path / "nested" / "events.jsonl").open("a") as handle:
        handle.write('{"step": 33, "event": "alarm", "what": "\\ud800"}\n')
    with page_server.serving([tmp_path]) as page:
        listed = {run["name"]: run for run in page.get("/api/runs").json["runs"]}
        assert len(listed) == 4 and not listed["good"]["problem"]
        for name in ("number", "nested"):
            assert page.get(f"/api/runs/{name}").status == 200
        assert page.get("/api/runs/nested/scores").status in (200, 422)
        assert page.get("/api/runs/nested/events").status == 200


def test_folders_that_are_links_are_not_followed(tmp_path: Path, shown_runs: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    shutil.copytree(shown_runs / "classes", runs / "own")
    shutil.copytree(shown_runs / "classes", elsewhere)
    (runs / "linked").symlink_to(elsewhere)
    with page_server.serving([runs]) as page:
        assert page.get("/api/runs/own/picture").status == 200  # the folder was searched, and nothing was wrong
        shutil.rmtree(runs / "own" / "samples")
        (runs / "own" / "samples").symlink_to(elsewhere / "samples")
        assert page.get("/api/runs/own/picture").status in (404, 422)
        for path in ("", "/scores", "/picture", "/events"):
            assert page.get(f"/api/runs/linked{path}").status == 404


def test_a_record_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as handle:
        handle.truncate(8 << 30)  # sparse
    file, before = RecordFile(path), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = list(itertools.islice(file.lines_before(file.size()), 20))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in KiB
    assert not [line for line in lines if line.head() is not None] and grown < 400 << 10


def test_an_origin_that_is_no_address_is_refused(page: PageServer) -> None:
    for origin in ("http://[", "null", "http://evil.example", "x"):
        assert page.get("/api/runs", Origin=origin).status == 403


def test_records_that_a_resumed_run_writes_again_replace_those_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 3, "seconds": 1, "rate": 1.5}\n')
    columns = MetricColumns(RecordFile(path))
    assert columns.at(3, ["rate"], None)["figures"]["rate"] == 1.5
    path.write_text('{"step": 3, "seconds": 1, "rate": 2.5}\n')
    assert columns.at(3, ["rate"], None)["figures"]["rate"] == 2.5


def test_the_page_of_a_training_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Page:
        def __init__(self, words: list[str], **_: object) -> None:
            started.append(words)

        def poll(self) -> int:
            return 0

        def terminate(self) -> None: ...

        def wait(self, timeout: float = 0.0) -> int:
            return 0

    monkeypatch.setattr("ganherd.ui.serve.subprocess.Popen", Page)
    with serve.page_during_training(tmp_path, quiet=True):
        pass
    with serve.page_during_training(tmp_path, quiet=True, trust_code=True):
        pass
    assert started[0][1] == "-P" and [("--trust-code" in words) for words in started] == [False, True]


def test_damaged_lines_in_the_middle_do_not_hide_those_after_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {step}, "seconds": 1, "rate": 2.0}}\n' for step in range(10, 1000, 10)]
    lines[30:70] = ["garbage\n"] * 40
    path.write_text("".join(lines))
    file = RecordFile(path)
    found = {step: line.step() for step in (5, 10, 305, 500, 710, 985, 9999) if (line := file.find(step)) is not None}
    assert found == {10: 10, 305: 300, 500: 300, 710: 710, 985: 980, 9999: 990}


def test_a_visitor_cannot_have_the_data_of_an_unfinished_run_opened(
    tmp_path: Path, shown_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe may name any file of this machine. A run that trains here has opened its data itself."""
    run = tmp_path / "half"
    shutil.copytree(shown_runs / "classes", run)
    shutil.rmtree(run / "mixture")
    with page_server.serving([tmp_path]) as page:
        with monkeypatch.context() as patch:
            patch.setattr("ganherd.data.dataset.load", lambda *_: pytest.fail("the data was opened"))
            for path in ("mixture", "samples?n=1", "walk?frames=2", "samples.npz?n=1"):
                assert "neither finished nor training" in page.get(f"/api/runs/half/{path}").sentence
        with RunFolder(run).lock():
            assert page.get("/api/runs/half/samples?n=1").status == 200


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("points", b"[[[NaN,1]],[],[],[]]"),
        ("points", b"[NaN]"),
        ("points", b'[[["x",1]],[],[],[]]'),
        ("points", b"[[]]"),
        ("points", b"[" * 5000),
        ("classes", b"RIFF"),
        ("classes", b"<svg></svg>"),
    ],
)
def test_sheets_that_ganherd_did_not_write_are_not_sent(
    tmp_path: Path, shown_runs: Path, name: str, content: bytes
) -> None:
    shutil.copytree(shown_runs / name, tmp_path / name)
    next((tmp_path / name / "sprites").glob("step-00000030.*")).write_bytes(content)
    with page_server.serving([tmp_path]) as page:
        assert "cannot be shown" in page.get(f"/api/runs/{name}/sprites/30").sentence
        assert page.get(f"/api/runs/{name}/sprites/0").status == 200


def test_a_sheet_of_another_size_is_not_sent(tmp_path: Path, shown_runs: Path) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "classes")
    Image.new("RGB", (4000, 4000)).save(tmp_path / "classes" / "sprites" / "step-00000030.webp")
    with page_server.serving([tmp_path]) as page:
        assert "has 4000 × 4000 pixels instead of" in page.get("/api/runs/classes/sprites/30").sentence
