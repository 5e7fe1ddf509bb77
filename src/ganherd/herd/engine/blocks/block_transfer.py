"""Bring the next block of members to the device, and return the previous one, while a block trains."""

from __future__ import annotations

import time
from contextlib import suppress

import torch
from torch import Tensor

from ganherd.herd.engine.blocks.host_copies import HostCopies
from ganherd.herd.state import State, members_of


class BlockTransfer:
    """Three places on the device: for the block that trains, for the one that arrives and for the one that leaves.

    They are allocated once, so that a captured graph can train every block, and memory is not fragmented. Copies between
    places take no time compared with those from the host and back, which threads make meanwhile.
    """

    def __init__(self, training: State, device: torch.device) -> None:
        """Take the place of the block that trains: tensors [n, …] on the device with the names of the herd's state."""
        self._training = training
        self._arriving, self._leaving = ({name: _compact(value) for name, value in training.items()} for _ in range(2))
        self._arrivals, self._departures = HostCopies(device), HostCopies(device)
        self.seconds_waited = 0.0  # for copies that took longer than the training of a block, or that no training hides

    def fetch(self, block: State) -> None:
        """Start to copy a block of members from the host; `enter` completes it."""
        self._arrivals.start((self._arriving[name][: len(value)], value) for name, value in block.items())

    def enter(self, num_members: int) -> State:
        """Wait for the block that was fetched, and return its state in the place where blocks train."""
        self._wait(self._arrivals)
        return self._move(self._arriving, self._training, num_members)

    def leave(self, block: State) -> None:
        """Start to copy the block that was trained back to its members on the host, in place; `wait` completes it."""
        self._wait(self._departures)  # of the block before
        num_members = len(block["set.seed"])
        trained = self._move(self._training, self._leaving, num_members)
        self._departures.start((value, trained[name]) for name, value in block.items())

    def wait(self) -> None:
        """Wait until the host has the state of all blocks that have left."""
        self._wait(self._departures)

    def abandon(self) -> None:
        """Wait for all copies after an error, whatever becomes of them, so that none is made later."""
        for copies in (self._arrivals, self._departures):
            with suppress(Exception):
                copies.wait()

    def _wait(self, copies: HostCopies) -> None:
        began = time.perf_counter()
        copies.wait()
        self.seconds_waited += time.perf_counter() - began

    @staticmethod
    def _move(source: State, target: State, num_members: int) -> State:
        """Copy a block from one place on the device to another, and return it there."""
        rows = slice(0, num_members)
        source, target = members_of(source, rows), members_of(target, rows)
        for name, value in target.items():
            value.copy_(source[name])
        return target


def _compact(like: Tensor) -> Tensor:
    """Return an uninitialised tensor of the same shape, dtype and device whose rows follow each other without padding."""
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)
