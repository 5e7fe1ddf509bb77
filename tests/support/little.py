"""A little herd that trains in a blink, ways to stop it at any moment, and what it means that two runs are the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ganherd
from ganherd.runs.records import CLOCK_FIELDS, FILE_FIELDS, PROCESS_EVENTS
from ganherd.util.errors import Interrupted, UserError

NETS: dict[str, dict[str, Any]] = {
    # a gradient penalty, batch norm in the generator, several critic updates
    "small": {
        "nets": {
            "latent": 4,
            "generator": {"name": "small", "width": 8, "batch_norm": True},
            "discriminator": {"name": "small", "width": 8},
        },
        "loss": {"name": "wasserstein-gp"},
        "train": {"batch": 8, "ema": 0.9, "n_critic": 2},
    },
    # nothing that takes time
    "tiny": {
        "nets": {
            "latent": 2,
            "generator": {"name": "small", "width": 3},
            "discriminator": {"name": "small", "width": 3},
        },
        "loss": {"name": "hinge"},
        "train": {"batch": 4},
    },
    # dropout, batch norm in both, noise on what the discriminator sees, steps without the discriminator
    "wcgan": {
        "nets": {
            "latent": 4,
            "generator": {"name": "wcgan", "width": 4},
            "discriminator": {"name": "wcgan", "width": 2},
        },
        "loss": {"name": "wasserstein"},
        "train": {"batch": 8, "ema": 0.9, "skip_d": 1, "order": "g-d", "input_noise": 0.1, "input_noise_steps": 20},
    },
}


def recipe(
    folder: Path, budget: str = "30steps", net: str = "small", engine: str = "fused", **run: Any
) -> dict[str, Any]:
    """Three members by class on a little random data of unequal classes; nothing is written in step with anything else."""
    random = np.random.default_rng(0)
    path = folder / "data.npz"
    if not path.exists():
        np.savez(path, x=random.integers(0, 256, (46, 1, 8, 8), np.uint8), y=np.repeat([0, 1, 2], [23, 9, 14]))
    made = NETS[net]
    return {
        "data": {"source": str(path)},
        "nets": made["nets"],
        "loss": made["loss"],
        "train": {**made["train"], "budget": budget},
        "engine": {"name": engine, "threads": 1, "device": "cpu"},
        "run": {"record_every": 3, "checkpoint_every": 7, "sample_every": 0, "watch": {"every": 4}, **run},
    }


def write_recipe(folder: Path, **settings: Any) -> Path:
    path = folder / "little.yaml"
    path.write_text(json.dumps(recipe(folder, **settings)))  # JSON is YAML
    return path


def be_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what comes after the mixture and takes most of a little run's time."""
    monkeypatch.setattr("ganherd.api.FINISHERS", ())
    monkeypatch.setattr("ganherd.viz.pictures.png", lambda picture: b"")


def train(run: Path, settings: dict[str, Any]) -> None:
    ganherd.train(settings, run=run, quiet=True)


def resume(run: Path, budget: str | None = None) -> None:
    ganherd.resume(run, [f"train.budget={budget}"] if budget else [], quiet=True)


def command(*words: object) -> int:
    """The exit code of a `ganherd` command, run in this process."""
    from ganherd.cli.main import main

    before, sys.argv = sys.argv, ["ganherd", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("a command ends with an exit code")


# -- when two runs are the same ---------------------------------------------------------------------------------------


def tensors(checkpoint: Path) -> dict[str, Any]:
    """Everything that a checkpoint holds, by file and name."""
    from safetensors.torch import load_file

    return {
        f"{file.name}/{k}": v for file in sorted(checkpoint.glob("*.safetensors")) for k, v in load_file(file).items()
    }


def steps(run: Path) -> list[int]:
    from ganherd.runs import checkpoint

    return checkpoint.steps(run / "checkpoints")


def last_checkpoint(run: Path) -> Path:
    return run / "checkpoints" / f"step-{steps(run)[-1]:08d}"


def lines(path: Path) -> list[dict[str, Any]]:
    content = path.read_text()
    assert content.endswith("\n") or not content, f"{path} ends in half a line"
    return [json.loads(line) for line in content.splitlines()]


def history(run: Path) -> list[tuple[str, str]]:
    """Every line of metrics and events, in order, less what the clock or a resume put there."""
    kept = []
    for name in ("metrics.jsonl", "events.jsonl"):
        for line in lines(run / name):
            if line.get("event") not in PROCESS_EVENTS:
                kept.append((name, json.dumps({k: v for k, v in line.items() if k not in CLOCK_FIELDS})))
    return kept


def assert_same(run: Path, undisturbed: Path) -> None:
    """Bit for bit the same herd, and the same lines in the same order: none twice, none missing."""
    assert last_checkpoint(run).name == last_checkpoint(undisturbed).name
    ours, theirs = tensors(last_checkpoint(run)), tensors(last_checkpoint(undisturbed))
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if ours[name].numpy().tobytes() != theirs[name].numpy().tobytes()]
    assert not different, f"after the resume these differ: {different}"
    free = CLOCK_FIELDS | FILE_FIELDS
    facts = [json.loads((last_checkpoint(r) / "state.json").read_text()) for r in (run, undisturbed)]
    ours, theirs = ({key: value for key, value in each.items() if key not in free} for each in facts)
    assert ours == theirs
    assert history(run) == history(undisturbed)
    for name in ("mixture.json", "generators.safetensors"):
        assert (run / "mixture" / name).read_bytes() == (undisturbed / "mixture" / name).read_bytes()
    assert json.loads((run / "run.json").read_text())["state"] == "finished"


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


# -- ways to stop a run -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL inside a process: nothing in ganherd knows it, so nothing tidies up."""


class _Death:
    """An audit hook, which Python never takes away again: it sleeps until it is told what to watch."""

    def __init__(self) -> None:
        self.folder, self.left, self.installed = "", 0, False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder and event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"):
            path = arguments[0]
            reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder) and not reads:
                self.left -= 1
                if self.left < 0:  # the dead do nothing more
                    raise Killed


_DEATH = _Death()


@contextmanager
def dying_after(operations: int, folder: Path) -> Iterator[None]:
    """The process dies in place of the next change to the folder's files after so many."""
    if not _DEATH.installed:
        sys.addaudithook(_DEATH)
        _DEATH.installed = True
    _DEATH.folder, _DEATH.left = str(folder), operations
    try:
        yield
    finally:
        _DEATH.folder = ""


_STABLE = """
import json, os, signal, sys, time
import sklearn.datasets, matplotlib.figure, torch, torch._functorch.vmap
import ganherd.cli.main, ganherd.training.session, ganherd.data.partition
for line in sys.stdin:
    words, log, seconds = json.loads(line)
    child = os.fork()
    if child == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        os.close(0)
        sys.argv = ["ganherd", *words]
        try:
            ganherd.cli.main.main()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        os._exit(99)
    print(child, flush=True)
    if seconds is not None:  # here, where the number of a child that has ended already is still its own
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Stable:
    """Processes of `ganherd` that are forked from one that has imported everything: born in milliseconds, killed for real."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _STABLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )

    def start(self, *words: object, seconds: float | None = None) -> int:
        """The process number of a new command; it is killed after so many seconds."""
        assert self._parent.stdin and self._parent.stdout
        self._parent.stdin.write(json.dumps([[str(word) for word in words], str(self._log), seconds]) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def wait(self) -> tuple[int, str]:
        """How it ended (negative: by that signal), and what it said."""
        assert self._parent.stdout
        return int(self._parent.stdout.readline()), self._log.read_text()

    def close(self) -> None:
        assert self._parent.stdin and self._parent.stdout
        self._parent.stdin.close()
        self._parent.wait(60)
        self._parent.stdout.close()


def environment(**changes: str) -> dict[str, str]:
    """For commands in processes of their own: the package as it is tested here, one thread."""
    source = os.pathsep.join(filter(None, (str(Path(ganherd.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **changes}


def underway(process: subprocess.Popen[str], run: Path, *files: Path) -> None:
    """Waits until that job has saved its run twice, and those files are there."""
    while not run.is_dir() or len(steps(run)) < 2 or not all(file.is_file() for file in files):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def kill_rank(process: subprocess.Popen[str], run: Path, rank: int) -> None:
    """Ends one rank of that job by SIGKILL, when it is under way."""
    beat = run / "ranks" / f"rank-{rank:03}.json"
    underway(process, run, beat)
    os.kill(json.loads(beat.read_text())["pid"], signal.SIGKILL)


def ends_as_the_command(main: Callable[..., None]) -> None:
    """Calls a program's main with its words; mistakes and interruptions end it with a sentence and the code of `ganherd`."""
    try:
        main(*sys.argv[1:])
    except (UserError, Interrupted) as error:
        print(f"ganherd: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 75)
