"""Notify open pages of changes by server-sent events; changes are detected from sizes and times of the runs' files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from ganherd.runs.series import sprite_files
from ganherd.ui.run_catalog import RunCatalog
from ganherd.util.errors import UserError
from ganherd.util.files import JsonObject
from ganherd.web import run_facts
from ganherd.web.shown_run import LiveLook, ShownRun, mtime_ms

PERIOD = 4.0  # seconds between two checks of the files
_REREAD_AFTER = 5.0  # seconds after which an unchanged run is read again, because a process may end without writing
_SILENCE = 15.0  # seconds without a message after which a comment is sent, so that tunnels stay open
MOST_LISTENERS = 64


class LiveFeed:
    """Watch the files of runs for all open pages (listeners).

    The state of a run, and the list of runs, is read at most once per half period, however many pages are open.
    """

    def __init__(self, catalog: RunCatalog, period: float = PERIOD) -> None:
        self._catalog, self._period = catalog, period
        self._list: tuple[float, JsonObject] = -1e9, {}  # when the list of runs was read (monotonic), and its state
        self.listeners = 0
        self._is_closed = False

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._is_closed = True

    async def listen(self, run_ids: Sequence[str], cursor: str = "") -> AsyncIterator[str]:
        """Yield a server-sent event, as text, whenever one of the runs has changed.

        Args:
            run_ids: The runs; empty: the list of runs.
            cursor: The id of the last event that the page received; no event is sent if nothing has changed since.
        """
        self.listeners += 1
        try:
            last_message = time.monotonic()
            yield "retry: 2000\n\n"
            while not self._is_closed:
                states = await asyncio.to_thread(self._states, run_ids)
                now = hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()[:16]
                if now != cursor:
                    cursor, last_message = now, time.monotonic()
                    yield f"id: {cursor}\nevent: change\ndata: {json.dumps(states)}\n\n"
                elif time.monotonic() - last_message > _SILENCE:
                    last_message = time.monotonic()
                    yield ": alive\n\n"
                await asyncio.sleep(self._period)
        finally:
            self.listeners -= 1

    def _states(self, run_ids: Sequence[str]) -> JsonObject:
        states = {}
        for run_id in run_ids:
            with suppress(UserError, OSError, ValueError, KeyError, TypeError, RecursionError):
                states[run_id] = self._state(self._catalog.run(run_id))
        return states if run_ids else {"": self._list_state()}

    def _list_state(self) -> JsonObject:
        """Return a state that changes with the list of runs: the id of each run, and when its run.json last changed."""
        now = time.monotonic()
        if now - self._list[0] >= self._period / 2:
            self._list = now, {"runs": [[run.id, mtime_ms(run.folder.info_path)] for run in self._catalog.runs()]}
        return self._list[1]

    def _state(self, run: ShownRun) -> JsonObject:
        """Return a state that changes with a run: its progress, the sizes of its records, and its newest sprites."""
        now, last = time.monotonic(), run.live
        if last is not None and now - last.looked < self._period / 2:
            return last.state
        version = run.version()
        if last is not None and last.version == version and now - last.read < _REREAD_AFTER:
            last.looked = now
            return last.state
        saved = list(sprite_files.saved_sheets(run.folder.sprites))
        state = {
            **run_facts.progress(run),
            "metrics": run.metrics_file.size(),
            "events": run.events_file.size(),
            "sprites": [len(saved), saved[-1] if saved else None],
            "scores": mtime_ms(run.folder.scores_path),
            "mixture": mtime_ms(run.folder.mixture / "mixture.json"),
        }
        run.live = LiveLook(now, now, version, state)
        return state
