"""A strategy: from time to time every discriminator moves on to the next member of a ring."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import ganherd
from ganherd.register import MemberRanks, Strategy, StrategySettings


class RingSettings(StrategySettings):
    every: ganherd.register.Span = "1epochs"  # span between two moves

    @property
    def default_members(self) -> int:
        return 4

    @property
    def spans(self) -> Mapping[str, str]:
        return {"every": self.every}


@ganherd.register.strategy("ring", settings=RingSettings)
class Ring(Strategy):
    """Every discriminator moves on to the next member."""

    @classmethod
    def build(cls, prepared: Any, spans: Mapping[str, int]) -> "Ring":
        return cls(prepared.herd, MemberRanks.of(prepared), spans["every"])

    def __init__(self, herd: Any, ranks: MemberRanks, every: int) -> None:
        super().__init__()
        self.herd, self.ranks, self.every = herd, ranks, every
        self.state["meet.moves"] = torch.zeros(
            len(ranks.own), dtype=torch.int64
        )  # one number a member; checkpoints have it

    def next_after(self, step: int) -> int:
        return (step // self.every + 1) * self.every

    def open(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.meets_at(step):
            return
        size = self.ranks.members  # of one replica, whose members are consecutive
        before = [[m - m % size + (m - 1) % size for m in members] for members in self.ranks.placement.ranks]
        tensors = {name: value for name, value in self.herd.state.items() if name.startswith("d.")}
        for name, value in self.ranks.comm.fetch(tensors, self.ranks.placement, before).items():
            self.herd.state[name].copy_(value)
        self.state["meet.moves"] += 1
        yield "ring", {"number": int(self.state["meet.moves"][0])}
