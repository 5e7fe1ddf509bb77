"""Measure the CPU time of each test, child processes included: `pytest -p cpu_times`.

Writes one JSON line per test to the file named by GANHERD_CPU_TIMES (default: cpu_times.jsonl in the current folder) as
soon as the test has ended, and prints the most expensive files at the end. The time of a fixture counts for the first
test that uses it. Processes that outlive a test, such as the server of `warm_python` with the programs that it has run,
are read from /proc; without it they count when they end. Run `python tests/support/cpu_times.py FILE` to print the table
of an earlier run.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FILE = "GANHERD_CPU_TIMES"
NUM_FILES = 40  # listed in the summary


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _running(os.getpid())


def _running(process: int | str) -> float:
    """Return the CPU seconds of all running descendants of a process, and of their children that have ended."""
    seconds = 0.0
    for list_of_children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            for child in list_of_children.read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + _running(child)
    return seconds


def _path() -> Path:
    return Path(os.environ.get(FILE, "cpu_times.jsonl"))


def pytest_configure(config: pytest.Config) -> None:
    """Start an empty file; workers of xdist append to the file of their parent."""
    os.environ[FILE] = str(_path().absolute())
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _path().write_text("")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure setup, call and teardown of a test together."""
    before = _cpu_seconds()
    result = yield
    line = {"test": item.nodeid, "cpu": round(_cpu_seconds() - before, 3)}
    with _path().open("a") as file:
        file.write(json.dumps(line) + "\n")
    return result


def table(path: Path, num_files: int = NUM_FILES) -> str:
    """Return the files with the highest CPU times, one line each with its most expensive test."""
    files: Counter[str] = Counter()
    worst: dict[str, tuple[float, str]] = {}
    for line in path.read_text().splitlines():
        test, cpu = json.loads(line)["test"], json.loads(line)["cpu"]
        file, _, name = test.partition("::")
        files[file] += cpu
        worst[file] = max(worst.get(file, (0.0, "")), (cpu, name))
    rows = [f"{sum(files.values()):8.1f} s  in {len(files)} files"]
    for file, cpu in files.most_common(num_files):
        rows.append(f"{cpu:8.1f} s  {file}  ({worst[file][0]:.1f} s: {worst[file][1]})")
    return "\n".join(rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table when all tests have ended."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        terminalreporter.section("CPU time by file, child processes included")
        terminalreporter.write_line(table(_path()))


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), 1000))
