"""What the server remembers about runs, and how little it looks at their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import page_server
import pytest

from ganherd.runs import run_list
from ganherd.ui import run_catalog
from ganherd.ui.live import LiveFeed
from ganherd.ui.run_catalog import RunCatalog
from ganherd.util import files
from ganherd.web import run_facts


@pytest.mark.further
def test_runs_that_were_removed_are_forgotten(
    tmp_path: Path, shown_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_catalog, "_LISTED", -1.0)
    shutil.copytree(shown_runs / "classes", tmp_path / "classes")
    catalog = RunCatalog([tmp_path])
    feed = LiveFeed(catalog)
    before = catalog.run("classes")
    assert feed._states(["classes"])["classes"]["step"] == 30
    shutil.rmtree(tmp_path / "classes")
    assert catalog.runs() == [] and not catalog._runs and not catalog._ids
    assert feed._states(["classes"]) == {}
    shutil.copytree(shown_runs / "grid", tmp_path / "classes")
    assert catalog.run("classes") is not before and feed._states(["classes"])["classes"]["step"] == 24


def test_pages_that_follow_the_list_share_one_look(shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, looks = RunCatalog([shown_runs]), list[int]()
    every = catalog.runs
    monkeypatch.setattr(catalog, "runs", lambda: looks.append(1) or every())
    feed = LiveFeed(catalog, period=1000.0)
    first = feed._states([])
    assert first == feed._states([]) and len(first[""]["runs"]) == 3 and len(looks) == 1


def test_a_poll_of_the_list_does_not_search_whole_folders(
    tmp_path: Path, shown_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "classes")
    info = json.loads((tmp_path / "classes" / "run.json").read_text())
    (tmp_path / "classes" / "run.json").write_text(json.dumps(info | {"state": "running"}))  # changes without its files
    searched: list[Path] = []
    monkeypatch.setattr(run_list, "_size", lambda path: pytest.fail("the whole folder was searched"))
    monkeypatch.setattr(files, "refuse_odd_files", lambda path, skipped: searched.append(path))
    (run,) = RunCatalog([tmp_path]).runs()
    for _ in range(3):
        assert run_facts.summary(run)["step"] == 30
    assert searched == [tmp_path / "classes"]


def test_the_number_of_members_has_one_source(tmp_path: Path, shown_runs: Path) -> None:
    shutil.copytree(shown_runs / "classes", tmp_path / "classes")
    info = json.loads((tmp_path / "classes" / "run.json").read_text())
    del info["members"]
    (tmp_path / "classes" / "run.json").write_text(json.dumps(info))
    with page_server.serving([tmp_path]) as page:
        assert page.get("/api/runs/classes").json["members"] == 3
        column = page.get("/api/runs/classes/metrics?figures=loss_g&members=all").json["figures"]["loss_g"]
        assert column["members"] == [0, 1, 2]
