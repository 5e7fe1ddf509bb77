"""Guard a user's strategy: report errors in its methods, and wrong return values, by the name of the method."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ganherd.comm.communicator import RankLost
from ganherd.strategies.strategy import Event, Strategy
from ganherd.util.errors import Interrupted, RunFailed, UserError, with_type
from ganherd.util.memory import is_out_of_memory

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd

_EVENTS = ("open", "close", "end_unsynced")  # methods that yield events


def build_user_strategy(name: str, own: type[Strategy], prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
    """Build a user's strategy, and replace every method that it overrides by one that reports errors.

    Args:
        name: The name in the recipe, for messages.
        own: The class of the strategy.
        prepared: The herd, with its recipe, data and ranks.
        spans: The lengths of time in the settings in steps, by name.

    Raises:
        UserError: `build` fails, or does not return a strategy.
    """
    with reported_errors(name, "build"):
        strategy = own.build(prepared, spans)
    if not isinstance(strategy, Strategy):
        raise UserError(f"build of the strategy {name} must return a Strategy, and it returned {strategy!r}.")
    if not isinstance(getattr(strategy, "state", None), dict):
        raise UserError(f"the strategy {name} has no state: call super().__init__() in its constructor.")
    for method, base in vars(Strategy).items():
        if callable(base) and not method.startswith("_") and getattr(type(strategy), method) is not base:
            guard = _guarded_events if method in _EVENTS else _guarded
            setattr(strategy, method, guard(name, method, getattr(strategy, method)))
    return strategy


@contextmanager
def reported_errors(name: str, method: str, *arguments: Any) -> Iterator[None]:
    """Turn exceptions of a user's strategy into a `UserError` that names the method and its step.

    Exceptions that ganherd handles itself (an interrupt, a lost rank, memory that ran out) are raised unchanged.

    Args:
        name: The name of the strategy.
        method: The name of the method that is called.
        arguments: Its arguments, of which the first may be a step.
    """
    try:
        yield
    except (UserError, Interrupted, RunFailed, RankLost):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        at = f" at step {arguments[0]:,}" if arguments and isinstance(arguments[0], int) else ""
        raise UserError(
            f"the strategy {name} failed in {method}{at} ({with_type(error)}): correct it; a run that has begun can be resumed."
        ) from error


def _guarded(name: str, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as a method that reports its errors and checks the results of `next_after` and `metrics`."""

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        with reported_errors(name, method, *arguments):
            answer = function(*arguments, **settings)
        if method == "next_after" and answer is not None:
            if not _is_later(answer, arguments[0]):
                raise UserError(
                    f"next_after of the strategy {name} returned {answer!r} for step {arguments[0]}: return a later step, or None."
                )
            return int(answer)
        if method == "metrics" and not _is_json(answer):
            raise UserError(f"metrics of the strategy {name} must return a mapping of numbers, not {answer!r}.")
        return answer

    return call


def _guarded_events(name: str, method: str, function: Callable[..., Any]) -> Callable[..., Iterator[Event]]:
    """Return `function` as a method that reports its errors and checks each event that it yields."""

    @functools.wraps(function)
    def call(*arguments: Any, **settings: Any) -> Iterator[Event]:
        with reported_errors(name, method, *arguments):
            for event in function(*arguments, **settings) or ():
                if not _is_event(event):
                    raise UserError(
                        f"{method} of the strategy {name} yields {event!r}: yield the name of an event and a mapping of numbers "
                        "and text."
                    )
                yield event

    return call


def _is_later(answer: Any, step: int) -> bool:
    return isinstance(answer, Integral) and int(answer) > step  # also a number of NumPy


def _is_event(event: Any) -> bool:
    return isinstance(event, tuple) and len(event) == 2 and isinstance(event[0], str) and _is_json(event[1])


def _is_json(facts: Any) -> bool:
    """Return whether these facts are a mapping that JSON can hold, so that a line of a record can be written."""
    try:
        json.dumps(facts)
    except (TypeError, ValueError):
        return False
    return isinstance(facts, dict)
