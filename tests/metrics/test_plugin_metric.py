"""A metric of the user's gets the settings that it names, harms no other score, and its answer is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import Field
from score_fixtures import FakeDataset, replay

from ganherd import register
from ganherd.metrics.metric_registry import known_metrics
from ganherd.recipe.plugins.named_entry import read_metric
from ganherd.scoring import score
from ganherd.util.errors import UserError
from ganherd.util.registry import METRICS


class PowerSettings(register.Settings):
    power: int = Field(2, ge=1)


@pytest.fixture
def power() -> Iterator[None]:
    register.metric("power", direction="lower", settings=PowerSettings)(lambda real, made, settings: settings.power)
    yield
    METRICS.unregister("power")


def test_a_metric_keeps_its_settings_after_it_was_measured_with_defaults(power: None, ring: FakeDataset) -> None:
    names = known_metrics(None, more=[read_metric("power"), read_metric("power(power=3)")])[-2:]
    assert names == ["power", "power(power=3)"]
    scores = score(replay(ring), ring, [*names, "power(power=4)"], samples=20)
    assert {name: entry["value"] for name, entry in scores.items()} == {
        "power": 2.0,
        "power(power=3)": 3.0,
        "power(power=4)": 4.0,
    }


def answers(value: Any, ring: FakeDataset) -> str:
    """Return why a metric with this answer was left out."""
    function = value if callable(value) else lambda real, generated: value
    register.metric("odd", direction="lower")(function)
    try:
        scores = score(replay(ring), ring, ["odd", "modes"], samples=20)
    finally:
        METRICS.unregister("odd")
    assert "value" in scores["modes"]
    return str(scores["skipped"]["odd"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("high", "must return a number"),
        ({"value": 1.0, "interval": (2.0,)}, "give (low, high)"),
        ({"value": 1.0, "interval": (2.0, 1.0)}, "give (low, high)"),
        ({"value": 1.0, "interval": ("a", "b")}, "give (low, high)"),
        ({"value": 1.0, "raw": np.zeros(3)}, "scores.json"),
    ],
)
def test_an_answer_that_cannot_be_recorded_leaves_the_metric_out(value: Any, reason: str, ring: FakeDataset) -> None:
    assert reason in answers(value, ring)


def test_a_metric_cannot_write_to_the_arrays_that_others_read(ring: FakeDataset) -> None:
    before = ring.x.copy()
    assert "read-only" in answers(lambda real, generated: real.fill(0), ring)
    assert "read-only" in answers(lambda real, generated: generated.fill(0), ring)
    np.testing.assert_array_equal(ring.x, before)


def test_a_metric_is_named_by_text() -> None:
    with pytest.raises(UserError, match="named by text"):
        known_metrics(["fid", 3])  # type: ignore[list-item]
