"""The progress of a training: what it shows from the first second to the last, on a terminal and in a log."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from ganherd.training.recording.progress import Progress

LOOK = {"spread": [0.98, 0.31], "tells": [0.61, 0.995], "differs": [0.6, 0.7]}


def screen(progress: Progress, width: int = 80, colour: bool = False) -> str:
    """Return what the display shows now."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    progress._console = console
    with console.capture() as capture:
        console.print(progress._view())
    return capture.get()


def test_members_are_shown_before_the_first_record() -> None:
    progress = Progress(["member 0 (cat)", "member 1 (dog)"])
    before = screen(progress)
    assert "member 0 (cat)" in before and "variety" in before and "real or fake" in before and "…" in before
    progress.look(LOOK)
    after = screen(progress)
    assert "0.98" in after and "61 %" in after and "loss" not in after
    assert "1 is as varied as the data" in after and "50 % is guessing" in after  # labels are explained


def test_losses_are_shown_if_members_are_not_looked_at() -> None:
    progress = Progress(["a"])
    progress.record({"step": 1, "loss_g": [0.5], "loss_d": [-1.25]})
    assert "generator loss" in screen(progress) and "-1.250" in screen(progress)
    progress.look({"spread": [math.nan], "tells": [math.nan]})
    assert "generator loss" in screen(progress)  # nothing could be measured


def test_the_bar_is_red_or_yellow_only_with_an_alarm() -> None:
    progress = Progress(["a", "b"])
    progress.start(100)
    progress.look(LOOK)
    progress.at(50, 1.0, 2)
    fine = screen(progress, colour=True)
    assert "\x1b[36m━" in fine and "\x1b[31m" not in fine and "no alarms" in fine  # a bar in cyan
    progress.alarm(1, "dead_critic")
    alarmed = screen(progress, colour=True)
    assert "\x1b[33m━" in alarmed and "\x1b[31mdead critic" in alarmed and "1 member with alarms" in alarmed
    progress.calm(1, "dead_critic")
    assert "no alarms" in screen(progress)


def test_a_training_that_ends_early_ends_at_100_percent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(["a", "b"])
    progress.start(1000, deadline=60.0)
    for step in (1, 201):
        progress.at(step, 30.0, 2)
    assert "step 201 " in screen(progress) and "50%" in screen(progress)  # of the time; the last step is not known yet
    progress.end_at(201)
    ended = screen(progress)
    assert "201/201" in ended and "100%" in ended and "left" not in ended
    progress.record({"step": 201, **LOOK})
    assert "step 201/201  100%" in capsys.readouterr().err


def test_a_log_has_variety_accuracy_and_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(["a", "b"])
    progress.start(10)
    progress.record({"step": 5, **LOOK})
    assert capsys.readouterr().err == "step 5/10  starting…  variety 0.65  real or fake 80 %  no alarms\n"


def test_the_first_picture_is_announced_and_the_newest_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    progress = Progress(["a"])
    for step in (5, 10):
        progress.picture(tmp_path / "run" / f"step-{step}.png")
    assert capsys.readouterr().err == "first picture: run/step-5.png\n"
    assert "newest picture: run/step-10.png" in screen(progress)


def test_a_resumed_run_does_not_call_its_next_picture_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("step-00000500.png", "step-00001000.png"):
        (tmp_path / name).touch()  # a picture is drawn before it is announced
        Progress(["a"]).picture(tmp_path / name)
    lines = ["first picture: step-00000500.png", "next picture: step-00001000.png"]
    assert capsys.readouterr().err.splitlines() == lines


def test_the_cells_of_a_grid_are_a_board() -> None:
    progress = Progress([f"member {i}" for i in range(12)], board=(2, 3, 2))
    progress.look({"spread": [0.9, 0.8, 1.1, 1.2, 0.3, 0.9, 1.0, 1.0, 0.7, 0.6, math.nan, 0.5], "tells": [0.6] * 12})
    lines = screen(progress).splitlines()
    assert lines[1].split() == ["0.80", "1.10", "0.30"] and lines[2].split() == [
        "1.00",
        "0.60",
        "0.50",
    ]  # least of a cell
    assert "variety 0.82  real or fake 60 %" in lines[3]
    progress.alarm(3, "collapse")
    coloured = screen(progress, colour=True)
    assert "41m1.10" in coloured.replace(" ", "") and "43m0.30" in coloured.replace(" ", "")  # red: alarm; yellow: low
    assert "member 3" in screen(progress, width=10)  # too narrow for a board: a table
    progress.record({"step": 1, "loss_g": [0.0] * 12})
    assert "1.10" in screen(progress)


@pytest.mark.parametrize("width", [80, 140])
def test_many_members_and_long_names_fit(width: int) -> None:
    progress = Progress([f"member {i} (a class with a long name, {i})" for i in range(30)])
    progress.look({"spread": [1.0] * 30, "tells": [0.5] * 30})
    progress.start(1_000_000)
    for step in (1, 123_456):
        progress.at(step, 10.0, 30)
    progress.alarm(29, "collapse")
    text = screen(progress, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "and 18 more members" in text and "member 29" in text and "collapse" in text
