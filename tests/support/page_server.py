"""Serve the page in this process on a free port, and ask it as a browser or a program would."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from ganherd.ui import serve
from ganherd.ui.app import create_app


@dataclass(frozen=True)
class PageAnswer:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def sentence(self) -> str:
        """Return the reason that an error gives, which has to be one line."""
        detail = self.json["detail"]
        assert self.status >= 400 and isinstance(detail, str) and "\n" not in detail and "Traceback" not in detail
        return detail


@dataclass(frozen=True)
class PageServer:
    """A running server."""

    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, method: str = "GET", **headers: str) -> PageAnswer:
        """Ask for a path exactly as it is written; underscores in names of headers become dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="Host" in given, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return PageAnswer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def serving(roots: Sequence[Path], host: str = "127.0.0.1", token: str | None = None) -> Iterator[PageServer]:
    """Serve runs inside the block. With another `host` the server is still bound to 127.0.0.1, but guards itself as if it were."""
    listener = serve.bind("127.0.0.1", 0)
    app = create_app(roots, host, token)
    config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield PageServer(listener.getsockname()[1])
    finally:
        app.state.feed.close()
        server.should_exit = True
        thread.join(20)
