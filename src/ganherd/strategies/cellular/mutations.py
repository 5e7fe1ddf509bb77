"""Mutate members of a cellular herd at creation or once an iteration: learning rates and the generators' losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ganherd.herd.engine.engines import StackedHerd, keys_on_device
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, base_keys
from ganherd.herd.step.mutation import draw_losses_, mutate_learning_rates_, replay_loss_draws
from ganherd.recipe.strategy.strategy_settings import MutationConfig
from ganherd.strategies.cellular.history.lineage import DRAWN
from ganherd.strategies.cellular.individuals import KINDS
from ganherd.strategies.member_ranks import MemberRanks

_AT_ONCE = 1 << 18  # random draws of losses that `Mutations.count` recomputes at a time


class Mutations:
    """Mutate learning rates and losses of this rank's members, at creation or at each iteration.

    Their values are recorded in events. If the recipe mutates them before every batch, the training step does that;
    this class then only counts the drawn losses.
    """

    def __init__(self, herd: StackedHerd, settings: MutationConfig, ranks: MemberRanks) -> None:
        self._herd, self._settings, self._ranks = herd, settings, ranks
        by_batch = len(settings.losses) if settings.loss_each == "batch" else 0
        # Empty, or int64 [n, losses]: how often each member drew each loss since the last event.
        self.state: State = (
            {"meet.losses": torch.zeros(herd.num_members, by_batch, dtype=torch.int64)} if by_batch else {}
        )
        self._counted = 0  # the step up to which draws are counted

    def at_creation(self) -> None:
        """Draw a loss for each new member, if the recipe draws losses once, at creation."""
        if self._settings.loss_each == "creation":
            self._draw_losses(0)

    def at_iteration(self, step: int) -> None:
        """Mutate learning rates and losses when an iteration begins, if the recipe mutates them once an iteration.

        It runs after the tournaments, so it changes the copies of the winners, and the next selection judges its
        effect.
        """
        settings, state = self._settings, self._herd.state
        if settings.learning_rate != "off" and settings.each == "iteration":
            draws = self._draws(step)
            for number, kind in enumerate(KINDS):
                how = settings.learning_rate, settings.strength, settings.probability
                mutate_learning_rates_(state, kind, draws, number, *how)
        if settings.loss_each == "iteration":
            self._draw_losses(step)

    def resume(self, step: int) -> None:
        """Continue counting from a checkpoint at this step."""
        self._counted = step

    def count(self, step: int) -> None:
        """Count how often each member drew each loss in the steps up to this one.

        The draws are recomputed from the members' random keys. This must run before a repair of a member changes its
        key.
        """
        counts, first, self._counted = self.state.get("meet.losses"), self._counted, step
        if counts is None or not len(counts):
            return
        base, losses, most = base_keys(self._herd.state), counts.shape[1], max(1, _AT_ONCE // len(counts))
        for start in range(first, step, most):
            # [steps, n]
            drawn = replay_loss_draws(base, range(start, min(start + most, step)), losses, self._herd.device)
            counts += torch.stack([(drawn == number).sum(0) for number in range(losses)], 1).cpu()

    def take_columns(self, step: int) -> dict[str, np.ndarray]:
        """Return columns [n] for an event, with a value for each of this rank's members, and reset the counts.

        Columns are the learning rates `lr_g` and `lr_d`; and `loss`, the number of the member's loss, or for losses
        drawn at each batch `drawn_NAME`, how often each was drawn.
        """
        self.count(step)
        state, out = self._herd.state, dict[str, np.ndarray]()
        for kind in KINDS:
            out[f"lr_{kind}"] = np.array([float(f"{rate:.7g}") for rate in state[f"set.lr_{kind}"].tolist()])
        counts = self.state.get("meet.losses")
        if counts is not None:
            for name, column in zip(self._settings.losses, counts.T.numpy(), strict=True):  # A name may occur twice.
                out[DRAWN + name] = out.get(DRAWN + name, 0) + column.copy()
            counts.zero_()
        elif self._settings.losses:
            out["loss"] = state["set.loss"].cpu().numpy().copy()
        return out

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the numbers in the column `loss` of events, by position."""
        return {"loss": self._herd.rules.game.names}

    def metrics(self) -> dict[str, list[float] | list[str]]:
        """Return the settings that mutate, with a value for each member of the herd. All ranks call this together."""
        out: dict[str, list[float] | list[str]] = {}
        state = self._herd.state
        if self._settings.learning_rate != "off":
            for kind, rates in zip(KINDS, self._all_gather(*(state[f"set.lr_{kind}"] for kind in KINDS)), strict=True):
                out[f"lr_{kind}"] = [float(f"{rate:.7g}") for rate in rates]
        if self._settings.losses and self._settings.loss_each != "batch":
            (drawn,) = self._all_gather(state["set.loss"])
            out["loss"] = [self._herd.rules.game.names[i] for i in drawn]
        return out

    def _draw_losses(self, step: int) -> None:
        """Draw for each member's generator one of the recipe's losses."""
        if losses := self._settings.losses:
            draw_losses_(self._herd.state, self._draws(step), len(losses))

    def _draws(self, step: int) -> Streams:
        """Return the random streams of this rank's members at a step."""
        return Streams(keys_on_device(base_keys(self._herd.state), self._herd.device), step)

    def _all_gather(self, *columns: torch.Tensor) -> list[list[Any]]:
        """Return lists of the values of all members of the herd, from columns [n] of this rank's members."""
        return list(self._ranks.all_gather(torch.stack(columns, 1).cpu().numpy()).T.tolist())
