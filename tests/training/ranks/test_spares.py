"""A spare passes on signals that ask for a stop, and no others."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ganherd.training.ranks.spares import passing_on


def _received(signals: list[signal.Signals], run: Path) -> str:
    """Send signals to this process while it is a spare of a run, and return what the first rank would read."""
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    try:
        with passing_on(run):
            for number in signals:
                os.kill(os.getpid(), number)
            file, end = run / "ranks" / "stop", time.monotonic() + 2
            while not file.exists() and time.monotonic() < end and signal.SIGTERM in signals:
                time.sleep(0.01)
        return file.read_text() if file.exists() else ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(("signals", "passed"), [([signal.SIGALRM], ""), ([signal.SIGALRM, signal.SIGTERM], "SIGTERM")])
def test_only_signals_to_stop_are_passed_on(tmp_path: Path, signals: list[signal.Signals], passed: str) -> None:
    assert _received(signals, tmp_path) == passed
