"""Measure a user's metric: call its function with what it compares, and check what it returns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
from pydantic import BaseModel, ValidationError

from ganherd.features.material import MetricSkipped, ScoringContext
from ganherd.runs.score_entry import ScoreEntry
from ganherd.util.errors import with_type
from ganherd.util.user_code import must_take

On = Literal["images", "features", "context"]


def measure_by(
    name: str, function: Any, on: On, model: type[BaseModel] | None = None, given: Mapping[str, Any] | None = None
) -> Callable[[ScoringContext], ScoreEntry]:
    """Return the function that measures a user's metric in a scoring context.

    Args:
        function: Takes (real, generated): arrays of images or points in the units of the data, or of features [n, d]; or only the
            context, as ganherd's own metrics do. Returns a number, or a mapping with `value` and further numbers, of which
            `interval` may be (low, high).
        on: What the function takes.
        model: The model of its settings, of which it gets an instance as its last argument; None: it has no settings.
        given: The settings, which `check_model` accepted; None: the defaults.

    Raises:
        UserError: The function does not take that.
    """
    what = f"the metric {name}"
    settings = ("settings",) if model else ()
    must_take(what, function, *(("context",) if on == "context" else ("real", "generated")), *settings)

    def measure(context: ScoringContext) -> ScoreEntry:
        arguments, facts = _compared(context, on)
        if model is not None:
            arguments += (_settings(name, model, given),)
            facts["settings"] = arguments[-1].model_dump(mode="json")
        try:
            answer = function(*arguments)
        except MetricSkipped:
            raise
        except Exception as error:  # whatever a user's function raises: other metrics are measured nevertheless
            raise MetricSkipped(f"its function failed ({with_type(error)})") from error
        return cast(ScoreEntry, {**facts, **_checked(answer)})

    return measure


def _settings(name: str, model: type[BaseModel], given: Mapping[str, Any] | None) -> BaseModel:
    """Return the given settings as an instance of their model; a `MetricSkipped` names a required one that is missing."""
    try:
        return model.model_validate(dict(given or {}))
    except ValidationError as error:  # a setting without a default
        key = error.errors()[0]["loc"][0]
        raise MetricSkipped(f"it needs its setting {key}: write {name}({key}=…)") from None


def _compared(context: ScoringContext, on: On) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the user's function, and the fields of scores.json that describe them.

    Args:
        on: What the function takes: "images" or "features", real and generated ones, or the whole context.
    """
    data = context.dataset
    if on == "images":
        facts = {"samples": len(context.drawn.x), "network": "pixels" if data.is_image else "coordinates"}
        return (_read_only(data.x), _read_only(context.drawn.x)), {**facts, "real_samples": len(data.x)}
    if on == "features":
        real, generated = context.reference.real, context.features
        described = cast(dict[str, Any], context.reference.described(generated))
        return (_read_only(real.x.cpu().numpy()), _read_only(generated.x.cpu().numpy())), described
    return (context,), {"samples": context.samples, "network": ""}


def _read_only(x: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written to: other metrics read the same array."""
    view = x.view()
    view.flags.writeable = False
    return view


def _checked(answer: Any) -> dict[str, Any]:
    """Return the entry of scores.json for what a user's function returned.

    Raises:
        MetricSkipped: It is no finite number, or has values that JSON cannot hold.
    """
    entry = dict(answer) if isinstance(answer, Mapping) else {"value": answer}
    try:
        entry["value"] = float(entry["value"])
    except (KeyError, TypeError, ValueError):
        raise MetricSkipped("its function must return a number, or a mapping in which `value` is a number") from None
    if not math.isfinite(entry["value"]):
        raise MetricSkipped(f"its function returned {entry['value']}, which is not finite")
    if isinstance(interval := entry.get("interval"), tuple | list):
        entry["interval"] = {**_bounds(interval), "level": 0.95, "how": "given by the metric"}
    try:
        json.dumps(entry)
    except (TypeError, ValueError):
        raise MetricSkipped(
            "its function returned values other than numbers and text, which scores.json cannot hold"
        ) from None
    return entry


def _bounds(interval: Sequence[Any]) -> dict[str, float]:
    """Return the ends of an interval (low, high) that a user's function returned, as `low` and `high`."""
    try:
        low, high = map(float, interval)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not low <= high:
        raise MetricSkipped(f"its function returned the interval {interval!r}: give (low, high)")
    return {"low": low, "high": high}
