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
from ganherd.util.paths import RUNS


def launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a name of the torchrun that started this process, the same after each restart of its ranks.

    None if this process was not started by torchrun.

    >>> launcher({"TORCHELASTIC_RUN_ID": "7c0f"}), launcher({})
    ('torchrun 7c0f', None)
    """
    name = environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return None
    return f"torchrun {name if name not in ('', 'none') else f'{os.getppid()} on {platform.node()}'}"


def restarts(environ: Mapping[str, str]) -> int:
    """Return how often torchrun has restarted the ranks of this process's job."""
    return int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def reached(folder: RunFolder) -> int | None:
    """Return the step that the ranks had reached before torchrun restarted them; None if they were not restarted.

    The step comes from the ranks' last heartbeats. The first rank calls this, before the restarted ranks write new ones.
    """
    if not restarts(os.environ):
        return None
    with suppress(UserError):
        return max([0, *(beat.step for beat in heartbeat.read(folder.path / "ranks"))])
    return 0


def begun(run: Path | None, environ: Mapping[str, str], two_phases: bool = False) -> Path | None:
    """Return the unfinished run that this torchrun had started before it restarted the ranks; None if there is none.

    Called by the first rank.

    Args:
        run: The run folder that the command names; None: it names none, and all runs below `runs` are searched.
        two_phases: Whether the recipe has a first phase. While the first phase is trained, the run itself has no folder
            yet.
    """
    if not restarts(environ):
        return None
    if run is not None:
        return run if (run / "run.json").is_file() else None
    for path in sorted(RUNS.glob("*/run.json"), reverse=True):
        with suppress(UserError):
            folder = RunFolder(path.parent)
            if folder.info.launcher != launcher(environ):
                continue
            if two_phases and (whole := folder.second) is not None:
                if not whole.info_path.is_file():
                    return whole.path
            elif folder.info.state != "finished":
                return folder.path
    return None
