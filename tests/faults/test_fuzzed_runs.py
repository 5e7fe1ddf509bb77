"""Run folders in which one field was changed, by type, size or sign: no command fails with a traceback, hangs, or writes
anything outside of the run and its output."""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import matplotlib
import pytest
import yaml
from further_tests import EACH_VALUE
from recipes import tiny_recipe
from run_fixtures import Answer

import ganherd
from faults import fuzzing

CPU = 120.0  # seconds that a command may compute …
WALL = 600.0  # … and wait, on a machine that is busy with other things
MEMORY = 8 << 30  # bytes that it may reserve
PER_TEST = 50
LONG = 10_000  # cases of each kind of run in `make test-long`
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {
    "os.rename": 1,
    "os.remove": 0,
    "os.mkdir": 0,
    "os.rmdir": 0,
    "os.symlink": 1,
    "os.link": 1,
    "os.truncate": 0,
}


class Writes:
    """An audit hook that notes what is written outside of some folders."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.seen: list[str] = []
        self.installed = False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.allowed:
            return
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITING:
            self.note(args[0])
        elif event in _CHANGES:
            self.note(args[_CHANGES[event]])

    def note(self, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            where = os.path.abspath(os.fsdecode(path))
            if not where.startswith(self.allowed) and "__pycache__" not in where:
                self.seen.append(where)


WRITES = Writes()


class TooLong(BaseException):
    """A command that does not end; nothing may catch it."""


@contextmanager
def confined(*folders: Path) -> Iterator[None]:
    """The command may write to these folders only, and has limits of time and memory."""
    if not WRITES.installed:
        sys.addaudithook(WRITES)
        WRITES.installed = True
    fonts = (matplotlib.get_configdir(), matplotlib.get_cachedir())  # matplotlib's own, wherever it is first used
    WRITES.allowed, WRITES.seen = (*map(str, folders), *fonts, "/dev/null", "/proc/self", "/dev/shm"), []

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = {number: signal.signal(number, end) for number in (signal.SIGPROF, signal.SIGALRM)}
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU)
    signal.setitimer(signal.ITIMER_REAL, WALL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in before.items():
            signal.signal(number, handler)
        WRITES.allowed = ()
    assert not WRITES.seen, f"written outside: {WRITES.seen[:3]}"


STRATEGIES: dict[str, dict[str, Any]] = {
    "independent": {},
    "cellular": {
        "data": {"partition": "all"},
        "strategy": {
            "name": "cellular",
            "cellular": {"grid": [2, 2], "iteration": "3steps", "fitness": {"samples": 8}, "mixing": {"samples": 16}},
        },
    },
    "gap": {
        "data": {"partition": "all"},
        "herd": {"members": 2},
        "strategy": {"name": "gap", "gap": {"every": "2steps"}},
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], Path]:
    """An honest run of each strategy, with all files that a run can have."""
    folder = tmp_path_factory.mktemp("honest")

    def trained(strategy: str) -> Path:
        path = folder / strategy
        if not path.exists():
            sections = {**STRATEGIES[strategy], "run": {"scores": strategy == "independent", "validation": 8}}
            ganherd.train(tiny_recipe(data, **sections), run=path, quiet=True)
        return path

    return trained


@cache
def own_recipe(honest: Path) -> str:
    """Return a recipe that starts from the spoilt copy of a run."""
    recipe = yaml.safe_load((honest / "recipe.yaml").read_text())
    own = {section: recipe[section] for section in ("data", "train", "strategy", "engine")}
    return yaml.safe_dump(own | {"herd": {"start_from": "spoilt"}, "run": {"scores": False}})


def judged(cli: Callable[..., Answer], honest: Path, case: fuzzing.Case, cache: Path) -> Answer:
    """What a command says of a spoilt copy; the folders are new for each."""
    here = Path.cwd()
    for left in here.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    run = shutil.copytree(honest, here / "spoilt")
    (here / "own.yaml").write_text(own_recipe(honest))
    fuzzing.spoil(run, case)
    with confined(here, cache):
        answer = cli(*("spoilt" if word == "RUN" else word for word in case.command))
    assert answer.code in (0, 1, 2, 75), answer
    assert "Traceback" not in answer.err
    assert not answer.code or answer.err.strip(), "it failed without a word"
    assert not any(ord(c) < 32 and c not in "\n\t" for c in answer.out + answer.err), "a control character was printed"
    return answer


def fuzz(cli: Callable[..., Answer], honest: Path, start: int, stop: int) -> None:
    cache = Path(os.environ["GANHERD_CACHE"])
    wrong = []
    for case in fuzzing.cases(honest, start, stop):
        try:
            judged(cli, honest, case, cache)
        except (Exception, TooLong) as error:
            wrong.append(f"{case}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join([f"{len(wrong)} of {stop - start}:", *wrong[:40]])


@pytest.mark.further(but=EACH_VALUE)
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("strategy", ["independent", "cellular"])
def test_a_spoilt_run_is_one_sentence(
    cli: Callable[..., Answer],
    runs: Callable[[str], Path],
    strategy: str,
    part: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trainings make no products here: the commands that make them from spoilt files are among the cases too."""
    honest = runs(strategy)
    monkeypatch.setattr("ganherd.api.FINISHERS", ())
    fuzz(cli, honest, PER_TEST * part, PER_TEST * (part + 1))


FOUND = [  # cases that the long test found: strategy, file, field, value and command
    ("independent", "state.json", ("names",), [], "start_from"),
    ("independent", "metrics.jsonl", (1, "cost_held_out", 0), -math.inf, "figures"),
    ("cellular", "run.json", ("meetings",), fuzzing.GONE, "resume"),
    ("gap", "run.json", ("meetings",), fuzzing.GONE, "resume"),
]


@pytest.mark.parametrize(("strategy", "name", "field", "value", "command"), FOUND)
def test_a_spoilt_run_that_was_a_traceback_once_is_one_sentence(
    cli: Callable[..., Answer],
    runs: Callable[[str], Path],
    strategy: str,
    name: str,
    field: tuple[Any, ...],
    value: Any,
    command: str,
) -> None:
    honest = runs(strategy)
    case = fuzzing.Case(fuzzing.files_of(honest)[name], field, value, fuzzing.COMMANDS[command])
    answer = judged(cli, honest, case, Path(os.environ["GANHERD_CACHE"]))
    assert answer.code == (0 if command == "figures" else 2), answer


@pytest.mark.long
@pytest.mark.parametrize("part", range(LONG // 1000))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tens_of_thousands_of_spoilt_runs_are_one_sentence_each(
    cli: Callable[..., Answer], runs: Callable[[str], Path], strategy: str, part: int
) -> None:
    first = 2 * PER_TEST + 1000 * part
    fuzz(cli, runs(strategy), first, first + 1000)
