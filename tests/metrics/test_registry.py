"""The registry of metrics: every entry can be measured, and says which values are better."""

from __future__ import annotations

import pytest

from ganherd.features.material import MetricSkipped
from ganherd.metrics.metric_registry import METRICS
from ganherd.recipe import mixture_scores


@pytest.mark.parametrize("name", METRICS)
def test_the_function_of_every_metric_is_there(name: str) -> None:
    with pytest.raises((AttributeError, MetricSkipped)):  # raised by the function itself: this is no context
        METRICS[name].measure(object())  # type: ignore[arg-type]


def test_searches_for_mixtures_agree_with_the_registry_on_what_is_better() -> None:
    """Except for density: a search takes more of it, though 1 is best, because mixtures of few generators stay below 1."""
    names = {name: {"tvd": "histogram"}.get(name, name) for name in mixture_scores.BY}
    better = {name: "higher" if mixture_scores.more_is_better(name) else "lower" for name in names}
    assert {name: METRICS[metric].direction for name, metric in names.items()} == better | {"density": "nearest"}
