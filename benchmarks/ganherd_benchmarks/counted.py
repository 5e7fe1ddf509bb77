"""`python -m ganherd_benchmarks.counted FOLDER train …`: run a command and count CPU time, files and messages."""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path, words: list[str]) -> None:
    """Run the command and write FOLDER/counted-PID.json; files are those below FOLDER that Python opens to read."""
    opened: set[str] = set()
    below = str(folder.resolve())

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(values[0], str) and not str(values[1]).startswith(("w", "a", "x")):
            path = os.path.abspath(values[0])
            if path.startswith(below):
                opened.add(path)

    sys.addaudithook(hook)
    counts = _count_messages()
    sys.argv, code = ["ganherd", *words], 0
    try:
        runpy.run_module("ganherd", run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    facts = {
        "cpu_seconds": time.process_time(),
        "messages": counts["messages"],
        "read_bytes": _read_bytes(),
        "files": sorted(path for path in opened if os.path.isfile(path)),
        "code": code,
    }
    (folder / f"counted-{os.getpid()}.json").write_text(json.dumps(facts), encoding="utf-8")
    raise SystemExit(code)


def _count_messages() -> dict[str, int]:
    """Count every call of a communicator in which this rank waits for others."""
    from ganherd.comm.communicator import Communicator

    counts, waiting = {"messages": 0}, Communicator._waiting

    def counted(self: Communicator) -> Any:
        counts["messages"] += 1
        return waiting(self)

    Communicator._waiting = counted  # type: ignore[method-assign]
    return counts


def _read_bytes() -> int:
    """Return the bytes that this process has read; 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines).get("rchar", 0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
