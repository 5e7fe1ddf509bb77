"""A server that shows runs, and a browser that opens its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page_server
import pytest
from page_fixtures import browser, visit

__all__ = ["browser", "visit"]


@pytest.fixture(scope="package")
def page(shown_runs: Path) -> Iterator[page_server.PageServer]:
    """Return a server that shows `shown_runs`."""
    with page_server.serving([shown_runs]) as server:
        yield server
