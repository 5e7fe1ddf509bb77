"""Where the rows of a benchmark come from: the command, the commit and the date, which every file of results has."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path


def commit() -> str:
    """Return the commit of the checkout; empty outside of one, or without git."""
    words = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def provenance() -> dict[str, str]:
    """Return the command that was given, the commit and the date."""
    command = f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip()
    return {"command": command, "commit": commit(), "date": datetime.now(UTC).date().isoformat()}
