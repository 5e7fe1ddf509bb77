"""Output that cannot be written never ends a training: not on a full disk, not without a reader, not on a closed terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import recipes
import run_files
import tiny_runs
import warm_python

import ganherd
from ganherd.runs.folder import RunFolder

FULL = Path("/dev/full")
# A command without the pictures, scores and report that take most of the time of a tiny run.
BRIEF = "import runpy, brief_command; runpy.run_path(brief_command.__file__, run_name='__main__')"
# Warns, logs and prints while it trains, as libraries and a user's own nets do.
NOISY = """
import logging, warnings
from ganherd.training import loop
tick = loop.Trainer.tick
def noisy(self, step):
    tick(self, step)
    warnings.warn(f"step {step}")
    logging.getLogger("noisy").error("step %d", step)
    print("step", step, flush=True)
loop.Trainer.tick = noisy
"""

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")


def start(*words: object, before: str = "", **streams: Any) -> subprocess.Popen[str]:
    """Start a command; with a terminal of its own it needs an interpreter of its own."""
    path = os.pathsep.join([str(Path(tiny_runs.__file__).parent), *sys.path])
    python = sys.executable if "preexec_fn" in streams else warm_python.python()
    command = [python, "-c", before + BRIEF, *map(str, words)]
    return subprocess.Popen(command, env=processes.environment(PYTHONPATH=path), text=True, **streams)


@pytest.fixture
def unread() -> Iterator[int]:
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def assert_finished(run: Path) -> None:
    assert RunFolder(run).info.state == "finished"
    assert run_files.steps(run)[-1] == 12


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return recipes.write_recipe(tmp_path, budget="12steps", net="tiny", record_every=1)


def test_training_ends_well_if_stderr_is_on_a_full_disk(tmp_path: Path, recipe: Path) -> None:
    with FULL.open("w") as full:
        process = start("train", recipe, "--run", tmp_path / "run", stdout=subprocess.PIPE, stderr=full)
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "picture" in said
    assert_finished(tmp_path / "run")


def test_training_ends_well_if_nobody_reads_its_messages(tmp_path: Path, recipe: Path, unread: int) -> None:
    words = ("train", recipe, "--run", tmp_path / "run", "--json")
    process = start(*words, stdout=subprocess.PIPE, stderr=unread)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and json.loads(said)["state"] == "finished"
    assert_finished(tmp_path / "run")


@pytest.mark.further
def test_a_result_that_nobody_reads_is_saved_and_ends_as_a_broken_pipe(
    tmp_path: Path, recipe: Path, unread: int
) -> None:
    """Also if warnings, logs and prints of other code go to the same pipe, as with `2>&1 | head -1`."""
    process = start("train", recipe, "--run", tmp_path / "a", "--json", "-q", stdout=unread, stderr=subprocess.PIPE)
    said = process.communicate(timeout=120)[1]
    assert (process.returncode, said) == (141, "")
    assert_finished(tmp_path / "a")
    process = start("train", recipe, "--run", tmp_path / "b", before=NOISY, stdout=unread, stderr=unread)
    assert process.wait(timeout=120) == 141
    assert_finished(tmp_path / "b")


def test_a_result_on_a_full_disk_is_one_sentence_and_the_run_is_saved(tmp_path: Path, recipe: Path) -> None:
    with FULL.open("w") as full:
        process = start("train", recipe, "--run", tmp_path / "run", "-q", stdout=full, stderr=subprocess.PIPE)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert said == "ganherd: the result cannot be written to standard output: No space left on device.\n"
    assert_finished(tmp_path / "run")


@pytest.mark.further
def test_training_continues_when_the_terminal_of_its_display_is_closed(tmp_path: Path) -> None:
    recipe, run = recipes.write_recipe(tmp_path, budget="400steps", net="tiny", checkpoint_every=20), tmp_path / "run"
    master, slave = pty.openpty()
    process = start("train", recipe, "--run", run, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    shown = b""
    while b"variety" not in shown:  # the live display is up
        shown += os.read(master, 4096)
    os.close(master)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert RunFolder(run).info.state == "finished"


@pytest.mark.further
def test_closing_the_terminal_of_a_training_saves_it_and_exits_75(tmp_path: Path) -> None:
    """The shell's own terminal: the system sends SIGHUP, and nothing can be written any more."""
    recipe, run = recipes.write_recipe(tmp_path, budget="1000000steps", net="tiny"), tmp_path / "run"
    master, slave = pty.openpty()
    process = start("train", recipe, "--run", run, preexec_fn=lambda: os.login_tty(slave))
    os.close(slave)
    shown = b""
    while b"variety" not in shown:
        shown += os.read(master, 4096)
    os.close(master)
    assert process.wait(timeout=120) == 75
    assert RunFolder(run).info.state == "interrupted"


@pytest.mark.further
def test_closed_streams_do_not_lend_their_numbers_to_files(tmp_path: Path, recipe: Path) -> None:
    """`>&- 2>&-`: a file of the run would be number 2, and a library's message would be written into it."""
    spoiler = "import os; from ganherd.training import loop; tick = loop.Trainer.tick\n"
    spoiler += (
        "loop.Trainer.tick = lambda self, step: (tick(self, step), os.write(1, b'spoilt'), os.write(2, b'spoilt'))\n"
    )
    shell = 'exec "$@" >&- 2>&-'
    command = [
        "sh",
        "-c",
        shell,
        "sh",
        sys.executable,
        "-c",
        spoiler + BRIEF,
        "train",
        recipe,
        "--run",
        tmp_path / "run",
    ]
    path = os.pathsep.join([str(Path(tiny_runs.__file__).parent), *sys.path])
    done = subprocess.run(command, env=processes.environment(PYTHONPATH=path), timeout=120)
    assert done.returncode == 0
    assert_finished(tmp_path / "run")
    assert not [file for file in (tmp_path / "run").rglob("*") if file.is_file() and b"spoilt" in file.read_bytes()]


def test_a_program_that_trains_keeps_its_own_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_runs.skip_products(monkeypatch)
    with FULL.open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        ganherd.train(recipes.noise_recipe(tmp_path, "12steps", "tiny"), run=tmp_path / "run")
        assert sys.stderr is full
        monkeypatch.undo()
        monkeypatch.setattr(full, "close", lambda: None, raising=False)
    assert_finished(tmp_path / "run")


def test_a_net_that_prints_does_not_end_a_training_whose_output_is_on_a_full_disk(tmp_path: Path, recipe: Path) -> None:
    with FULL.open("w") as full:
        words = ("train", recipe, "--run", tmp_path / "run", "-q")
        process = start(*words, before=NOISY, stdout=full, stderr=subprocess.PIPE)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert said.endswith("ganherd: the result cannot be written to standard output: No space left on device.\n")
    assert_finished(tmp_path / "run")
