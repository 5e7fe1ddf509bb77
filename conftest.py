"""What tests and doctests share: one thread, a sandbox, fixtures of runs, and an empty folder for each doctest."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

# Before NumPy or torch is imported: results must not depend on the number of cores, and processes inherit the variables.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported

# The sandbox comes first: it sets up the home, cache and data folder of the tests.
pytest_plugins = ["sandbox_plugin", "run_fixtures", "further_tests"]


gc.disable()  # until all tests are collected: what the imports make stays


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what the imports have made, and run rarely: it takes 3 to 7 % of a training."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _empty_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        import tiny_runs

        tiny_runs.shorten_classifiers(monkeypatch)  # examples print no scores
        folder: Path = tmp_path_factory.mktemp("example")
        monkeypatch.chdir(folder)
