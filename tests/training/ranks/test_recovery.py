"""Between a loss and the first step after it no loop listens to signals: what a rank is asked there is heard all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganherd.comm.backends.local import Local
from ganherd.comm.communicator import RankLost, Survivors
from ganherd.training.finish import TrainedRun
from ganherd.training.ranks.recovery import Recovery
from ganherd.util.errors import Interrupted


class One(Local):
    """The one that is left of two."""

    survives_loss = True


class Two(One):
    world_size = 2

    def __init__(self, asked: bool) -> None:
        self.asked = asked  # while those that are left look for each other

    def shrink(self) -> Survivors:
        if self.asked:
            os.kill(os.getpid(), signal.SIGUSR1)
        return Survivors(One(), (0,), (1,))


def lost() -> TrainedRun:
    raise RankLost("rank 1 is gone")


@pytest.fixture(autouse=True)
def handlers_are_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert signal.getsignal(signal.SIGUSR1) is before


def test_ranks_that_look_for_each_other_stop(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(Interrupted, match="stopped by SIGUSR1, and a rank was lost; the last checkpoint is whole"):
        Recovery(Two(asked=True)).through(lost, lambda path: TrainedRun(path, {}), tmp_path)


def test_ranks_that_get_ready_again_know_of_it_when_the_loop_begins(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    rescue, asked = Recovery(Two(asked=False)), []

    def resume(path: Path) -> TrainedRun:
        asked.append(rescue.signals.name)
        os.kill(os.getpid(), signal.SIGUSR1)
        asked.append(rescue.signals.name)
        return TrainedRun(path, {})

    rescue.through(lost, resume, tmp_path)
    assert asked == ["", "SIGUSR1"]
