"""A polite stop: signals are noted, and the loop looks at them between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # signals that ask for a stop


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop: SIGHUP is left out if it is ignored, as under `nohup`."""
    is_deaf = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return tuple(number for number in STOP_SIGNALS if number != signal.SIGHUP or not is_deaf)


class StopRequest:
    """While it is entered, SIGINT, SIGTERM, SIGUSR1 and SIGHUP ask for a stop; a second SIGINT stops at once."""

    def __init__(self) -> None:
        self.name = ""  # of the signal that asked; may be set by others, too, who were asked in its place
        self._noted = False  # whether a signal came here
        self._at_once = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        return bool(self.name)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def at_once(self) -> None:
        """From now on every request takes effect where it comes, one that came already included: all steps are saved."""
        self._at_once = True
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._noted = self._noted and number == signal.SIGINT, True
        self.name = signal.Signals(number).name
        if self._at_once or again:
            raise KeyboardInterrupt
