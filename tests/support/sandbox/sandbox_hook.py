"""Log every file that a test process opens outside of the clone, the environment, the sandbox and a few system paths.

Nothing is refused here: code under test may swallow an exception. `sandbox_plugin` reads the log and fails the test.
Processes that a test starts install the same hook: `sitecustomize.py` is found by PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ALLOWED = "GANHERD_SANDBOX_ALLOWED"  # the clone, the sandbox and what else a session may open
LOG = "GANHERD_SANDBOX_LOG"  # the file to which each process adds its lines
FOLDER = str(Path(__file__).resolve().parent)  # has to be in the PYTHONPATH of every process

SYSTEM = ("/dev", "/etc", "/lib", "/lib64", "/proc", "/sys", "/usr")
# this Python and the packages that are installed for it: below it, or elsewhere by a .pth file
ENVIRONMENT = (sys.prefix, sys.base_prefix, sys.exec_prefix, *(p for p in sys.path if p and p != os.getcwd()))

_roots: dict[str, tuple[str, ...]] = {}  # by the value of ALLOWED
_folders: dict[str, str] = {}  # folders with their links followed: most files share a few folders
_is_installed = False


def install() -> None:
    """Watch what this process opens, and which environment it gives to other processes."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)) and LOG in os.environ:
        path = _real(os.fsdecode(arguments[0]))
        if not (path + os.sep).startswith(_allowed()):
            _add(path)
    elif event == "subprocess.Popen" and LOG in os.environ and not _is_watched(arguments[3]):
        _add(f"a process without this hook, since its environment is not that of the test: {arguments[1]}")


def _real(path: str) -> str:
    if not path.startswith(os.sep) or "/." in path or "//" in path:
        path = os.path.abspath(path)
    folder, _, name = path.rpartition(os.sep)
    if folder not in _folders:
        _folders[folder] = os.path.realpath(folder or os.sep).rstrip(os.sep)
    path = f"{_folders[folder]}{os.sep}{name}"
    return os.path.realpath(path) if os.path.islink(path) else path


def _allowed() -> tuple[str, ...]:
    """Return the folders in which files may be opened, each with a separator at its end."""
    text = os.environ.get(ALLOWED, "")
    if text not in _roots:
        places = {os.path.realpath(p) for p in (*text.split(os.pathsep), *ENVIRONMENT, *SYSTEM) if p}
        _roots[text] = tuple(place.rstrip(os.sep) + os.sep for place in places)
    return _roots[text]


def _is_watched(environ: Any) -> bool:
    """Whether a new process will install this hook; None: it gets the environment of this one."""
    given = {os.fsdecode(key): os.fsdecode(value) for key, value in dict(environ or os.environ).items()}
    return LOG in given and FOLDER in given.get("PYTHONPATH", "").split(os.pathsep)


def _add(what: str) -> None:
    line = f"{os.environ.get('PYTEST_CURRENT_TEST', 'collection')}: {what!r}\n"
    log = os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(log, line.encode(errors="backslashreplace"))
    finally:
        os.close(log)
