"""Parts of long records: by offset, by step, a few of many; and only these parts are read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ganherd.runs.folder import RunFolder
from ganherd.runs.series import event_pages, record_file
from ganherd.runs.series.metric_columns import MetricColumns
from ganherd.runs.series.record_file import FileLine, RecordFile
from ganherd.runs.series.record_means import merge_short_end


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    """Return a file of 2,000 records, 4 MiB."""
    path = tmp_path_factory.mktemp("long") / "metrics.jsonl"
    lines = [{"step": 50 * i, "seconds": i / 2, "loss_g": [i + m / 10 for m in range(100)]} for i in range(1, 2001)]
    path.write_text("".join(json.dumps({**line, "rest": "x" * 1500}) + "\n" for line in lines))
    return RecordFile(path)


def steps(lines: object) -> list[int | None]:
    return [line.step() for line in lines]  # type: ignore[attr-defined]


def test_the_last_line_up_to_a_step_is_found(long_file: RecordFile) -> None:
    for step, expected in ((50, 50), (99, 50), (100, 100), (50_001, 50_000), (99_999, 99_950), (10**9, 100_000)):
        line = long_file.find(step)
        assert line is not None and line.step() == expected
    assert long_file.find(49) is None and long_file.find(0) is None


def test_a_few_lines_are_spread_over_the_whole_file(long_file: RecordFile) -> None:
    chosen = steps(long_file.spread(0, long_file.size(), 20))
    assert chosen[0] == 50 and chosen[-1] == 100_000 and 10 <= len(chosen) <= 20
    gaps = [b - a for a, b in pairwise(chosen)][:-1]  # type: ignore[operator]
    assert max(gaps) < 1.3 * min(gaps)


def test_most_chosen_lines_stay_the_same_while_a_file_grows(tmp_path: Path, long_file: RecordFile) -> None:
    content = long_file.path.read_bytes()
    grown = RecordFile(tmp_path / "metrics.jsonl")
    chosen = []
    for part in (0.8, 0.82, 0.84):
        grown.path.write_bytes(content[: int(len(content) * part)])
        chosen.append(set(steps(grown.spread(0, grown.size(), 40))))
    assert len(chosen[0] & chosen[1] & chosen[2]) >= len(chosen[0]) - 1


def test_only_what_is_returned_is_read(long_file: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 MiB, eleven lines and the ways to them are a small part."""
    read = 0
    original = record_file._read

    def counting(handle: object, start: int) -> FileLine | None:
        nonlocal read
        line = original(handle, start)  # type: ignore[arg-type]
        read += 0 if line is None else len(line.raw)
        return line

    monkeypatch.setattr(record_file, "_read", counting)
    list(long_file.spread(0, long_file.size(), 11))
    assert read < 20 * 2600
    read = 0
    long_file.find(70_000)
    assert read < 30 * 2600


def test_lines_are_read_forwards_and_backwards_from_any_offset(long_file: RecordFile) -> None:
    first = next(long_file.lines_from(0))
    assert next(long_file.lines_from(1)).step() == 100 and next(long_file.lines_from(first.end)).step() == 100
    backwards = long_file.lines_before(long_file.size())
    assert [next(backwards).step() for _ in range(3)] == [100_000, 99_950, 99_900]
    assert steps(long_file.lines_before(first.end)) == [50] and steps(long_file.lines_before(first.end - 1)) == []


def test_a_missing_an_empty_and_an_unfinished_file(tmp_path: Path) -> None:
    for text in (None, "", '{"step": 1'):
        path = tmp_path / "metrics.jsonl"
        if text is not None:
            path.write_text(text)
        file = RecordFile(path)
        assert file.find(5) is None and list(file.spread(0, file.size(), 5)) == []
        assert list(file.lines_from(0)) == [] and list(file.lines_before(file.size())) == []
        columns = MetricColumns(file)
        assert columns.figures() == [] and columns.at(5, ["loss_g"], None)["figures"] == {}
        assert columns.columns(["loss_g"], None)["step"] == []
        assert event_pages.page(file, 0, 10)["events"] == []


def test_a_link_is_not_followed(tmp_path: Path, long_file: RecordFile) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(long_file.path)
    assert list(RecordFile(tmp_path / "metrics.jsonl").lines_from(0)) == []


def test_a_zoom_has_more_detail_than_the_whole(long_file: RecordFile) -> None:
    columns = MetricColumns(long_file)
    part = columns.columns(["loss_g"], [7], points=50, steps=(50_000, 51_000))
    assert part["step"] == list(range(50_000, 51_001, 50))
    assert part["figures"]["loss_g"]["lines"][0][0] == pytest.approx(1000.7)
    assert 25 <= len(columns.columns(["loss_g"], [7], points=50)["step"]) <= 50


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss_g": [1.0, "nan", "inf"]}\n{"step": 2, "loss_g": ["nan", "nan", "nan"]}\n')
    columns = MetricColumns(RecordFile(path))
    assert (
        columns.columns(["loss_g"], [0, 1, 2, 3])["figures"]["loss_g"]["lines"]
        == [[1, None], [None, None]] + [[None, None]] * 2
    )
    band = columns.columns(["loss_g"], None)["figures"]["loss_g"]["band"]
    assert [level[0] for level in band] == [1.0] * 5 and [level[1] for level in band] == [None] * 5


def test_means_of_a_short_last_record_end_no_curve_in_a_spike(tmp_path: Path) -> None:
    lines = [{"step": 50 * i, "seconds": 1.0 * i, "loss_g": [1.0], "spread": [0.9]} for i in range(1, 5)]
    path = tmp_path / "metrics.jsonl"

    def curve(*last: dict[str, Any]) -> tuple[list[float | None], list[float | None]]:
        path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *last]))
        figures = MetricColumns(RecordFile(path)).columns(["loss_g", "spread"], [0])["figures"]
        return figures["loss_g"]["lines"][0], figures["spread"]["lines"][0]

    assert curve() == ([1.0] * 4, [0.9] * 4)
    assert curve({"step": 201, "seconds": 5.0, "loss_g": [9.0], "spread": [0.8]}) == (
        [1.0] * 4 + [None],
        [0.9] * 4 + [0.8],
    )
    assert (
        curve({"step": 225, "seconds": 5.0, "loss_g": [9.0], "spread": [0.8]})[0][-1] == 9.0
    )  # half a record is enough


def test_a_short_last_record_is_merged_with_the_one_before() -> None:
    lines = [{"step": 50 * i, "loss_g": [1.0], "loss_d": [2.0]} for i in range(1, 5)]
    merged = merge_short_end([*lines, {"step": 201, "loss_g": [9.0], "loss_d": [2.0], "spread": [0.9]}])
    assert [line["step"] for line in merged] == [50, 100, 150, 201]
    assert merged[-1]["loss_g"] == [pytest.approx((50 * 1.0 + 1 * 9.0) / 51)] and merged[-1]["spread"] == [0.9]
    assert merge_short_end(lines) == lines and merge_short_end(lines[:1]) == lines[:1]
    half = [*lines, {"step": 225, "loss_g": [9.0], "loss_d": [2.0]}]
    assert merge_short_end(half) == half


def test_the_newest_picture_is_the_final_one_or_that_of_the_last_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.newest_picture is None
    run.samples.mkdir()
    for name in ("step-00000100.png", "step-00002000.png", "step-00000300.png"):
        (run.samples / name).touch()
    assert run.newest_picture == run.samples / "step-00002000.png"
    (run.samples / "final.png").touch()
    assert run.newest_picture == run.samples / "final.png"
