"""Find the run to continue, and its last step, when torchrun restarts all ranks after the loss of one."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ganherd.comm import heartbeat
from ganherd.runs.folder import RunFolder
from ganherd.util.errors import UserError


def launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """What torchrun's restarts have in common: the name of its job, or else its process; None: it is not torchrun's.

    >>> launcher({"TORCHELASTIC_RUN_ID": "7c0f"}), launcher({})
    ('torchrun 7c0f', None)
    """
    name = environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return None
    return f"torchrun {name if name not in ('', 'none') else f'{os.getppid()} on {platform.node()}'}"


def restarts(environ: Mapping[str, str]) -> int:
    """Return how often torchrun has restarted the group of this process."""
    return int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def reached(folder: RunFolder) -> int | None:
    """The step to which ranks had come that torchrun has started again, by their last signs of life; else none.

    Asked by the first rank, before any rank of now gives one.
    """
    if not restarts(os.environ):
        return None
    with suppress(UserError):
        return max([0, *(beat.step for beat in heartbeat.read(folder.path / "ranks"))])
    return 0


def begun(run: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The run that an earlier attempt of this torchrun began, and that is to be gone on with; asked by the first rank."""
    if not restarts(environ):
        return None
    if run is not None:
        return run if (run / "run.json").is_file() else None
    for path in sorted(Path("runs").glob("*/run.json"), reverse=True):
        with suppress(UserError):
            info = RunFolder(path.parent).info
            if info.launcher == launcher(environ) and info.state != "finished":
                return path.parent
    return None
