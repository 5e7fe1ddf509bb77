"""What carries members between processes: a small interface that strategies are written against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ganherd.herd.state import State


@dataclass(frozen=True)
class Placement:
    """Which members live on which rank, by their number in the whole herd; in order, and each on one rank."""

    ranks: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Members of the whole herd."""
        return sum(len(own) for own in self.ranks)

    def home(self) -> dict[int, tuple[int, int]]:
        """Member -> (its rank, its row there)."""
        return {member: (rank, row) for rank, own in enumerate(self.ranks) for row, member in enumerate(own)}


class Communicator(ABC):
    """One process of a run, as the others see it. Every call but `rank` and `size` is made by all ranks together."""

    rank: int
    size: int

    @abstractmethod
    def fetch(self, state: State, placement: Placement, wanted: Sequence[Sequence[int]]) -> State:
        """Copies of the members wanted[rank], in that order, wherever they live; only slices that cross a rank are sent.

        `state` holds this rank's own members. All ranks know what each of them wants, so nothing has to be asked for.
        """

    @abstractmethod
    def gather(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Small numbers of this rank's members [n, …] -> those of all members [N, …], on every rank."""
