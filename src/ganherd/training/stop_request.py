"""Note signals that ask a training to stop, so that the loop can end it between two steps."""

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
    """Note SIGINT, SIGTERM, SIGUSR1 and SIGHUP while this context is entered.

    A SIGINT that follows another signal raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.name = ""  # name of the signal, e.g. "SIGTERM", also if another rank received it; empty: none was received
        self._noted = False  # whether this process received a signal
        self._at_once = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
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
        """Raise KeyboardInterrupt at each signal from now on, and right now if one came before.

        Called after the last step is saved, because the loop no longer checks for requests then.
        """
        self._at_once = True
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note its name, or raise KeyboardInterrupt if it shall stop the process at once."""
        again, self._noted = self._noted and number == signal.SIGINT, True
        self.name = signal.Signals(number).name
        if self._at_once or again:
            raise KeyboardInterrupt
