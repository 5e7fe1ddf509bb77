"""A rank's signs of life: written beside the training without disturbing it, read by anyone, missed when they stop."""

from __future__ import annotations

import json
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ganherd.comm.backends.local import Local
from ganherd.comm.heartbeat import Heartbeat, MissingRanks, describe, read
from ganherd.util.errors import UserError


def until(found: object) -> None:
    """Waits for what a thread will do; a test that waits in vain fails."""
    assert callable(found)
    for _ in range(2000):
        if found():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never came")


def test_heartbeats_report_states_and_numbers_as_they_change(tmp_path: Path) -> None:
    comm = Local()
    comm.bytes_sent, comm.bytes_received, comm.exchange_seconds = 7, 8, 0.5
    with Heartbeat(tmp_path / "ranks", rank=2, world_size=3, members=[4, 5], comm=comm, period=0.01) as heart:
        until(lambda: [beat.state for beat in read(tmp_path / "ranks")] == ["inactive"])
        comm.waiting_since = time.monotonic() - 3.0
        heart.note("processing", step=10, rate=2.5)
        until(lambda: read(tmp_path / "ranks")[0].state == "processing")
        (beat,) = read(tmp_path / "ranks")
        assert (beat.rank, beat.size, beat.members, beat.step, beat.rate) == (2, 3, (4, 5), 10, 2.5)
        assert (beat.bytes_sent, beat.bytes_received, beat.exchange_seconds) == (7, 8, 0.5)
        assert beat.waits >= 3.0
        heart.note(step=11)
        until(lambda: read(tmp_path / "ranks")[0].step == 11)
    assert read(tmp_path / "ranks")[0].state == "finished"
    assert [path.name for path in (tmp_path / "ranks").iterdir()] == ["rank-002.json"]


def test_a_rank_that_stops_is_late_and_then_lost(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Heartbeat(tmp_path, rank=0, world_size=1, period=0.5) as heart:
        heart.note("processing")
        raise KeyboardInterrupt
    (beat,) = read(tmp_path)
    assert beat.age(beat.time + 2.0) == 2.0 and beat.age(beat.time - 1.0) == 0.0
    assert [beat.health(beat.time + age) for age in (0.0, 1.5, 1.6, 6.0, 6.1)] == [
        "processing",
        "processing",
        "late",
        "late",
        "lost",
    ]


def test_a_finished_rank_is_never_late(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, rank=0, world_size=1):
        pass
    (beat,) = read(tmp_path)
    assert beat.health(beat.time + 1e6) == "finished"


def test_heartbeats_survive_a_disk_that_refuses_writes(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("not a folder")
    with Heartbeat(tmp_path / "ranks", rank=0, world_size=1, period=0.001) as heart:
        heart.note("processing", step=1)
        threading.Event().wait(0.05)
        assert heart._thread.is_alive()
    assert not heart._thread.is_alive() and (tmp_path / "ranks").read_text() == "not a folder"


def test_a_reader_never_sees_half_a_beat(tmp_path: Path) -> None:
    with Heartbeat(tmp_path, rank=0, world_size=1, members=range(2000), period=1e-4):
        until(lambda: read(tmp_path))
        for _ in range(300):
            assert len(read(tmp_path)[0].members) == 2000


def test_ranks_of_an_earlier_and_larger_job_are_not_shown(tmp_path: Path) -> None:
    for rank, size in ((0, 4), (3, 4), (0, 2), (1, 2)):
        with Heartbeat(tmp_path, rank, size):
            pass
    assert [(beat.rank, beat.size) for beat in read(tmp_path)] == [(0, 2), (1, 2)]
    assert read(tmp_path / "nowhere") == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that beats are written and read at, as its only entry: nothing here hangs on how fast a thread is."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def says_once(folder: Path, rank: int, step: int, dies: bool = True) -> None:
    """One rank that writes its file and goes, killed or in order."""
    beat = Heartbeat(folder, rank, 3)
    beat.note("processing", step=step)
    with suppress(KeyboardInterrupt), beat:
        if dies:
            raise KeyboardInterrupt


def test_a_silent_rank_is_reported_late_once_and_back_once(tmp_path: Path, clock: list[float]) -> None:
    """Also where its thread is alive and the disk is not: what counts is what others can read."""
    said: list[tuple[str, int, int]] = []

    def tell(event: str, facts: dict[str, Any]) -> None:
        assert f"rank 1 on {platform.node()} is {event}: nothing was heard of it" in describe(event, facts)
        said.append((event, facts["rank"], facts["at"]))

    listener = MissingRanks(tmp_path, 0, 3, tell)
    says_once(tmp_path, 2, 9, dies=False)  # and is never missed
    says_once(tmp_path, 1, 7)
    told = []
    for clock[0] in (1005.0, 1015.0, 1016.0, 1031.0, 1046.0, 1061.0):
        listener.look(5.0)
        told.append(len(said))
    assert told == [0, 0, 1, 1, 1, 1] and read(tmp_path)[0].health(clock[0]) == "lost"
    says_once(tmp_path, 1, 8)
    listener.look(5.0)
    listener.look(5.0)
    assert said == [("late", 1, 7), ("back", 1, 8)]


def test_no_rank_is_late_for_time_in_which_the_listener_was_suspended(tmp_path: Path, clock: list[float]) -> None:
    said: list[str] = []
    listener = MissingRanks(tmp_path, 0, 3, lambda event, facts: said.append(event))
    says_once(tmp_path, 1, 7)
    told = []
    for clock[0] in (1005.0, 2000.0, 2015.0, 2016.0):
        listener.look(5.0)
        told.append(len(said))
    assert told == [0, 0, 0, 1]


def test_a_rank_listens_with_every_beat(tmp_path: Path) -> None:
    heard: list[float] = []
    with Heartbeat(tmp_path, 0, 1, period=0.01) as heart:
        heart.listener = heard.append
        until(lambda: len(heard) > 2)
    assert set(heard) == {0.01}


def test_heartbeats_of_an_earlier_job_make_no_rank_late(tmp_path: Path) -> None:
    """Its ranks had finished, or were killed, long before this one listens."""
    said: list[str] = []
    for rank in (1, 2):
        with suppress(KeyboardInterrupt), Heartbeat(tmp_path, rank, 3):
            if rank == 1:
                raise KeyboardInterrupt
    for rank in (1, 2):
        path = tmp_path / f"rank-{rank:03d}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "time": 1000.0}))
    MissingRanks(tmp_path, 0, 3, lambda event, facts: said.append(event)).look(5.0)
    assert not said


@pytest.mark.parametrize(
    "change", [{"step": "1"}, {"state": "dancing"}, {"more": 1}, {"members": [0.5]}, {"period": 0}]
)
def test_a_damaged_heartbeat_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with Heartbeat(tmp_path, rank=0, world_size=1):
        pass
    path = tmp_path / "rank-000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match="rank-000.json is not what ganherd writes"):
        read(tmp_path)
