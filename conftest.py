"""What tests and examples in docstrings share: a sandbox, and for each of the latter an empty folder to run in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["sandbox_plugin"]  # first of all: it sets up the home, cache and data folder of the tests


@pytest.fixture(autouse=True)
def _elsewhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        folder: Path = tmp_path_factory.mktemp("example")
        monkeypatch.chdir(folder)
