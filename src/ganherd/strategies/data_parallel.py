"""Data-parallel training, a baseline for herds: members are copies of one GAN that average their gradients.

Every member draws its own batch and noise. Before each update of a net, the gradients of all members are replaced by their
mean, so that all take the same step. If the loss is a mean over samples, this is the step of one GAN whose batch is all
members' batches together. Quantities of a whole batch are still computed from each member's own batch: the statistics
of batch norm, which therefore differ between members, and the means of relativistic losses and LeCam. The mixture
contains the first member alone.

Over several ranks each rank adds up the gradients of its members, and all ranks exchange these sums in every update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ganherd.comm.communicator import Placement
from ganherd.herd.engine.engines import StackedHerd
from ganherd.herd.state import State
from ganherd.strategies.member_ranks import MemberRanks
from ganherd.strategies.strategy import Event, Strategy
from ganherd.util.errors import UserError

if TYPE_CHECKING:
    from ganherd.training.setup.assemble import PreparedHerd


class DataParallel(Strategy):
    """Train copies of one GAN: copy the first member to the others at step 0, and average gradients at every update.

    There is one GAN for each group of members that meet: a replica of the herd, or a class of a replica. The strategy
    has no state, so a resumed run needs nothing restored.
    """

    @classmethod
    def build(cls, prepared: PreparedHerd, spans: Mapping[str, int]) -> Strategy:
        return cls(prepared.herd, MemberRanks.of(prepared))

    def __init__(self, herd: StackedHerd, ranks: MemberRanks) -> None:
        super().__init__()
        self.herd, self.ranks = herd, ranks
        self._gans = ranks.placement.num_members // ranks.members
        by_gan = groupby(range(len(ranks.own)), lambda row: ranks.own[row] // ranks.members)
        self._rows = {gan: torch.tensor(list(rows), device=herd.device) for gan, rows in by_gan}  # of this rank, by GAN
        self._each_rank = Placement(tuple((rank,) for rank in range(ranks.comm.world_size)))
        herd.gradient_hook = self.mean_gradients

    def open(self, step: int) -> Iterator[Event]:
        """At step 0, copy the nets of each GAN's first member to its other members, and yield an event about it."""
        if step:
            return
        state = self.herd.state
        nets: State = {name: value for name, value in state.items() if name.startswith(("g.", "d."))}
        firsts = [[m - m % self.ranks.members for m in members] for members in self.ranks.placement.ranks]
        copies = self.ranks.comm.fetch(nets, self.ranks.placement, firsts)
        for name, value in copies.items():
            state[name].copy_(value)
        yield "copies", {"gans": self._gans, "members": self.ranks.members}

    def mean_gradients(self, kind: str, gradients: list[Tensor]) -> list[Tensor]:
        """Replace each member's gradient by the mean over all members of its GAN, in place, and return the gradients.

        Args:
            kind: g or d, the net that is updated.
            gradients: The gradient of this rank's n members, as pieces [n, …] that hold different parameters.
        """
        if len(gradients[0]) != len(self.ranks.own):
            raise UserError(
                "strategy.name data-parallel averages gradients of all members of a rank at once: leave engine.chunk out, or "
                "use more ranks."
            )
        sizes = [gradient.shape[1] for gradient in gradients]
        sums = gradients[0].new_zeros(self._gans, sum(sizes))
        for gan, rows in self._rows.items():
            torch.cat([gradient[rows].sum(0) for gradient in gradients], out=sums[gan])
        if self.ranks.comm.world_size > 1:
            everyone = range(self.ranks.comm.world_size)
            tensors = {"sums": sums.reshape(1, -1)}
            each = self.ranks.comm.fetch(tensors, self._each_rank, [everyone] * len(everyone))["sums"]  # [ranks, …]
            sums = each.sum(0).reshape(self._gans, -1)
        means = (sums / self.ranks.members).split(sizes, 1)
        for gradient, mean in zip(gradients, means, strict=True):
            for gan, rows in self._rows.items():
                gradient[rows] = mean[gan]
        return gradients
