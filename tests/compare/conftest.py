"""Fixtures of comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from recipes import tiny_recipe


@pytest.fixture
def two(data) -> tuple[str, str]:
    """Two recipes; the second one's critic sees twice as many images in a step."""
    quick = {"watch": {"every": 0}, "checkpoint_every": 0}
    Path("a.yaml").write_text(yaml.safe_dump(tiny_recipe(data, run=quick)))
    Path("b.yaml").write_text(yaml.safe_dump(tiny_recipe(data, run=quick, train={"n_critic": 2})))
    return "a.yaml", "b.yaml"


@pytest.fixture(autouse=True)
def plain_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training ends with its mixture, without scores and report of its own: these have tests elsewhere."""
    monkeypatch.setattr("ganherd.api.FINISHERS", ())
