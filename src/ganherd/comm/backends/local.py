"""The communicator of a single process: all members live here, and nothing is sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import torch

from ganherd.comm.communicator import Communicator, Placement
from ganherd.comm.row_messages import Fetch, Messages, PendingWork, index

if TYPE_CHECKING:
    from ganherd.herd.state import State


class Local(Communicator):
    """Serve a run in one process: a fetch copies rows, and gathers return their argument."""

    name, rank, world_size = "local", 0, 1

    def begin_fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> Fetch:
        began = time.perf_counter()
        rows = {device: index(wanted[0], device) for device in {value.device for value in state.values()}}
        members = {name: value.index_select(0, rows[value.device]) for name, value in state.items()}
        self.exchange_seconds += time.perf_counter() - began
        return Fetch(self, None, lambda: members)

    def all_gather(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        return values

    def abort(self, code: int) -> NoReturn:
        sys.exit(code)

    def fail(self, code: int, patience: float = 10.0, last_words: str = "") -> None:
        pass

    def _start(
        self, outgoing: Messages, incoming: Messages, device: torch.device, unsynced: bool = False
    ) -> PendingWork:
        raise AssertionError("a single process has no peers")

    def _all_gather_bytes(self, content: bytes, counts: Sequence[int]) -> bytes:
        return content

    def _new_group(self, ranks: Sequence[int]) -> None:
        raise AssertionError("a single process has no groups")

    def _release(self) -> None:
        pass
