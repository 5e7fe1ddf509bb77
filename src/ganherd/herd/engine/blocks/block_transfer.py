"""Copy the next block of members (GANs) to the device, and the previous one to the host, while a block trains."""

from __future__ import annotations

import time
from contextlib import suppress

import torch
from torch import Tensor

from ganherd.herd.engine.blocks.host_copies import HostCopies
from ganherd.herd.state import State, members_of


class BlockTransfer:
    """Copy blocks between the host and three places on the device: of the block that trains, arrives or leaves.

    A place is a set of tensors that is allocated once. So a captured CUDA graph, which needs fixed addresses, can train
    every block, and memory is not fragmented. Threads copy between host and device in the background; copies from one
    place to another take little time in comparison.
    """

    def __init__(self, training: State, device: torch.device) -> None:
        """Allocate the places of the arriving and the leaving block.

        Args:
            training: The place of the block that trains: tensors [n, …] on the device with the names of the herd's
                state.
        """
        self._training = training
        self._arriving, self._leaving = ({name: _compact(value) for name, value in training.items()} for _ in range(2))
        self._arrivals, self._departures = HostCopies(device), HostCopies(device)
        self.seconds_waited = 0.0  # seconds that training has spent waiting for copies

    def fetch(self, block: State) -> None:
        """Start to copy a block of members from the host to the place for arrivals; `enter` waits for the copy."""
        self._arrivals.start((self._arriving[name][: len(value)], value) for name, value in block.items())

    def enter(self, num_members: int) -> State:
        """Wait for the block that was fetched, move it to the place for training, and return its state there.

        Args:
            num_members: The number of members of the block.
        """
        self._wait(self._arrivals)
        return self._move(self._arriving, self._training, num_members)

    def leave(self, block: State) -> None:
        """Start to copy the block that was trained back to the host; `wait` waits for the copy.

        Args:
            block: The block's state on the host, which is overwritten.
        """
        self._wait(self._departures)  # wait for the copy of the previous block
        num_members = len(block["set.seed"])
        trained = self._move(self._training, self._leaving, num_members)
        self._departures.start((value, trained[name]) for name, value in block.items())

    def wait(self) -> None:
        """Wait until all copies that `leave` has started are complete."""
        self._wait(self._departures)

    def abandon(self) -> None:
        """Wait for all copies after an error, so that none is running afterwards; their own errors are ignored."""
        for copies in (self._arrivals, self._departures):
            with suppress(Exception):
                copies.wait()

    def _wait(self, copies: HostCopies) -> None:
        began = time.perf_counter()
        copies.wait()
        self.seconds_waited += time.perf_counter() - began

    @staticmethod
    def _move(source: State, target: State, num_members: int) -> State:
        """Copy the first `num_members` members from one place to another, and return their state in the latter."""
        rows = slice(0, num_members)
        source, target = members_of(source, rows), members_of(target, rows)
        for name, value in target.items():
            value.copy_(source[name])
        return target


def _compact(like: Tensor) -> Tensor:
    """Return an uninitialised tensor of the same shape, dtype and device whose rows follow each other without padding."""
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)
