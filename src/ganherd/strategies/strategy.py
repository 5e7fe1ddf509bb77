"""The interface between the training loop and a strategy. The base class is a strategy in which members never meet."""

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

Facts = dict[str, Any]  # numbers, texts and lists by their names, as a line of a file of records has them
Event = tuple[str, Facts]  # name and facts of a line in events.jsonl


class Strategy:
    """Act on a herd between its steps.

    At a meeting the loop does four things, in this order: it checks all members for non-finite state and reports the result to
    `on_health_check`, calls `close` to finish what the previous meeting started, saves a checkpoint if one is due, and calls
    `open` to start what lasts until the next meeting. Because the checkpoint lies between `close` and `open`, a run that is
    resumed from it continues exactly. No member changes between the two: over several ranks, nets are in transit then.

    Register a strategy of your own with `ganherd.register.strategy`.
    """

    def __init__(self) -> None:
        # Tensors [n, …], one row for each member of this rank, that checkpoints save and restore; names begin with `meet.`
        self.state: State = {}
        self.traffic = Traffic()
        # Ranks may run this many steps before they synchronise; 0: synchronise at every stop of the loop.
        self.max_unsynced_steps = 0

    @classmethod
    def check_nets(cls, settings: StrategySettings, breeds: Breeds, d: Blueprint, members: int) -> None:
        """Raise a UserError if the settings do not fit the nets; called before data is put on the device."""

    @classmethod
    def refuse_impossible(cls, prepared: PreparedHerd) -> None:
        """Raise a UserError if the strategy cannot be trained with this data and these nets."""

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        """Return the strategy of a run.

        Args:
            prepared: The herd, with its recipe, data and ranks.
            spans: The spans of the settings, in steps.
        """
        return cls()

    def next_after(self, step: int) -> int | None:
        """Return the next step after `step` at which members meet; None: they never meet again."""
        return None

    def meets_at(self, step: int) -> bool:
        """Return whether members meet at this step."""
        return step > 0 and self.next_after(step - 1) == step

    def on_health_check(self, step: int, finite: np.ndarray | None) -> None:
        """Receive the health check made at `step`.

        Args:
            finite: bool [N], True for members whose state is finite; None if a member was repaired since.
        """

    def close(self, step: int, continues: bool = False) -> Iterator[Event]:
        """Finish what the previous meeting started.

        Args:
            continues: `open` or `on_interrupt` follows, so that members may be sent ahead for it.
        """
        return iter(())

    def on_interrupt(self) -> None:
        """Complete pending transfers on all ranks: the run stops after `close`, and no `open` follows."""

    def open(self, step: int) -> Iterator[Event]:
        """Start what lasts until the next meeting; also called at step 0, and when a run is resumed, after `resume`."""
        return iter(())

    def resume(self, step: int) -> None:
        """Rebuild, from `state` and the herd of a checkpoint, what is in memory between two meetings."""

    def begin_unsynced(self, step: int, until: int, continues: bool) -> None:
        """Start a phase in which ranks do not synchronise; called on all ranks together if `max_unsynced_steps`.

        Args:
            until: The step at which the ranks synchronise again.
            continues: Training continues after that step.
        """

    def end_unsynced(self, step: int) -> Iterator[Event]:
        """End the phase of `begin_unsynced`, with all ranks at the same step; called after `close` if members meet there."""
        return iter(())

    def poll(self) -> None:
        """Advance pending transfers; called after every step."""

    def on_steps_done(self, seconds: float, step: int) -> None:
        """Receive the time that the engine took to reach `step` from its previous call."""

    def neighbourhoods(self, step: int) -> Neighbourhoods | None:
        """Return the mixtures that the strategy made of the members, at the end of a run; None: all members are one."""
        return None

    def generators(self) -> State | None:
        """Return the generators of this rank's members that go into the mixture; None: the current ones."""
        return None

    def metrics(self) -> Facts:
        """Return numbers for the next line of metrics, such as seconds per routine since the last one."""
        return {}
