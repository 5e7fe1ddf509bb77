"""Run `ganherd` on the command line."""

from __future__ import annotations

import subprocess
import sys


def command(*words: object) -> str:
    """Run a command and return what it prints; if it fails, exit with its message."""
    done = subprocess.run([sys.executable, "-m", "ganherd", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ganherd {' '.join(map(str, words))}\n{done.stderr.strip()}")
    return done.stdout
