"""Ranks that a command starts end together with it, and the reason is printed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import processes
import pytest
import warm_python

from ganherd.cli import main
from ganherd.training.stop_request import StopRequest

RANK = """
import os, signal, sys, time
from pathlib import Path
from ganherd.cli import main
from ganherd.training.ranks.spawn import spawn

here = Path(sys.argv[1])

def work(**_):
    rank = os.environ["RANK"]
    if "listens" in sys.argv:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda n, _: (here / f"{rank}-told-{signal.Signals(n).name}-{time.monotonic_ns()}").touch())
    (here / f"{rank}-pid").write_text(str(os.getpid()))
    (here / f"{rank}-here").touch()
    while not list(here.glob(f"{rank}-told-*")):
        time.sleep(0.01)
    time.sleep(0.2)

main.command_group = lambda: work
sys.exit(spawn(main.main, 2, sys.argv[2:]))
"""

# The command, with trainings that sleep after each step: while they wait for a signal, others can use the processor.
SLOW = """
import time
from ganherd.cli.main import main
from ganherd.training import loop

tick = loop.Trainer.tick
loop.Trainer.tick = lambda trainer, step: (tick(trainer, step), time.sleep(0.1))
main()
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start two ranks that do nothing until a signal asks them to stop."""
    command = [warm_python.python(), "-c", RANK, str(folder), *words]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True)
    while len(list(folder.glob("*-here"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def pids(folder: Path) -> list[int]:
    return [int((folder / f"{rank}-pid").read_text()) for rank in range(2)]


def received(folder: Path) -> list[list[str]]:
    """Return the signals that each rank received."""
    return [[path.name.split("-")[2] for path in folder.glob(f"{rank}-told-*")] for rank in range(2)]


def test_no_rank_outlives_the_command_and_each_is_told_once(tmp_path: Path) -> None:
    process = start(tmp_path, "listens")
    process.kill()
    process.communicate(timeout=60)  # which the ranks hold open too
    assert process.returncode == -signal.SIGKILL
    assert received(tmp_path) == [["SIGTERM"], ["SIGTERM"]]


def test_a_closed_terminal_is_passed_on_to_all_ranks_once(tmp_path: Path) -> None:
    process = start(tmp_path, "listens")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert received(tmp_path) == [["SIGHUP"], ["SIGHUP"]]


def test_a_closed_terminal_is_ignored_by_the_command_and_its_ranks_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    for pid in (process.pid, *pids(tmp_path)):
        os.kill(pid, signal.SIGHUP)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    process = start(tmp_path, "listens")
    first, second = pids(tmp_path)
    os.kill(second, signal.SIGKILL)
    os.kill(first, signal.SIGTERM)
    output = process.communicate(timeout=60)[1]
    assert process.returncode == 137 and output.count("ganherd: rank 1 was ended by SIGKILL") == 1, output


def test_an_interrupt_before_ranks_listen_is_said_once(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and output == "ganherd: interrupted.\n", output


def test_a_second_interrupt_ends_all_ranks_at_once_and_is_said_once(tmp_path: Path) -> None:
    """Ranks that exchange when they like would stop together, 20,000 steps later."""
    nets = {"latent": 2, "generator": {"name": "toy", "width": 4}, "discriminator": {"name": "toy", "width": 4}}
    cells = {"grid": [1, 2], "iteration": "10steps", "exchange": "async", "rejoin": 2000, "mixing": {"when": "off"}}
    recipe = {
        "data": {"source": "ring8", "partition": "all", "points": 100},
        "nets": nets,
        "train": {"budget": "100000steps", "batch": 4},
        "strategy": {"name": "cellular", "cellular": {**cells, "fitness": {"samples": 4}}},
        "engine": {"name": "loop"},
    }
    written, run = tmp_path / "recipe.yaml", tmp_path / "run"
    written.write_text(json.dumps(recipe))
    command = [warm_python.python(), "-c", SLOW, "train", str(written), "--ranks", "2", "--run", str(run)]
    process = subprocess.Popen(command, env=processes.environment(), stderr=subprocess.PIPE, text=True)
    while not (run / "checkpoints" / "step-00000000").is_dir():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(1)  # two signals that come as one would be one
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[1]
    assert process.returncode == 75 and output.count(f"resume it with: ganherd train --resume {run}") == 1, output


def test_a_stop_that_another_rank_was_asked_for_does_not_make_the_first_interrupt_the_second() -> None:
    with StopRequest() as stop:
        stop.name = "SIGINT"  # as a spare passes it on
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_python_wraps_is_one_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while PyTorch is loaded may come out of the making of a class."""

    def app(**_: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(main, "command_group", lambda: app)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 130 and capsys.readouterr().err == "ganherd: interrupted.\n"
