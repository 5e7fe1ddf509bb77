"""What mutates of a cellular herd's members at the start or once an iteration: learning rates and the generators' losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.herd.engine.engines import Herd, keys_on_device
from ganherd.herd.rng import Streams
from ganherd.herd.state import State, base_keys
from ganherd.herd.step.mutation import draw_losses_, mutate_learning_rates_, replay_loss_draws
from ganherd.recipe.strategy.strategy_settings import MutationConfig
from ganherd.strategies.cellular.history.lineage import DRAWN
from ganherd.strategies.cellular.individuals import KINDS

_AT_ONCE = 1 << 18  # draws that are repeated at a time


class Mutations:
    """Changes the settings of this rank's members; what mutates before every batch does so in the step itself."""

    def __init__(self, herd: Herd, settings: MutationConfig, comm: Communicator, placement: Placement) -> None:
        self._herd, self._settings, self._comm, self._placement = herd, settings, comm, placement
        by_batch = len(settings.losses) if settings.loss_each == "batch" else 0
        # how often each loss was drawn since that was last told, [n, losses], and the step up to which that is counted
        self.state: State = (
            {"meet.losses": torch.zeros(herd.num_members, by_batch, dtype=torch.int64)} if by_batch else {}
        )
        self._counted = 0

    def at_creation(self) -> None:
        if self._settings.loss_each == "creation":
            self._draw_losses(0)

    def at_iteration(self, step: int) -> None:
        """After the tournaments: of the copies, so that it is selected with them."""
        settings, state = self._settings, self._herd.state
        if settings.learning_rate != "off" and settings.each == "iteration":
            draws = self._draws(step)
            for number, kind in enumerate(KINDS):
                how = settings.learning_rate, settings.strength, settings.probability
                mutate_learning_rates_(state, kind, draws, number, *how)
        if settings.loss_each == "iteration":
            self._draw_losses(step)

    def resume(self, step: int) -> None:
        self._counted = step

    def count(self, step: int) -> None:
        """The losses of all batches up to this step. Called before a member can be repaired, which gives it other draws."""
        counts, first, self._counted = self.state.get("meet.losses"), self._counted, step
        if counts is None or not len(counts):
            return
        base, losses, most = base_keys(self._herd.state), counts.shape[1], max(1, _AT_ONCE // len(counts))
        for start in range(first, step, most):
            drawn = replay_loss_draws(
                base, range(start, min(start + most, step)), losses, self._herd.device
            )  # [steps, n]
            counts += torch.stack([(drawn == number).sum(0) for number in range(losses)], 1).cpu()

    def taken(self, step: int) -> dict[str, np.ndarray]:
        """For an event, of this rank's members: learning rates, and losses (by number) or how often each was drawn."""
        self.count(step)
        state, out = self._herd.state, dict[str, np.ndarray]()
        for kind in KINDS:
            out[f"lr_{kind}"] = np.array([float(f"{rate:.7g}") for rate in state[f"set.lr_{kind}"].tolist()])
        counts = self.state.get("meet.losses")
        if counts is not None:
            for name, column in zip(self._settings.losses, counts.T.numpy(), strict=True):  # a name may be there twice
                out[DRAWN + name] = out.get(DRAWN + name, 0) + column.copy()
            counts.zero_()
        elif self._settings.losses:
            out["loss"] = state["set.loss"].cpu().numpy().copy()
        return out

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """What numbers in events stand for."""
        return {"loss": self._herd.rules.game.names}

    def measured(self) -> dict[str, Any]:
        """The settings that mutate, of all members; all ranks ask for them together."""
        out, state = dict[str, Any](), self._herd.state
        if self._settings.learning_rate != "off":
            for kind, rates in zip(KINDS, self._everyones(*(state[f"set.lr_{kind}"] for kind in KINDS)), strict=True):
                out[f"lr_{kind}"] = [float(f"{rate:.7g}") for rate in rates]
        if self._settings.losses and self._settings.loss_each != "batch":
            (drawn,) = self._everyones(state["set.loss"])
            out["loss"] = [self._herd.rules.game.names[i] for i in drawn]
        return out

    def _draw_losses(self, step: int) -> None:
        """Of each member's generator one of the losses that the recipe lets it have."""
        if losses := self._settings.losses:
            draw_losses_(self._herd.state, self._draws(step), len(losses))

    def _draws(self, step: int) -> Streams:
        return Streams(keys_on_device(base_keys(self._herd.state), self._herd.device), step)

    def _everyones(self, *columns: torch.Tensor) -> list[list[Any]]:
        """Small numbers of this rank's members [n], each -> those of all members."""
        found: np.ndarray = self._comm.gather(torch.stack(columns, 1).cpu().numpy(), self._placement)
        return list(found.T.tolist())
