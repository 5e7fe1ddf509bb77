"""Tell the page what has changed: server-sent events with a cursor, from the sizes and times of a run's files."""

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
from ganherd.web.shown_run import ShownRun, mtime_ms

PERIOD = 2.0  # seconds between two looks at the files
_ANYWAY = 5.0  # seconds after which the state is read again: a process can end without writing
_ALIVE = 15.0  # seconds after which a comment is sent, so that tunnels stay open
MOST_LISTENERS = 64


class LiveFeed:
    """Follow the files of runs. All listeners share one look at a run, so that their number costs nothing."""

    def __init__(self, catalog: RunCatalog, period: float = PERIOD) -> None:
        self._catalog, self._period = catalog, period
        self._seen: dict[str, tuple[float, JsonObject]] = {}  # by run: when it was looked at, and what was seen
        self._versions: dict[str, tuple[float, str]] = {}
        self.listeners = 0
        self._is_closed = False

    def close(self) -> None:
        """End all streams, because the server ends."""
        self._is_closed = True

    async def listen(self, run_ids: Sequence[str], cursor: str = "") -> AsyncIterator[str]:
        """Yield a message whenever one of the runs has changed; `cursor` is that of the last message the page has."""
        self.listeners += 1
        try:
            spoke = time.monotonic()
            yield "retry: 2000\n\n"
            while not self._is_closed:
                states = await asyncio.to_thread(self._states, run_ids)
                now = hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()[:16]
                if now != cursor:
                    cursor, spoke = now, time.monotonic()
                    yield f"id: {cursor}\nevent: change\ndata: {json.dumps(states)}\n\n"
                elif time.monotonic() - spoke > _ALIVE:
                    spoke = time.monotonic()
                    yield ": alive\n\n"
                await asyncio.sleep(self._period)
        finally:
            self.listeners -= 1

    def _states(self, run_ids: Sequence[str]) -> JsonObject:
        states = {}
        for run_id in run_ids:
            with suppress(UserError, OSError, ValueError, KeyError, TypeError, RecursionError):
                states[run_id] = self._state(self._catalog.run(run_id))
        if not run_ids:
            states = {"": {"runs": [[run.id, mtime_ms(run.folder.info_path)] for run in self._catalog.runs()]}}
        return states

    def _state(self, run: ShownRun) -> JsonObject:
        """Return what changes of a run: its progress, the sizes of its records, and its newest sprites."""
        now = time.monotonic()
        seen = self._seen.get(run.id)
        if seen is not None and now - seen[0] < self._period / 2:
            return seen[1]
        folder = run.folder
        version, before = run.version(), self._versions.get(run.id)
        if seen is not None and before is not None and before[1] == version and now - before[0] < _ANYWAY:
            self._seen[run.id] = now, seen[1]
            return seen[1]
        saved = list(sprite_files.saved_sheets(folder.sprites))
        state = {
            **run_facts.progress(run),
            "metrics": run.metrics_file.size(),
            "events": run.events_file.size(),
            "sprites": [len(saved), saved[-1] if saved else None],
            "scores": mtime_ms(folder.scores_path),
            "mixture": mtime_ms(folder.mixture / "mixture.json"),
        }
        self._seen[run.id], self._versions[run.id] = (now, state), (now, version)
        return state
