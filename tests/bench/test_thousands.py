"""The benchmark of thousands measures a herd as a whole and in blocks, and keeps what it has after a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def thousands(monkeypatch: pytest.MonkeyPatch, warm_processes: None):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import thousands

    monkeypatch.setattr(sys, "argv", ["thousands.py"])
    return thousands


def test_a_herd_is_measured_as_a_whole_and_in_blocks(thousands, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    thousands.main(["small:4@1", "small:4/2@1,2", "--device", "cpu", "-o", str(file)])
    result = json.loads(file.read_text())
    keys = ("members", "blocks", "block_members", "steps_per_visit")
    assert [tuple(row[key] for key in keys) for row in result["rows"]] == [
        (4, 1, 4, None),
        (4, 2, 2, 1),
        (4, 2, 2, 2),
    ]
    for row in result["rows"]:
        assert row["member_steps_per_second"] > 0 and row["reserved_to_used"] >= 1
        assert 0 <= row["seconds_waited_for_copies"] <= row["seconds"]
    assert result["command"] and result["date"]


def test_a_herd_that_takes_too_long_is_a_row_with_an_error(thousands, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    thousands.main(["small:4@1", "--device", "cpu", "--limit", "0.01", "-o", str(file)])
    (row,) = json.loads(file.read_text())["rows"]
    assert "more than" in row["error"]


def test_copies_of_members_have_streams_of_their_own(thousands) -> None:
    herd, _, _ = thousands.build(thousands.HerdSize("small", 130, None, (1,)), "cpu", "float32")
    assert herd.num_members == 130 and herd.feed.plan.index.shape[0] == 130
    assert herd.state["g.params"][0].equal(herd.state["g.params"][100])
    from ganherd.herd.state import base_keys

    assert len(set(base_keys(herd.state).tolist())) == 130


@pytest.mark.parametrize(
    ("text", "report"),
    [(text, "write e.g.") for text in ("wcgan", "wcgan:x", "wcgan:5/x", "wcgan:5@x")] + [("nothing:5", "'nothing'")],
)
def test_a_mistake_in_a_herd_is_reported(thousands, text: str, report: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        thousands.main([text, "--device", "cpu"])
    assert report in capsys.readouterr().err
