"""`ganherd`, called as people do."""

from __future__ import annotations

import subprocess
import sys


def command(*words: object) -> str:
    """What it prints; where it fails, the benchmark ends with what it said."""
    done = subprocess.run([sys.executable, "-m", "ganherd", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ganherd {' '.join(map(str, words))}\n{done.stderr.strip()}")
    return done.stdout
