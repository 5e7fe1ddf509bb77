"""A mistake in a user's strategy ends the training with a sentence that names the method, and never hangs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ganherd
from ganherd import register
from ganherd.strategies.strategy import Event, Strategy
from ganherd.util.errors import UserError
from ganherd.util.registry import STRATEGIES


class Every(Strategy):
    """Members meet after every second step."""

    def next_after(self, step: int) -> int | None:
        return step // 2 * 2 + 2

    def open(self, step: int) -> Iterator[Event]:
        yield "meet", {"step": step}


class WithoutState(Every):
    def __init__(self) -> None:
        pass


def raising(*arguments: Any) -> Any:
    raise KeyError("weights")


def yielding(event: Any) -> Callable[..., Any]:
    def open_meeting(self: Strategy, step: int) -> Iterator[Any]:
        yield event

    return open_meeting


def train(strategy: type[Strategy], folder: Path) -> ganherd.Run:
    register.strategy("every")(strategy)
    try:
        return ganherd.train(
            "digits-wcgan", budget=4, run=folder, quiet=True, finishers=(),
            strategy={"name": "every"}, data={"partition": "all"}, herd={"members": 2}, train={"batch": 4},
        )  # fmt: skip
    finally:
        STRATEGIES.unregister("every")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"build": classmethod(raising)}, r"failed in build \(KeyError"),
        ({"build": classmethod(lambda cls, prepared, spans: None)}, "must return a Strategy"),
        ({"next_after": raising}, r"failed in next_after at step 0 \(KeyError"),
        ({"next_after": lambda self, step: step}, "returned 0 for step 0: return a later step"),
        ({"next_after": lambda self, step: step - 1}, "return a later step"),
        ({"next_after": lambda self, step: "2"}, "return a later step"),
        ({"open": raising}, r"failed in open at step 0 \(KeyError"),
        ({"open": yielding("meet")}, "yields 'meet'"),
        ({"open": yielding(("meet", {"at": object()}))}, "a mapping of numbers and text"),
        ({"close": raising}, "failed in close at step 2"),
        ({"metrics": lambda self: 3}, "must return a mapping of numbers"),
    ],
)
def test_a_mistake_in_a_method_is_reported_in_a_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        train(type("Wrong", (Every,), changes), tmp_path / "run")
    assert "the strategy every" in str(caught.value)


def test_a_constructor_that_skips_the_base_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="call super"):
        train(WithoutState, tmp_path / "run")


def test_open_may_yield_nothing(tmp_path: Path) -> None:
    run = train(type("Silent", (Every,), {"open": lambda self, step: None}), tmp_path / "run")
    assert run.status().state == "finished"


def test_a_run_continues_after_a_mistake_is_corrected(tmp_path: Path) -> None:
    def fails_later(self: Strategy, step: int) -> Iterator[Event]:
        if step:
            raise ValueError("not yet")
        yield "meet", {}

    with pytest.raises(UserError, match="failed in open at step 2"):
        train(type("Fails", (Every,), {"open": fails_later}), tmp_path / "run")
    register.strategy("every")(Every)
    try:
        run = ganherd.Run(tmp_path / "run", trust_code=True).resume(quiet=True, finishers=())
    finally:
        STRATEGIES.unregister("every")
    events = [event["event"] for event in run.events()]
    assert events.count("meet") == 2 and events[-1] == "finish"


def test_a_strategy_that_never_meets_is_refused() -> None:
    opens_only = type("OpensOnly", (Strategy,), {"open": Every.open})
    with pytest.raises(UserError, match="no next_after"):
        register.strategy("every")(opens_only)


def test_the_next_meeting_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    class Numbered(Every):
        def next_after(self, step: int) -> Any:
            return np.int64(step // 2 * 2 + 2)

    run = train(Numbered, tmp_path / "run")
    assert [event["step"] for event in run.events() if event["event"] == "meet"] == [0, 2]
