"""A server that shows runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page_server
import pytest


@pytest.fixture(scope="package")
def page(shown_runs: Path) -> Iterator[page_server.PageServer]:
    """Return a server that shows `shown_runs`."""
    with page_server.serving([shown_runs]) as server:
        yield server
