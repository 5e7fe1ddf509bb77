"""A fixture for benchmarks that start processes."""

from __future__ import annotations

import sys

import pytest
import warm_python


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes that ganherd or torchrun starts from one that has imported PyTorch."""
    monkeypatch.setenv("PYTHON_EXEC", warm_python.python())  # read by torchrun
    monkeypatch.setattr(sys, "executable", warm_python.python())
