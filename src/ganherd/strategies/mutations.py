"""What mutates of a cellular herd's members at the start or once an iteration: learning rates and the generators' losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ganherd.comm.base import Communicator, Placement
from ganherd.herd.engine import Herd, on_device
from ganherd.herd.mutation import draw_losses_, wander_
from ganherd.herd.state import bases
from ganherd.herd.streams import Streams
from ganherd.recipe_strategy import Mutation
from ganherd.strategies.individuals import KINDS


class Mutations:
    """Changes the settings of this rank's members; what mutates before every batch does so in the step itself."""

    def __init__(self, herd: Herd, settings: Mutation, comm: Communicator, placement: Placement) -> None:
        self._herd, self._settings, self._comm, self._placement = herd, settings, comm, placement

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
                wander_(state, kind, draws, number, *how)
        if settings.loss_each == "iteration":
            self._draw_losses(step)

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
        return Streams(on_device(bases(self._herd.state), self._herd.device), step)

    def _everyones(self, *columns: torch.Tensor) -> list[list[Any]]:
        """Small numbers of this rank's members [n], each -> those of all members."""
        found: np.ndarray = self._comm.gather(torch.stack(columns, 1).cpu().numpy(), self._placement)
        return list(found.T.tolist())
