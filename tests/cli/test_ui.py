"""`ganherd ui` and `ganherd train --ui`: the address, the tunnel, the token, and what is missing in a sentence."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest

from ganherd.ui import serve
from ganherd.util.errors import UserError


@contextmanager
def started(*words: object) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a server, and yield its process and the lines that it prints."""
    command = [sys.executable, "-m", "ganherd", "ui", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=processes.environment()) as server:
        try:
            assert server.stderr is not None
            yield server, [server.stderr.readline().strip() for _ in range(3)]
        finally:
            server.kill()


@pytest.mark.further
def test_the_server_says_where_it_is_and_how_to_reach_it_and_ends_with_ctrl_c(run: Path) -> None:
    with started(run) as (server, lines):
        match = re.fullmatch(r"page: (http://127\.0\.0\.1:(\d+))/#/", lines[0])
        assert match is not None
        tunnel = f"from another machine: ssh -N -L {match[2]}:127.0.0.1:{match[2]} "
        assert lines[1].startswith(tunnel) and "@" in lines[1] and "Ctrl-C" in lines[2]
        with urllib.request.urlopen(f"{match[1]}/api/runs", timeout=30) as answer:
            assert b'"state":"finished"' in answer.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0 and server.stderr is not None and server.stderr.read() == ""


@pytest.mark.further
def test_outside_of_this_machine_and_on_request_a_token_guards_the_page(run: Path) -> None:
    for words in ((run, "--host", "0.0.0.0"), (run, "--token")):
        with started(*words) as (_, lines):
            match = re.fullmatch(r"page: http://[^/]+:(\d+)/\?token=([\w-]{20,})#/", lines[0])
            assert match is not None
            address = f"http://127.0.0.1:{match[1]}/api/runs"
            with pytest.raises(OSError, match="401"):
                urllib.request.urlopen(address, timeout=30)
            request = urllib.request.Request(address, headers={"Authorization": f"Bearer {match[2]}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200


def test_a_port_that_is_taken_and_an_address_of_somebody_else_are_refused() -> None:
    with serve.bind("127.0.0.1", 0) as taken, pytest.raises(UserError, match="Choose another --host or --port"):
        serve.bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="cannot be served at 203.0.113.7"):
        serve.bind("203.0.113.7", 0)


def test_without_a_port_the_next_free_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve.bind("127.0.0.1", 0) as first:
        monkeypatch.setattr(serve, "PORT", first.getsockname()[1])
        with serve.bind("127.0.0.1", None) as second:
            assert second.getsockname()[1] != first.getsockname()[1]


@pytest.mark.parametrize("words", [("ui",), ("train", "--ui")])
def test_without_the_extra_the_command_says_how_to_install_it(
    cli: Callable[..., object], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    answer = cli(*words)
    assert answer.sentence == "the page needs fastapi and uvicorn: pip install 'ganherd[ui]'."  # type: ignore[attr-defined]


def test_a_page_is_for_one_process_that_trains(cli: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "leave --dry-run" in cli("train", "--ui", "--dry-run").sentence  # type: ignore[attr-defined]
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert "start `ganherd ui RUN`" in cli("train", "--ui").sentence  # type: ignore[attr-defined]


def test_a_killed_training_takes_its_page_with_it(run: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from ganherd.ui.serve import page_during_training\n"
        "with page_during_training(Path(sys.argv[1]), quiet=True): time.sleep(600)"
    )
    words = [sys.executable, "-c", program, str(run)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=processes.environment()) as training:
        try:
            assert training.stderr is not None
            address = training.stderr.readline().split()[1].partition("#")[0]
            with urllib.request.urlopen(f"{address}api/runs", timeout=30) as answer:
                assert answer.status == 200
        finally:
            training.kill()
        training.stderr.read()  # ends when the page, which has the same stream, has ended
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{address}api/runs", timeout=30)
