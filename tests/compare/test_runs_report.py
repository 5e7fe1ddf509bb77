"""`ganherd report RUN RUN`: the answer of finished runs that were scored alike, otherwise what is missing; nothing is scored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ganherd.compare.finished.finished_runs import compare_recorded
from ganherd.compare.finished.runs_report import write
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError


@pytest.fixture
def pair(run: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return two copies of a finished run, of which the second has a much better FID."""
    paths = tmp_path / "first", tmp_path / "second"
    for path, fid in zip(paths, (5.0, 1.0), strict=True):
        shutil.copytree(run, path)
        score(path, fid=fid)
    return paths


def score(path: Path, fid: float, **settings: Any) -> None:
    ends = {"low": fid - 0.2, "high": fid + 0.2, "level": 0.95, "how": "bootstrap"}
    entry = {"value": fid, "interval": ends, "samples": 1000, "network": "pixels", "seed": 0, **settings}
    (path / "scores.json").write_text(json.dumps({"scores": {"fid": entry}}))


def test_one_page_answers_first_and_compares_everything(pair: tuple[Path, Path], tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}  # of both runs
    page = write(pair, tmp_path / "both.html").read_text()
    assert "second is better in FID (1.000 against 5.000); one seed each: other seeds may differ." in page
    assert (
        page.index("second is better")
        < page.index(">Samples</h2>")
        < page.index(">Scores</h2>")
        < page.index(">Curves</h2>")
    )
    assert '<span class="pill good">second</span>' in page and "4.800 to 5.200" in page
    assert "All settings are the same." in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [one["facts"]["id"] for one in data] == ["first", "second"]
    assert all(one["bands"]["step"] and one["sheets"] for one in data)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_settings_that_differ_are_listed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = pair[1] / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 0", "seed: 7"))
    page = write(pair, tmp_path / "both.html").read_text()
    assert "run.seed</code>" in page and "train.batch</code>" not in page


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / "scores.json").unlink(), "second has no scores, so nothing is decided: `ganherd score "),
        (lambda path: score(path, 1.0, network="inception"), "The runs have no scores that were measured alike"),
        (lambda path: score(path, 1.0, samples=50), "The runs have no scores that were measured alike"),
        (lambda path: shutil.rmtree(path / "mixture"), "second has not finished"),
        (lambda path: edit_data(path), "not trained on the same data"),
    ],
)
def test_runs_that_cannot_be_compared_are_shown_with_the_reason(
    pair: tuple[Path, Path], tmp_path: Path, change: Any, reason: str
) -> None:
    change(pair[1])
    answer = compare_recorded({path.name: RunFolder(path) for path in pair})
    assert isinstance(answer, str) and reason in answer
    page = write(pair, tmp_path / "both.html").read_text()
    assert reason.partition("`")[0] in page and "first is better" not in page and "second is better" not in page


def edit_data(path: Path) -> None:
    content = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(content | {"data": "0" * 64}))


def test_a_run_is_not_compared_with_itself(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="different runs"):
        write([pair[0], pair[0]])


def test_the_command_writes_one_page_here(cli: Any, pair: tuple[Path, Path]) -> None:
    answer = cli("report", *pair, "--json")
    assert json.loads(answer.out) == {"reports": ["report-first-vs-second.html"]}
    assert Path("report-first-vs-second.html").is_file()
    assert cli("report", pair[0], "-o", "one.html", "--quiet").out == "one.html\n" and Path("one.html").is_file()
