"""One process: everyone lives here, and nothing is sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch
from torch import Tensor

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.pending import Fetch, PendingWork
from ganherd.comm.row_messages import index

if TYPE_CHECKING:
    from ganherd.herd.state import State


class Local(Communicator):
    name, rank, size = "local", 0, 1

    def begin_fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> Fetch:
        began = time.perf_counter()
        rows = {device: index(wanted[0], device) for device in {value.device for value in state.values()}}
        found = {name: value.index_select(0, rows[value.device]) for name, value in state.items()}
        self.seconds += time.perf_counter() - began
        return Fetch(self, None, lambda: found)

    def gather(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        return values

    def abort(self, code: int) -> NoReturn:
        sys.exit(code)

    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        pass

    def _start(
        self,
        outgoing: Mapping[int, Tensor],
        incoming: Mapping[int, Tensor],
        device: torch.device,
        apart: bool = False,
    ) -> PendingWork:
        raise AssertionError("there is nobody to send to")

    def _share(self, own: bytes, counts: Sequence[int]) -> bytes:
        return own

    def _among(self, ranks: Sequence[int]) -> None:
        raise AssertionError("one rank has no parts")

    def _leave(self) -> None:
        pass
