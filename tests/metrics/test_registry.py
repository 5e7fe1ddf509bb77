"""The registry of metrics: every entry can be measured, and says which values are better."""

from __future__ import annotations

import pytest

from ganherd.features.material import MetricSkipped
from ganherd.metrics.registry import METRICS


@pytest.mark.parametrize("name", METRICS)
def test_the_function_of_every_metric_is_there(name: str) -> None:
    with pytest.raises((AttributeError, MetricSkipped)):  # raised by the function itself: this is no context
        METRICS[name].measure(object())  # type: ignore[arg-type]
