"""Make the film of README.md: `python docs/film.py`. Trains the default in a temporary folder and writes docs/images/herd.gif."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FILM = Path(__file__).resolve().parent / "images" / "herd.gif"


def main() -> None:
    ganherd = str(Path(sys.executable).with_name("ganherd"))
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "digits")
        subprocess.run([ganherd, "train", "--run", run, "--quiet"], check=True, capture_output=True)
        subprocess.run([ganherd, "film", run, "-o", str(FILM)], check=True)


if __name__ == "__main__":
    main()
