"""What all tests share: repeatable examples, and a reason if a test cannot run on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

if hasattr(signal, "SIGHUP"):  # a launcher such as nohup, or a shell that starts a job in the background, ignores these
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("ganherd", deadline=None, derandomize=True)  # no test waits on the clock or on luck
settings.load_profile("ganherd")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that lacks a device, MPI or data. Looked for only now, so that collecting imports no torch."""
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    if item.get_closest_marker("mpi"):
        beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        if importlib.util.find_spec("mpi4py") is None or shutil.which("mpiexec", path=beside) is None:
            pytest.skip("no MPI (make test installs one)")
    for marker in item.iter_markers("data"):
        from ganherd.data.readers.named import find
        from ganherd.util.paths import data_home
        from ganherd.util.registry import DATA_SOURCES

        for name in marker.args:
            there = find(name) if name in DATA_SOURCES else (data_home() / name).exists()
            if not there:
                pytest.skip(f"needs the data {name}: set GANHERD_TEST_DATA to a folder that holds it")
