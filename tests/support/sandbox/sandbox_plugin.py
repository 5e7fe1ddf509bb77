"""Run the tests as a machine would that has never seen ganherd: with an empty home, cache and data folder of their own.

The folders are set up when this module is imported, before torch or matplotlib look for theirs, and are removed after
the session. Processes that tests start inherit them. A test during which a file outside was opened fails.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sandbox_hook

SANDBOX = "GANHERD_SANDBOX"  # set for the workers of a session: the folder is there already
TEST_DATA = "GANHERD_TEST_DATA"  # a folder with real data sets, for the tests that are marked with `data`
CPU_TIMES = "GANHERD_CPU_TIMES"  # the file in which the plug-in `cpu_times` writes
ELSEWHERE = ("MPLCONFIGDIR", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME")


def _make() -> Path:
    """Make the folders and point the environment to them."""
    folder = Path(tempfile.mkdtemp(prefix="ganherd-")).resolve()
    for name in [name for name in os.environ if name.startswith("XDG_") or name in ELSEWHERE]:
        del os.environ[name]
    if site.ENABLE_USER_SITE:  # packages that were installed below the real home folder stay visible
        os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
    for variable, name in (("HOME", "home"), ("TMPDIR", "tmp"), ("GANHERD_DATA", "data"), ("GANHERD_CACHE", "cache")):
        (folder / name).mkdir()
        os.environ[variable] = str(folder / name)
    os.environ["XDG_CACHE_HOME"] = str(folder / "home" / ".cache")
    if real := os.environ.get(TEST_DATA):
        os.environ["GANHERD_DATA"] = str(Path(real).absolute())
    os.environ[SANDBOX] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sandbox_hook.FOLDER, os.environ.get("PYTHONPATH"))))
    tempfile.tempdir = None  # it is cached, and TMPDIR is another now
    return folder


_made = None if SANDBOX in os.environ else _make()


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch; each worker has a log of its own."""
    folder = Path(os.environ[SANDBOX])
    allowed = [config.rootpath, folder, os.environ["GANHERD_DATA"], config.option.basetemp, os.environ.get(CPU_TIMES)]
    os.environ[sandbox_hook.ALLOWED] = os.pathsep.join(str(Path(place).absolute()) for place in allowed if place)
    os.environ[sandbox_hook.LOG] = str(folder / f"outside-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}")
    sys.path.insert(0, sandbox_hook.FOLDER)  # for tests that hand on sys.path as PYTHONPATH
    sandbox_hook.install()


def pytest_unconfigure() -> None:
    if _made is not None:
        shutil.rmtree(_made, ignore_errors=True)


def _fail_if_outside() -> None:
    log = Path(os.environ[sandbox_hook.LOG])
    if log.exists():
        lines = dict.fromkeys(log.read_text().splitlines())
        log.unlink()
        pytest.fail("Opened outside of the clone, the environment and the sandbox:\n" + "\n".join(lines), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield
    _fail_if_outside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield
    _fail_if_outside()
