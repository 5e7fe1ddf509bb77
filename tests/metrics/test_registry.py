"""The registry of metrics: every entry can be measured, and says which values are better."""

from __future__ import annotations

import pytest
import torch

from ganherd.features.material import MetricSkipped
from ganherd.metrics.metric_registry import METRICS, metric_of
from ganherd.recipe import mixture_scores


@pytest.mark.parametrize("name", METRICS)
def test_the_function_of_every_metric_is_there(name: str) -> None:
    with pytest.raises((AttributeError, MetricSkipped)):  # raised by the function itself: this is no context
        METRICS[name].measure(object())  # type: ignore[arg-type]


def test_searches_for_mixtures_agree_with_the_registry_on_what_is_better() -> None:
    for goal, names in mixture_scores.GOALS.items():
        assert {METRICS[{"tvd": "histogram"}.get(name, name)].goal for name in names} == {goal}
        assert {metric_of(name).goal for name in names} == {goal}


@pytest.mark.parametrize(
    ("name", "worse", "better"),
    [("fid", 3.0, 2.0), ("tvd", 0.3, 0.2), ("my:own", 3.0, -2.0), ("coverage", 0.2, 0.3), ("density", 1.5, 0.8)],
)
def test_the_cost_of_a_better_value_is_less_and_that_of_the_worst_infinite(
    name: str, worse: float, better: float
) -> None:
    metric = metric_of(name)
    assert metric.cost(better) < metric.cost(worse) < metric.cost(metric.worst) == float("inf")
    assert torch.equal(metric.cost(torch.tensor([worse])), torch.tensor([metric.cost(worse)]))


def test_a_search_by_density_costs_the_distance_from_1() -> None:
    assert metric_of("density").cost(torch.tensor([0.5, 1.0, 1.5])).tolist() == [0.5, 0.0, 0.5]
