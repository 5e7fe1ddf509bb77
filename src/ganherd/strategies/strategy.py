"""The interface between the training loop and a strategy, which decides what happens between the members of a herd.

Members meet at a step if the strategy exchanges, compares or averages something of them there. The base class is a
strategy in which members never meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ganherd.herd.state import State
from ganherd.mixture.mixture_files import Neighbourhoods
from ganherd.recipe.strategy.strategy_settings import StrategySettings
from ganherd.strategies.member_ranks import Traffic

if TYPE_CHECKING:
    from ganherd.herd.breeds import Breeds
    from ganherd.herd.state import Blueprint
    from ganherd.training.setup.assemble import PreparedHerd

Facts = dict[str, Any]  # numbers, texts and lists by name, the content of a line in metrics.jsonl or events.jsonl
Event = tuple[str, Facts]  # the name and the facts of a line in events.jsonl


class Strategy:
    """Act on a herd between its training steps.

    At a step at which members meet, the loop does four things, in this order: it checks all members for non-finite
    state and reports the result to `on_health_check`, calls `close` to finish what the previous meeting started, saves
    a checkpoint if one is due, and calls `open` to start what lasts until the next meeting. Because the checkpoint lies
    between `close` and `open`, a run that is resumed from it continues exactly. Members must not change between these
    two calls, because over several ranks their nets may be in transit then.

    Register a strategy of your own with `ganherd.register.strategy`.
    """

    def __init__(self) -> None:
        # Tensors [n, …], with a row for each member of this rank, that checkpoints save and restore; names begin with
        # `meet.`
        self.state: State = {}
        self.traffic = Traffic()
        # Ranks may run this many steps before they synchronise; 0: synchronise at every stop of the loop.
        self.max_unsynced_steps = 0

    @classmethod
    def check_nets(cls, settings: StrategySettings, breeds: Breeds, d: Blueprint, members: int) -> None:
        """Raise a UserError if the settings do not fit the nets; called before data is put on the device.

        Args:
            settings: The strategy's section of the recipe.
            breeds: The generators, by architecture.
            d: The discriminator.
            members: The number of members in a replica (one of several independent copies of the herd).
        """

    @classmethod
    def refuse_impossible(cls, prepared: PreparedHerd) -> None:
        """Raise a UserError if the strategy cannot be trained with this data and these nets."""

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        """Return the strategy of a run.

        Args:
            prepared: The herd, with its recipe, data and ranks.
            spans: The lengths of time in the settings (`StrategySettings.spans`) in steps, by name.
        """
        return cls()

    def next_after(self, step: int) -> int | None:
        """Return the next step after `step` at which members meet; None: they never meet again."""
        return None

    def meets_at(self, step: int) -> bool:
        """Return whether members meet at this step."""
        return step > 0 and self.next_after(step - 1) == step

    def on_health_check(self, step: int, finite: np.ndarray | None) -> None:
        """Receive the result of the loop's check for NaN and infinity at `step`.

        Args:
            step: The step of the check.
            finite: bool [N], True for members whose state is finite; None if a member was repaired after the check.
        """

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        """Finish what the previous meeting started, and yield events about it.

        Args:
            step: The step of this meeting.
            continues: True if `open` or `on_interrupt` follows, so transfers of members for `open` may be started
                already.
        """
        return iter(())

    def on_interrupt(self) -> None:
        """Complete pending transfers; called on all ranks instead of `open` if the run stops after `close`."""

    def open(self, step: int) -> Iterator[Event]:
        """Start what lasts until the next meeting, and yield events about it.

        It is also called at step 0, and after `resume` when a run is resumed.
        """
        return iter(())

    def resume(self, step: int) -> None:
        """Rebuild what a checkpoint does not hold, from `state` and the herd that were loaded from that of `step`."""

    def begin_unsynced(self, step: int, until: int, continues: bool) -> None:
        """Start a phase in which ranks do not synchronise; called on all ranks if `max_unsynced_steps` is not 0.

        Args:
            step: The current step.
            until: The step at which the ranks synchronise next.
            continues: True if training continues after that step.
        """

    def end_unsynced(self, step: int) -> Iterator[Event]:
        """End the phase that `begin_unsynced` started, and yield its events; all ranks are at the same step.

        If members meet at this step, it is called after `close`.
        """
        return iter(())

    def poll(self) -> None:
        """Let pending transfers make progress, without waiting for them; called after every step."""

    def on_steps_done(self, seconds: float, step: int) -> None:
        """Receive the number of seconds that the engine took for the steps since the previous call, up to `step`."""

    def neighbourhoods(self, step: int) -> Neighbourhoods | None:
        """Return the mixtures of generators that the strategy made, at the end of a run; None: all members form one."""
        return None

    def generators(self) -> State | None:
        """Return the generators of this rank's members that go into the mixture, as tensors; None: the current ones."""
        return None

    def metrics(self) -> Facts:
        """Return numbers for the next line of metrics.jsonl, such as seconds per routine since the previous line."""
        return {}
