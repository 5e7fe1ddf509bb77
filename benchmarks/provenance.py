"""Where the rows of a benchmark come from: the command, the commit and the date, which every file of results has."""

from __future__ import annotations

import platform
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


def machine() -> str:
    """Return the name of the GPU, or of the processor's architecture if there is none, and PyTorch's version."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return f"{name}, PyTorch {torch.__version__}"


def provenance() -> dict[str, str]:
    """Return the command that was given, the commit and the date."""
    command = f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip()
    return {"command": command, "commit": commit(), "date": datetime.now(UTC).date().isoformat()}
