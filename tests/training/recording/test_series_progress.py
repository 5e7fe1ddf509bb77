"""The progress of several trainings: one line for all of them on a terminal, and few lines in a log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ganherd.training.recording import series_progress
from ganherd.training.recording.series_progress import SeriesProgress, SeriesTask
from ganherd.util import meter
from ganherd.util.errors import Interrupted
from ganherd.util.meter import Detail


class Clock:
    """A clock that only the test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(series_progress, "time", clock)
    monkeypatch.setattr(meter, "time", clock)
    return clock


def two_trainings() -> list[SeriesTask]:
    """Two trainings, the second one of half the work, and the scoring of both."""
    names = ("wcgan", "nonsat")
    trainings = [SeriesTask("training", name, Path(name), work) for name, work in zip(names, (100, 50), strict=True)]
    return [*trainings, *(SeriesTask("scoring", name, Path(name)) for name in names)]


def steps(series: SeriesProgress, clock: Clock, last: int, seconds: float = 0.1) -> None:
    """Train some steps of two members in the current training."""
    progress = series.progress_of(["a", "b"])
    progress.start(100)
    for step in range(1, last + 1):
        clock.now += seconds
        progress.at(step, step * seconds, 2.0)
        progress.record({"step": step, "loss_g": [0.5], "loss_d": [0.5]})
    if last == 100:
        progress.end_at(last)


def test_the_line_names_training_step_rate_and_time_left_of_all(clock: Clock) -> None:
    series = SeriesProgress(quiet=True)
    series.plan(two_trainings())
    with series.training("wcgan"):
        assert series.line(80) == "training 1 of 2: wcgan"
        steps(series, clock, 60)
        # 40 steps of this training, and half of 100 steps of the next one
        assert series.line(80) == "training 1 of 2: wcgan  step 60/100  20 member-steps/s  9 s left + scores"
        clock.now += 4.0
        steps(series, clock, 100)
    with series.training("nonsat"):
        assert series.line(80).startswith("training 2 of 2: nonsat")
        clock.now += 5.0
    assert series.time_left() == "scores follow"
    with series.scoring("wcgan"):
        assert series.line(80) == "scoring 1 of 2: wcgan"
        clock.now += 3.0
    with series.scoring("nonsat"):
        assert series.line(80) == "scoring 2 of 2: nonsat  3 s left"
        clock.now += 1.0
        assert series.line(80) == "scoring 2 of 2: nonsat  2 s left"


def test_a_time_budget_gives_the_time_left_and_whether_it_may_be_less(clock: Clock) -> None:
    series = SeriesProgress(quiet=True)
    series.plan([SeriesTask("training", "a", Path("a"), seconds=60.0), SeriesTask("training", "", seconds=60.0)])
    with series.training("a"):
        assert series.time_left() == "2 min left"
        series._tasks[1].is_limit = True
        assert series.time_left() == "at most 2 min left"


def test_finished_trainings_are_numbered_but_take_no_time(clock: Clock) -> None:
    series = SeriesProgress(quiet=True)
    series.plan([SeriesTask("training", n, Path(n), seconds=60.0, done=n == "a") for n in "abc"])
    with series.training("b"):
        assert series.line(80) == "training 2 of 3: b  2 min left"


@pytest.mark.parametrize("width", [30, 50, 80, 140])
def test_the_line_fits_the_terminal_and_keeps_the_time_left(clock: Clock, width: int) -> None:
    series = SeriesProgress(quiet=True)
    name = "a recipe with a name that is much too long for one line of any terminal that people use"
    series.plan([SeriesTask("training", name, Path("a"), 100.0)])
    with series.training("a"):
        series._status = "compiling many kernels, which takes long"
        assert len(series.line(width)) <= width
        steps(series, clock, 50)
        line = series.line(width)
        assert len(line) <= width and (width < 50 or "5 s left" in line)
        assert ("20 member-steps/s" in line) == (width >= 80)


def test_a_log_gets_few_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with SeriesProgress() as series:
        series.plan(two_trainings())
        for path in ("wcgan", "nonsat"):
            with series.training(path):
                series.say(Detail("measuring 2 ways to run this herd"))
                series.say("note: the same for both")
                series.say("note: the same for both")
                steps(series, clock, 100, seconds=1.0)
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert lines[0] == "training 1 of 2: wcgan" and "training 2 of 2: nonsat" in lines
    assert [line for line in lines if "note" in line] == [
        f"{run}: note: the same for both" for run in ("wcgan", "nonsat")
    ]
    assert "measuring" not in err and "\x1b" not in err
    assert "training 1 of 2 done: wcgan, step 100 in 1 min 40 s, no alarms; 50 s left + scores" in lines
    between = [line for line in lines if "member-steps/s" in line]  # one a minute: each training takes 100 seconds
    assert len(between) == 2 and "step 60/100" in between[0] and len(lines) == 8


def test_quiet_prints_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with SeriesProgress(quiet=True) as series:
        series.plan(two_trainings())
        with series.training("wcgan"):
            series.say("note: muted")
            steps(series, clock, 100, seconds=10.0)
    assert capsys.readouterr() == ("", "")


def test_first_alarms_of_each_kind_are_printed_and_the_end_counts_members(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with SeriesProgress() as series:
        series.plan(two_trainings())
        with series.training("wcgan"):
            progress = series.progress_of(["cat", "dog"])
            for step, member in ((10, 0), (20, 1)):
                progress.alarm(member, "collapse")
                progress.say_alarms(step, [(member, "collapse")])
            progress.say("dog: repaired")
            progress.end_at(30)
    err = capsys.readouterr().err
    assert "wcgan: step 10: collapse: cat" in err and "step 20" not in err and "wcgan: dog: repaired" in err
    assert "2 members with alarms" in err


def test_an_interrupted_training_is_not_reported_as_done(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Interrupted), SeriesProgress() as series:
        series.plan(two_trainings())
        with series.training("wcgan"):
            steps(series, clock, 5)
            raise Interrupted("stopped")
    assert "done" not in capsys.readouterr().err


def test_a_terminal_shows_one_line_that_is_gone_in_the_end(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(series_progress, "Console", lambda stderr: console)
    with SeriesProgress() as series:
        series.plan(two_trainings())
        with series.training("wcgan"):
            series.say(Detail("a detail for a moment"))
            steps(series, clock, 100)
            assert series._live is not None
            series._live.refresh()
        series.say("note: a line that stays")
    text = out.getvalue()
    assert "training 1 of 2: wcgan  step 100/100  20 member-steps/s" in text
    assert "training 1 of 2 done: wcgan, step 100 in 10 s, no alarms\n" in text and "note: a line that stays\n" in text
    assert "\x1b[2K" in text.rpartition("stays")[2]  # the line is erased


def test_what_exists_is_skipped_and_takes_no_time(clock: Clock) -> None:
    series = SeriesProgress(quiet=True)
    series.plan([SeriesTask("scoring", name, Path(name), seconds=50.0) for name in ("a", "b", "c")])
    series.skip("scoring", Path("a"))
    with series.scoring("b"):
        assert series.line(80).startswith("scoring 2 of 3: b") and series.time_left() == "1 min 40 s left"


def test_lines_outside_of_tasks_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with SeriesProgress() as series:
        series.say(Detail("measuring the speed of the herd"))
    assert capsys.readouterr().err == "measuring the speed of the herd\n"


def test_after_its_last_step_a_training_shows_what_it_does(clock: Clock) -> None:
    series = SeriesProgress(quiet=True)
    series.plan(two_trainings())
    with series.training("wcgan"):
        steps(series, clock, 60)
        progress = series.progress_of(["a"])
        progress.close()
        series.say(Detail("making the mixture"))
        assert "making the mixture" in series.line(100)
