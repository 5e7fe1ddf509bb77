"""Run the web server: choose a free port, print the address, and start the server next to a training."""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from ganherd.ui.access import is_loopback
from ganherd.util.errors import UserError
from ganherd.util.text import say

PORT = 8421
_TRIES = 50  # number of ports that are tried, beginning with the default one


def check_installed() -> None:
    """Raise `UserError` if the extra `ui` is not installed."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(f"the page needs {' and '.join(missing)}: pip install 'ganherd[ui]'.")


def serve(
    roots: Sequence[Path], host: str, port: int | None, needs_token: bool, trust_code: bool, landing: str = "#/"
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        roots: Run folders, and folders that contain runs.
        host: The address to bind to. If it is no loopback address, requests must contain a random token.
        port: The port; 0: any free one; None: 8421, or the next free one.
        needs_token: Whether requests must contain a token even on a loopback address.
        trust_code: Whether drawing samples may build a user's nets, which runs their code.
        landing: The fragment of the URL that names the view to open.
    """
    import uvicorn

    from ganherd.ui.app import create_app

    class _Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.feed.close()  # otherwise the server waits until open pages end their event streams
            super().handle_exit(sig, frame)

    if landing == TRAINING:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    listener = bind(host, port)
    token = secrets.token_urlsafe(18) if needs_token or not is_loopback(host) else None
    app = create_app(roots, host, token, trust_code)
    for line in announcement(host, listener.getsockname()[1], token, landing):
        say(line)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=3, limit_concurrency=512,
        server_header=False,
    )  # fmt: skip
    with suppress(KeyboardInterrupt):
        _Server(config).run(sockets=[listener])


def bind(host: str, port: int | None) -> socket.socket:
    """Return a listening socket that is bound to an address.

    Args:
        port: The port; 0: any free one; None: 8421, or the next free one.

    Raises:
        UserError: The port is taken, or this machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else [*range(PORT, PORT + _TRIES), 0]:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(2048)  # the address works as soon as it is printed
        except OSError as error:
            listener.close()
            if port is None and number:
                continue
            raise UserError(
                f"the page cannot be served at {host}, port {number}: {error.strerror}. Choose another --host or --port."
            ) from error
        return listener
    raise AssertionError("port 0 is always free")


def _end_with_parent() -> None:
    """Wait until standard input, a pipe from the training process, ends; then stop this process like Ctrl-C does."""
    with suppress(OSError, ValueError):
        while sys.stdin is not None and sys.stdin.buffer.read(1):
            pass
    os.kill(os.getpid(), signal.SIGINT)


def _own_name() -> str:
    """Return the name under which other machines of the network can reach this one."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name


TRAINING = "#/latest"  # what the page of `train --ui` shows first


def announcement(host: str, port: int, token: str | None, landing: str = "#/") -> list[str]:
    """Return the lines to print with the page's address: for this machine, and how to open it from another one.

    >>> announcement("127.0.0.1", 8421, None)[0]
    'page: http://127.0.0.1:8421/#/'
    """
    query = f"?token={token}" if token else ""
    shown = _own_name() if host in ("", "0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    lines = [f"page: http://{shown}:{port}/{query}{landing}"]
    if is_loopback(host):
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a user without a name, as in containers
            user = "USER"
        lines.append(f"from another machine: ssh -N -L {port}:{shown}:{port} {user}@{socket.gethostname()}")
    else:
        lines.append("Everybody who has this address, with its token, sees these runs.")
    return lines if landing == TRAINING else [*lines, "Press Ctrl-C to stop the server."]


@contextmanager
def page_during_training(folder: Path, quiet: bool, trust_code: bool = False) -> Iterator[None]:
    """Serve the page of a run in a child process inside the block.

    On a terminal, the page stays open after the block until Ctrl-C. The child reads from a pipe of this process: if
    this process is killed, the pipe closes and the child stops.
    """
    check_installed()
    # -P: Python must not import modules from the current folder
    words = [sys.executable, "-P", "-m", "ganherd", "ui", str(folder), "--newest"]
    words += ["--trust-code"] if trust_code else []
    page = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield
        if sys.stdin is not None and sys.stdin.isatty() and not quiet and page.poll() is None:
            say("Training has ended. The page stays open until you press Ctrl-C.")
            with suppress(KeyboardInterrupt):
                page.wait()
    finally:
        page.terminate()
        try:
            page.wait(5)
        except subprocess.TimeoutExpired:
            page.kill()
